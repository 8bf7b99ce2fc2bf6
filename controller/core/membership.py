"""Nodes come, come back, are replaced, go. Losing sight of a node is not a failure (rule 7)."""

from __future__ import annotations

from controller.core import adoption, assembly, liveness, placement, stage_limits, starting, stopping
from controller.core.actions import AcceptNode, CloseSession, RefuseNode
from controller.core.events import MemberReported, NodeDisconnected, NodeRegistered
from controller.core.model import ENDED, MemberReport, MemberState, SlotKey
from controller.core.state import CoreState, Member, NodeState, Phase, ScopeState

#: phases in which no engine of the scope's own generation may run
OVER = frozenset({Phase.ASSEMBLING, Phase.BACKOFF, Phase.FAILED, Phase.STOPPED})


def node_registered(s: CoreState, event: NodeRegistered) -> None:
    refusal = _refusal(s, event)
    if refusal is not None:
        code, reason, retry = refusal
        s.say(f"node {event.offer.node_id}", f"refused_{code}", reason)
        s.emit(RefuseNode(event.session, code, reason, retry))
        return
    node = _admit(s, event)
    for subject, sentence in event.remarks:
        s.say(subject, "engine_profile", sentence)
    for slot, generation in event.seen:
        instance = s.instances.get(slot.instance)
        if instance is not None:  # a node would refuse anything older (rule 6)
            instance.generation = max(instance.generation, generation)
    node.looked_at = False
    _give_up_misfits(s, node)
    _take_holdings(s, node, event.holdings)
    node.looked_at = True
    assembly.node_has_room(s, node)
    for slot in sorted(node.slots):
        scope = s.scope_of(slot)
        if scope is not None:
            assembly.update_completeness(s, scope)
            assembly.try_start(s, scope)


def _refusal(s: CoreState, event: NodeRegistered) -> tuple[str, str, bool] | None:
    offer, known = event.offer, s.nodes.get(event.offer.node_id)
    if event.deployment_id != s.plan.deployment_id:
        return (
            "deployment",
            f"expected deployment '{s.plan.deployment_id}', the node belongs to '{event.deployment_id}'; "
            "set `deployment_id` in its nodemanager.yaml",
            False,
        )
    bad = placement.bad_address(offer, s.plan)
    if bad is not None:
        return "address", bad, False
    if known is None:
        return None
    if known.offer.boot_id == offer.boot_id:
        if offer.incarnation < known.offer.incarnation:
            return (
                "session_replaced",
                f"incarnation {known.offer.incarnation} of node {offer.node_id} has registered, "
                f"this is the older {offer.incarnation}",
                False,
            )
        return None
    if known.connected:
        return (
            "cloned",
            f"node_id {offer.node_id} is in use by a machine with another boot_id at {known.offer.address}, "
            "which answers; a copied machine needs a node_id of its own: remove `node_id` from its state folder",
            True,
        )
    return None


def _admit(s: CoreState, event: NodeRegistered) -> NodeState:
    """Open the session; a newer stream of the same node replaces the older at once."""
    offer = event.offer
    node = s.nodes.get(offer.node_id)
    s.emit(AcceptNode(event.session, offer.node_id))
    if node is None:
        s.registrations += 1
        node = NodeState(offer, event.session, s.registrations, s.now)
        s.nodes[offer.node_id] = node
        s.say(f"node {offer.node_id}", "registered", f"node {offer.node_id} registered from {offer.address}")
    else:
        if node.session is not None:
            s.sessions.pop(node.session, None)
            s.emit(CloseSession(node.session, f"replaced by incarnation {offer.incarnation}"))
        if not node.slots:  # it may offer something else now, or be long gone: queue up again
            s.leave_queue(node)
            s.registrations += 1
            node.order = s.registrations
        rebooted = node.offer.boot_id != offer.boot_id
        node.offer, node.session, node.connected_since = offer, event.session, s.now
        node.unreachable_since, node.unreachable_cause = None, ""
        node.told = None
        node.declared_lost = False
        if rebooted:
            node.foreign.clear()
            node.stale.clear()
            node.quarantined.clear()
        s.say(f"node {offer.node_id}", "returned", f"node {offer.node_id} is back from {offer.address}")
    s.sessions[event.session] = offer.node_id
    s.note_room(node)
    for slot in node.slots:
        scope = s.scope_of(slot)
        if scope is not None:
            scope.away.discard(slot)
            assembly.update_completeness(s, scope)
    return node


def _give_up_misfits(s: CoreState, node: NodeState) -> None:
    """What came back may be another engine than what was seated here."""
    for slot in sorted(node.slots):
        scope = s.scope_of(slot)
        if scope is None or scope.recovered:
            continue
        why = placement.misfit(node.offer, scope.plan)
        if why and scope.phase is Phase.PREPARING:
            starting.refuse(s, scope, {slot: f"node {node.offer.node_id} does not fit any more: {why}"})
        elif why:
            assembly.vacate_misfits(s, scope, [slot])


