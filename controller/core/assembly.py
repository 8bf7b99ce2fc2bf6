"""From vacant slots to a stored record: who is missing, and what a generation consists of."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from controller.core import placement
from controller.core.actions import SendForget, SendStop, StoreRecord, TellPlacement
from controller.core.model import GenerationRecord, InstancePlan, Placement, SlotKey
from controller.core.placement import misfit
from controller.core.ports import PortLedger
from controller.core.state import CoreState, InstanceState, NodeState, Phase, ScopeState

REASONS_TOLD = 8  # of a node that fits no instance


def update_completeness(s: CoreState, scope: ScopeState) -> None:
    """Keep the instance's set of incomplete scopes true after a slot was filled, vacated, lost or regained."""
    instance = s.instances[scope.plan.name]
    was_complete = not instance.incomplete
    if scope.vacant or scope.away:
        instance.incomplete.add(scope.scope_id)
    else:
        instance.incomplete.discard(scope.scope_id)
    if was_complete and instance.incomplete:
        instance.missing_since = s.now
        instance.alarmed = False
        s.arm(s.now + s.plan.timers.assemble_timeout, "assemble", scope.plan.name)


def node_has_room(s: CoreState, node: NodeState) -> None:
    """A node came, came back, or has devices free again: let it fill slots, start what is complete, tell it."""
    s.note_room(node)
    if node.connected and node.looked_at and not node.stale and not node.foreign:
        touched = placement.fill_from_node(s, node)
        for scope in touched:
            update_completeness(s, scope)
        for scope in {scope.scope_id: scope for scope in touched}.values():
            try_start(s, scope)
    tell_placement(s, node)


def refill(s: CoreState, scope: ScopeState) -> None:
    """Fill a scope's vacant slots from the nodes with room."""
    for slot in sorted(scope.vacant):
        if placement.fill_vacancy(s, scope, slot):
            node = s.node_of(slot)
            if node is not None:
                tell_placement(s, node)
    update_completeness(s, scope)


def vacate_misfits(s: CoreState, scope: ScopeState, slots: Iterable[SlotKey]) -> None:
    """A node may come back with another engine, other devices or another role: it gives up those of `slots`, all of
    this scope, that it fits no more, as long as nothing runs there."""
    if scope.recovered or scope.phase not in (Phase.ASSEMBLING, Phase.BACKOFF, Phase.STOPPED):
        return
    for slot in sorted(slots):
        node = s.node_of(slot)
        why = misfit(node.offer, scope.plan) if node is not None and node.connected else None
        if node is None or why is None:
            continue
        placement.unseat(s, scope, slot, "misfit", f"node {node.offer.node_id} does not fit any more: {why}")
        tell_placement(s, node)
        refill(s, scope)


def tell_placement(s: CoreState, node: NodeState) -> None:
    """Tell a node what it is: assigned, spare, or rejected with every instance's reason."""
    if not node.connected:
        return
    if node.slots:
        state, reason = "assigned", "fills " + ", ".join(map(str, sorted(node.slots)))
    else:
        misfits = _misfits(s, node)
        if misfits:
            state, reason = "rejected", "; ".join(misfits)
        else:
            state, reason = "cleaning" if node.stale else "spare", spare_reason(s, node)
    told = (state, reason, tuple(sorted(node.slots)))
    if node.told != told:
        node.told = told
        s.emit(TellPlacement(node.offer.node_id, *told))
        s.say(f"node {node.offer.node_id}", state, reason)


def _misfits(s: CoreState, node: NodeState) -> list[str]:
    """Why a node fits no instance at all, the first few reasons; empty if it fits one."""
    obstacles = node.offer.obstacles
    told: list[InstancePlan] = []
    for plans in s.kinds.values():
        free = next((plan for plan in plans if plan.name not in obstacles), None) if obstacles else plans[0]
        if free is not None and misfit(node.offer, free) is None:
            return []
        told += plans[: REASONS_TOLD - len(told)]
    reasons = dict.fromkeys(str(misfit(node.offer, plan)) for plan in sorted(told, key=lambda plan: s.place[plan.name]))
    more = len(s.plan.instances) - len(told)
    return [*reasons, f"and so on for {more} more instances"] if more else list(reasons)


