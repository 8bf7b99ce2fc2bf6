"""From a stored record to ready members: prepare, start, readiness."""

from __future__ import annotations

from controller.core import assembly, placement, stopping
from controller.core.actions import SendGroupReady, SendPrepare, SendRelease, SendStart
from controller.core.events import CommandRefused, PrepareReported, RecordNotStored, RecordStored
from controller.core.model import MemberState, SlotKey
from controller.core.state import CoreState, Member, NodeState, Phase, Refusal, ScopeState

STORE_RETRY = 5.0  # seconds until a record that could not be stored is tried again


def record_stored(s: CoreState, event: RecordStored) -> None:
    scope = s.scopes.get(event.scope_id)
    if scope is None or scope.phase is not Phase.STORING or scope.generation != event.generation:
        return
    s.enter(scope, Phase.PREPARING, "preparing", f"generation {scope.generation}: nodes check and reserve")
    s.arm(s.now + s.plan.timers.prepare_timeout, "prepare", f"{scope.scope_id}#{scope.generation}")
    for member in scope.members.values():
        send_prepare(s, scope, member)


def record_not_stored(s: CoreState, event: RecordNotStored) -> None:
    """Nothing has been sent: stay where we are, say so, try again."""
    scope = s.scopes.get(event.scope_id)
    if scope is None or scope.phase is not Phase.STORING or scope.generation != event.generation:
        return
    s.enter(
        scope, Phase.STORING, "store_failed",
        f"generation {scope.generation} is not started because its record cannot be stored: {event.error}",
    )  # fmt: skip
    s.arm(s.now + STORE_RETRY, "store", f"{scope.scope_id}#{scope.generation}")


def _ready_to_obey(s: CoreState, member: Member) -> NodeState | None:
    """The member's node, if it can be told something now. What an older generation left on it goes first (rule 5): a
    stop of that crosses the command, and takes the reservation away or finds the start refused. Who confirms the end
    of it sends what was held back (membership.py)."""
    node = s.node_of(member.slot)
    return node if node is not None and node.connected and not node.stale else None


def send_prepare(s: CoreState, scope: ScopeState, member: Member) -> None:
    node = _ready_to_obey(s, member)
    if node is None or member.placement is None:
        return
    s.emit(
        SendPrepare(
            node.offer.node_id, member.slot, scope.generation, scope.run_id, scope.config_digest,
            member.placement, scope.plan.world_master(member.slot) == member.slot, s.plan.timers.prepare_timeout,
        )
    )  # fmt: skip


def send_start(s: CoreState, scope: ScopeState, member: Member) -> None:
    node = _ready_to_obey(s, member)
    if node is None or member.placement is None:
        return
    s.emit(
        SendStart(
            node.offer.node_id,
            member.slot,
            scope.generation,
            scope.run_id,
            scope.config_digest,
            member.placement,
        )
    )


def prepare_reported(s: CoreState, event: PrepareReported) -> None:
    scope = s.scope_of(event.slot)
    if scope is None or scope.phase is not Phase.PREPARING or event.generation != scope.generation:
        return
    member = scope.members[event.slot]
    if member.node_id != event.node_id:
        return
    member.found = (event.model_digest, event.engine_version, event.driver_version, event.toolkit_version)
    if not event.ok and event.only_ports():
        replan_ports(s, scope, member, event)
    elif not event.ok:
        refuse(s, scope, {event.slot: f"node {event.node_id} refused: {event.refusal()}"})
    else:
        member_prepared(s, scope, member)


def member_prepared(s: CoreState, scope: ScopeState, member: Member) -> None:
    member.prepared = True
    scope.unprepared.discard(member.slot)
    s.say(str(member.slot), "prepared", f"node {member.node_id} is prepared")
    if scope.unprepared:
        return
    odd = unlike_their_master(scope)
    if odd:
        refuse(s, scope, odd)
    else:
        start(s, scope)


#: what `Member.found` holds, for people
COMPARED = ("model files", "engine", "driver", "CANN")


def unlike_their_master(scope: ScopeState) -> dict[SlotKey, str]:
    """Members whose model, engine or driver differs from the master of their engine world: nothing in the engine would
    say so, it would hang or compute nonsense."""
    odd: dict[SlotKey, str] = {}
    for slot, member in scope.members.items():
        master = scope.members[scope.plan.world_master(slot)]
        for what, mine, its in zip(COMPARED, member.found, master.found, strict=True):
            if mine and its and mine != its:
                odd[slot] = f"node {member.node_id} has {what} {mine}, node {master.node_id} (the master) has {its}"
    return odd


def start(s: CoreState, scope: ScopeState) -> None:
    """All are prepared: everybody starts at once, because an engine waits for its peers in silence."""
    s.enter(scope, Phase.STARTING, "started", f"generation {scope.generation}: all members told to start")
    scope.unready = set(scope.members)
    s.arm(s.now + s.plan.timers.start_timeout, "start", f"{scope.scope_id}#{scope.generation}")
    for member in scope.members.values():
        send_start(s, scope, member)


def refuse(s: CoreState, scope: ScopeState, reasons: dict[SlotKey, str]) -> None:
    """Nodes will not take their slots: each is set aside for that slot and another is asked. Costs no restart."""
    first = min(reasons)
    set_aside: list[NodeState] = []
    for slot, reason in sorted(reasons.items()):
        node = s.node_of(slot)
        if node is None:
            continue
        before = node.refusals.get(slot)
        timers = s.plan.timers
        backoff = min(before.backoff * 2, timers.refusal_backoff_max) if before else timers.refusal_backoff
        node.refusals[slot] = Refusal(s.now + backoff, backoff, reason)
        s.arm(s.now + backoff, "refusal", node.offer.node_id)
        s.say(f"node {node.offer.node_id}", "refused", f"{slot}: {reason}; asked again in {backoff:.0f} s")
        set_aside.append(node)
    release_all(s, scope, "refused", f"{first}: {reasons[first]}")
    for slot, reason in sorted(reasons.items()):
        placement.unseat(s, scope, slot, "refused", reason)
    assembly.refill(s, scope)
    for node in set_aside:
        assembly.node_has_room(s, node)
    assembly.try_start(s, scope)


