"""The shell around the core: feeds it events, does what it asks, brings the outcome back."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from motor_rpc import control_pb2 as pb

from controller.api import wire
from controller.api.prober import Prober, canary_for
from controller.config.plan import LoadedDeployment
from controller.config.reported_profiles import Remarks, ReportedProfiles
from controller.core import actions as a
from controller.core import events as e
from controller.core.core import Core
from controller.core.model import GenerationRecord, NodeOffer, OperatorState, SlotKey
from controller.core.state import CoreState
from controller.store.interface import Standby, Store, StoreError

log = logging.getLogger(__name__)

RESERVATION_SECONDS = 60.0
SHARED_STORE_SECONDS = 1.0  # a write under way may take so long at the end of a term; another controller waits
STORE_RETRY_SECONDS = 2.0  # until what could not be stored is tried again


class Session(Protocol):
    """An open node stream, as the service sees it."""

    def send(self, message: pb.ControllerMessage) -> None: ...

    def end(self, last: pb.ControllerMessage | None, reason: str) -> None: ...


class ControllerService:
    """One deployment's controller. Lives in one event loop."""

    def __init__(self, deployment: LoadedDeployment, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.deployment = deployment
        self._profiles = ReportedProfiles(deployment)
        self.clock = clock
        self.wall_offset = time.time() - clock()  # wall clock of an event: its time plus this
        self.sessions: dict[str, Session] = {}
        self.node_sessions: dict[str, str] = {}
        self.store_error = ""
        self.changed = asyncio.Event()  # pulsed after each event, for followers of the event list
        self._store = store
        self._to_store: deque[GenerationRecord] = deque()
        self._operator_to_store: OperatorState | None = None
        self._unsaved: dict[str, GenerationRecord] = {}  # by scope: refused by the store, tried again
        self._unsaved_operator: OperatorState | None = None
        self._store_retry: asyncio.TimerHandle | None = None
        self._answers: list[a.OperatorAnswer] = []
        self.prober = Prober(self._send, self._proof_of_life)
        self._store_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None  # what the timer is set to, on `clock`
        self._said = 0
        self.core: Core | None = None
        self.over = ""  # why this controller leads no more; from then on it says, stores and decides nothing
        self.over_at = math.inf  # on `clock`
        self.stepped_down = False
        self._silenced: asyncio.Future[str] | None = None

    async def open(self, standby: Standby = lambda leader: None, gives_way: float = 0.0) -> None:
        """Take the store and what it holds. StoreError when that is not possible."""
        snapshot = await self._store.open(standby, gives_way)
        self.wall_offset = time.time() - self.clock()  # again: a standby may have waited here for months
        self.core = Core(
            self.deployment.plan, snapshot.epoch, self.clock(), snapshot.lineage, snapshot.records, snapshot.operator
        )
        log.info(
            "deployment %s, epoch %d, %d stored generations",
            self.deployment.plan.deployment_id, snapshot.epoch, len(snapshot.records),
        )  # fmt: skip
        self._log_story()
        self._schedule()

    async def close(self, reason: str = "this controller is ending") -> None:
        """Engines keep running: only this controller's term ends. A store that others may take is let go at once."""
        self.silence(reason)
        if self._store_task is not None:
            shared = self._store.holds_until() != math.inf
            _, late = await asyncio.wait({self._store_task}, timeout=SHARED_STORE_SECONDS if shared else 10.0)
            for task in late:
                task.cancel()
        await self._store.close()

    # -- leading ------------------------------------------------------------------------------------------------------

    def may_order(self) -> bool:
        """Whether this controller still leads, by its own clock. A process that slept finds out here, before it says
        a word: its term is then over."""
        if not self.over and time.monotonic() >= self._store.holds_until():
            self.silence("its lease has run out or was taken from it")
        return not self.over

    def silence(self, reason: str) -> None:
        """Order, store and decide nothing from now on. What was known last can still be read."""
        if self.over:
            return
        self.over, self.over_at = reason, self.clock()
        for timer in (self._timer, self._store_retry):
            if timer is not None:
                timer.cancel()
        self.prober.close()
        if self._silenced is not None and not self._silenced.done():
            self._silenced.set_result(reason)
        self.changed.set()  # readers of streams end

    async def until_over(self) -> str:
        """Wait until this controller leads no more; the reason."""
        self._silenced = asyncio.get_running_loop().create_future()
        if self.over:
            return self.over
        lost = asyncio.ensure_future(self._store.lost())
        try:
            await asyncio.wait({lost, self._silenced}, return_when=asyncio.FIRST_COMPLETED)
            self.silence(lost.result() if lost.done() else self._silenced.result())
        finally:
            lost.cancel()
        return self.over

    def step_down(self, reason: str) -> a.OperatorAnswer:
        """Give the lead up, for a standby to take it."""
        if self._store.holds_until() == math.inf:
            return a.OperatorAnswer(
                False, "there is no standby to take over: the store belongs to this controller alone"
            )
        self.stepped_down = True
        self.silence(f"stepped down: {reason}" if reason else "stepped down")
        return a.OperatorAnswer(True, "stepping down; a standby takes over")

    def store_trouble(self) -> str:
        """Why the store cannot be written, or does not answer just now; empty when it does."""
        return self.store_error or self._store.trouble()

    def status_time(self) -> float:
        """The time that a status is of: now, or when this controller ceased to lead."""
        return min(self.clock(), self.over_at)

    async def raise_epoch(self, seen: int) -> None:
        """A node has obeyed a newer epoch than ours: the store was emptied, or is an older copy. Continue above it,
        once that is on the disk (rule 6)."""
        if seen <= self.state.epoch or self.over:  # the store may serve this process's next term already
            return
        epoch = await self._store.raise_epoch(seen + 1)
        self.state.epoch = max(self.state.epoch, epoch)
        log.warning("a node has seen epoch %d; this controller continues with %d", seen, self.state.epoch)

    async def judge(self, offer: NodeOffer) -> tuple[NodeOffer, Remarks]:
        """A node's offer with what stands against its engine profile, and what is to be told of it."""
        if self._profiles.is_known(offer):
            return self._profiles.judge(offer)
        return await asyncio.to_thread(self._profiles.judge, offer)  # it reads files

    @property
    def state(self) -> CoreState:
        assert self.core is not None, "the service is not open"
        return self.core.state

    def nonce(self) -> str:
        return secrets.token_hex(8)

    def feed(self, event: e.Event) -> None:
        """Hand one event to the core and do what it asks for."""
        assert self.core is not None
        if not self.may_order():  # a process that slept must not judge the nodes by its sleep
            return
        for action in self.core.handle(event):
            self._perform(action)
        self._log_story()
        self._schedule()
        self.changed.set()
        self.changed = asyncio.Event()

    # -- doing what the core wants ---------------------------------------------------------------------------------

    def _perform(self, action: a.Action) -> None:
        match action:
            case a.StoreRecord(record=record):
                self._unsaved.pop(record.scope_id, None)
                self._to_store.append(record)
                self._start_writing()
            case a.StoreOperatorState(operator=operator):
                self._unsaved_operator = None
                self._operator_to_store = operator
                self._start_writing()
            case a.OperatorAnswer():
                self._answers.append(action)
            case a.AcceptNode(session=session, node_id=node_id):
                self.node_sessions[node_id] = session
                timers = self.deployment.plan.timers
                self._send(
                    node_id,
                    registered=pb.Registered(
                        heartbeat_interval_seconds=timers.heartbeat_interval,
                        node_timeout_seconds=timers.node_timeout,
                    ),
                )
            case a.RefuseNode(session=session, code=code, reason=reason, retry=retry):
                refused = pb.Refused(code=code, reason=reason, retry=retry)
                self._end(session, self._message(refused=refused), reason)
            case a.CloseSession(session=session, reason=reason):
                refused = pb.Refused(code="session_replaced", reason=reason, retry=True)
                self._end(session, self._message(refused=refused), reason)
            case a.TellPlacement(node_id=node_id, state=state, reason=reason, slots=slots):
                slot_messages = [wire.slot_message(slot) for slot in slots]
                self._send(node_id, placement=pb.PlacementMsg(state=state, reason=reason, slots=slot_messages))
            case a.AskProofOfLife():
                name = action.slot.instance
                role = self.deployment.plan.instance(name).role
                self.prober.ask(action, canary_for(self.deployment.engines[name], role))
            case a.MemberCommand():
                self._command(action)
            case _:
                raise TypeError(f"unknown action {type(action).__name__}")

    def _command(self, action: a.MemberCommand) -> None:
        slot = wire.slot_message(action.slot)
        generation, node_id = action.generation, action.node_id
        plan = self.deployment.plan
        match action:
            case a.SendPrepare() | a.SendStart():
                role = plan.instance(action.slot.instance).role
                node = self.state.nodes.get(node_id)
                spec = self._profiles.engine(action.slot.instance, node.offer if node else None)
                try:
                    if isinstance(action, a.SendPrepare):
                        self._send(node_id, prepare=wire.prepare(action, role, spec, RESERVATION_SECONDS, time.time()))
                    else:
                        self._send(node_id, start=wire.start(action, role, spec, plan.timers))
                except ValueError as error:  # validation lets none through; if it does, say so where it is seen
                    log.error("%s: no command line can be made: %s", action.slot, error)
                    asyncio.get_running_loop().call_soon(self._refuse_for_node, action, str(error))
            case a.SendStop(mode=mode, reason=reason, grace_seconds=grace):
                self._send(
                    node_id,
                    stop=pb.StopCmdMsg(slot=slot, generation=generation, mode=mode, reason=reason, grace_seconds=grace),
                )
            case a.SendRelease(reason=reason):
                self._send(node_id, release=pb.ReleaseMsg(slot=slot, generation=generation, reason=reason))
            case a.SendGroupReady(ready=ready):
                self._send(node_id, group_ready=pb.GroupReadyMsg(slot=slot, generation=generation, ready=ready))
            case a.SendForget():
                self._send(node_id, forget=pb.ForgetMsg(slot=slot, generation=generation))
            case _:
                raise TypeError(f"unknown command {type(action).__name__}")

    def _refuse_for_node(self, action: a.MemberCommand, reason: str) -> None:
        command = "start" if isinstance(action, a.SendStart) else "prepare"
        session = self.node_sessions.get(action.node_id, "")
        self.feed(
            e.CommandRefused(
                self.clock(),
                self.nonce(),
                session,
                action.node_id,
                action.slot,
                action.generation,
                command,
                "argv",
                reason,
            )
        )

    def _proof_of_life(self, asked: a.AskProofOfLife, alive: bool, detail: str) -> None:
        now, nonce = self.clock(), self.nonce()
        self.feed(e.ProofOfLife(now, nonce, asked.scope_id, asked.generation, asked.slot, alive, detail))

    def _message(self, **body: Any) -> pb.ControllerMessage:
        return pb.ControllerMessage(epoch=self.state.epoch, deployment_id=self.deployment.plan.deployment_id, **body)

    def send_to_node(self, node_id: str, **body: Any) -> bool:
        """Send one message to a node; False if it has no stream."""
        return self._send(node_id, **body)

    def _send(self, node_id: str, **body: Any) -> bool:
        session = self.sessions.get(self.node_sessions.get(node_id, ""))
        if session is None or self.over:
            return False
        session.send(self._message(**body))
        return True

    def _end(self, session_id: str, last: pb.ControllerMessage, reason: str) -> None:
        session = self.sessions.get(session_id)
        if session is not None:
            session.end(last, reason)

    def order(self, order: str, target: str, reason: str) -> a.OperatorAnswer:
        """Carry out an operator's order; the answer says what is done now or why not."""
        if not self.may_order():
            return a.OperatorAnswer(False, f"this controller leads no more: {self.over}")
        self.feed(e.OperatorOrdered(self.clock(), self.nonce(), order, target, reason))
        return self._answers.pop()

    def _start_writing(self) -> None:
        if self._store_task is None or self._store_task.done():
            self._store_task = asyncio.create_task(self._write_records())

    async def _write_records(self) -> None:
        """Everything that waits goes into one commit; the core hears of it only when it is on the disk (rule 9)."""
        while self._to_store or self._operator_to_store is not None:
            records, operator = list(self._to_store), self._operator_to_store
            self._to_store.clear()
            self._operator_to_store = None
            try:
                if operator is not None:
                    await self._store.put_operator(operator)
                if records:
                    await self._store.put(records)
                self.store_error = ""
            except StoreError as error:
                self.store_error = str(error)
                log.error("not stored: %s", error)
            except Exception as error:  # a defect here must not leave a generation waiting in silence
                self.store_error = f"{type(error).__name__}: {error}"
                log.exception("not stored")
            told = {record.scope_id for record in records if self._unsaved.pop(record.scope_id, None) is record}
            if self.store_error:
                self._try_again_later(records, operator)
            for record in records:
                now, nonce = self.clock(), self.nonce()
                if not self.store_error:
                    self.feed(e.RecordStored(now, nonce, record.scope_id, record.generation))
                elif record.scope_id not in told:
                    self.feed(e.RecordNotStored(now, nonce, record.scope_id, record.generation, self.store_error))

    def _try_again_later(self, records: list[GenerationRecord], operator: OperatorState | None) -> None:
        """Nobody asks again for all that is stored: not for an outcome, nor for an operator's order. What a newer one
        waits to replace is dropped."""
        waiting = {record.scope_id for record in self._to_store}
        self._unsaved.update({r.scope_id: r for r in records if r.scope_id not in waiting})
        if operator is not None and self._operator_to_store is None:
            self._unsaved_operator = operator
        if self._store_retry is None and not self.over:
            self._store_retry = asyncio.get_running_loop().call_later(STORE_RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._store_retry = None
        self._to_store.extend(self._unsaved.values())
        if self._operator_to_store is None:
            self._operator_to_store, self._unsaved_operator = self._unsaved_operator, None
        self._start_writing()

    # -- time and story -----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        assert self.core is not None
        if self.over:
            return
        deadline = self.core.next_deadline()
        if deadline == self._wake_at:  # most events ask for nothing earlier: no timer is set anew for each of them
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wake_at = None, deadline
        if deadline is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, deadline - self.clock()), self._wake)

    def _wake(self) -> None:
        self._wake_at = None
        self.feed(e.DeadlinePassed(self.clock(), self.nonce()))

    def _log_story(self) -> None:
        """New lines of the story go to the log, so that it tells the same as /v1/events."""
        fresh = self.state.story_count - self._said
        if fresh <= 0:
            return
        self._said = self.state.story_count
        story = self.state.story
        for index in range(max(0, len(story) - fresh), len(story)):
            line = story[index]
            log.info("%s: %s: %s", line.subject, line.code, line.sentence)

    def slot_of(self, text: str) -> SlotKey | None:
        """The slot named `instance/dp_rank/node_rank`, if this deployment has it."""
        try:
            slot = SlotKey.parse(text)
        except ValueError:
            return None
        return slot if self.state.scope_of(slot) is not None else None
