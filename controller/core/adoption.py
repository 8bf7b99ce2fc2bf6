"""A controller that starts finds records in its store and engines on its nodes: it adopts, it does not restart."""

from __future__ import annotations

from collections.abc import Mapping

from controller.core import assembly, placement, starting, stopping
from controller.core.actions import StoreRecord
from controller.core.model import ENDED, GenerationRecord, MemberReport, MemberState, NodeOffer, Placement, SlotKey
from controller.core.state import CoreState, Evidence, NodeState, Phase, ScopeState


def load_record(s: CoreState, record: GenerationRecord) -> None:
    """Take up a stored generation: slots keep their nodes, running engines are expected, nothing is sent yet."""
    instance = s.instances.get(record.instance)
    if instance is None:
        s.say(record.scope_id, "record_unused", f"the store has {record.scope_id}, this deployment has not")
        return
    instance.generation = max(instance.generation, record.generation)
    scope = instance.scopes.get(record.scope_id)
    if scope is None or set(record.members) != set(scope.members):
        s.say(
            record.scope_id, "shape_changed",
            f"the stored {record.scope_id} has other slots than this deployment; its engines are foreign",
        )  # fmt: skip
        return
    instance.started = True
    scope.record = record
    scope.generation, scope.run_id = record.generation, record.run_id
    scope.config_digest = record.config_digest
    scope.restart_times = [s.now] * record.restarts
    scope.adopted_run_ids = record.adopted_run_ids
    for slot, placed in sorted(record.members.items()):
        node = s.nodes.get(placed.node_id)
        if node is None:
            s.registrations += 1
            offer = NodeOffer(placed.node_id, 0, placed.boot_id, placed.address)
            node = NodeState(offer, None, s.registrations, s.now, s.now, "the controller was started")
            s.nodes[placed.node_id] = node
            s.arm(s.now + s.plan.timers.node_timeout, "lost", placed.node_id)
        placement.seat(s, node, scope, slot, placed.devices)
        scope.members[slot].placement = placed
        if record.outcome == "":
            scope.last_master_port = placed.master_port
            _hold_ports(s, scope, slot, placed)
    assembly.update_completeness(s, scope)
    if record.outcome == "failed":
        scope.evidence = Evidence(None, "", s.now, record.generation, record.outcome_reason)
        s.enter(scope, Phase.FAILED, "gave_up", record.outcome_reason)
    elif record.outcome == "stopped":
        s.enter(scope, Phase.ASSEMBLING, "recovered", f"the last generation was stopped: {record.outcome_reason}")
    else:
        scope.recovered = True
        scope.unready = set(scope.members)
        s.enter(
            scope, Phase.STARTING, "recovering",
            f"generation {record.generation} is in the store; waiting for its nodes to say what they hold",
        )  # fmt: skip
        when = s.now + s.plan.timers.start_unreachable_grace
        s.arm(when, "unreachable", f"{scope.scope_id}#{scope.generation}")
    if record.config_digest != scope.plan.config_digest:
        s.say(
            scope.scope_id, "config_changed",
            f"generation {record.generation} runs configuration {record.config_digest}, the file is "
            f"{scope.plan.config_digest} now; it takes effect at the next start",
        )  # fmt: skip


def _hold_ports(s: CoreState, scope: ScopeState, slot: SlotKey, placed: Placement) -> None:
    host = assembly.host_of(placed.address)
    held = [placed.api_port]
    if scope.plan.world_master(slot) == slot:
        held += [placed.master_port, placed.dp_rpc_port]
    for port in held:
        if port:
            s.ledger.take(host, scope.scope_id, [port])


def member_seen(s: CoreState, scope: ScopeState, slot: SlotKey) -> None:
    """A node holds its part of a recovered generation: the start commands had left, so the others get them too."""
    for other in scope.members.values():
        node = s.node_of(other.slot)
        if other.report is None and node is not None and node.connected and other.slot != slot:
            starting.send_start(s, scope, other)
    if all(member.report is not None for member in scope.members.values()):
        scope.recovered = False
        watch_start(s, scope)


