"""Start-up stages have limits, a slow start is not a failure, and the rank that is behind is named."""

from __future__ import annotations

from controller.core.model import MemberState, SlotKey
from controller.core.state import Phase
from simulator.cluster import Cluster
from tests.core.shapes import deployment, instance, offer

MASTER, FOLLOWER = SlotKey("prefill-0", 0, 0), SlotKey("prefill-0", 0, 1)


def starting() -> Cluster:
    """A gang of two that was started and has not come up."""
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    nodes = [cluster.add_node(offer(number)) for number in (1, 2)]
    for node in nodes:
        cluster.connect(node)
    cluster.store_next()
    for _ in range(4):
        for node in nodes:
            cluster.deliver_command(node)
            cluster.deliver_message(node)
    assert cluster.core.state.scopes["prefill-0/0"].phase is Phase.STARTING
    return cluster


def stage(cluster: Cluster, slot: SlotKey, name: str, seconds: float = 0.0, idle: float = 0.0, **more: object) -> None:
    node = cluster.nodes["n1" if slot is MASTER else "n2"]
    node.change(slot, stage=name, stage_seconds=seconds, idle_seconds=idle, **more)
    cluster.deliver_message(node)


def scope(cluster: Cluster):  # type: ignore[no-untyped-def]
    return cluster.core.state.scopes["prefill-0/0"]


def test_rendezvous_limit_blames_the_rank_that_is_behind() -> None:
    cluster = starting()
    stage(cluster, MASTER, "rendezvous")
    stage(cluster, FOLLOWER, "config")
    cluster.advance(119.0)
    stage(cluster, FOLLOWER, "engine")
    cluster.advance(119.0)
    stage(cluster, FOLLOWER, "engine", 119.0)
    assert scope(cluster).phase is Phase.STARTING
    cluster.advance(1.5)
    assert scope(cluster).phase is Phase.STOPPING
    assert scope(cluster).evidence.slot == FOLLOWER
    assert "in stage 'engine' for 120 s, the limit is 120 s" in scope(cluster).evidence.reason


def test_master_waiting_for_a_silent_follower_names_the_follower() -> None:
    cluster = starting()
    stage(cluster, FOLLOWER, "engine")
    stage(cluster, MASTER, "rendezvous")
    for _ in range(3):
        cluster.advance(100.0)
        if scope(cluster).phase is Phase.STARTING:
            stage(cluster, FOLLOWER, "engine", 10.0)
    assert scope(cluster).phase is Phase.STOPPING
    assert scope(cluster).evidence.slot == FOLLOWER
    assert "rank 0: waiting for rendezvous for 300 s" in scope(cluster).evidence.reason


def test_an_hour_of_loading_with_progress_is_not_a_failure() -> None:
    cluster = starting()
    for slot in (MASTER, FOLLOWER):
        stage(cluster, slot, "weights")
    for minute in range(60):
        cluster.advance(60.0)
        for slot in (MASTER, FOLLOWER):
            stage(cluster, slot, "weights", 60.0 * minute, idle=5.0)
    assert scope(cluster).phase is Phase.STARTING
    cluster.advance(596.0)
    assert scope(cluster).phase is Phase.STOPPING
    assert "no progress in stage 'weights'" in scope(cluster).evidence.reason


def test_a_follower_that_is_done_waits_for_its_master_as_long_as_it_takes() -> None:
    cluster = starting()
    stage(cluster, FOLLOWER, "kv_cache", workers_up=True)
    for _ in range(30):
        cluster.advance(60.0)
        stage(cluster, MASTER, "warm_up", 60.0, idle=1.0)
    assert scope(cluster).phase is Phase.STARTING


def test_stage_of_an_ended_or_ready_member_has_no_limit() -> None:
    cluster = starting()
    stage(cluster, MASTER, "http", state=MemberState.READY)
    stage(cluster, FOLLOWER, "kv_cache", workers_up=True)
    cluster.advance(3600.0)
    assert scope(cluster).phase is Phase.STARTING


def test_start_timeout_does_not_reach_a_gang_that_was_ready_and_blinks_when_it_passes() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2), start_timeout=1000.0))
    for number in (1, 2):
        cluster.connect(cluster.add_node(offer(number)))
    cluster.settle()
    assert scope(cluster).phase is Phase.READY
    cluster.advance(999.0 - cluster.now)
    node = cluster.nodes["n1"]
    node.change(MASTER, state=MemberState.LOADING, reason="was ready: no answer", stage="http")
    cluster.deliver_message(node)
    assert scope(cluster).phase is Phase.STARTING
    cluster.advance(5.0)
    node.change(MASTER, state=MemberState.READY, reason="the engine answers a canary")
    cluster.deliver_message(node)
    cluster.settle()
    assert scope(cluster).phase is Phase.READY and scope(cluster).generation == 1


def test_adopted_member_of_a_ready_gang_whose_stage_is_not_known_yet_is_no_failure() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    for number in (1, 2):
        cluster.connect(cluster.add_node(offer(number)))
    cluster.settle()
    stage(cluster, MASTER, "", 5000.0, state=MemberState.LOADING)
    assert scope(cluster).phase is Phase.STARTING
    stage(cluster, MASTER, "http", state=MemberState.READY)
    assert scope(cluster).phase is Phase.READY and scope(cluster).generation == 1
