"""From one member's failure, or an operator's word, to the next generation, to rest, or to giving up with evidence."""

from __future__ import annotations

from dataclasses import replace

from controller.core import assembly, placement
from controller.core.actions import SendRelease, SendStop, StoreRecord
from controller.core.model import MemberReport, MemberState, SlotKey
from controller.core.state import AfterStop, CoreState, Evidence, Phase, ScopeState


def fail(
    s: CoreState,
    scope: ScopeState,
    slot: SlotKey | None,
    node_id: str,
    reason: str,
    report: MemberReport | None,
    failure_class: str = "",
    final: bool = True,
) -> None:
    """One member failed: the whole scope stops, at once (rule 8). The first failure's evidence is kept."""
    if scope.phase not in (Phase.PREPARING, Phase.STARTING, Phase.READY):
        return
    evidence = Evidence(
        slot, node_id, s.now, scope.generation, reason,
        failure_class=report.failure_class if report else failure_class,
        exit_code=report.exit_code if report else None,
        exit_signal=report.exit_signal if report else None,
        last_log_lines=report.last_log_lines if report else (),
        final=final,
    )  # fmt: skip
    subject = str(slot) if slot else scope.scope_id
    if s.operator.paused:
        if scope.verdict is None or (final and not scope.verdict.final):
            scope.verdict = evidence
        noted = f"{reason}; nothing is done about it: paused ({s.operator.paused})"
        s.say(subject, "failed_while_paused", noted)
        if scope.phase is Phase.READY:  # routers must not be sent to half a gang
            s.enter(scope, Phase.STARTING, "not_ready", f"{subject}: {noted}")
        return
    scope.evidence = evidence
    s.say(subject, "failed", reason)
    begin_stop(s, scope, "failure", AfterStop.BACKOFF, f"{subject}: {reason}")


def begin_stop(s: CoreState, scope: ScopeState, mode: str, after: AfterStop, reason: str) -> None:
    """End every member. A failure stop goes to all at once; in a planned stop of a serving scope the API servers drain
    first, because followers that went before them would break what is being answered."""
    preparing = scope.phase is Phase.PREPARING
    serving = scope.phase is Phase.READY
    scope.recovered = False
    scope.verdict = None
    scope.after_stop = after
    scope.stop_mode = mode
    scope.stop_confirmed = 0
    scope.stop_told = set()
    scope.unstopped = {slot for slot in scope.members if s.node_of(slot) is not None}
    s.enter(scope, Phase.STOPPING, f"{mode}_stop", f"stopping all members: {reason}")
    if preparing:
        for slot in sorted(scope.unstopped):
            node = s.node_of(slot)
            if node is not None and node.connected:
                s.emit(SendRelease(node.offer.node_id, slot, scope.generation, reason))
    first = scope.unstopped
    if mode == "planned" and serving:
        masters = {slot for slot in scope.unstopped if scope.plan.has_api(slot) and slot not in scope.away}
        first = masters or scope.unstopped
    for slot in sorted(first):
        send_stop(s, scope, slot)
    s.arm(s.now + s.plan.timers.stop_timeout, "stop", f"{scope.scope_id}#{scope.generation}")
    arm_proof_of_death(s, scope)
    check_stopped(s, scope)


def escalate(s: CoreState, scope: ScopeState, after: AfterStop, reason: str) -> None:
    """Another word while a stop is under way: what follows changes, the stop goes on."""
    scope.after_stop = after
    s.say(scope.scope_id, "stop_changed", f"{reason}: after this stop, {after.value}")


def send_stop(s: CoreState, scope: ScopeState, slot: SlotKey) -> None:
    """Tell one member's node, if it can be told; a planned stop's grace is the node's (drain + 20 s)."""
    node = s.node_of(slot)
    if node is None or not node.connected:
        return
    scope.stop_told.add(slot)
    grace = s.plan.timers.stop_grace if scope.stop_mode == "failure" else 0.0
    s.emit(SendStop(node.offer.node_id, slot, scope.generation, scope.stop_mode, scope.reason, grace))


def resend_stops(s: CoreState, scope: ScopeState) -> None:
    """Some member has not confirmed in time: ask again; the slot is never filled over a doubtful engine."""
    for slot in sorted(scope.unstopped):
        node = s.node_of(slot)
        if node is not None and node.connected:
            s.say(str(slot), "stop_overdue", f"node {node.offer.node_id} has not confirmed the stop; asked again")
            send_stop(s, scope, slot)
    s.arm(s.now + s.plan.timers.stop_timeout, "stop", f"{scope.scope_id}#{scope.generation}")


