"""Cables pulled, packets lost, one direction dead. What serves stays up; what cannot compute is replaced."""

from __future__ import annotations

import time
from typing import Literal

import pytest

from tests.faults import invariants, measured
from tests.faults.cluster import CANARY_DEADLINE, INSTANCE, NODE_TIMEOUT, Cluster, Make
from tests.faults.links import dropping

MASTER, FOLLOWER = f"{INSTANCE}/0/0", f"{INSTANCE}/0/1"
SHORT = NODE_TIMEOUT / 2
PATIENT = {"canary_deadline": 20.0, "hang_after_unknown": 30.0, "warm_up_deadline": 90.0}
LONG = NODE_TIMEOUT + CANARY_DEADLINE + 40.0


@pytest.mark.parametrize("slot", [MASTER, FOLLOWER], ids=["master", "follower"])
def test_short_cut(cluster: Cluster, slot: str) -> None:
    """Shorter than the node timeout: nothing happens."""
    node, before = cluster.node_of(slot), cluster.before()
    with cluster.unplugged(node):
        time.sleep(SHORT)
    time.sleep(NODE_TIMEOUT)  # what it set going shows by now
    cluster.expect_nothing(f"cable of {role(slot)} out for {SHORT:.1f} s", before)


@pytest.mark.parametrize("slot", [MASTER, FOLLOWER], ids=["master", "follower"])
def test_long_cut(cluster: Cluster, slot: str) -> None:
    """The gang cannot compute without it: the spare takes the slot; what comes back is cleaned and becomes a spare."""
    node, before = cluster.node_of(slot), cluster.before()
    with cluster.unplugged(node):
        cluster.expect_restart(
            f"cable of {role(slot)} out for good", before, seconds=LONG, settle=False, told_bound=False
        )
        assert cluster.node_of(slot) != node
    becomes_spare(cluster, node)


@pytest.mark.parametrize("direction", ["to_node", "from_node"])
def test_one_way_cut(cluster: Cluster, direction: Literal["to_node", "from_node"]) -> None:
    """A node that is heard but hears nobody, and the other way round: as good as gone, and treated so."""
    node, before = cluster.node_of(FOLLOWER), cluster.before()
    with dropping(cluster, node, direction):
        cluster.expect_restart(
            f"follower {'hears nobody' if direction == 'to_node' else 'is not heard'} (one-way cut)", before,
            seconds=LONG, settle=False, told_bound=False,
        )  # fmt: skip
        assert cluster.node_of(FOLLOWER) != node
    becomes_spare(cluster, node)


def test_short_one_way_cut(cluster: Cluster) -> None:
    node, before = cluster.node_of(FOLLOWER), cluster.before()
    with dropping(cluster, node, "to_node"):
        time.sleep(SHORT)
    time.sleep(NODE_TIMEOUT)  # what it set going shows by now
    cluster.expect_nothing(f"one-way cut for {SHORT:.1f} s", before)


def test_lossy_link(make: Make) -> None:
    """30 % lost both ways between the controller and the master's node, whose stream breaks again and again: the gang
    comes up all the same, serves, and stays up. Between ranks the same loss is the engine's own affair: TCP alone then
    pauses for a minute, and a rank that hears nothing for so long is taken for hung, as it should be."""
    cluster = make(2, timers={"node_timeout": 6.0}, health=PATIENT)
    cluster.d.start_controller()
    began = time.monotonic()
    cluster.add(1)
    cluster.d.wait(lambda: "n1" in cluster.d.node_states(), "n1 to register first, as the master")
    with dropping(cluster, "n1", "both", 30, cluster.hosts.controller_address):
        cluster.add(2)
        cluster.d.wait_ready(120.0)
        measured.note("30 % loss while starting", None, None, time.monotonic() - began)
        before = cluster.before()
        assert before.restarts == (0,), "no restart was used up"
        end = time.monotonic() + 15.0
        while time.monotonic() < end:
            assert cluster.answers(), "the gang serves"
            cluster.untouched(before, 0)
    cluster.expect_nothing("30 % loss while serving", before)
    invariants.check(cluster)


def becomes_spare(cluster: Cluster, node: str) -> None:
    cluster.d.wait(lambda: cluster.d.node_states()[node] == "spare", f"{node} to be clean and a spare", 40.0)
    cluster.wait_settled()


def role(slot: str) -> str:
    return "the master" if slot == MASTER else "a follower"
