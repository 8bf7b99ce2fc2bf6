"""The node manager: what this node holds, and what it does with each command of the controller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from motor_rpc import control_pb2 as pb

from engine_launch.profiles import UnknownProfile, resolve
from engine_launch.secrets import Mask
from nodemanager import devices_free, left_overs, netif, probing, shim_client
from nodemanager.aside import in_thread
from nodemanager.config import NodeConfig
from nodemanager.dial import Dialer
from nodemanager.engine_offer import Versions
from nodemanager.engine_start import FAILED, READY, STOPPED, StopRequest, Surroundings
from nodemanager.environment import ScriptCache
from nodemanager.items import WARNING
from nodemanager.link import Link
from nodemanager.logstream import PLAIN, LogStreams
from nodemanager.plausible import implausible
from nodemanager.ports import show_taken, taken_ports
from nodemanager.prepare import Held, Preparer
from nodemanager.records import RecordError, Records, StartRecord, boot_id
from nodemanager.slots import SlotKey
from nodemanager.stages import StageTracker
from nodemanager.starting import CommandRefusedError, StartPlace, drop_old_logs, log_path, make_record
from nodemanager.supervisor import Supervisor
from nodemanager.telemetry.choose import choose
from nodemanager.telemetry.collector import Collector
from nodemanager.vitals import Facts

log = logging.getLogger(__name__)

PROTOCOL = 1
FIRST_LOOK_SECONDS = 3.0  # adopted engines are looked at once before they are reported
STOP_MARGIN_SECONDS = 20.0  # over the drain: workers need about 13 s to end
MANAGER_LOG = "nodemanager.log"
GROUP_READY_FILE = "group_ready"
TOOL_SECONDS = 5.0  # for one call of a command-line tool that reads devices


def motor_version() -> str:
    try:
        return version("motor-pcp")
    except PackageNotFoundError:
        return ""


def health_facts(record: StartRecord) -> Facts:
    """What the engine's profile says about signs of life; nothing if this version does not know the profile."""
    try:
        profile = resolve(record.engine_profile)
    except UnknownProfile:
        return Facts()
    return Facts(profile.metrics_path, profile.progress_counters, profile.warning_patterns)


def stage_tracker(record: StartRecord) -> StageTracker:
    """Follows the log by the markers of the engine's profile; without any if this version does not know the
    profile.
    """
    now = time.monotonic()
    try:
        profile = resolve(record.engine_profile)
    except UnknownProfile as error:
        log.error("%s: %s; its stages cannot be told", record.slot, error)
        return StageTracker((), (), "", now)
    return StageTracker(profile.stages, profile.fatal_patterns, profile.worker_stage, now)