def member_stopped(s: CoreState, scope: ScopeState, slot: SlotKey) -> None:
    """A member confirmed: reaped, no process left."""
    if slot in scope.unstopped:
        scope.unstopped.discard(slot)
        scope.stop_confirmed += 1
        arm_proof_of_death(s, scope)
    if not any(scope.plan.has_api(other) and other in scope.stop_told for other in scope.unstopped):
        for other in sorted(scope.unstopped - scope.stop_told):
            send_stop(s, scope, other)
    check_stopped(s, scope)


def arm_proof_of_death(s: CoreState, scope: ScopeState) -> None:
    """Look again when the unreachable members have been away for the node timeout."""
    for slot in scope.unstopped:
        node = s.node_of(slot)
        if node is not None and node.unreachable_since is not None:
            when = node.unreachable_since + s.plan.timers.node_timeout
            s.arm(max(when, s.now), "proof", f"{scope.scope_id}#{scope.generation}")
            if s.plan.timers.self_fence:
                when = node.unreachable_since + fenced_after(s)
                s.arm(max(when, s.now), "proof", f"{scope.scope_id}#{scope.generation}")


def fenced_after(s: CoreState) -> float:
    """A node out of sight for this long has stopped its engines by itself (self_fence), the stop's grace included."""
    timers = s.plan.timers
    return timers.self_fence + timers.stop_grace + timers.node_timeout


def check_stopped(s: CoreState, scope: ScopeState) -> None:
    """Rule 5: go on when every member confirmed, or the silent ones belong to a gang that is proved dead:
    a gang without a rank cannot compute, and at least one member confirmed that it is gone."""
    if scope.phase is not Phase.STOPPING:
        return
    silent: list[SlotKey] = []
    proofs = scope.stop_confirmed
    for slot in scope.unstopped:
        node = s.node_of(slot)
        if node is None:
            continue
        if node.connected or node.unreachable_since is None:
            return
        away = s.now - node.unreachable_since
        if node.declared_lost or (s.plan.timers.self_fence and away >= fenced_after(s)):
            proofs += 1
        elif away < s.plan.timers.node_timeout - 1e-6:
            return
        silent.append(slot)
    if silent and proofs == 0:
        waiting = ", ".join(map(str, sorted(silent)))
        scope.reason = (
            "no member can be reached, so none is proved dead: nothing is started until one returns or an operator "
            f"says `motorctl declare-lost NODE` (waiting for {waiting})"
        )
        s.say(scope.scope_id, "not_proved_dead", scope.reason)
        return
    for slot in silent:
        node = s.node_of(slot)
        if node is not None:
            how = "was declared lost" if node.declared_lost else "is unreachable; the gang is proved dead by its others"
            node.stale[slot] = scope.generation
            placement.unseat(s, scope, slot, "lost", f"node {node.offer.node_id} {how}")
    all_stopped(s, scope)


def all_stopped(s: CoreState, scope: ScopeState) -> None:
    """Every device is free: what follows was decided when the stop began."""
    for member in scope.members.values():
        member.report = None
        member.prepared = False
        member.group_ready_told = False
    scope.unstopped = set()
    s.ledger.release(scope.scope_id)
    leave(s, scope)
    if scope.after_stop is AfterStop.BACKOFF:
        _back_off(s, scope)
    elif scope.after_stop is AfterStop.RESTART:
        restart_now(s, scope, "restart asked for by an operator")
    else:
        rest(s, scope, "stopped by an operator; `motorctl start` brings it back")


def leave(s: CoreState, scope: ScopeState) -> None:
    """Nodes that were drained give up their slots, now that nothing runs there."""
    for node_id in sorted(scope.leaving):
        for slot in [slot for slot, member in scope.members.items() if member.node_id == node_id]:
            placement.unseat(s, scope, slot, "drained", f"node {node_id} was drained")
        if node_id in s.nodes:
            assembly.tell_placement(s, s.nodes[node_id])
    scope.leaving = set()
    assembly.update_completeness(s, scope)


