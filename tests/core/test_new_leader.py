"""A controller that has just become leader judges nobody by what happened before."""

from __future__ import annotations

from controller.core.model import Timers
from controller.core.state import Phase
from simulator.cluster import Cluster
from tests.core.shapes import deployment, instance
from tests.core.test_assembly import bring_up, phases

TIMEOUT = Timers().node_timeout


def test_every_node_has_a_fresh_timeout() -> None:
    """n2 was out of sight for an hour under the old leader, and all nodes take a while to find the new one."""
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 3)
    cluster.disconnect(cluster.nodes["n2"])
    cluster.advance(3600.0)
    cluster.restart_controller()
    cluster.advance(TIMEOUT - 0.5)
    state = cluster.core.state
    assert not {line.code for line in state.story} & {"lost", "failed", "vacated"}, list(state.story)
    assert {member.node_id for member in state.scopes["prefill-0/0"].members.values()} == {"n1", "n2"}
    for node in cluster.nodes.values():
        cluster.connect(node)
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert [len(node.starts) for node in cluster.nodes.values()] == [1, 1, 0], "nobody was started again"


def test_a_gang_between_two_starts_waits_for_its_own_nodes() -> None:
    """Nothing runs of it, so its slots go to a spare once a node is lost; before that, the node may come back."""
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 2)
    cluster.order("stop", "prefill-0")
    cluster.settle()
    cluster.disconnect(cluster.nodes["n2"])
    cluster.restart_controller()
    cluster.connect(cluster.nodes["n1"])
    cluster.advance(TIMEOUT - 0.5)
    scope = cluster.core.state.scopes["prefill-0/0"]
    assert not scope.vacant, "n2 has not been heard by this leader, and has its time"
    cluster.advance(1.0)
    assert scope.vacant, "its time is over"