def spare_reason(s: CoreState, node: NodeState) -> str:
    if node.foreign:
        held = ", ".join(f"{slot} generation {r.generation}" for slot, r in sorted(node.foreign.items()))
        return f"holds a foreign engine ({held}): shown, never stopped without an operator's word"
    if node.offer.node_id in s.operator.cordoned:
        return "cordoned by an operator: it gets no new slots"
    if node.stale:
        return "an engine of an older generation is being cleaned off it"
    waiting = [refusal.reason for refusal in node.refusals.values() if refusal.until > s.now]
    if waiting:
        return "set aside: " + waiting[0]
    return "every slot it fits is filled"


def try_start(s: CoreState, scope: ScopeState) -> None:
    """Start whatever rule 1 allows now: the whole instance the first time, later this scope alone."""
    instance = s.instances[scope.plan.name]
    if s.operator.paused:
        return
    if instance.started:
        if scope.phase is Phase.ASSEMBLING and not scope.vacant and not scope.away and not scope.recovered:
            vacate_misfits(s, scope, scope.members)
            if not scope.vacant:
                begin_generation(s, scope)
        return
    if instance.incomplete:
        return
    waiting = list(instance.scopes.values())
    if all(other.phase is Phase.ASSEMBLING for other in waiting):
        instance.started = True
        s.say(scope.plan.name, "assembled", f"all {len(scope.plan.slots())} slots are filled by live nodes")
        for other in waiting:
            begin_generation(s, other)


def begin_generation(s: CoreState, scope: ScopeState) -> None:
    """Fix nodes, addresses and ports of the next generation and hand its record to the store (rules 4, 9)."""
    instance = s.instances[scope.plan.name]
    generation = instance.generation + 1
    s.ledger.release(scope.scope_id)
    members = _placements(s, scope)
    if isinstance(members, str):
        s.enter(scope, Phase.ASSEMBLING, "no_port", members)
        return
    instance.generation = scope.generation = generation
    scope.run_id = s.run_id(scope.scope_id, generation)
    scope.config_digest = scope.plan.config_digest
    scope.evidence = scope.evidence if scope.restarts else None
    for slot, member in scope.members.items():
        member.placement = members[slot]
        member.prepared = False
        member.report = None
        member.group_ready_told = False
    scope.was_ready = False
    scope.unprepared = set(scope.members)
    scope.unready = set(scope.members)
    scope.unstopped = set()
    scope.record = GenerationRecord(
        scope.plan.name, scope.scope_id, generation, scope.run_id, scope.config_digest, members, scope.restarts,
        adopted_run_ids=scope.adopted_run_ids,
    )  # fmt: skip
    s.enter(scope, Phase.STORING, "assembled", f"generation {generation}: all slots filled, storing its record")
    s.emit(StoreRecord(scope.record))


