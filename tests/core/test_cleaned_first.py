"""A node that comes back with what an older generation left is cleaned before it gets anything (rule 5)."""

from __future__ import annotations

from controller.core import actions as a
from controller.core.model import MemberState, SlotKey
from controller.core.state import Phase
from simulator.cluster import Cluster
from tests.core.shapes import deployment, instance
from tests.core.test_assembly import bring_up

SCOPE, SLOT = "prefill-0/0", SlotKey("prefill-0", 0, 1)


def preparing_again() -> Cluster:
    """Generation 1 of n1 and n2 is over; both are told to prepare generation 2, and neither has heard it yet."""
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 2)
    cluster.nodes["n2"].crash(SLOT)
    deliver(cluster)
    cluster.advance(10.0)  # the back-off
    while cluster.store_queue:
        cluster.store_next()
    scope = cluster.core.state.scopes[SCOPE]
    assert (scope.phase, scope.generation) == (Phase.PREPARING, 2), list(cluster.core.state.story)
    return cluster


def deliver(cluster: Cluster) -> None:
    """All that is under way, and the answers."""
    for node in cluster.nodes.values():
        while node.outbox:
            cluster.deliver_message(node)
    for node in cluster.nodes.values():
        while node.inbox:
            cluster.deliver_command(node)
        while node.outbox:
            cluster.deliver_message(node)


def waiting(cluster: Cluster) -> list[str]:
    return [type(command).__name__ for command in cluster.nodes["n2"].inbox]


def test_prepare_waits_for_the_cleaning_of_a_node_with_a_new_manager() -> None:
    cluster = preparing_again()
    node = cluster.nodes["n2"]
    cluster.restart_manager(node)
    held = node.engines[SLOT].report
    assert (held.generation, held.state) == (1, MemberState.FAILED), "its new manager knows only how it ended"
    assert waiting(cluster) == ["SendStop"], "no prepare that the stop could take away again"
    cluster.deliver_command(node)
    cluster.deliver_message(node)
    assert waiting(cluster) == ["SendForget", "SendPrepare"]
    cluster.settle()
    assert cluster.core.state.scopes[SCOPE].phase is Phase.READY
    assert [start.generation for start in node.starts] == [1, 2]


def test_start_waits_as_well() -> None:
    cluster = preparing_again()
    node = cluster.nodes["n2"]
    deliver(cluster)
    assert isinstance(node.inbox[-1], a.SendStart)
    cluster.restart_manager(node)  # the start was lost with the stream
    assert waiting(cluster) == ["SendStop"]
    cluster.settle()
    scope = cluster.core.state.scopes[SCOPE]
    assert scope.phase is Phase.READY and scope.generation == 2, "it cost no restart"


def test_a_node_that_does_not_get_clean_is_set_aside_with_the_reason() -> None:
    cluster = preparing_again()
    cluster.restart_manager(cluster.nodes["n2"])
    cluster.advance(cluster.plan.timers.prepare_timeout + 1.0)  # the stop is never confirmed
    said = [line.sentence for line in cluster.core.state.story if line.code == "refused"]
    assert any("node n2 was not cleaned of an older generation within 60 s" in sentence for sentence in said), said
