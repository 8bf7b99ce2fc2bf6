"""What operators may order, and that it is done in order."""

from __future__ import annotations

from controller.core import actions as a
from controller.core import status
from controller.core.model import Scope
from controller.core.state import Phase
from simulator.cluster import Cluster
from tests.core.shapes import deployment, instance, offer
from tests.core.test_assembly import bring_up, phases


def stops(cluster: Cluster, node_id: str) -> list[a.SendStop]:
    return [command for command in cluster.nodes[node_id].inbox if isinstance(command, a.SendStop)]


def test_planned_restart_drains_the_master_before_the_followers() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 2)
    assert cluster.order("restart", "prefill-0").ok
    assert [stop.mode for stop in stops(cluster, "n1")] == ["planned"]
    assert not stops(cluster, "n2"), "a follower that went first would break what the master still answers"
    cluster.deliver_command(cluster.nodes["n1"])
    cluster.deliver_message(cluster.nodes["n1"])
    assert [stop.mode for stop in stops(cluster, "n2")] == ["planned"]
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert cluster.core.state.scopes["prefill-0/0"].generation == 2
    assert cluster.core.state.scopes["prefill-0/0"].restarts == 0, "an operator's restart costs no budget"


def test_stop_stays_down_over_a_controller_restart_until_start() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 2)
    cluster.order("stop", "prefill-0/0")
    cluster.settle()
    assert phases(cluster) == {Phase.STOPPED}
    assert status.deployment(cluster.core.state, cluster.now)["instances"][0]["state"] == "stopped", "not failed"
    cluster.restart_controller()
    for node in cluster.nodes.values():
        cluster.connect(node)
    cluster.settle()
    assert phases(cluster) == {Phase.STOPPED}
    assert not cluster.order("restart", "prefill-0/0").ok
    cluster.order("start", "prefill-0/0")
    cluster.settle()
    assert phases(cluster) == {Phase.READY}


def test_drain_moves_the_slot_to_a_spare_and_cordons_the_node() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 3)
    cluster.order("drain", "n2")
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    members = cluster.core.state.scopes["prefill-0/0"].members
    assert {m.node_id for m in members.values()} == {"n1", "n3"}
    assert cluster.core.state.nodes["n2"].told == ("spare", "cordoned by an operator: it gets no new slots", ())
    cluster.restart_controller()
    for node in cluster.nodes.values():
        cluster.connect(node)
    cluster.settle()
    assert cluster.core.state.operator.cordoned == {"n2"}


def test_paused_means_verdicts_are_noted_and_acted_on_after_resume() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 2)
    cluster.order("pause")
    cluster.nodes["n2"].crash(cluster.nodes["n2"].starts[-1].slot)
    cluster.deliver_message(cluster.nodes["n2"])
    cluster.advance(1000.0)
    assert not stops(cluster, "n1")
    assert any(line.code == "failed_while_paused" for line in cluster.core.state.story)
    cluster.order("resume")
    assert stops(cluster, "n1")
    cluster.settle()
    assert phases(cluster) == {Phase.READY}


def test_declare_lost_lets_a_gang_with_nobody_in_sight_start_again() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 4)
    for name in ("n1", "n2"):
        cluster.nodes[name].reboot()
        cluster.miss_heartbeats()
    assert not cluster.order("declare-lost", "n3").ok, "a connected node is not lost"
    cluster.order("declare-lost", "n1")
    cluster.advance(60.0)
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert {m.node_id for m in cluster.core.state.scopes["prefill-0/0"].members.values()} == {"n3", "n4"}


def test_clean_ends_a_foreign_engine_and_nothing_else_does() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 2)
    cluster.restart_controller(keep_store=False)
    cluster.connect(cluster.nodes["n1"])
    cluster.advance(1000.0)
    assert cluster.core.state.nodes["n1"].foreign and not stops(cluster, "n1")
    assert cluster.order("clean", "n1").ok
    cluster.settle()
    assert not cluster.core.state.nodes["n1"].foreign


def test_orders_that_cannot_be_carried_out_say_why() -> None:
    cluster = Cluster(deployment(instance(dp=2, nnodes=1, scope=Scope.INSTANCE)))
    cluster.connect(cluster.add_node(offer(1)))
    assert "no node 'n9'; known: n1" in cluster.order("cordon", "n9").sentence
    assert "share one engine world" in cluster.order("restart", "prefill-0/1").sentence
    assert "known: clean, cordon" in cluster.order("dance").sentence
    assert "was not stopped" in cluster.order("start", "prefill-0").sentence