def release_all(s: CoreState, scope: ScopeState, code: str, reason: str) -> None:
    """Give up a generation that nobody has started: reservations go, nodes keep their slots."""
    for member in scope.members.values():
        node = s.node_of(member.slot)
        if node is not None and node.connected:
            s.emit(SendRelease(node.offer.node_id, member.slot, scope.generation, reason))
        member.prepared = False
    s.enter(scope, Phase.ASSEMBLING, code, reason)
    stopping.store_outcome(s, scope, "stopped", reason)


def replan_ports(s: CoreState, scope: ScopeState, member: Member, event: PrepareReported) -> None:
    """Something else holds a planned port: that is no reason to set the node aside, the next port of the range is."""
    node = s.node_of(member.slot)
    if node is None:
        return
    host = assembly.host_of(node.offer.address)
    release_all(s, scope, "port_taken", f"{member.slot}: {event.refusal()}; planning with other ports")
    s.ledger.release(scope.scope_id)
    for port in event.taken_ports:
        owner = f"something else on {node.offer.node_id}, port {port}"
        s.ledger.take(host, owner, [port])
        s.arm(s.now + s.plan.timers.port_blocked_for, "port", f"{owner}#{scope.scope_id}")
    assembly.try_start(s, scope)


def prepare_overdue(s: CoreState, scope: ScopeState) -> None:
    """Some node has not answered the prepare command in time."""
    if scope.phase is not Phase.PREPARING:
        return
    reasons = {}
    for slot in scope.unprepared:
        node = s.node_of(slot)
        name = node.offer.node_id if node else "?"
        if node is not None and not node.connected:
            silent = "is unreachable"
        elif node is not None and node.stale:
            silent = "was not cleaned of an older generation"  # and was therefore not asked
        else:
            silent = "did not answer"
        reasons[slot] = f"node {name} {silent} within {s.plan.timers.prepare_timeout:.0f} s of prepare"
    if reasons:
        refuse(s, scope, reasons)


def command_refused(s: CoreState, event: CommandRefused) -> None:
    """A node has seen something newer, or may not run what it was told (rule 6, rule 10)."""
    scope = s.scope_of(event.slot)
    s.say(
        f"node {event.node_id}",
        "command_refused",
        f"{event.command} {event.slot}: {event.code}: {event.reason}",
    )
    if scope is None or event.generation != scope.generation:
        return
    instance = s.instances[event.slot.instance]
    instance.generation = max(instance.generation, event.newest_generation)
    member = scope.members[event.slot]
    if member.node_id != event.node_id:
        return
    if scope.phase is Phase.PREPARING:
        refuse(s, scope, {event.slot: f"node {event.node_id} refused: {event.code}: {event.reason}"})
    elif scope.phase is Phase.STARTING and event.command == "start":
        reason = f"node {event.node_id} refused to start it: {event.code}: {event.reason}"
        stopping.fail(s, scope, event.slot, event.node_id, reason, None, "port" if event.code == "port" else "")


def member_running(s: CoreState, scope: ScopeState, member: Member) -> None:
    """A report of a live engine of the current generation: does it change who is ready?"""
    if member.state is MemberState.READY:
        scope.unready.discard(member.slot)
    else:
        scope.unready.add(member.slot)
    if scope.plan.has_api(member.slot):
        tell_followers(s, scope, member)
    settle_readiness(s, scope, member)


def settle_readiness(s: CoreState, scope: ScopeState, member: Member) -> None:
    """Ready when every member is, and no failure was noted in a pause; `member` is the one that changed."""
    if scope.phase is Phase.STARTING and not scope.unready and scope.verdict is None:
        waited = s.now - scope.since
        scope.was_ready = True
        s.enter(scope, Phase.READY, "ready", f"generation {scope.generation} is ready after {waited:.1f} s")
        if scope.restarts:
            s.arm(s.now + s.plan.timers.stable_after, "stable", f"{scope.scope_id}#{scope.generation}")
    elif scope.phase is Phase.READY and scope.unready:
        why = member.report.reason if member.report else ""
        s.enter(scope, Phase.STARTING, "not_ready", f"{member.slot} is {member.state.value} again: {why}")


def dependants(scope: ScopeState, master: SlotKey) -> list[SlotKey]:
    """Members whose readiness waits for this API server: its group, or everyone if it is the only one."""
    if scope.plan.api_on_every_group:
        group = [SlotKey(master.instance, master.dp_rank, r) for r in range(scope.plan.nnodes)]
        return [slot for slot in group if slot != master]
    return [slot for slot in scope.members if slot != master]


def tell_followers(s: CoreState, scope: ScopeState, master: Member) -> None:
    """Followers have no HTTP of their own: they are ready when their workers are up and the master answers."""
    ready = master.state is MemberState.READY
    for slot in dependants(scope, master.slot):
        member = scope.members[slot]
        if member.group_ready_told == ready:
            continue
        node = _ready_to_obey(s, member)
        if node is not None:
            member.group_ready_told = ready
            s.emit(SendGroupReady(node.offer.node_id, slot, scope.generation, ready))
