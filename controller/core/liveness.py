"""Is a ready gang still computing? The verdict on hangs, and proof of life when a member is out of sight.

`/health` stays 200 when a follower is frozen, and the engine's counters stand still although a request is in flight:
counters are a positive sign of life only. The canary, a one-token request with our own deadline, finds the hang; device
activity says which rank it is, and that a gang that is merely busy is left alone.
"""

from __future__ import annotations

from controller.core import stopping
from controller.core.actions import AskProofOfLife
from controller.core.events import ProofOfLife
from controller.core.model import Liveness, MemberState, SlotKey
from controller.core.starting import dependants, settle_readiness
from controller.core.state import CoreState, Member, Phase, ProofState, ScopeState

CATCH_UP_SAMPLES = 2  # how long a verdict waits for another flat rank to be counted to the end


def check_hang(s: CoreState, scope: ScopeState, reported: Member | None = None) -> None:
    """Judge every API server's gang, ready now or once, whose canary is late. `reported` limits the look to that
    member's gang."""
    # A frozen API server fails /health before its canary is late, a dead engine loses its workers: no longer ready,
    # and hung all the same.
    serving = scope.phase is Phase.READY or (scope.phase is Phase.STARTING and scope.was_ready)
    if not serving or not scope.plan.hang.canary:
        return
    for master in scope.members.values():
        if not scope.plan.has_api(master.slot):
            continue
        gang = [master, *(scope.members[slot] for slot in dependants(scope, master.slot))]
        if reported is not None and reported not in gang:
            continue
        life = _life(master)
        if life is None or life.canary != "late":
            before = s.last_line.get(str(master.slot))
            if life is not None and life.canary == "ok" and before is not None and before.code == "canary_late":
                s.say(str(master.slot), "canary_answered", "the engine answers again")
                if scope.verdict is not None and scope.verdict.failure_class == "group":  # noted in a pause
                    scope.verdict = None
                    settle_readiness(s, scope, master)
            continue
        late = life.canary_running + s.now - master.reported_at
        s.say(str(master.slot), "canary_late", "a one-token request is not answered; the gang is being judged")
        suspect, reason, look_again = judge(s, scope, gang, late)
        if reason:
            _verdict(s, scope, suspect, reason)
            return
        if look_again is not None:
            s.arm(s.now + look_again, "hang", f"{scope.scope_id}#{scope.generation}")


def judge(s: CoreState, scope: ScopeState, gang: list[Member], late: float) -> tuple[Member, str, float | None]:
    """(suspect, reason or "", seconds until it is worth looking again or None). The canary of `gang[0]` is late."""
    hang, master = scope.plan.hang, gang[0]
    states = [(member, _life(member) or Liveness(), s.now - member.reported_at) for member in gang]
    states = [(m, life if _in_sight(s, m) else Liveness(), age) for m, life, age in states]
    flat = [
        (m, life) for m, life, _ in states if life.devices == "flat" and life.flat_samples >= hang.max_failure_count
    ]
    if flat:
        counting = [
            life for _, life, _ in states if life.devices == "flat" and life.flat_samples < hang.max_failure_count
        ]
        if counting and max(life.flat_samples for _, life in flat) < hang.max_failure_count + CATCH_UP_SAMPLES:
            return master, "", None  # another rank is flat and still being counted: it may be the frozen one
        unseen = next((m for m, _, _ in states if not _in_sight(s, m)), None)
        if unseen is not None:  # those in sight may well be flat because they wait for it
            who = f"rank {unseen.slot.node_rank} on {unseen.node_id}"
            return unseen, f"hung: the canary is late by {late:.0f} s and {who} is out of sight", None
        crippled = next((m for m in gang if _lost_workers(m)), None)
        if crippled is not None:  # it has nothing left that could be flat, and the others wait for it
            where = f"rank {crippled.slot.node_rank} on {crippled.node_id}"
            why = crippled.report.reason if crippled.report is not None else ""
            return crippled, f"hung: the canary is late by {late:.0f} s and {where} has lost workers ({why})", None
        # a rank that only waits for the frozen one may be flat as well; the frozen one shows nothing at all
        member, life = min(flat, key=lambda found: (found[1].flat_peak, -found[0].slot.node_rank))
        where = f"rank {member.slot.node_rank} on {member.node_id}"
        return member, f"hung: the canary is late by {late:.0f} s and {where} is flat ({life.devices_detail})", None
    kinds = {life.devices for _, life, _ in states}
    if kinds == {"busy_without_memory"}:
        spent = min(life.devices_since + age for _, life, age in states)
        if spent >= hang.collective_deadlock_after - 1e-6:
            reason = (
                f"hung: the canary is late by {late:.0f} s and all ranks spin without memory traffic for {spent:.0f} s"
            )
            return master, reason, None
        return master, "", hang.collective_deadlock_after - spent
    if "busy" in kinds or "flat" in kinds:
        return master, "", None  # a long step, or strikes still being counted: the next report says more
    life = _life(master) or Liveness()
    still = late if life.progress < 0 else life.progress + s.now - master.reported_at
    if still >= hang.hang_after_unknown - 1e-6:
        unknown = next((m for m, life, _ in states if life.devices == "unknown"), master)
        why = (_life(unknown) or Liveness()).devices_detail or "no telemetry"
        return (
            master,
            f"hung: no progress for {still:.0f} s, the canary is late by {late:.0f} s; devices unknown ({why})",
            None,
        )
    return master, "", hang.hang_after_unknown - still