def watch_start(s: CoreState, scope: ScopeState) -> None:
    """A gang that an earlier controller started is in this one's care: its start has limits again."""
    s.arm(s.now, "stage", f"{scope.scope_id}#{scope.generation}")
    s.arm(s.now + s.plan.timers.start_timeout, "start", f"{scope.scope_id}#{scope.generation}")


def member_without_holding(s: CoreState, scope: ScopeState, slot: SlotKey) -> None:
    """A node of a recovered generation holds nothing. If another member holds something, the start had been sent
    and is sent again; if nobody does, the record was stored and nothing more: prepare from it (rule 9)."""
    member = scope.members[slot]
    if any(other.state is MemberState.READY for other in scope.members.values()):
        # the gang was complete once: an engine never lets a new member in, so this one is dead
        reason = f"node {member.node_id} no longer holds an engine of the running generation"
        stopping.fail(s, scope, slot, member.node_id or "", reason, None)
        return
    if any(other.report is not None for other in scope.members.values()):
        starting.send_start(s, scope, member)
        return
    if scope.away or scope.vacant:
        return
    scope.recovered = False
    scope.unprepared = set(scope.members)
    s.enter(scope, Phase.PREPARING, "preparing", f"generation {scope.generation}: stored, not started; preparing")
    s.arm(s.now + s.plan.timers.prepare_timeout, "prepare", f"{scope.scope_id}#{scope.generation}")
    for other in scope.members.values():
        starting.send_prepare(s, scope, other)


def foreign(s: CoreState, node: NodeState, report: MemberReport, why: str) -> None:
    """An engine that is not ours: shown, never stopped without an operator's word."""
    if report.state in ENDED:
        node.foreign.pop(report.slot, None)
        s.note_room(node)
        return
    node.foreign[report.slot] = report
    s.note_room(node)
    s.say(
        f"node {node.offer.node_id}", "foreign",
        f"holds {report.slot} generation {report.generation} ({report.state.value}): {why}",
    )  # fmt: skip


def claim(s: CoreState, scope: ScopeState, node: NodeState, report: MemberReport) -> None:
    """An engine for one of our slots that the store knows nothing of: the store was emptied, or is an older copy.
    A complete gang of equal digest and generation is adopted; until then, and otherwise, it is foreign (rule 6)."""
    if report.state in ENDED:
        foreign(s, node, report, "ended")
        drop_claims(s, node, {slot: r for slot, r in node.foreign.items() if slot != report.slot})
        assembly.node_has_room(s, node)
        return
    foreign(s, node, report, "no record of it; adopted when its whole gang is seen")
    if scope.record is not None and report.generation <= scope.generation:
        return  # our own record is newer: this is somebody's left-over
    holder = scope.claims.get(report.slot)
    if holder is None or holder[1].generation <= report.generation:
        scope.claims[report.slot] = (node.offer.node_id, report)
        node.claimed.add(scope.scope_id)
    if scope.phase is Phase.ASSEMBLING:
        for slot in sorted(set(node.slots) & set(scope.members)):
            placement.unseat(s, scope, slot, "claimed", f"node {node.offer.node_id} holds an engine already")
        assembly.refill(s, scope)
    if len(scope.claims) == len(scope.members):
        _adopt(s, scope)


def drop_claims(s: CoreState, node: NodeState, held: Mapping[SlotKey, MemberReport]) -> None:
    """Forget what this node claimed and no longer holds; the slots can be filled again."""
    for scope_id in sorted(node.claimed):
        scope = s.scopes[scope_id]
        mine = [slot for slot, (node_id, _) in scope.claims.items() if node_id == node.offer.node_id]
        gone = [slot for slot in mine if slot not in held]
        if len(gone) == len(mine):
            node.claimed.discard(scope_id)
        for slot in gone:
            del scope.claims[slot]
        if gone and scope.phase is Phase.ASSEMBLING:
            assembly.refill(s, scope)
            assembly.try_start(s, scope)
        for slot in gone:
            _look_again(s, scope, slot)


