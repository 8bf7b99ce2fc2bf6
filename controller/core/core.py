"""The one door: events in, actions out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from controller.core import adoption, assembly, liveness, membership, operator, stage_limits, starting, stopping
from controller.core.actions import Action, StoreRecord
from controller.core.events import (
    CommandRefused,
    DeadlinePassed,
    Event,
    MemberReported,
    NodeDisconnected,
    NodeRegistered,
    OperatorOrdered,
    PrepareReported,
    ProofOfLife,
    RecordNotStored,
    RecordStored,
)
from controller.core.model import DeploymentPlan, GenerationRecord, OperatorState
from controller.core.state import CoreState, Phase, ScopeState


class Core:
    """Decides everything, does nothing. Not thread-safe: one caller, one event at a time.

    `records` are the stored generations of an earlier controller; `epoch` has to be above every earlier one.
    `lineage` is random text made with the store and kept in it.
    """

    def __init__(
        self,
        plan: DeploymentPlan,
        epoch: int,
        now: float,
        lineage: str,
        records: Iterable[GenerationRecord] = (),
        ordered: OperatorState | None = None,
    ) -> None:
        self.state = CoreState(plan, epoch, now, lineage)
        for record in sorted(records, key=lambda r: (r.scope_id, r.generation)):
            adoption.load_record(self.state, record)
        operator.load(self.state, ordered or OperatorState())
        for instance in self.state.instances.values():
            self.state.arm(now + plan.timers.assemble_timeout, "assemble", instance.plan.name)

    def handle(self, event: Event) -> list[Action]:
        """Take one event; returns what has to be done about it, in this order."""
        s = self.state
        s.now, s.nonce, s.actions = max(s.now, event.now), event.nonce, []
        match event:
            case NodeRegistered():
                membership.node_registered(s, event)
            case NodeDisconnected():
                membership.node_disconnected(s, event)
            case MemberReported():
                membership.member_reported(s, event)
            case PrepareReported():
                starting.prepare_reported(s, event)
            case CommandRefused():
                starting.command_refused(s, event)
            case RecordStored():
                starting.record_stored(s, event)
            case RecordNotStored():
                starting.record_not_stored(s, event)
            case ProofOfLife():
                liveness.proof_of_life(s, event)
            case OperatorOrdered():
                operator.ordered(s, event)
            case DeadlinePassed():
                pass
            case _:
                raise TypeError(f"unknown event {type(event).__name__}")
        self._run_timers()
        return s.actions

    def next_deadline(self) -> float | None:
        """When DeadlinePassed is wanted, on the clock of `Event.now`; None if nothing waits."""
        return self.state.timers[0][0] if self.state.timers else None

    def _run_timers(self) -> None:
        s = self.state
        while s.timers and s.timers[0][0] <= s.now + 1e-9:
            _, _, kind, key = heapq.heappop(s.timers)
            self._timer(kind, key)

    def _timer(self, kind: str, key: str) -> None:
        """Timers only say "look again": the state decides whether the reason still stands."""
        s = self.state
        if kind == "lost":
            membership.node_lost(s, key)
        elif kind == "refusal":
            if key in s.nodes:
                assembly.node_has_room(s, s.nodes[key])
        elif kind == "assemble":
            assembly.assemble_alarm(s, s.instances[key])
        elif kind == "retry":
            stopping.retry(s, s.scopes[key])
        elif kind == "port":
            owner, _, scope_id = key.rpartition("#")
            s.ledger.release(owner)
            assembly.try_start(s, s.scopes[scope_id])
        else:
            scope = self._scope_of_generation(key)
            if scope is not None:
                self._scope_timer(kind, scope)

    def _scope_timer(self, kind: str, scope: ScopeState) -> None:
        s = self.state
        if kind == "prepare":
            starting.prepare_overdue(s, scope)
        elif kind == "store" and scope.phase is Phase.STORING and scope.record is not None:
            s.emit(StoreRecord(scope.record))
        elif kind == "start":
            self._start_overdue(scope)
        elif kind == "unreachable":
            adoption.recovery_overdue(s, scope)
            membership.unreachable_in_start(s, scope)
        elif kind == "stage":
            stage_limits.check(s, scope)
        elif kind == "hang":
            liveness.check_hang(s, scope)
        elif kind == "alive":
            liveness.ask_proof(s, scope)
        elif kind == "stop" and scope.phase is Phase.STOPPING:
            stopping.resend_stops(s, scope)
        elif kind == "proof":
            stopping.check_stopped(s, scope)
        elif kind == "stable" and scope.phase is Phase.READY:
            scope.restart_times = []

    def _start_overdue(self, scope: ScopeState) -> None:
        """A start has an end. A generation that was ready once and is not just now has started: other limits hold."""
        s = self.state
        if scope.phase is not Phase.STARTING or scope.recovered or scope.was_ready or not scope.unready:
            return
        slow = min(scope.unready)
        reason = f"not ready {s.plan.timers.start_timeout:.0f} s after its start"
        stopping.fail(s, scope, slow, scope.members[slow].node_id or "", reason, scope.members[slow].report)

    def _scope_of_generation(self, key: str) -> ScopeState | None:
        scope_id, _, generation = key.rpartition("#")
        scope = self.state.scopes.get(scope_id)
        return scope if scope is not None and scope.generation == int(generation) else None
