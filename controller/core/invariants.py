"""The rules of the design that can be read off one state; checked after every step in tests and in the simulator."""

from __future__ import annotations

from collections.abc import Iterable

from controller.core.model import MemberState, SlotKey
from controller.core.state import CoreState, Phase, ScopeState


class InvariantViolation(AssertionError):
    """A rule does not hold; the message names the rule and what breaks it."""


def check(s: CoreState) -> None:
    """Raise InvariantViolation for the first rule that does not hold. Costs a walk over everything."""
    check_scopes(s, s.scopes)
    _check_leases(s, s.nodes)


def check_scopes(s: CoreState, scope_ids: Iterable[str]) -> None:
    """The same for some scopes and the nodes in them: what one event has touched."""
    for scope_id in scope_ids:
        scope = s.scopes[scope_id]
        _check_scope(s, scope)
        _check_leases(s, {m.node_id for m in scope.members.values() if m.node_id is not None})
        instance = s.instances[scope.plan.name]
        incomplete = bool(scope.vacant or scope.away)
        _hold(
            incomplete == (scope.scope_id in instance.incomplete),
            1, f"{scope.scope_id}: vacant {scope.vacant}, away {scope.away}, counted {instance.incomplete}",
        )  # fmt: skip
        _hold(
            scope.generation <= instance.generation,
            4,
            f"{scope.scope_id} is above its instance's counter",
        )
        started = scope.record is not None and scope.phase not in (Phase.ASSEMBLING, Phase.FAILED)
        _hold(
            not started or instance.started,
            1,
            f"{scope.scope_id} started before its instance was complete",
        )


def _check_scope(s: CoreState, scope: ScopeState) -> None:
    plan = scope.plan
    _hold(set(scope.members) == set(plan.scope_slots(min(scope.members).dp_rank)), 3, f"{scope.scope_id}: slots")
    by_group: dict[int, list[str]] = {}
    for slot, member in scope.members.items():
        _hold((member.node_id is None) == (slot in scope.vacant), 2, f"{slot}: vacancy")
        if member.node_id is None:
            continue
        node = s.nodes.get(member.node_id)
        _hold(node is not None, 2, f"{slot}: node {member.node_id} is unknown")
        assert node is not None
        _hold(slot in node.slots, 2, f"{slot} has node {member.node_id}, which does not have the slot")
        _hold(node.connected == (slot not in scope.away), 1, f"{slot}: away {scope.away}, node {node.session}")
        _hold(len(member.devices) == plan.devices_per_slot, 2, f"{slot}: leases {member.devices}")
        by_group.setdefault(slot.dp_rank, []).append(member.node_id)
    for dp_rank, node_ids in by_group.items():
        _hold(len(set(node_ids)) == len(node_ids), 2, f"{plan.name}/{dp_rank}: a node twice: {node_ids}")
    if scope.phase in (Phase.STORING, Phase.PREPARING, Phase.STARTING, Phase.READY):
        _check_world(scope)
    if scope.phase is Phase.READY:
        unready = [str(m.slot) for m in scope.members.values() if m.state is not MemberState.READY]
        _hold(not unready, 8, f"{scope.scope_id} is ready without {unready}")


def _check_world(scope: ScopeState) -> None:
    """Rule 4: all members of a generation agree on their world."""
    record = scope.record
    _hold(record is not None, 9, f"{scope.scope_id} is {scope.phase.value} without a record")
    assert record is not None
    _hold(
        record.generation == scope.generation and record.run_id == scope.run_id,
        4,
        f"{scope.scope_id}: record",
    )
    worlds: dict[SlotKey, set[tuple[str, int, int | None]]] = {}
    for slot, placed in record.members.items():
        master = scope.plan.world_master(slot)
        world = worlds.setdefault(master, set())
        world.add((placed.master_addr, placed.master_port, placed.dp_rpc_port))
        _hold(placed.master_addr == record.members[master].address, 4, f"{slot}: master address")
    _hold(all(len(world) == 1 for world in worlds.values()), 4, f"{scope.scope_id}: worlds {worlds}")


def _check_leases(s: CoreState, node_ids: Iterable[str]) -> None:
    for node_id in node_ids:
        node = s.nodes[node_id]
        for name, slot in node.leases.items():
            scope = s.scope_of(slot)
            _hold(
                slot in node.slots,
                2,
                f"node {node_id}: device {name} leased to {slot}, which it does not fill",
            )
            _hold(
                scope is not None and name in scope.members[slot].devices,
                2,
                f"node {node_id}: lease of {name}",
            )
        for slot in node.slots:
            scope = s.scope_of(slot)
            holder = scope.members[slot].node_id if scope is not None else None
            _hold(holder == node_id, 2, f"node {node_id} thinks it fills {slot}, {holder} does")


def _hold(condition: bool, rule: int, what: str) -> None:
    if not condition:
        raise InvariantViolation(f"rule {rule}: {what}")