def _take_holdings(s: CoreState, node: NodeState, holdings: tuple[MemberReport, ...]) -> None:
    """Compare what the node holds with what it should hold, slot by slot."""
    held = {report.slot: report for report in holdings}
    for slot, generation in list(node.stale.items()):
        if slot not in held or held[slot].generation != generation:
            del node.stale[slot]  # it was left there while the node was away, and is gone
    node.foreign = {slot: report for slot, report in node.foreign.items() if slot in held}
    adoption.drop_claims(s, node, held)
    for report in sorted(holdings, key=lambda r: (r.slot, r.generation)):
        take_report(s, node, report)
    for slot in sorted(node.slots):
        scope = s.scope_of(slot)
        if scope is None or node.offer.node_id != scope.members[slot].node_id:
            continue
        if slot not in held or held[slot].generation != scope.generation:
            claim = scope.claims.get(slot)
            newer_elsewhere = claim is not None and claim[1].generation > scope.generation
            if not (scope.recovered and newer_elsewhere):  # an older store must not judge what it knows nothing of
                _holds_nothing(s, node, scope, slot)
        elif scope.phase is Phase.STOPPING and slot in scope.unstopped:
            stopping.send_stop(s, scope, slot)  # the command may have gone with the stream
        elif scope.phase is Phase.PREPARING:
            # it was started by an earlier controller from this very record
            scope.unprepared.discard(slot)
            if not scope.unprepared:
                starting.start(s, scope)
        scope.members[slot].group_ready_told = False
        _tell_group_ready(s, scope, slot)


def _holds_nothing(s: CoreState, node: NodeState, scope: ScopeState, slot: SlotKey) -> None:
    """The node fills a slot but holds no engine of its generation: which commands has it missed?"""
    member = scope.members[slot]
    if scope.phase is Phase.PREPARING:
        scope.unprepared.add(slot)  # a reservation does not outlive its manager
        _send_missed(s, scope, member)
    elif scope.phase is Phase.STOPPING:
        stopping.member_stopped(s, scope, slot)
    elif scope.phase in (Phase.STARTING, Phase.READY):
        placed = member.placement
        if placed is not None and placed.boot_id != node.offer.boot_id:
            stopping.fail(s, scope, slot, node.offer.node_id, f"node {node.offer.node_id} was rebooted", None)
        elif member.report is not None:
            reason = f"node {node.offer.node_id} no longer holds the engine it reported"
            stopping.fail(s, scope, slot, node.offer.node_id, reason, None)
        elif scope.recovered:
            adoption.member_without_holding(s, scope, slot)
        else:
            _send_missed(s, scope, member)


def _send_missed(s: CoreState, scope: ScopeState, member: Member) -> None:
    """The command that was lost with the stream, or held back until the node was clean."""
    if scope.phase is Phase.PREPARING and member.slot in scope.unprepared:
        starting.send_prepare(s, scope, member)
    elif scope.phase is Phase.STARTING and member.report is None and not scope.recovered:
        starting.send_start(s, scope, member)


def _tell_group_ready(s: CoreState, scope: ScopeState, slot: SlotKey) -> None:
    master = scope.members.get(scope.plan.api_server(slot))
    if master is not None and master.state is MemberState.READY:
        starting.tell_followers(s, scope, master)


def member_reported(s: CoreState, event: MemberReported) -> None:
    node = s.nodes.get(event.node_id)
    if node is None or node.session != event.session:
        return
    take_report(s, node, event.report)


def take_report(s: CoreState, node: NodeState, report: MemberReport) -> None:
    """One engine's state, from its node: of the current generation, of an older one of ours, or foreign."""
    scope = s.scope_of(report.slot)
    if scope is None:
        adoption.foreign(s, node, report, "this deployment has no such slot")
        return
    instance = s.instances[report.slot.instance]
    instance.generation = max(instance.generation, report.generation)  # continue above what a node has seen (rule 6)
    member = scope.members[report.slot]
    nothing_there = report.state is MemberState.STOPPED and not report.run_id  # a stop that found no engine
    current = member.node_id == node.offer.node_id and report.generation == scope.generation
    if current and scope.record is not None and (report.run_id == scope.run_id or nothing_there):
        _take_current(s, node, scope, report)
        left = node.stale.get(report.slot)
        if left is not None and (left < report.generation or report.state is MemberState.STOPPED):
            _cleaned(s, node, report.slot, left)  # a node holds one engine of a slot: the newest
    elif nothing_there or (_started_by_us(s, scope, report) and report.generation <= scope.generation):
        _take_stale(s, node, report)
    else:
        adoption.claim(s, scope, node, report)