def _back_off(s: CoreState, scope: ScopeState) -> None:
    evidence, timers = scope.evidence, s.plan.timers
    reason = evidence.reason if evidence else scope.reason
    failure_class = evidence.failure_class if evidence else ""
    scope.restart_times = [at for at in scope.restart_times if s.now - at < timers.restart_window]
    if failure_class == "configuration":
        give_up(s, scope, f"the engine refuses its configuration, a restart would not help: {reason}")
        return
    if scope.restarts >= timers.max_restarts:
        window = f" within {timers.restart_window / 60:.0f} min" if timers.restart_window < 86400 else ""
        give_up(s, scope, f"all {timers.max_restarts} restarts{window} are used up; last failure: {reason}")
        return
    wait = min(timers.restart_backoff * 2**scope.restarts, timers.restart_backoff_max)
    wait *= s.jitter(scope.scope_id, scope.generation)
    if failure_class == "port":
        wait = 0.0  # the next generation takes the next port of the range: nothing has to recover first
    scope.restart_times.append(s.now)
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


def restart_now(s: CoreState, scope: ScopeState, reason: str) -> None:
    """A fresh budget, and the next generation as soon as its slots are filled."""
    scope.restart_times = []
    scope.evidence = None
    s.enter(scope, Phase.ASSEMBLING, "restart", reason)
    store_outcome(s, scope, "stopped", reason)
    assembly.refill(s, scope)
    assembly.try_start(s, scope)


def rest(s: CoreState, scope: ScopeState, reason: str) -> None:
    s.enter(scope, Phase.STOPPED, "stopped", reason)
    store_outcome(s, scope, "stopped", reason)


def store_outcome(s: CoreState, scope: ScopeState, outcome: str, reason: str) -> None:
    """Keep how a generation ended: its number can never be started again, its nodes keep the folder."""
    if scope.record is not None:
        scope.record = replace(scope.record, restarts=scope.restarts, outcome=outcome, outcome_reason=reason)
        s.emit(StoreRecord(scope.record))


def retry(s: CoreState, scope: ScopeState) -> None:
    """The back-off is over."""
    if scope.phase is not Phase.BACKOFF or s.now < scope.retry_at - 1e-6 or s.operator.paused:
        return
    s.enter(scope, Phase.ASSEMBLING, "retry", f"restart {scope.restarts}: {scope.reason}")
    assembly.refill(s, scope)
    assembly.try_start(s, scope)


def member_ended(s: CoreState, scope: ScopeState, slot: SlotKey, node_id: str, report: MemberReport) -> None:
    """An engine of the current generation has ended."""
    if scope.phase is Phase.STOPPING:
        if report.state is MemberState.STOPPED:
            if report.devices_busy:
                quarantine(s, scope, slot, node_id, report.reason)
            member_stopped(s, scope, slot)
        elif slot not in scope.stop_told:
            send_stop(s, scope, slot)  # it ended by itself before its turn; only `stopped` says nothing is left
        return
    if scope.phase in (Phase.STARTING, Phase.READY, Phase.PREPARING):
        # any exit that was not asked for is a failure, exit code 0 too: a headless vLLM process exits 0
        # five seconds after its worker was killed
        fail(s, scope, slot, node_id, _ending(report), report)


def quarantine(s: CoreState, scope: ScopeState, slot: SlotKey, node_id: str, reason: str) -> None:
    """Its processes are gone and its devices are not free: another node takes the slot, somebody has to look."""
    node = s.nodes.get(node_id)
    if node is not None:
        node.quarantined[slot] = reason or "devices not free after the stop"
        scope.leaving.add(node_id)
        s.say(f"node {node_id}", "quarantined", f"for {slot}: {node.quarantined[slot]}; see `motorctl uncordon`")


def verdict_after_pause(s: CoreState, scope: ScopeState) -> None:
    """The pause is over: act on what was noted, and look again at what may be over by itself."""
    verdict, scope.verdict = scope.verdict, None
    if verdict is not None and verdict.final and scope.phase in (Phase.STARTING, Phase.READY, Phase.PREPARING):
        scope.evidence = verdict
        s.say(str(verdict.slot) if verdict.slot else scope.scope_id, "failed", verdict.reason)
        begin_stop(s, scope, "failure", AfterStop.BACKOFF, f"{verdict.slot or scope.scope_id}: {verdict.reason}")
        return
    for kind in ("stage", "unreachable", "alive", "hang"):
        s.arm(s.now, kind, f"{scope.scope_id}#{scope.generation}")


def _ending(report: MemberReport) -> str:
    how = report.reason or "ended"
    if report.exit_signal is not None:
        return f"{how} (signal {report.exit_signal})"
    if report.exit_code is not None:
        return f"{how} (exit code {report.exit_code})"
    return how
