"""A node speaks for itself only: what it says of a slot that another node fills changes nothing there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.core import events as e
from controller.core.model import MemberReport, MemberState, SlotKey
from controller.core.state import Phase
from simulator.cluster import Cluster
from simulator.nodes import SimulatedNode
from tests.core.shapes import deployment, instance, offer

SLOT = SlotKey("prefill-0", 0, 1)  # n2 fills it; n3 is a spare


def running() -> tuple[Cluster, SimulatedNode, MemberReport]:
    """A ready gang of n1 and n2, the spare n3, and n2's own report."""
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    for number in (1, 2, 3):
        cluster.connect(cluster.add_node(offer(number)))
    cluster.settle()
    assert phase(cluster) is Phase.READY
    return cluster, cluster.nodes["n3"], cluster.nodes["n2"].engines[SLOT].report


def phase(cluster: Cluster) -> Phase:
    return cluster.core.state.scopes["prefill-0/0"].phase


def report(cluster: Cluster, liar: SimulatedNode, said: MemberReport) -> None:
    assert liar.session is not None
    cluster.feed(e.MemberReported(cluster.now, cluster.nonce(), liar.session, liar.offer.node_id, said))


@pytest.mark.parametrize("state", [MemberState.FAILED, MemberState.STOPPED, MemberState.LOADING])
def test_end_of_anothers_engine_is_not_believed(state: MemberState) -> None:
    cluster, liar, own = running()
    report(cluster, liar, replace(own, state=state, reason="says n3"))
    cluster.settle()
    member = cluster.core.state.scopes["prefill-0/0"].members[SLOT]
    assert phase(cluster) is Phase.READY and member.node_id == "n2" and member.state is MemberState.READY
    assert all(len(cluster.nodes[name].starts) == 1 for name in ("n1", "n2"))


def test_stop_that_another_confirms_does_not_let_the_next_generation_start() -> None:
    """Rule 5: two ranks in one slot would be the end of both gangs."""
    cluster, liar, own = running()
    cluster.disconnect(cluster.nodes["n1"])
    cluster.disconnect(cluster.nodes["n2"])
    cluster.connect(cluster.nodes["n1"])
    cluster.order("restart", "prefill-0/0")
    assert SLOT in cluster.core.state.scopes["prefill-0/0"].unstopped
    report(cluster, liar, replace(own, state=MemberState.STOPPED))
    report(cluster, liar, replace(own, state=MemberState.STOPPED, run_id=""))  # a stop that found nothing
    assert SLOT in cluster.core.state.scopes["prefill-0/0"].unstopped


def test_prepare_and_refusal_of_another_are_not_taken() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    for number in (1, 2, 3):
        cluster.connect(cluster.add_node(offer(number)))
    cluster.store_next()
    scope = cluster.core.state.scopes["prefill-0/0"]
    assert scope.phase is Phase.PREPARING
    session = cluster.nodes["n3"].session
    assert session is not None
    cluster.feed(e.PrepareReported(cluster.now, cluster.nonce(), session, "n3", SLOT, scope.generation, True))
    assert SLOT in scope.unprepared
    refusal = e.CommandRefused(
        cluster.now, cluster.nonce(), session, "n3", SLOT, scope.generation, "prepare", "stale_epoch", "says n3"
    )
    cluster.feed(refusal)
    assert scope.phase is Phase.PREPARING and scope.members[SLOT].node_id == "n2"
    cluster.settle()
    assert phase(cluster) is Phase.READY
