"""The state of a large deployment, cut to what needs a look: people read no ten thousand lines."""

from __future__ import annotations

from typing import Any

from controller.core import status
from controller.core.state import CoreState, InstanceState, ScopeState


def deployment(s: CoreState, now: float, limit: int) -> dict[str, Any]:
    """As `status.deployment` with at most about `limit` members, `limit` instances and `limit` nodes: groups that are
    not up, instances with such groups, nodes that are not assigned. What was left out is counted in `omitted`. The
    whole where it is no more than that."""
    slots = sum(plan.dp_size * plan.nnodes for plan in s.plan.instances)
    if max(slots, len(s.nodes)) <= limit:
        return status.deployment(s, now)
    left = limit
    shown: list[tuple[InstanceState, list[ScopeState]]] = []
    well: list[InstanceState] = []
    hidden_groups = 0
    for i in s.instances.values():
        troubled = [scope for scope in i.scopes.values() if not status.is_quiet(scope)]
        chosen = []
        for scope in troubled:
            if left <= 0:
                break
            chosen.append(scope)
            left -= len(scope.members)
        hidden_groups += i.plan.dp_size - sum(status.groups_in(scope) for scope in chosen)
        if chosen:
            shown.append((i, chosen))
        elif troubled:
            well.insert(0, i)  # no room for its groups, all the more for its name
        else:
            well.append(i)
    shown += [(i, []) for i in well[: max(0, limit - len(shown))]]
    states = [(node, status.node_state(s, node, now)) for node in s.nodes.values()]
    others = [node for node, state in states if state != "assigned"]
    counts: dict[str, int] = {}
    for _, state in states:
        counts[state] = counts.get(state, 0) + 1
    ready = sum(status.ready_groups(i) == i.plan.dp_size for i in s.instances.values())
    views = [status.instance(s, i, now, scopes) for i, scopes in shown]
    return {
        **status.head(s, ready),
        "problems": [problem for view in views for problem in view["problems"]],
        "node_counts": counts,
        "instances": views,
        "nodes": [status.node(s, node, now) for node in others[:limit]],
        "omitted": {
            "instances": len(s.instances) - len(shown),
            "groups": hidden_groups,
            "nodes": len(s.nodes) - len(others[:limit]),
        },
    }