def _placements(s: CoreState, scope: ScopeState) -> dict[SlotKey, Placement] | str:
    """Every member's share of the record, or one sentence about the port that could not be had."""
    plan, ledger = scope.plan, s.ledger
    master_ports: dict[SlotKey, int] = {}
    rpc_ports: dict[SlotKey, int | None] = {}
    for slot in sorted({plan.world_master(slot) for slot in scope.members}):
        host = host_of(_address(s, slot))
        first, size = plan.master_ports.first, plan.master_ports.size
        # the port after the last one: a left-over of the generation before cannot join this one (rule 5)
        start = scope.last_master_port + 1 - first if scope.last_master_port else 0
        rotation = [first + (start + i) % size for i in range(size)]
        port = ledger.take(host, scope.scope_id, rotation)
        if port is None:
            return _no_port(ledger, host, "master", str(plan.master_ports))
        scope.last_master_port = master_ports[slot] = port
        rpc_ports[slot] = None
        if plan.dp_rpc_ports is not None:
            rpc_ports[slot] = ledger.take(host, scope.scope_id, list(plan.dp_rpc_ports))
            if rpc_ports[slot] is None:
                return _no_port(ledger, host, "data-parallel RPC", str(plan.dp_rpc_ports))
    members: dict[SlotKey, Placement] = {}
    for slot, member in scope.members.items():
        node = s.node_of(slot)
        assert node is not None, f"{slot} has no node"
        api_port: int | None = None
        if plan.has_api(slot):
            before = member.placement.api_port if member.placement else None
            wanted = [before] if before else []
            host = host_of(node.offer.address)
            api_port = ledger.take(host, scope.scope_id, [*wanted, *plan.api_ports])
            if api_port is None:
                return _no_port(ledger, host, "API", str(plan.api_ports))
        master = plan.world_master(slot)
        members[slot] = Placement(
            node_id=node.offer.node_id,
            boot_id=node.offer.boot_id,
            address=node.offer.address,
            devices=member.devices,
            api_port=api_port,
            master_addr=_address(s, master),
            master_port=master_ports[master],
            dp_rpc_port=rpc_ports[master],
        )
    return members


def host_of(address: str) -> str:
    """The ledger's name of the machine with this address. Loopback addresses are all one machine, and an engine's
    master port is bound on every address of it."""
    return "loopback" if ipaddress.ip_address(address).is_loopback else address


def _address(s: CoreState, slot: SlotKey) -> str:
    node = s.node_of(slot)
    assert node is not None, f"{slot} has no node"
    return node.offer.address


def _no_port(ledger: PortLedger, host: str, what: str, wanted: str) -> str:
    taken = ", ".join(f"{port} by {owner}" for port, owner in sorted(ledger.ports_on(host).items()))
    return f"no {what} port free on {host} in {wanted} (taken: {taken}); widen `port_ranges` in deploy.json"


def clean_stale(s: CoreState, node: NodeState, slot: SlotKey, generation: int, reason: str) -> None:
    """An engine of a generation that is over: it ends before this node gets anything else (rule 5)."""
    node.stale[slot] = generation
    s.note_room(node)
    s.say(f"node {node.offer.node_id}", "cleaning", f"{slot} generation {generation}: {reason}")
    if s.operator.paused:
        return
    s.emit(SendStop(node.offer.node_id, slot, generation, "failure", reason, s.plan.timers.stop_grace))


def stale_gone(s: CoreState, node: NodeState, slot: SlotKey, generation: int) -> bool:
    """A stale engine's end is confirmed; True if it was the last one of its node."""
    s.emit(SendForget(node.offer.node_id, slot, generation))
    if slot not in node.stale or node.stale[slot] > generation:
        return False
    del node.stale[slot]
    s.say(f"node {node.offer.node_id}", "cleaned", f"{slot} generation {generation} is gone")
    if node.stale:
        return False
    node_has_room(s, node)
    return True


def assemble_alarm(s: CoreState, instance: InstanceState) -> None:
    """Assembly takes longer than it should: say which slots are missing, once, and keep waiting."""
    waited = s.now - instance.missing_since
    if not instance.incomplete or instance.alarmed or waited < s.plan.timers.assemble_timeout - 1e-6:
        return
    instance.alarmed = True
    missing = [slot for scope_id in instance.incomplete for slot in missing_slots(instance.scopes[scope_id])]
    names = ", ".join(map(str, sorted(missing)[:8])) + (" ..." if len(missing) > 8 else "")
    s.say(instance.plan.name, "assemble_timeout", f"{len(missing)} slots missing for {waited:.0f} s: {names}")


def missing_slots(scope: ScopeState) -> set[SlotKey]:
    """Slots without a live node."""
    return scope.vacant | scope.away
