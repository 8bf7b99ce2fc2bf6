"""Which node fills which slot. The order is a policy: registration order, replaceable, pure."""

from __future__ import annotations

import heapq
import ipaddress

from controller.core.model import DeploymentPlan, InstancePlan, NodeOffer, Scope, SlotKey
from controller.core.state import CoreState, NodeState, ScopeState


def misfit(offer: NodeOffer, plan: InstancePlan) -> str | None:
    """Why this node can never fill a slot of this instance; None if it can. Compared with the plan, never with
    another node: the first node has no say in what is expected of the others."""
    if offer.role and offer.role != plan.role:
        return f"the node declares role {offer.role}, {plan.name} is {plan.role}"
    if plan.engine not in offer.engines:
        have = ", ".join(sorted(offer.engines)) or "none"
        return f"{plan.name} needs engine '{plan.engine}', the node's file has: {have}; add it under `engines`"
    if wrong := _wrong_version(offer, plan):
        return wrong
    if plan.name in offer.obstacles:
        return f"{plan.name}: {offer.obstacles[plan.name]}"
    if len(offer.devices) < plan.devices_per_slot:
        return (
            f"{plan.name} needs {plan.devices_per_slot} devices per node, the node offers {len(offer.devices)}; "
            "see `devices` in its nodemanager.yaml"
        )
    if offer.expected_nnodes and offer.expected_nnodes != plan.nnodes:
        return f"the node expects nnodes {offer.expected_nnodes}, {plan.name} has {plan.nnodes}"
    if offer.expected_model and offer.expected_model != plan.model:
        return f"the node expects model {offer.expected_model}, {plan.name} serves {plan.model}"
    return None


def _wrong_version(offer: NodeOffer, plan: InstancePlan) -> str | None:
    """Where the file pins the engine's profile: is the node's engine that one? A plug-in brings a profile and a version
    of its own; a version whose profile is unknown is compared as it is, and an unknown version fits."""
    if not plan.engine_versions:
        return None
    wanted = " or ".join(plan.engine_versions)
    engine, _, version = offer.profiles.get(plan.engine, "").partition("@")
    wanted_engine = plan.engine_profile.partition("@")[0]
    if engine and wanted_engine and engine != wanted_engine:
        return (
            f"{plan.name} needs {wanted_engine} {wanted}, the node has {engine} {version}; pin another engine_profile, "
            "or, where the node's file gives a `version`, set `distribution` beside it"
        )
    version = version or offer.engines[plan.engine]
    if version and not any(_has_prefix(version, prefix) for prefix in plan.engine_versions):
        return f"{plan.name} needs {wanted_engine or plan.engine} {wanted}, the node has {version}"
    return None


def _has_prefix(version: str, prefix: str) -> bool:
    """0.23 fits 0.23, 0.23.0 and 0.23.1rc1, not 0.230."""
    return version == prefix or version.startswith((prefix + ".", prefix + "+", prefix + "rc"))


def bad_address(offer: NodeOffer, plan: DeploymentPlan) -> str | None:
    """Why engines on other machines could not use this address; None if they can."""
    try:
        address = ipaddress.ip_address(offer.address)
    except ValueError:
        return f"address: expected an IPv4 or IPv6 literal, got '{offer.address}'; set `address` in nodemanager.yaml"
    if address.is_unspecified or address.is_multicast:
        return f"address {address} names no machine; set `address` in nodemanager.yaml"
    if (address.is_loopback or address.is_link_local) and not plan.allow_loopback:
        kind = "loopback" if address.is_loopback else "link-local"
        return (
            f"address {address} is {kind}: engines on other machines cannot reach it; set `address` in "
            "nodemanager.yaml, or `allow_loopback: true` in deploy.json for a trial on one machine"
        )
    return None


def refused_now(node: NodeState, slot: SlotKey, now: float) -> bool:
    refusal = node.refusals.get(slot)
    return refusal is not None and refusal.until > now


