"""From one member's failure to the next generation, or to giving up with the evidence."""

from __future__ import annotations

from dataclasses import replace

from controller.core import assembly, placement
from controller.core.actions import SendRelease, SendStop, StoreRecord
from controller.core.model import MemberReport, MemberState, SlotKey
from controller.core.state import CoreState, Evidence, Phase, ScopeState


def fail(
    s: CoreState,
    scope: ScopeState,
    slot: SlotKey | None,
    node_id: str,
    reason: str,
    report: MemberReport | None,
) -> None:
    """One member failed: the whole scope stops, at once (rule 8). The first failure's evidence is kept."""
    if scope.phase not in (Phase.PREPARING, Phase.STARTING, Phase.READY):
        return
    scope.evidence = Evidence(
        slot, node_id, s.now, scope.generation, reason,
        failure_class=report.failure_class if report else "",
        exit_code=report.exit_code if report else None,
        exit_signal=report.exit_signal if report else None,
        last_log_lines=report.last_log_lines if report else (),
    )  # fmt: skip
    subject = str(slot) if slot else scope.scope_id
    s.say(subject, "failed", reason)
    began = scope.phase
    scope.recovered = False
    scope.stop_confirmed = 0
    scope.unstopped = set(scope.members)
    s.enter(scope, Phase.STOPPING, "failure_stop", f"stopping all members: {subject}: {reason}")
    for member in scope.members.values():
        node = s.node_of(member.slot)
        if node is None:
            scope.unstopped.discard(member.slot)
        elif node.connected:
            if began is Phase.PREPARING:
                s.emit(SendRelease(node.offer.node_id, member.slot, scope.generation, reason))
            send_stop(s, scope, member.slot, node.offer.node_id)
    s.arm(s.now + s.plan.timers.stop_timeout, "stop", f"{scope.scope_id}#{scope.generation}")
    arm_proof_of_death(s, scope)


def send_stop(s: CoreState, scope: ScopeState, slot: SlotKey, node_id: str) -> None:
    s.emit(SendStop(node_id, slot, scope.generation, "failure", scope.reason, s.plan.timers.stop_grace))


def resend_stops(s: CoreState, scope: ScopeState) -> None:
    """Some member has not confirmed in time: ask again; the slot is never filled over a doubtful engine."""
    for slot in sorted(scope.unstopped):
        node = s.node_of(slot)
        if node is not None and node.connected:
            s.say(
                str(slot),
                "stop_overdue",
                f"node {node.offer.node_id} has not confirmed the stop; asked again",
            )
            send_stop(s, scope, slot, node.offer.node_id)
    s.arm(s.now + s.plan.timers.stop_timeout, "stop", f"{scope.scope_id}#{scope.generation}")


def member_stopped(s: CoreState, scope: ScopeState, slot: SlotKey) -> None:
    """A member confirmed: reaped, no process left."""
    if slot in scope.unstopped:
        scope.unstopped.discard(slot)
        scope.stop_confirmed += 1
        arm_proof_of_death(s, scope)
    check_stopped(s, scope)


def arm_proof_of_death(s: CoreState, scope: ScopeState) -> None:
    """Look again when the unreachable members have been away for the node timeout."""
    for slot in scope.unstopped:
        node = s.node_of(slot)
        if node is not None and node.unreachable_since is not None:
            when = node.unreachable_since + s.plan.timers.node_timeout
            s.arm(max(when, s.now), "proof", f"{scope.scope_id}#{scope.generation}")


