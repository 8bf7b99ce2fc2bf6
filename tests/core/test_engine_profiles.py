"""Which node fits an instance by its engine's version and profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.core.model import Scope, SlotKey
from controller.core.placement import misfit
from controller.core.starting import COMPARED, unlike_their_master
from controller.core.state import Phase
from controller.core.status import instance as instance_view
from simulator.cluster import Cluster
from tests.core.shapes import deployment, instance, offer

PINNED: dict[str, Any] = {"engine_versions": ("0.23",), "engine_profile": "vllm_ascend@0.23"}


@pytest.mark.parametrize(
    ("plan", "node", "words"),
    [
        ({}, {"profiles": {"vllm": "vllm@0.20.0"}}, None),
        ({}, {"obstacles": {"prefill-0": "the node has vllm@0.20"}}, "prefill-0: the node has vllm@0.20"),
        ({}, {"obstacles": {"decode-0": "something"}}, None),
        (PINNED, {"engines": {"vllm": "0.23.0"}}, None),
        (PINNED, {"engines": {"vllm": ""}}, None),
        (PINNED, {"engines": {"vllm": "0.24.0"}}, "needs vllm_ascend 0.23, the node has 0.24.0"),
        # the plug-in's version counts, not that of the vLLM below it
        (PINNED, {"engines": {"vllm": "0.24.0"}, "profiles": {"vllm": "vllm_ascend@0.23.0rc1"}}, None),
        (PINNED, {"engines": {"vllm": "0.23.0"}, "profiles": {"vllm": "vllm@0.23.0"}}, "the node has vllm 0.23.0"),
    ],
)
def test_misfit(plan: dict[str, Any], node: dict[str, Any], words: str | None) -> None:
    found = misfit(offer(1, **node), instance(**plan))
    assert found is None if words is None else words in (found or "")


def settled(cluster: Cluster, *offers: Any) -> None:
    for one in offers:
        cluster.connect(cluster.add_node(one))
    cluster.settle()


@pytest.mark.parametrize("scope", [Scope.GROUP, Scope.INSTANCE])
def test_a_gang_has_one_profile(scope: Scope) -> None:
    """With and without the plug-in, the vLLM below it has the same version."""
    plain, plug_in = {"vllm": "vllm@0.32.0"}, {"vllm": "vllm_ascend@0.32.0"}
    cluster = Cluster(deployment(instance(dp=2, nnodes=2, scope=scope)))
    settled(cluster, offer(1, profiles=plain), offer(2, profiles=plug_in), offer(3, profiles=plain))
    seats = {str(slot) for slot in cluster.core.state.nodes["n2"].slots}
    if scope is Scope.INSTANCE:  # one world over all groups
        assert seats == set()
        assert cluster.core.state.nodes["n3"].slots
    else:
        assert seats == {"prefill-0/1/0"}


def test_a_rejected_node_hears_why_and_is_judged_again_when_it_comes_back() -> None:
    cluster = Cluster(deployment(instance(dp=1)))
    settled(cluster, offer(1), offer(2, obstacles={"prefill-0": "the node has vllm@0.20"}))
    told = cluster.core.state.nodes["n2"].told
    assert told is not None and told[:2] == ("rejected", "prefill-0: the node has vllm@0.20")
    node = cluster.nodes["n2"]
    cluster.disconnect(node)
    node.offer = replace(node.offer, incarnation=2, obstacles={})
    cluster.connect(node)
    cluster.settle()
    assert {scope.phase for scope in cluster.core.state.scopes.values()} == {Phase.READY}


def test_a_node_that_comes_back_with_another_engine_gives_its_slot_up() -> None:
    cluster = Cluster(deployment(instance(dp=1)))
    settled(cluster, offer(1))
    assert cluster.core.state.nodes["n1"].slots
    node = cluster.nodes["n1"]
    cluster.disconnect(node)
    node.offer = replace(node.offer, incarnation=2, obstacles={"prefill-0": "the node has vllm@0.20"})
    cluster.connect(node)
    settled(cluster, offer(2), offer(3))
    assert not cluster.core.state.nodes["n1"].slots
    assert {scope.phase for scope in cluster.core.state.scopes.values()} == {Phase.READY}


def test_the_status_says_which_profile_and_why() -> None:
    assumed = {"engine_profile": "vllm@0.33", "profile_reason": "assumed: no engine_profile"}
    cluster = Cluster(deployment(instance(dp=1, **assumed)))
    state = cluster.core.state
    view = instance_view(state, state.instances["prefill-0"], 0.0)
    assert (view["engine_profile"], view["engine_profile_reason"]) == ("vllm@0.33", "assumed: no engine_profile")
    settled(cluster, offer(1, profiles={"vllm": "vllm@0.32.0"}), offer(2, profiles={"vllm": "vllm@0.32.0"}))
    view = instance_view(state, state.instances["prefill-0"], 0.0)
    assert (view["engine_profile"], view["engine_profile_reason"]) == ("vllm@0.32.0", "reported by its nodes")


def test_a_node_that_changes_its_engine_between_prepare_and_start_is_replaced() -> None:
    cluster = Cluster(deployment(instance(dp=1)))
    for number in (1, 2):
        cluster.connect(cluster.add_node(offer(number)))
    cluster.store_next()
    (scope,) = cluster.core.state.scopes.values()
    assert scope.phase is Phase.PREPARING
    node = cluster.nodes["n2"]
    cluster.disconnect(node)
    node.offer = replace(node.offer, incarnation=2, obstacles={"prefill-0": "the node has vllm@0.20"})
    cluster.connect(node)
    settled(cluster, offer(3))
    assert not cluster.core.state.nodes["n2"].slots and not node.starts
    assert scope.phase is Phase.READY


@pytest.mark.parametrize("position", range(len(COMPARED)))
@pytest.mark.parametrize(("scope", "odd"), [(Scope.GROUP, set()), (Scope.INSTANCE, {"prefill-0/1/0"})])
def test_one_engine_world_needs_the_same_files_engine_driver_and_cann(
    position: int, scope: Scope, odd: set[str]
) -> None:
    """Group 0 against group 1: they are one world only where they share a master. Unknown is not different."""
    cluster = Cluster(deployment(instance(dp=2, nnodes=1, scope=scope)))
    settled(cluster, offer(1), offer(2))
    state = cluster.core.state
    for number in (0, 1):
        found = ["", "", "", ""]
        found[position] = f"version-{number}"
        slot = SlotKey("prefill-0", number, 0)
        scope_state = state.scope_of(slot)
        assert scope_state is not None
        scope_state.members[slot].found = (found[0], found[1], found[2], found[3])
    reasons = {str(slot): why for s in state.scopes.values() for slot, why in unlike_their_master(s).items()}
    assert set(reasons) == odd
    for why in reasons.values():
        assert f"has {COMPARED[position]} version-1, node n1 (the master) has version-0" in why