def in_the_way(s: CoreState, node: NodeState, scope: ScopeState, slot: SlotKey) -> str | None:
    """Why this fitting node cannot take this very slot now; None if it can."""
    if not node.connected:
        return "unreachable"
    if node.offer.node_id in s.operator.cordoned:
        return "is cordoned"
    if node.stale or node.foreign or not node.looked_at:
        return "still holds an engine of another generation"
    if slot in node.quarantined:
        return "is quarantined for it: " + node.quarantined[slot]
    if refused_now(node, slot, s.now):
        return "refused it: " + node.refusals[slot].reason
    if len(node.offer.devices) - len(node.leases) < scope.plan.devices_per_slot:
        return "its devices are taken"
    for other in scope.group_of(slot):
        if other.node_id is None or other.slot == slot:
            continue
        if other.node_id == node.offer.node_id:
            return "fills another slot of this group"
        if odd := _unlike(node.offer, s.nodes[other.node_id].offer, scope.plan.engine):
            return odd
    if scope.plan.scope is Scope.INSTANCE:  # a world over all groups: its master is of another one
        master = scope.members[scope.plan.world_master(slot)]
        if master.node_id is not None and master.slot != slot:
            return _unlike(node.offer, s.nodes[master.node_id].offer, scope.plan.engine)
    return None


def _unlike(mine: NodeOffer, mate: NodeOffer, engine: str) -> str | None:
    """A gang needs one version of the engine, and of its plug-in: nothing in the engine would say so."""
    for one, other in (
        (mine.engines.get(engine), mate.engines.get(engine)), (mine.profiles.get(engine), mate.profiles.get(engine)),
    ):  # fmt: skip
        if one != other and one and other:
            return f"has {engine} {one}, its gang has {other}"
    return None


def seat(s: CoreState, node: NodeState, scope: ScopeState, slot: SlotKey, devices: tuple[str, ...] = ()) -> None:
    """Give `slot` to `node` and lease its devices by name (the first free ones unless named)."""
    member = scope.members[slot]
    assert member.node_id is None, f"{slot} is taken by {member.node_id}"
    devices = devices or tuple(node.free_devices()[: scope.plan.devices_per_slot])
    for name in devices:
        node.leases[name] = slot
    node.slots.add(slot)
    member.node_id = node.offer.node_id
    member.devices = devices
    scope.vacant.discard(slot)
    if node.connected:
        scope.away.discard(slot)
    else:
        scope.away.add(slot)
    s.note_room(node)
    s.say(str(slot), "seated", f"node {node.offer.node_id} at {node.offer.address} fills it")


def unseat(s: CoreState, scope: ScopeState, slot: SlotKey, code: str, reason: str) -> None:
    """Take `slot` from its node. What still runs there is the caller's business."""
    member = scope.members[slot]
    if member.node_id is None:
        return
    node = s.nodes.get(member.node_id)
    if node is not None:
        node.slots.discard(slot)
        node.leases = {name: owner for name, owner in node.leases.items() if owner != slot}
        s.note_room(node)
    member.node_id = None
    member.devices = ()
    member.prepared = False
    member.report = None
    member.vacant_since = s.now
    scope.vacant.add(slot)
    scope.away.discard(slot)
    heapq.heappush(s.vacancies[slot.instance], slot)
    s.vacated(scope.plan)
    s.say(str(slot), code, reason)


def fill_from_node(s: CoreState, node: NodeState) -> list[ScopeState]:
    """Registration order: the node takes the first vacant slot it can, instance by instance in the file's order,
    and further slots of other groups while it has devices. Returns the scopes that got a slot."""
    touched: list[ScopeState] = []
    for plan in s.plans_with_vacancies(node.offer.role):
        if len(node.leases) >= len(node.offer.devices):
            break
        if misfit(node.offer, plan) is not None:
            continue
        heap = s.vacancies[plan.name]
        skipped: list[SlotKey] = []
        while heap and len(node.offer.devices) - len(node.leases) >= max(1, plan.devices_per_slot):
            slot = heapq.heappop(heap)
            scope = s.scope_of(slot)
            if scope is None or slot not in scope.vacant:
                continue
            if slot in scope.claims or in_the_way(s, node, scope, slot) is not None:
                skipped.append(slot)
                continue
            seat(s, node, scope, slot)
            touched.append(scope)
        for slot in skipped:
            heapq.heappush(heap, slot)
        if not heap:
            s.filled(plan)
    return touched


def fill_vacancy(s: CoreState, scope: ScopeState, slot: SlotKey) -> bool:
    """Give a vacant slot to the first registered node that fits and has room."""
    if slot in scope.claims:
        return False
    for _, node_id in s.with_room:
        node = s.nodes[node_id]
        if misfit(node.offer, scope.plan) is None and in_the_way(s, node, scope, slot) is None:
            seat(s, node, scope, slot)
            return True
    return False
