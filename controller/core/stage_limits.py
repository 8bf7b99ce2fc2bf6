"""A slow start is not a failure; a stage that takes longer than its limit is. Engines wait for a missing peer in
silence for more than 25 minutes, so the limits are ours."""

from __future__ import annotations

from controller.core import stopping
from controller.core.model import MemberState
from controller.core.state import CoreState, Member, Phase, ScopeState

#: start-up stages in order, as the engine profiles name them
ORDER = ("", "process", "config", "engine", "rendezvous", "joined", "weights", "kv_cache", "warm_up", "http")
BEFORE_RENDEZVOUS = frozenset({"", "process", "config", "engine"})


def check(s: CoreState, scope: ScopeState, reported: Member | None = None) -> None:
    """Look at the member that has just reported, or at all of them when a limit may have passed."""
    if scope.phase is not Phase.STARTING or scope.recovered:
        return
    for member in [reported] if reported is not None else list(scope.members.values()):
        if member.report is None or member.state not in (MemberState.STARTING, MemberState.LOADING):
            continue
        if scope.was_ready and member.report.workers_seen >= member.report.workers_expected:
            continue  # it has started; a manager that has just adopted it may not know its stage yet
        limit, spent, what = _limit(s, member, scope.was_ready)
        if spent >= limit - 1e-6:
            _exceeded(s, scope, member, f"{what} for {spent:.0f} s, the limit is {limit:.0f} s")
            return
        s.arm(s.now + limit - spent, "stage", f"{scope.scope_id}#{scope.generation}")


def _limit(s: CoreState, member: Member, was_ready: bool) -> tuple[float, float, str]:
    """The limit that applies to a member's stage, how much of it is spent, and what it is doing."""
    report, timers = member.report, s.plan.timers
    assert report is not None
    since_report = s.now - member.reported_at
    stage_seconds = report.stage_seconds + since_report
    if was_ready and report.workers_seen < report.workers_expected:
        # it was ready, its workers are gone and no exit was seen: a shim that is frozen reports none
        seen = f"{report.workers_seen} of {report.workers_expected} workers are left"
        return timers.configuration_limit, since_report, f"was ready, {seen}"
    if report.stage in BEFORE_RENDEZVOUS:
        return timers.configuration_limit, stage_seconds, f"in stage '{report.stage or 'starting'}'"
    if report.stage == "rendezvous":
        return timers.rendezvous_limit, stage_seconds, "waiting for rendezvous"
    if report.workers_up and report.stage in ("kv_cache", "warm_up"):
        return timers.start_timeout, stage_seconds, "waiting for the group's master"  # a follower's log ends here
    return timers.load_idle_limit, report.idle_seconds + since_report, f"no progress in stage '{report.stage}'"


def _exceeded(s: CoreState, scope: ScopeState, member: Member, what: str) -> None:
    """Blame the rank that is furthest behind: it is the one the others wait for."""
    waiting = [m for m in scope.members.values() if m.report is not None and m.state is not MemberState.READY]
    behind = min(waiting, key=lambda m: (_progress(m), m.slot), default=member)
    silent = [m for m in scope.members.values() if m.report is None]
    if silent:
        behind = silent[0]
    reason = f"rank {member.slot.node_rank}: {what}"
    if behind.slot != member.slot:
        stage = behind.report.stage if behind.report else "no report"
        reason += f"; furthest behind: {behind.slot} on {behind.node_id} ({stage or 'starting'})"
    stopping.fail(s, scope, behind.slot, behind.node_id or "", reason, behind.report, final=False)


def _progress(member: Member) -> int:
    stage = member.report.stage if member.report else ""
    return ORDER.index(stage) if stage in ORDER else len(ORDER)