def _started_by_us(s: CoreState, scope: ScopeState, report: MemberReport) -> bool:
    return report.run_id == s.run_id(scope.scope_id, report.generation) or report.run_id in scope.adopted_run_ids


def _take_current(s: CoreState, node: NodeState, scope: ScopeState, report: MemberReport) -> None:
    member = scope.members[report.slot]
    member.report = report
    member.reported_at = s.now
    if scope.recovered and scope.phase is Phase.STARTING and report.state not in ENDED:
        adoption.member_seen(s, scope, report.slot)
    if report.state in ENDED:
        stopping.member_ended(s, scope, report.slot, node.offer.node_id, report)
    elif scope.phase in (Phase.STARTING, Phase.READY):
        starting.member_running(s, scope, member)
        stage_limits.check(s, scope, member)
        liveness.check_hang(s, scope, member)
    elif scope.phase in OVER and report.state is not MemberState.STOPPING:
        assembly.clean_stale(s, node, report.slot, report.generation, "its generation is over")


def _take_stale(s: CoreState, node: NodeState, report: MemberReport) -> None:
    """An engine of ours whose generation is over: it ends before the node gets anything else (rule 5)."""
    if report.state is MemberState.STOPPED:
        _cleaned(s, node, report.slot, report.generation)
    elif report.state is not MemberState.STOPPING:
        assembly.clean_stale(s, node, report.slot, report.generation, "not of the current generation")


def _cleaned(s: CoreState, node: NodeState, slot: SlotKey, generation: int) -> None:
    if not assembly.stale_gone(s, node, slot, generation):
        return
    for own in sorted(node.slots):
        scope = s.scope_of(own)
        if scope is not None:
            _send_missed(s, scope, scope.members[own])
            _tell_group_ready(s, scope, own)


def node_disconnected(s: CoreState, event: NodeDisconnected) -> None:
    """The stream is gone. Nothing is stopped for that; what it means depends on what runs there."""
    if s.sessions.pop(event.session, None) is None:
        return
    node = s.nodes[event.node_id]
    if node.session != event.session:
        return
    node.session = None
    node.unreachable_since = s.now
    node.unreachable_cause = event.cause
    s.note_room(node)
    s.say(f"node {event.node_id}", "unreachable", f"node {event.node_id} is unreachable: {event.cause}")
    timers = s.plan.timers
    s.arm(s.now + timers.node_timeout, "lost", event.node_id)
    for slot in sorted(node.slots):
        scope = s.scope_of(slot)
        if scope is None:
            continue
        scope.away.add(slot)
        assembly.update_completeness(s, scope)
        if scope.phase is Phase.READY:
            s.arm(s.now + timers.node_timeout, "alive", f"{scope.scope_id}#{scope.generation}")
        elif scope.phase is Phase.STARTING:
            s.arm(s.now + timers.start_unreachable_grace, "unreachable", f"{scope.scope_id}#{scope.generation}")
        elif scope.phase is Phase.STOPPING:
            stopping.arm_proof_of_death(s, scope)


def node_lost(s: CoreState, node_id: str) -> None:
    """Away for the node timeout: slots on which nothing can be running go to others."""
    node = s.nodes.get(node_id)
    if node is None or node.connected or node.unreachable_since is None:
        return
    if s.now - node.unreachable_since < s.plan.timers.node_timeout - 1e-6:
        return
    for slot in sorted(node.slots):
        scope = s.scope_of(slot)
        if scope is None or scope.recovered:
            continue
        if scope.phase in (Phase.ASSEMBLING, Phase.BACKOFF, Phase.STOPPED):
            reason = f"node {node_id} is lost: {node.unreachable_cause}"
            placement.unseat(s, scope, slot, "lost", reason)
            assembly.refill(s, scope)
            assembly.try_start(s, scope)
    if not node.slots:
        s.say(f"node {node_id}", "lost", f"node {node_id} is lost: nothing of this deployment runs on it")


def unreachable_in_start(s: CoreState, scope: ScopeState) -> None:
    """A gang in start-up has waited long enough for a member that is out of sight."""
    if scope.phase is not Phase.STARTING:
        return
    if any(member.state is MemberState.READY for member in scope.members.values()):
        return  # its API server answers, so the member out of sight computes
    grace = s.plan.timers.start_unreachable_grace
    for slot in sorted(scope.away):
        node = s.node_of(slot)
        if node is None or node.unreachable_since is None:
            continue
        if s.now - node.unreachable_since >= grace - 1e-6:
            reason = f"node {node.offer.node_id} has been unreachable for {grace:.0f} s while the gang starts"
            stopping.fail(s, scope, slot, node.offer.node_id, reason, None, final=False)
            return
