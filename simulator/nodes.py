"""Simulated nodes: what a node manager answers to commands, without processes. Same rules, virtual time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from controller.core import actions as a
from controller.core import events as e
from controller.core.model import ENDED, MemberReport, MemberState, NodeOffer, SlotKey


@dataclass
class SimulatedEngine:
    report: MemberReport
    group_ready: bool = False


@dataclass
class SimulatedNode:
    """One machine. `inbox` holds commands under way to it, `outbox` its messages under way to the controller;
    both are lost with the stream."""

    offer: NodeOffer
    session: str | None = None
    inbox: deque[a.Action] = field(default_factory=deque)
    outbox: deque[tuple[str, object]] = field(default_factory=deque)
    engines: dict[SlotKey, SimulatedEngine] = field(default_factory=dict)
    newest: dict[SlotKey, int] = field(default_factory=dict)
    stopped: dict[SlotKey, int] = field(default_factory=dict)  # newest generation told to stop
    prepared: dict[SlotKey, int] = field(default_factory=dict)
    refuse_prepare: bool = False
    devices_stay_busy: bool = False
    model_digest: str = "digest"
    starts: list[a.SendStart] = field(default_factory=list)
    # messages that have an arrival time, and the last one: a stream keeps its order
    number: int = 0  # in the order of the cluster
    busy: set[int] = field(default_factory=set)  # the cluster's: numbers of nodes with something to send or to read
    underway_in: int = 0
    underway_out: int = 0
    arrival_in: float = 0.0
    arrival_out: float = 0.0

    def holdings(self) -> tuple[MemberReport, ...]:
        return tuple(engine.report for engine in self.engines.values())

    def obey(self, command: a.Action, taken_ports: set[int] | frozenset[int] = frozenset()) -> None:
        """Do what a manager does with one command; answers go to the outbox. `taken_ports` are held by strangers."""
        if isinstance(command, a.SendGroupReady):
            engine = self.engines.get(command.slot)
            if engine is not None and engine.report.generation == command.generation:
                engine.group_ready = command.ready
                self._follow(command.slot)
            return
        if isinstance(command, a.SendForget):
            engine = self.engines.get(command.slot)
            if engine and engine.report.generation <= command.generation and engine.report.state in ENDED:
                del self.engines[command.slot]
            return
        if isinstance(command, a.SendRelease):
            if self.prepared.get(command.slot) == command.generation:
                del self.prepared[command.slot]
            return
        if isinstance(command, a.SendStop):
            self._stop(command)
            return
        if isinstance(command, (a.SendPrepare, a.SendStart)):
            newest = self.newest.get(command.slot, 0)
            if command.generation < newest or command.generation <= self.stopped.get(command.slot, 0):
                kind = "start" if isinstance(command, a.SendStart) else "prepare"
                self.say("refused", (command.slot, command.generation, kind, newest))
                return
            self.newest[command.slot] = command.generation
            if isinstance(command, a.SendPrepare):
                placed = command.placement
                wanted = {placed.api_port, placed.master_port if command.is_world_master else None}
                taken = tuple(sorted(port for port in wanted if port is not None and port in taken_ports))
                ok = not self.refuse_prepare and not taken
                if ok:
                    self.prepared[command.slot] = command.generation
                self.say("prepare", (command.slot, command.generation, ok, taken))
            else:
                self._start(command)

    def _start(self, command: a.SendStart) -> None:
        engine = self.engines.get(command.slot)
        if engine is not None and engine.report.generation == command.generation:
            self.say("report", engine.report)  # the same start again: one engine
            return
        if engine is not None and engine.report.state not in ENDED:
            raise AssertionError(f"rule 5: {command.slot} generation {command.generation} starts over a live engine")
        self.starts.append(command)
        placed = command.placement
        report = MemberReport(
            command.slot, command.generation, 0, command.run_id, command.config_digest, MemberState.LOADING,
            devices=placed.devices, address=placed.address, master_addr=placed.master_addr,
            master_port=placed.master_port, api_port=placed.api_port or 0, dp_rpc_port=placed.dp_rpc_port or 0,
        )  # fmt: skip
        self.engines[command.slot] = SimulatedEngine(report)
        self.say("report", report)

    def _stop(self, command: a.SendStop) -> None:
        engine = self.engines.get(command.slot)
        if engine is not None and engine.report.generation > command.generation:
            return
        self.stopped[command.slot] = max(command.generation, self.stopped.get(command.slot, 0))
        if engine is None or engine.report.generation < command.generation:
            if engine is not None:  # an older one ends as well, and both are confirmed
                engine.report = replace(engine.report, state=MemberState.STOPPED)
                self.say("report", engine.report)
            gone = MemberReport(command.slot, command.generation, 0, "", "", MemberState.STOPPED)
            self.say("report", gone)
            return
        engine.report = replace(
            engine.report, state=MemberState.STOPPED, devices_busy=self.devices_stay_busy, reason="devices busy"
        )
        self.say("report", engine.report)

    def _follow(self, slot: SlotKey) -> None:
        engine = self.engines[slot]
        if engine.report.state is MemberState.LOADING and engine.report.workers_up and engine.group_ready:
            self.change(slot, state=MemberState.READY)
        elif engine.report.state is MemberState.READY and not engine.group_ready:
            self.change(slot, state=MemberState.LOADING)

    def workers_up(self, slot: SlotKey, has_api: bool) -> None:
        """The engine of `slot` has come up."""
        engine = self.engines[slot]
        if engine.report.state is not MemberState.LOADING:
            return
        if has_api:
            self.change(slot, state=MemberState.READY, workers_up=True)
        else:
            self.change(slot, workers_up=True)
            self._follow(slot)

    def crash(self, slot: SlotKey) -> None:
        self.change(slot, state=MemberState.FAILED, exit_code=0, reason="the engine exited")

    def change(self, slot: SlotKey, **changes: object) -> None:
        engine = self.engines[slot]
        engine.report = replace(engine.report, **changes)  # type: ignore[arg-type]
        self.say("report", engine.report)

    def new_manager(self) -> None:
        """The manager was killed and another looks after the engines: reservations are gone, and of an engine that had
        ended only how it ended is known, not that its stop was confirmed."""
        self.hang_up()
        self.prepared.clear()
        for engine in self.engines.values():
            if engine.report.state is MemberState.STOPPED:
                engine.report = replace(engine.report, state=MemberState.FAILED)
        self.offer = replace(self.offer, incarnation=self.offer.incarnation + 1)

    def reboot(self) -> None:
        """The machine went down: engines, reservations and the stream are gone, its state folder is not."""
        self.engines.clear()
        self.prepared.clear()
        self.hang_up()
        number = int(self.offer.boot_id.split("-")[1]) + 1
        self.offer = replace(self.offer, boot_id=f"boot-{number}", incarnation=self.offer.incarnation + 1)

    def hang_up(self) -> None:
        self.session = None
        self.inbox.clear()
        self.outbox.clear()
        self.underway_in = self.underway_out = 0
        self.arrival_in = self.arrival_out = 0.0

    def say(self, kind: str, content: object) -> None:
        if self.session is not None:
            self.outbox.append((kind, content))
            self.busy.add(self.number)

    def receive(self, command: a.Action) -> None:
        """A command is under way to this node."""
        self.inbox.append(command)
        self.busy.add(self.number)

    def event(self, kind: str, content: object, now: float, nonce: str) -> e.Event:
        """A message of the outbox as the event it becomes at the controller."""
        assert self.session is not None
        node_id = self.offer.node_id
        if kind == "report":
            assert isinstance(content, MemberReport)
            return e.MemberReported(now, nonce, self.session, node_id, content)
        assert isinstance(content, tuple)
        if kind == "prepare":
            slot, generation, ok, taken = content
            bad = (
                e.PrepareItem("ports", False, f"{taken} taken by pid 1")
                if taken
                else e.PrepareItem("model", False, "gone")
            )
            items = () if ok else (bad,)
            return e.PrepareReported(
                now, nonce, self.session, node_id, slot, generation, ok, items, self.model_digest, taken_ports=taken
            )
        slot, generation, command, newest = content
        return e.CommandRefused(
            now,
            nonce,
            self.session,
            node_id,
            slot,
            generation,
            command,
            "stale_generation",
            "older",
            0,
            newest,
        )