def check_stopped(s: CoreState, scope: ScopeState) -> None:
    """Rule 5: go on when every member confirmed, or the silent ones belong to a gang that is proved dead:
    a gang without a rank cannot compute, and at least one member confirmed that it is gone."""
    if scope.phase is not Phase.STOPPING:
        return
    silent: list[SlotKey] = []
    for slot in scope.unstopped:
        node = s.node_of(slot)
        if node is None:
            continue
        if node.connected or node.unreachable_since is None:
            return
        if s.now - node.unreachable_since < s.plan.timers.node_timeout - 1e-6:
            return
        silent.append(slot)
    if silent and scope.stop_confirmed == 0:
        scope.reason = (
            "no member can be reached, so none is proved dead: nothing is started until one returns "
            f"(waiting for {', '.join(map(str, sorted(silent)))})"
        )
        s.say(scope.scope_id, "not_proved_dead", scope.reason)
        return
    for slot in silent:
        node = s.node_of(slot)
        if node is not None:
            reason = f"node {node.offer.node_id} is unreachable; the gang is proved dead by its other members"
            node.stale[slot] = scope.generation
            placement.unseat(s, scope, slot, "lost", reason)
    all_stopped(s, scope)


def all_stopped(s: CoreState, scope: ScopeState) -> None:
    """Every device is free: next generation after the back-off, or give up."""
    for member in scope.members.values():
        member.report = None
        member.prepared = False
        member.group_ready_told = False
    scope.unstopped = set()
    scope.recovered = False
    s.ledger.release(scope.scope_id)
    evidence = scope.evidence
    reason = evidence.reason if evidence else scope.reason
    timers = s.plan.timers
    if evidence is not None and evidence.failure_class == "configuration":
        give_up(s, scope, f"the engine refuses its configuration, a restart would not help: {reason}")
        return
    if scope.restarts >= timers.max_restarts:
        give_up(s, scope, f"all {timers.max_restarts} restarts are used up; last failure: {reason}")
        return
    wait = min(timers.restart_backoff * 2**scope.restarts, timers.restart_backoff_max)
    wait *= s.jitter(scope.scope_id, scope.generation)
    scope.restarts += 1
    scope.retry_at = s.now + wait
    s.enter(
        scope, Phase.BACKOFF, "backoff",
        f"all members stopped; restart {scope.restarts} of {timers.max_restarts} in {wait:.1f} s: {reason}",
    )  # fmt: skip
    store_outcome(s, scope, "stopped", reason)
    s.arm(scope.retry_at, "retry", scope.scope_id)
    assembly.refill(s, scope)


def give_up(s: CoreState, scope: ScopeState, reason: str) -> None:
    """Keep the evidence and start nothing more; stored, so that a restarted controller does not try again."""
    s.enter(scope, Phase.FAILED, "gave_up", reason)
    store_outcome(s, scope, "failed", reason)


def store_outcome(s: CoreState, scope: ScopeState, outcome: str, reason: str) -> None:
    """Keep how a generation ended: its number can never be started again, its nodes keep the folder."""
    if scope.record is not None:
        scope.record = replace(scope.record, restarts=scope.restarts, outcome=outcome, outcome_reason=reason)
        s.emit(StoreRecord(scope.record))


def retry(s: CoreState, scope: ScopeState) -> None:
    """The back-off is over."""
    if scope.phase is not Phase.BACKOFF or s.now < scope.retry_at - 1e-6:
        return
    s.enter(scope, Phase.ASSEMBLING, "retry", f"restart {scope.restarts}: {scope.reason}")
    assembly.refill(s, scope)
    assembly.try_start(s, scope)


def member_ended(s: CoreState, scope: ScopeState, slot: SlotKey, node_id: str, report: MemberReport) -> None:
    """An engine of the current generation has ended."""
    if scope.phase is Phase.STOPPING:
        if report.state is MemberState.STOPPED:
            member_stopped(s, scope, slot)
        return
    if scope.phase in (Phase.STARTING, Phase.READY, Phase.PREPARING):
        # any exit that was not asked for is a failure, exit code 0 too: a headless vLLM process exits 0
        # five seconds after its worker was killed
        fail(s, scope, slot, node_id, _ending(report), report)


def _ending(report: MemberReport) -> str:
    how = report.reason or "ended"
    if report.exit_signal is not None:
        return f"{how} (signal {report.exit_signal})"
    if report.exit_code is not None:
        return f"{how} (exit code {report.exit_code})"
    return how
