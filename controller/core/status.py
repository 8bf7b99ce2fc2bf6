"""The state as people and programs ask for it: plain dictionaries, every "not up" with what is missing, since when
and why. Ages are in seconds before `CoreState.now`, so callers bring `now` up to date first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.core.assembly import missing_slots
from controller.core.model import MemberReport, MemberState, Scope, SlotKey
from controller.core.state import CoreState, Evidence, InstanceState, Member, NodeState, Phase, ScopeState


def deployment(s: CoreState, now: float) -> dict[str, Any]:
    """Everything: the answer of /v1/status."""
    views = [instance(s, i, now) for i in s.instances.values()]
    nodes = [node(s, n, now) for n in s.nodes.values()]
    counts: dict[str, int] = {}
    for view in nodes:
        counts[view["state"]] = counts.get(view["state"], 0) + 1
    return {
        **head(s, sum(view["state"] == "ready" for view in views)),
        "problems": [problem for view in views for problem in view["problems"]],
        "node_counts": counts,
        "instances": views,
        "nodes": nodes,
        "omitted": {"instances": 0, "groups": 0, "nodes": 0},
    }


def head(s: CoreState, ready: int) -> dict[str, Any]:
    """What is said of the deployment as a whole; `ready` counts instances."""
    total = len(s.instances)
    return {
        "deployment_id": s.plan.deployment_id,
        "epoch": s.epoch,
        "ready": ready == total,
        "summary": f"{ready} of {total} instances ready"
        + (f"; paused: {s.operator.paused}" if s.operator.paused else ""),
        "paused": s.operator.paused,
    }


def groups_in(scope: ScopeState) -> int:
    """Data-parallel groups that restart together as this scope."""
    return scope.plan.dp_size if scope.plan.scope is Scope.INSTANCE else 1


def ready_groups(i: InstanceState) -> int:
    return sum(groups_in(scope) for scope in i.scopes.values() if scope.phase is Phase.READY)


def instance(s: CoreState, i: InstanceState, now: float, scopes: Iterable[ScopeState] | None = None) -> dict[str, Any]:
    """One instance, with the groups and problems of all its scopes, or of `scopes` alone."""
    shown = list(i.scopes.values() if scopes is None else scopes)
    groups = [group for scope in shown for group in _groups(s, scope, now)]
    ready = ready_groups(i)
    return {
        "name": i.plan.name,
        "role": i.plan.role,
        "model": i.plan.model,
        "state": instance_state(i, ready),
        "ready_groups": ready,
        "groups_total": i.plan.dp_size,
        "dp_size": i.plan.dp_size,
        "nnodes": i.plan.nnodes,
        "restart_scope": i.plan.scope.value,
        **_engine_profile(s, i),
        "generation": i.generation,
        "problems": [f"{scope.scope_id}: {explain(s, scope, now)}" for scope in shown if not is_quiet(scope)],
        "groups": groups,
    }


def _engine_profile(s: CoreState, i: InstanceState) -> dict[str, str]:
    """Which engine profile it runs under, and why: that of its nodes where the file pins none."""
    if i.plan.engine_versions:
        return {"engine_profile": i.plan.engine_profile, "engine_profile_reason": i.plan.profile_reason}
    nodes = [s.nodes[m.node_id] for scope in i.scopes.values() for m in scope.members.values() if m.node_id]
    reported = sorted({name for node in nodes if (name := node.offer.profiles.get(i.plan.engine))})
    if reported:
        return {"engine_profile": ", ".join(reported), "engine_profile_reason": "reported by its nodes"}
    return {"engine_profile": i.plan.engine_profile, "engine_profile_reason": i.plan.profile_reason}


def instance_state(i: InstanceState, ready_groups: int) -> str:
    """One word for an instance: ready, degraded, failed, or the phase it is least far in."""
    if ready_groups == i.plan.dp_size:
        return "ready"
    if ready_groups:
        return f"degraded {ready_groups}/{i.plan.dp_size}"
    phases = {scope.phase for scope in i.scopes.values()}
    if len(phases) == 1 and phases <= {Phase.FAILED, Phase.STOPPED}:
        return phases.pop().value
    order = [Phase.STOPPING, Phase.BACKOFF, Phase.ASSEMBLING, Phase.STORING, Phase.PREPARING, Phase.STARTING]
    return next((phase.value for phase in order if phase in phases), "failed")


def is_quiet(scope: ScopeState) -> bool:
    """Serving, with every node in sight: nothing to tell."""
    return scope.phase is Phase.READY and not scope.away


def _groups(s: CoreState, scope: ScopeState, now: float) -> list[dict[str, Any]]:
    by_group: dict[int, list[Member]] = {}
    for slot, member in sorted(scope.members.items()):
        by_group.setdefault(slot.dp_rank, []).append(member)
    return [
        {
            "dp_rank": dp_rank,
            "scope": scope.scope_id,
            "state": scope.phase.value,
            "since_seconds": round(now - scope.since, 1),
            "reason": scope.reason,
            "waiting_for": "" if is_quiet(scope) else explain(s, scope, now),
            "generation": scope.generation,
            "run_id": scope.run_id,
            "restarts": scope.restarts,
            "max_restarts": s.plan.timers.max_restarts,
            "last_failure": evidence(scope.evidence, now) if scope.evidence else None,
            "members": [_member(s, scope, member, now) for member in members],
        }
        for dp_rank, members in by_group.items()
    ]


def _member(s: CoreState, scope: ScopeState, member: Member, now: float) -> dict[str, Any]:
    node = s.node_of(member.slot)
    report, placed = member.report, member.placement
    line = s.last_line.get(str(member.slot))
    age = now - member.reported_at if report else 0.0
    state = member.state.value
    if node is None:
        state = "vacant"
    elif report is None and scope.phase is Phase.STARTING:
        state = MemberState.STARTING.value
    return {
        "slot": str(member.slot),
        "node_rank": member.slot.node_rank,
        "headless": not scope.plan.has_api(member.slot),
        "node_id": member.node_id or "",
        "address": node.offer.address if node else "",
        "connected": bool(node and node.connected),
        "devices": list(member.devices),
        "state": state,
        "stage": report.stage if report else "",
        "stage_seconds": round(report.stage_seconds + age, 1) if report else 0.0,
        "reason": report.reason if report and report.reason else (line.sentence if line else ""),
        "vacant_seconds": round(now - member.vacant_since, 1) if node is None else 0.0,
        **_life(report, scope.plan.has_api(member.slot)),
        "workers_seen": report.workers_seen if report else 0,
        "workers_expected": report.workers_expected if report else 0,
        "pid": report.pid if report else 0,
        "master_addr": placed.master_addr if placed else "",
        "master_port": placed.master_port if placed else 0,
        "api_port": (placed.api_port or 0) if placed else 0,
    }


def _life(report: MemberReport | None, has_api: bool) -> dict[str, Any]:
    """Health as the node sees it. A canary that is off says why, because then a hang is found only by other signs."""
    life = report.liveness if report is not None else None
    if life is None:
        return {"canary": "off" if has_api else "", "canary_detail": "", "devices_activity": "", "warning": ""}
    detail = f"{life.devices_detail}" if life.devices in ("flat", "unknown") else ""
    return {
        "canary": life.canary if has_api else "",
        "canary_detail": life.canary_detail if has_api else "",
        "devices_activity": life.devices + (f" ({detail})" if detail else ""),
        "warning": life.warning,
    }


def evidence(found: Evidence, now: float) -> dict[str, Any]:
    return {
        "slot": str(found.slot) if found.slot else "",
        "node_id": found.node_id,
        "generation": found.generation,
        "seconds_ago": round(now - found.at, 1),
        "reason": found.reason,
        "failure_class": found.failure_class,
        "exit_code": found.exit_code,
        "exit_signal": found.exit_signal,
        "last_log_lines": list(found.last_log_lines),
    }


def explain(s: CoreState, scope: ScopeState, now: float) -> str:
    """Why this scope is not up, in one sentence that names what is missing and since when."""
    age = f"{now - scope.since:.0f} s"
    if scope.phase is Phase.ASSEMBLING:
        return _explain_assembly(s, scope, now)
    if scope.phase is Phase.PREPARING:
        names = _some([_whom(s, slot) for slot in sorted(scope.unprepared)])
        return f"preparing for {age}; not yet prepared: {names}"
    if scope.phase is Phase.STARTING:
        return f"starting for {age}; " + "; ".join(
            [_explain_member(s, scope.members[slot], now) for slot in sorted(scope.unready)][:4]
        )
    if scope.phase is Phase.STOPPING:
        names = _some([_whom(s, slot) for slot in sorted(scope.unstopped)])
        return f"{scope.reason}; stopping for {age}, not yet confirmed by: {names}"
    if scope.phase is Phase.BACKOFF:
        return f"next start in {max(0.0, scope.retry_at - now):.0f} s; {scope.reason}"
    if scope.phase is Phase.READY and scope.away:
        return f"serving; out of sight: {_some([_whom(s, slot) for slot in sorted(scope.away)])}"
    return f"{scope.phase.value} for {age}: {scope.reason}"


def _explain_assembly(s: CoreState, scope: ScopeState, now: float) -> str:
    missing = sorted(missing_slots(scope))
    if missing:
        first = scope.members[missing[0]]
        ranks = ", ".join(f"node_rank {slot.node_rank} of group {slot.dp_rank}" for slot in missing[:4])
        ranks += f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        since = now - (first.vacant_since if first.node_id is None else scope.since)
        line = s.last_line.get(str(missing[0]))
        last = f"; last reason: {line.sentence}" if line else "; no fitting node has registered for it"
        refused = [
            f"{n.offer.node_id}: {r.reason}"
            for n in s.nodes.values()
            if (r := n.refusals.get(missing[0])) is not None and r.until > now
        ]
        return f"waiting {since:.0f} s for {ranks}" + ("; refused by " + _some(refused) if refused else last)
    others = [other for other in s.instances[scope.plan.name].incomplete if other != scope.scope_id]
    if others:
        return f"complete; the first start waits for {_some(sorted(others))} of the same instance"
    return scope.reason or "complete"


def _explain_member(s: CoreState, member: Member, now: float) -> str:
    report = member.report
    if report is None:
        return f"rank {member.slot.node_rank} ({_whom(s, member.slot)}): no report yet"
    seconds = report.stage_seconds + now - member.reported_at
    what = report.stage or report.state.value
    return f"rank {member.slot.node_rank} ({_whom(s, member.slot)}): {what} {seconds:.0f} s"


def _whom(s: CoreState, slot: SlotKey) -> str:
    node = s.node_of(slot)
    if node is None:
        return f"{slot}, vacant"
    away = "" if node.connected else f", unreachable: {node.unreachable_cause}"
    return f"{slot} on {node.offer.node_id}{away}"


def _some(names: list[str], limit: int = 4) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def node(s: CoreState, n: NodeState, now: float) -> dict[str, Any]:
    """One node: what it is to this deployment, and why."""
    since = n.connected_since if n.connected or n.unreachable_since is None else n.unreachable_since
    line = s.last_line.get(f"node {n.offer.node_id}")
    return {
        "node_id": n.offer.node_id,
        "address": n.offer.address,
        "hostname": n.offer.hostname,
        "state": node_state(s, n, now),
        "since_seconds": round(now - since, 1),
        "cordoned": n.offer.node_id in s.operator.cordoned,
        "reason": n.told[1] if n.connected and n.told else (line.sentence if line else n.unreachable_cause),
        "role": n.offer.role,
        "incarnation": n.offer.incarnation,
        "device_kind": n.offer.device_kind,
        "devices_total": len(n.offer.devices),
        "devices_leased": len(n.leases),
        "engines": dict(n.offer.engines),
        "labels": dict(n.offer.labels),
        "slots": [str(slot) for slot in sorted(n.slots)],
        "foreign": [
            {"slot": str(slot), "generation": r.generation, "state": r.state.value}
            for slot, r in sorted(n.foreign.items())
        ],
    }


def node_state(s: CoreState, n: NodeState, now: float) -> str:
    """One word for a node: assigned, spare, cleaning, rejected, unreachable, lost."""
    if n.connected:
        return n.told[0] if n.told else "connected"
    away = n.unreachable_since is not None and now - n.unreachable_since >= s.plan.timers.node_timeout
    return "lost" if away and not n.slots else "unreachable"


def inventory(s: CoreState) -> list[dict[str, Any]]:
    """What a router may send requests to: the API servers of ready groups, and nothing else."""
    found = []
    for scope in s.scopes.values():
        if scope.phase is not Phase.READY:
            continue
        for slot, member in sorted(scope.members.items()):
            if not scope.plan.has_api(slot) or member.placement is None:
                continue
            host, port = member.placement.address, member.placement.api_port
            found.append(
                {
                    "instance": scope.plan.name,
                    "role": scope.plan.role,
                    "dp_rank": slot.dp_rank,
                    "model": scope.plan.model,
                    "generation": scope.generation,
                    "run_id": scope.run_id,
                    "node_id": member.node_id or "",
                    "url": f"{scope.plan.api_scheme}://{f'[{host}]' if ':' in host else host}:{port}",
                }
            )
    return found
