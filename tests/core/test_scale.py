"""No event costs work that grows with the cluster: what is touched is counted, not timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from controller.core import placement, status, status_brief
from controller.core.model import DeploymentPlan, InstancePlan, MemberState
from controller.core.state import CoreState, Phase, ScopeState
from simulator.cluster import Cluster
from simulator.shapes import instance, offer

GROUP = 8


def cluster(instances: int, groups: int) -> Cluster:
    """All ready, and a spare."""
    plans = tuple(instance(f"union-{number}", groups, GROUP) for number in range(instances))
    made = Cluster(DeploymentPlan("default", plans), check_every_step=False)
    for number in range(instances * groups * GROUP + 1):
        one = replace(
            offer(1, 1), node_id=f"n{number}", address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        )
        made.connect(made.add_node(one))
    made.settle()
    assert all(scope.phase is Phase.READY for scope in made.core.state.scopes.values())
    return made


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the core looks at a scope or compares a node with an instance."""
    seen: Counter[str] = Counter()
    scope_of, misfit = CoreState.scope_of, placement.misfit

    def count_scope(self: CoreState, slot: object) -> ScopeState | None:
        seen["scopes"] += 1
        return scope_of(self, slot)  # type: ignore[arg-type]

    def count_misfit(node: object, plan: InstancePlan) -> str | None:
        seen["instances"] += 1
        return misfit(node, plan)  # type: ignore[arg-type]

    monkeypatch.setattr(CoreState, "scope_of", count_scope)
    monkeypatch.setattr(placement, "misfit", count_misfit)
    monkeypatch.setattr("controller.core.assembly.misfit", count_misfit)
    return seen


@pytest.mark.parametrize("instances, groups", [(1, 10), (1, 80), (80, 1)])
def test_a_reconnect_a_failure_and_a_restart_cost_the_same_in_any_cluster(
    counted: Counter[str], instances: int, groups: int
) -> None:
    made = cluster(instances, groups)
    counted.clear()
    node = made.nodes["n5"]
    made.restart_manager(node)
    spare = made.nodes[f"n{instances * groups * GROUP}"]
    made.restart_manager(spare)
    node.crash(next(iter(node.engines)))
    made.settle(rounds=40)
    assert all(scope.phase is Phase.READY for scope in made.core.state.scopes.values())
    assert counted["scopes"] < 500 and counted["instances"] < 60, counted


def test_a_node_that_registers_is_compared_with_what_is_vacant_alone(counted: Counter[str]) -> None:
    cluster(100, 1)
    assert counted["instances"] < 10 * (100 * GROUP + 1), "a few for each node, not a hundred"


@pytest.mark.parametrize("instances, groups", [(1, 40), (40, 1)])
def test_a_lost_store_and_a_whole_cluster_that_returns(counted: Counter[str], instances: int, groups: int) -> None:
    """Every engine is at first nobody's; its slot is not offered to all other nodes for that."""
    made = cluster(instances, groups)
    counted.clear()
    made.restart_controller(keep_store=False)
    for node in sorted(made.nodes.values(), key=lambda node: node.number % GROUP):  # no gang is complete for long
        made.connect(node)
    made.settle()
    assert all(scope.phase is Phase.READY for scope in made.core.state.scopes.values()), "adopted, not restarted"
    assert all(len(node.starts) <= 1 for node in made.nodes.values())
    assert counted["instances"] < 20 * len(made.nodes) and counted["scopes"] < 60 * len(made.nodes), counted


def test_a_node_that_fits_nothing_is_told_why_in_few_words() -> None:
    made = cluster(100, 1)
    odd = replace(offer(1, 1), node_id="odd", address="10.9.9.9", engines={})
    made.connect(made.add_node(odd))
    state, reason, _ = made.core.state.nodes["odd"].told or ("", "", ())
    assert state == "rejected" and "union-0 needs engine 'vllm'" in reason
    assert reason.endswith("and so on for 92 more instances") and len(reason) < 1500


def test_routers_are_told_only_when_a_scope_became_ready_or_ceased_to_be() -> None:
    made = cluster(1, 4)
    s = made.core.state
    before = s.inventory_changes, s.inventory_losses
    made.restart_manager(made.nodes["n5"])
    made.settle()
    assert (s.inventory_changes, s.inventory_losses) == before, "nothing has changed for a router"
    node = made.nodes["n5"]
    node.crash(next(iter(node.engines)))
    made.settle()
    assert (s.inventory_changes, s.inventory_losses) == (before[0] + 2, before[1] + 1)


def test_a_brief_status_shows_what_needs_a_look_and_counts_the_rest() -> None:
    made = cluster(3, 10)
    s = made.core.state
    whole = status_brief.deployment(s, made.now, 1000)
    assert whole == status.deployment(s, made.now), "no more than that: everything"
    made.disconnect(made.nodes["n100"])
    brief = status_brief.deployment(s, made.now, 20)
    troubled = s.nodes["n100"].slots
    shown = [group for one in brief["instances"] for group in one["groups"]]
    assert [group["scope"] for group in shown] == [f"union-1/{next(iter(troubled)).dp_rank}"]
    assert {one["node_id"] for one in brief["nodes"]} == {"n100", "n240"}, "out of sight, and a spare"
    assert brief["omitted"] == {"instances": 0, "groups": 29, "nodes": 239}
    assert brief["node_counts"] == {"assigned": 239, "spare": 1, "unreachable": 1}
    assert brief["instances"][0]["ready_groups"] + brief["instances"][1]["ready_groups"] == 20
    assert len(brief["problems"]) == 1 and "out of sight" in brief["problems"][0]


def test_a_brief_status_of_a_cluster_where_nothing_is_up_is_brief() -> None:
    plan = DeploymentPlan("default", tuple(instance(f"union-{number}", 10, GROUP) for number in range(50)))
    made = Cluster(plan, check_every_step=False)
    brief = status_brief.deployment(made.core.state, 0.0, 20)
    members = [m for one in brief["instances"] for group in one["groups"] for m in group["members"]]
    assert len(brief["instances"]) == 20 and len(members) == 24 and len(brief["problems"]) == 3
    assert brief["omitted"] == {"instances": 30, "groups": 497, "nodes": 0}
    assert all(member["state"] in ("vacant", MemberState.NONE.value) for member in members)