def _verdict(s: CoreState, scope: ScopeState, suspect: Member, reason: str) -> None:
    if not scope.plan.hang.enforce:
        s.say(str(suspect.slot), "hang_log_only", f"{reason}; hang_verdict is 'log': nothing is done about it")
        return
    stopping.fail(s, scope, suspect.slot, suspect.node_id or "", reason, None, "group", final=False)


def _life(member: Member) -> Liveness | None:
    return member.report.liveness if member.report is not None else None


def _lost_workers(member: Member) -> bool:
    report = member.report
    return report is not None and report.state is MemberState.LOADING and report.workers_seen < report.workers_expected


def _in_sight(s: CoreState, member: Member) -> bool:
    node = s.node_of(member.slot)
    return node is not None and node.connected


# -- proof of life by another path (rule 7) -----------------------------------------------------


def ask_proof(s: CoreState, scope: ScopeState) -> None:
    """A ready gang has a member out of sight: ask its API server through somebody who is in sight, again and again."""
    if scope.phase is not Phase.READY or not scope.away:
        scope.proof = {}
        return
    deadline = scope.plan.hang.canary_deadline
    for master in scope.members.values():
        if not scope.plan.has_api(master.slot) or master.placement is None or not master.placement.api_port:
            continue
        gang = [master.slot, *dependants(scope, master.slot)]
        if scope.away.isdisjoint(gang):
            scope.proof.pop(master.slot, None)
            continue
        in_sight = [slot for slot in gang if slot not in scope.away]
        via = scope.members[in_sight[0]].node_id or "" if in_sight else ""
        scope.proof.setdefault(master.slot, ProofState(s.now)).asked_at = s.now
        s.emit(
            AskProofOfLife(
                scope.scope_id,
                master.slot,
                scope.generation,
                master.placement.address,
                master.placement.api_port,
                via,
                deadline,
            )
        )
    s.arm(s.now + deadline, "alive", f"{scope.scope_id}#{scope.generation}")


def proof_of_life(s: CoreState, event: ProofOfLife) -> None:
    """Silent but serving stays up. Without proof for node timeout + canary deadline the gang is failed, provided
    somebody of it is in sight: with nobody in sight it may well be us who are cut off."""
    scope = s.scopes.get(event.scope_id)
    if scope is None or scope.phase is not Phase.READY or scope.generation != event.generation:
        return
    proof = scope.proof.get(event.slot)
    gang = [event.slot, *dependants(scope, event.slot)]
    if proof is None or scope.away.isdisjoint(gang):
        return  # everybody is back in sight
    proof.detail = event.detail
    silent = ", ".join(f"{slot} on {scope.members[slot].node_id}" for slot in sorted(scope.away))
    if event.alive:
        proof.alive_at, proof.failing_since = s.now, None
        s.say(scope.scope_id, "silent_but_serving", f"out of sight: {silent}; the engine serves ({event.detail})")
        return
    if proof.failing_since is None:
        proof.failing_since = proof.asked_at
    without = s.now - proof.failing_since
    if all(slot in scope.away for slot in gang):
        if _fenced(s, scope, gang):
            reason = f"all nodes are out of sight and have fenced themselves by now (self_fence); {event.detail}"
            stopping.fail(s, scope, min(gang), scope.members[min(gang)].node_id or "", reason, None, final=False)
            return
        nothing = f"out of sight: {silent}; no proof of life ({event.detail}); nothing is done"
        s.say(scope.scope_id, "no_one_in_sight", nothing)
        return
    s.say(scope.scope_id, "no_proof_of_life", f"out of sight: {silent}; no proof of life: {event.detail}")
    limit = s.plan.timers.node_timeout + scope.plan.hang.canary_deadline
    if without >= limit - 1e-6:
        suspect = min(slot for slot in gang if slot in scope.away)
        node_id = scope.members[suspect].node_id or ""
        reason = f"node {node_id} is out of sight and there was no proof of life for {without:.0f} s: {event.detail}"
        stopping.fail(s, scope, suspect, node_id, reason, None, final=False)


def _fenced(s: CoreState, scope: ScopeState, gang: list[SlotKey]) -> bool:
    """Whether every node of a gang has been out of sight for long enough to have stopped its engines by itself."""
    if not s.plan.timers.self_fence:
        return False
    nodes = [node for slot in gang if (node := s.node_of(slot)) is not None]
    away = [s.now - node.unreachable_since for node in nodes if node.unreachable_since is not None]
    return len(away) == len(gang) and min(away) >= stopping.fenced_after(s)