def _look_again(s: CoreState, scope: ScopeState, slot: SlotKey) -> None:
    """A newer engine elsewhere has kept this slot's own node from being judged; now it is."""
    member, own = scope.members[slot], s.node_of(slot)
    if scope.phase is not Phase.STARTING or not scope.recovered or member.report is not None:
        return
    if own is None or not own.connected or member.placement is None:
        return
    if member.placement.boot_id != own.offer.boot_id:
        stopping.fail(s, scope, slot, own.offer.node_id, f"node {own.offer.node_id} was rebooted", None)
    else:
        member_without_holding(s, scope, slot)


def _adopt(s: CoreState, scope: ScopeState) -> None:
    reports = {slot: report for slot, (_, report) in scope.claims.items()}
    kinds = {(r.generation, r.run_id, r.config_digest) for r in reports.values()}
    nodes = {slot: s.nodes[node_id] for slot, (node_id, _) in scope.claims.items()}
    if len(kinds) != 1 or not all(node.connected for node in nodes.values()):
        return
    if len({r.config_digest for r in reports.values()} | {scope.plan.config_digest}) != 1:
        s.say(
            scope.scope_id,
            "foreign",
            "a complete gang runs another configuration than the file; it stays foreign",
        )
        return
    nothing_known = (
        scope.phase is Phase.STARTING
        and scope.recovered
        and not any(member.report for member in scope.members.values())
    )
    if scope.phase is not Phase.ASSEMBLING and not nothing_known:
        return
    s.ledger.release(scope.scope_id)
    displaced = [node for slot in sorted(scope.members) if (node := s.node_of(slot)) is not None]
    for slot in sorted(scope.members):
        placement.unseat(s, scope, slot, "claimed", "a running engine takes its slot back")
    members: dict[SlotKey, Placement] = {}
    for slot, report in sorted(reports.items()):
        node = nodes[slot]
        node.foreign.pop(slot, None)
        s.note_room(node)
        placement.seat(s, node, scope, slot, report.devices)
        members[slot] = Placement(
            node.offer.node_id, node.offer.boot_id, report.address or node.offer.address, report.devices,
            report.api_port or None, report.master_addr, report.master_port, report.dp_rpc_port or None,
        )  # fmt: skip
        scope.members[slot].placement = members[slot]
        _hold_ports(s, scope, slot, members[slot])
    generation, run_id, digest = kinds.pop()
    scope.claims = {}
    scope.recovered = False
    scope.adopted_run_ids = (*scope.adopted_run_ids, run_id)
    scope.generation, scope.run_id, scope.config_digest = generation, run_id, digest
    s.instances[scope.plan.name].started = True
    scope.record = GenerationRecord(
        scope.plan.name, scope.scope_id, generation, run_id, digest, members,
        adopted_run_ids=scope.adopted_run_ids,
    )  # fmt: skip
    scope.last_master_port = max(placed.master_port for placed in members.values())
    scope.unready = set(scope.members)
    s.enter(scope, Phase.STARTING, "adopted", f"generation {generation}: its complete running gang was adopted")
    s.emit(StoreRecord(scope.record))
    for slot, report in sorted(reports.items()):
        member = scope.members[slot]
        member.report, member.reported_at = report, s.now
        starting.member_running(s, scope, member)
    watch_start(s, scope)
    assembly.update_completeness(s, scope)
    for other in s.instances[scope.plan.name].scopes.values():
        assembly.try_start(s, other)  # the instance's first start has happened: rule 1 asks for their slots only
    for node in [*nodes.values(), *displaced]:
        assembly.node_has_room(s, node)


def recovery_overdue(s: CoreState, scope: ScopeState) -> None:
    """Not every node of a recovered generation came back. Serving members stay; otherwise the gang is failed."""
    if not scope.recovered or scope.phase is not Phase.STARTING:
        return
    if any(member.report is not None for member in scope.members.values()):
        return
    slot = min(scope.away | scope.vacant | set(scope.members))
    stopping.fail(s, scope, slot, "", "no node of the recovered generation came back holding an engine", None)