class NodeManager:
    """Owns the slots of this node. Commands of one slot are obeyed in order, slots independently."""

    def __init__(self, config: NodeConfig, records: Records, node_id: str, incarnation: int) -> None:
        self.config = config
        self.records = records
        self.node_id = node_id
        self.incarnation = incarnation
        self.address = ""
        self.placement = pb.PlacementMsg()
        self.epoch = 0
        self.slots: dict[SlotKey, Supervisor] = {}
        self.scripts = ScriptCache()
        self.versions = Versions(self.scripts)
        self.owner = left_overs.Owner(node_id, str(records.state_dir))
        self.preparer = Preparer(config, self.owner, self.versions, self._held)
        self.link = Link(
            config.endpoints(), self.register, self.handle, dialer=Dialer(config.tls_files()), may_dial=config.may_dial
        )
        self.logs = LogStreams(self.link.send)
        self.telemetry = Collector(partial(choose, config.devices.kind, TOOL_SECONDS))
        self._around = Surroundings(
            self.owner, records, config.orphan_grace, stage_tracker, self._report, health_facts, self.telemetry,
            heard_at=lambda: self.link.state.heard_at, occupied=devices_free.looker(config),
            devices_free_seconds=config.limits.devices_free_seconds,
        )  # fmt: skip
        self._order: dict[SlotKey, asyncio.Lock] = {}
        self._prepares: dict[SlotKey, tuple[int, asyncio.Task[None]]] = {}  # under way, with their generation
        self._tasks: set[asyncio.Task[Any]] = set()
        self._commands: dict[str, Callable[[SlotKey, Any, int], Awaitable[None]]] = {
            "prepare": self._prepare,
            "release": self._release,
            "start": self._start,
            "stop": self._stop,
            "group_ready": self._group_ready,
            "forget": self._forget,
        }

    # --- life of the manager

    async def adopt(self) -> None:
        """Take over what earlier managers started: connect to living shims, end left-overs of dead ones."""
        newest: dict[SlotKey, tuple[StartRecord, Path]] = {}
        for folder in list(self.records.generations()):
            try:
                record = self.records.load(folder)
            except RecordError as error:
                log.error("%s; its engine, if there is one, ends with its lease", error)
                continue
            if record is None:
                log.info("%s: nothing was started from it", folder)
                shutil.rmtree(folder, ignore_errors=True)
                continue
            if record.key in newest:
                await self._end_older(*newest[record.key])
            newest[record.key] = (record, folder)
        for record, folder in newest.values():
            log.info("%s generation %d: found in %s", record.slot, record.generation, folder)
            supervisor = Supervisor(record, folder, self._around)
            supervisor.readiness.group_ready = (folder / GROUP_READY_FILE).exists()
            supervisor.reason = "adopting it from an earlier manager"
            self.slots[record.key] = supervisor
            self._spawn(supervisor.run(adopt=True), f"supervise {record.slot}")

    async def _end_older(self, record: StartRecord, folder: Path) -> None:
        """A generation before the newest of its slot should not run; if it does, it ends."""
        status = self.records.status(folder)
        if status.get("state") != "reaped":
            await left_overs.end(lambda: left_overs.of_generation(self.owner, record.slot, record.generation, status))
            if shim_client.alive(status, boot_id()):
                os.kill(int(status["shim_pid"]), signal.SIGKILL)
        self.records.forget(record.key, record.generation)

    def detach(self) -> list[asyncio.Task[Any]]:
        """Let go of everything; engines go on under their shims. Returns what still has to end."""
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        self.preparer.release_all()
        self.logs.cancel_all()
        self.telemetry.close()
        return ending

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", task.get_name(), exc_info=task.exception())

    # --- what goes up

    async def register(self) -> pb.RegisterMsg:
        """The first message of a session. AddressError while there is no usable address."""
        config = self.config
        self.logs.cancel_all()  # they were asked for in an earlier session
        self.address = netif.data_address(config.address, config.endpoints(), config.allow_loopback)
        offers = await asyncio.gather(*(self.versions.offer(name, engine) for name, engine in config.engines.items()))
        looks = [asyncio.create_task(one.looked.wait()) for one in self.slots.values()]
        if looks:
            _, late = await asyncio.wait(looks, timeout=FIRST_LOOK_SECONDS)
            for task in late:
                task.cancel()
        return pb.RegisterMsg(
            protocol=PROTOCOL, node_id=self.node_id, incarnation=self.incarnation, boot_id=boot_id(),
            deployment_id=config.deployment_id, hostname=socket.gethostname(), motor_version=motor_version(),
            address=self.address, role=config.role or "", labels=config.labels,
            device_kind=config.devices.kind, devices=config.devices.all(),
            engines=[
                pb.EngineOffer(name=name, version=found.version, error=found.error, profile=found.profile)
                for name, found in zip(config.engines, offers, strict=True)
            ],
            allow_loopback=config.allow_loopback, expected_nnodes=config.expected_nnodes or 0,
            expected_model=config.expected_model or "",
            holdings=[one.report() for one in self.slots.values()],
            seen=[
                pb.SlotSeen(slot=key.message(), generation=newest.generation, epoch=newest.epoch)
                for key, newest in self.records.seen()
            ],
        )  # fmt: skip

    def _report(self, supervisor: Supervisor) -> None:
        self.link.send(pb.NodeMessage(slot_report=supervisor.report()))

    def _refuse(self, slot: pb.Slot, generation: int, command: str, code: str, reason: str) -> None:
        log.warning("%s of %s generation %d refused (%s): %s", command, _show(slot), generation, code, reason)
        refusal = pb.CommandRefused(slot=slot, generation=generation, command=command, code=code, reason=reason)
        try:
            newest = self.records.newest(SlotKey.from_message(slot))
            refusal.newest_epoch, refusal.newest_generation = newest.epoch, newest.generation
        except (ValueError, RecordError):
            pass
        self.link.send(pb.NodeMessage(command_refused=refusal))

    # --- what comes down

    async def handle(self, message: pb.ControllerMessage) -> None:
        """Take one command; its work goes on in the background."""
        kind = message.WhichOneof("body") or "unknown"
        body = getattr(message, kind, None)
        slot, generation = getattr(body, "slot", pb.Slot()), getattr(body, "generation", 0)
        if message.deployment_id != self.config.deployment_id:
            reason = f"deployment_id: expected {self.config.deployment_id!r}, got {message.deployment_id!r}"
            self._refuse(slot, generation, kind, "deployment", reason)
        elif problem := implausible(message):
            self._refuse(slot, generation, kind, "limits", problem)
        elif kind == "placement":
            self.placement = message.placement
            log.info("placement: %s %s", message.placement.state, message.placement.reason)
        elif kind == "log_request":
            self._log_request(message.log_request)
        elif kind == "log_cancel":
            self.logs.cancel(message.log_cancel.request_id)
        elif kind == "probe_request":
            self._spawn(self._probe(message.probe_request), f"probe {message.probe_request.request_id}")
        elif kind in self._commands:
            self._slot_command(kind, slot, generation, body, message.epoch)
        else:
            self._refuse(slot, generation, kind, "limits", "this version of the node manager does not know the command")

    def _slot_command(self, kind: str, slot: pb.Slot, generation: int, body: Any, epoch: int) -> None:
        try:
            key = SlotKey.from_message(slot)
            refused = self._too_old(kind, key, generation, epoch)
            if refused is not None:
                self._refuse(slot, generation, kind, *refused)
                return
        except (ValueError, RecordError) as error:
            self._refuse(slot, generation, kind, "limits", str(error))
            return
        # The node's own journal: whom it obeyed. tests/ha reads that no epoch had two controllers.
        controller = self.link.state.controller
        log.info("obeys %s of %s generation %d: epoch %d of %s", kind, key, generation, epoch, controller)
        if epoch > self.epoch:
            self.epoch = epoch
            self.preparer.newer_epoch(epoch)
        if kind in ("prepare", "release", "stop") and key in self._prepares:
            self._cancel_prepare(key, generation)
        task = self._spawn(self._in_order(kind, key, body, epoch), f"{kind} {key}")
        if kind == "prepare":
            self._prepares[key] = (generation, task)

    def _cancel_prepare(self, key: SlotKey, generation: int) -> None:
        """A stop of what an older generation has left here says nothing about the one that is being prepared."""
        prepared, task = self._prepares[key]
        if generation >= prepared:
            del self._prepares[key]
            task.cancel()

    def _too_old(self, kind: str, key: SlotKey, generation: int, epoch: int) -> tuple[str, str] | None:
        """Neither epoch nor generation may be older than the newest seen for this slot."""
        newest = self.records.newest(key)
        if epoch < newest.epoch:
            return "stale_epoch", f"epoch {epoch} is older than {newest.epoch}, the newest seen for this slot"
        if kind in ("forget", "release"):
            return None
        if generation < newest.generation and not (kind == "stop" and self._holds_up_to(key, generation)):
            return "stale_generation", f"generation {generation} is older than {newest.generation}"
        if kind in ("prepare", "start") and generation <= newest.closed_generation:
            return "stale_generation", f"generation {generation} was stopped and does not start again"
        self.records.note(key, epoch, generation, closed=kind == "stop")
        return None

    def _holds_up_to(self, key: SlotKey, generation: int) -> bool:
        """What is here is that old: a newer generation was prepared and never started, and this has to go first."""
        held = self.slots.get(key)
        return held is not None and held.record.generation <= generation

    async def _remember(self, kind: str, key: SlotKey) -> None:
        """What was seen is on disk before a command counts; only a stop goes on without that."""
        try:
            await in_thread(self.records.persist, key)
        except RecordError as error:
            if kind != "stop":
                raise CommandRefusedError("limits", str(error)) from error
            log.error("%s; stopping all the same", error)

    async def _in_order(self, kind: str, key: SlotKey, body: Any, epoch: int) -> None:
        # A prepare takes long, and is cancelled by what makes it pointless: nothing waits for it.
        order = asyncio.Lock() if kind == "prepare" else self._order.setdefault(key, asyncio.Lock())
        async with order:
            try:
                await self._remember(kind, key)
                await self._commands[kind](key, body, epoch)
            except CommandRefusedError as error:
                self._refuse(body.slot, body.generation, kind, error.code, error.reason)
            except RecordError as error:
                self._refuse(body.slot, body.generation, kind, "limits", str(error))
            except Exception as error:  # a defect must not leave the controller waiting for an answer
                log.exception("%s %s failed", kind, key)
                self._refuse(body.slot, body.generation, kind, "limits", f"internal error: {error!r}")

    async def _prepare(self, key: SlotKey, message: pb.PrepareMsg, epoch: int) -> None:
        report = await self.preparer.prepare(message, epoch)
        bad = [f"{item.name}: {item.detail}" for item in report.items if not item.ok]
        log.info("%s generation %d prepare: %s", key, message.generation, "; ".join(bad) or "ok")
        for item in report.items:
            if item.detail.startswith(WARNING):
                log.warning("%s generation %d prepare: %s: %s", key, message.generation, item.name, item.detail)
        self.link.send(pb.NodeMessage(prepare_report=report))
        if engine := self.config.engines.get(message.engine):
            found = await self.versions.of(message.engine, engine)
            if change := self.versions.change(message.engine, found):
                self.link.renew(change)

    async def _release(self, key: SlotKey, message: pb.ReleaseMsg, epoch: int) -> None:
        self.preparer.release(key, message.generation)

    async def _start(self, key: SlotKey, message: pb.StartCmdMsg, epoch: int) -> None:
        running = self.slots.get(key)
        if running is not None and running.record.generation == message.generation:
            self._report(running)  # the same message twice does nothing twice
            return
        if running is not None and not running.finished.is_set():
            raise CommandRefusedError("limits", f"generation {running.record.generation} of this slot still runs")
        reservation = self.preparer.reservation(key, message.generation)
        place = StartPlace(self.owner, self.address, self.records, self.scripts, self.preparer.leased(key), reservation)
        record, scrubbed = await make_record(self.config, message, epoch, place)
        if scrubbed:
            log.warning("%s: left out of the engine's environment: %s", key, scrubbed)
        self.preparer.release(key)  # the engine itself listens on the master port now
        ports = [record.api_port] if record.api_port else []
        if taken := await in_thread(taken_ports, ports, record.address):
            raise CommandRefusedError("port", f"ports: taken: {show_taken(taken)}")
        if running is not None:
            self.records.forget(key, running.record.generation)
        drop_old_logs(self.config, key)
        try:
            folder = await in_thread(self.records.create, record)
        except FileExistsError:
            raise CommandRefusedError("stale_generation", "this generation was started before") from None
        supervisor = Supervisor(record, folder, self._around)
        self.slots[key] = supervisor
        self._report(supervisor)
        self._spawn(supervisor.run(), f"supervise {key}")

    async def _stop(self, key: SlotKey, message: pb.StopCmdMsg, epoch: int) -> None:
        self.preparer.release(key, message.generation)
        running = self.slots.get(key)
        if running is None or running.record.generation > message.generation:
            await self._nothing_to_stop(key, message)
            return
        grace = message.grace_seconds or (
            running.record.drain_seconds + STOP_MARGIN_SECONDS
            if message.mode == "planned"
            else running.record.stop_grace
        )
        running.stop(StopRequest(message.mode, grace, message.reason))
        if running.record.generation < message.generation:
            # The generation that was asked for never started here; its stop is confirmed when the older one ended.
            self._spawn(self._confirm_after(running, key, message), f"confirm stop of {key}")

    async def _confirm_after(self, running: Supervisor, key: SlotKey, message: pb.StopCmdMsg) -> None:
        await running.finished.wait()
        await self._nothing_to_stop(key, message)

    async def _nothing_to_stop(self, key: SlotKey, message: pb.StopCmdMsg) -> None:
        """The answer is the same as after a stop: nothing of this slot runs here."""
        if key not in self.slots:
            left = await left_overs.end(lambda: left_overs.of_slot(self.owner, str(key)))
            if left:
                raise CommandRefusedError("limits", f"processes of this slot do not die: {left}")
        report = pb.SlotReport(
            slot=message.slot,
            generation=message.generation,
            state=STOPPED,
            reason="nothing of it is on this node",
        )
        self.link.send(pb.NodeMessage(slot_report=report))

    async def _group_ready(self, key: SlotKey, message: pb.GroupReadyMsg, epoch: int) -> None:
        running = self.slots.get(key)
        if running is None or running.record.generation != message.generation:
            raise CommandRefusedError("limits", f"generation {message.generation} of this slot does not run here")
        mark = running.folder / GROUP_READY_FILE
        try:  # so that the next manager does not call a serving follower unready
            mark.touch() if message.ready else mark.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: %s", mark, error.strerror)
        running.set_group_ready(message.ready)

    async def _forget(self, key: SlotKey, message: pb.ForgetMsg, epoch: int) -> None:
        held = self.slots.get(key)
        if held is not None and held.record.generation <= message.generation:
            if not held.finished.is_set():
                raise CommandRefusedError("limits", f"generation {held.record.generation} still runs; stop it first")
            del self.slots[key]
            self.records.forget(key, held.record.generation)

    async def _probe(self, request: pb.ProbeRequest) -> None:
        report = await probing.probe(request, [one.record for one in self.slots.values()])
        self.link.send(pb.NodeMessage(probe_report=report))

    def _log_request(self, request: pb.LogRequest) -> None:
        if not request.HasField("slot"):
            self.logs.open(request, self.config.log_dir / MANAGER_LOG)
            return
        try:
            key = SlotKey.from_message(request.slot)
            generation = request.generation or self.records.newest(key).generation
            path = log_path(self.config, key, generation)
        except (ValueError, RecordError) as error:
            self.logs.open(request, None, str(error))
        else:
            missing = f"no log of {key} generation {generation} on this node"
            self.logs.open(request, path, missing, self._mask_of(key, generation))

    def _mask_of(self, key: SlotKey, generation: int) -> Mask:
        """What hides the secrets of one start; its values are known as long as its record is kept."""
        held = self.slots.get(key)
        if held is not None and held.record.generation == generation:
            return held.record.mask
        with contextlib.suppress(RecordError):
            if record := self.records.load(self.records.folder(key, generation)):
                return record.mask
        return PLAIN

    # --- what others ask

    def _held(self) -> Held:
        held = {key: one for key, one in self.slots.items() if not one.finished.is_set()}
        return Held(
            {key: one.record.devices for key, one in held.items()},
            {key: one.record.generation for key, one in held.items()},
        )

    def overall(self) -> str:
        """initial: nothing runs or it still loads; normal: all is ready; abnormal: something failed."""
        states = [one.state for one in self.slots.values() if one.state != STOPPED]
        if FAILED in states:
            return "abnormal"
        return "normal" if states and all(state == READY for state in states) else "initial"


def _show(slot: pb.Slot) -> str:
    return f"{slot.instance}/{slot.dp_rank}/{slot.node_rank}"
