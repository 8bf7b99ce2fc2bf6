"""kill -9 of every process that Motor starts or is: engines are repaired by gang, daemons come back and adopt."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.faults import measured
from tests.faults.cluster import INSTANCE, Cluster, runs

MASTER, FOLLOWER = f"{INSTANCE}/0/0", f"{INSTANCE}/0/1"


@pytest.mark.parametrize("slot", [MASTER, FOLLOWER], ids=["master", "follower"])
def test_engine(cluster: Cluster, slot: str) -> None:
    before = cluster.before()
    os.kill(before.pids[slot], signal.SIGKILL)
    cluster.expect_restart(f"kill -9 of the engine of {role(slot)}", before, blamed=slot)


@pytest.mark.parametrize("slot", [MASTER, FOLLOWER], ids=["master", "follower"])
def test_worker(cluster: Cluster, slot: str) -> None:
    """vLLM's parent exits with 0 then; that is a failure all the same."""
    worker, before = cluster.worker(slot), cluster.before()
    os.kill(worker, signal.SIGKILL)
    cluster.expect_restart(f"kill -9 of one worker of {role(slot)}", before, blamed=slot)


@pytest.mark.parametrize("slot", [MASTER, FOLLOWER], ids=["master", "follower"])
def test_manager(cluster: Cluster, slot: str) -> None:
    node, before = cluster.node_of(slot), cluster.before()
    os.kill(cluster.manager(node), signal.SIGKILL)
    cluster.d.wait(lambda: cluster.d.node_states()[node] == "unreachable", f"{node} to be out of sight")
    seen = time.time() - before.at
    assert cluster.answers(), "it serves while its manager is away"
    cluster.restart_manager(node)
    cluster.d.wait(lambda: cluster.d.node_states()[node] == "assigned", f"{node} to be back")
    measured.note(f"kill -9 of the manager of {role(slot)}", seen, None, time.time() - before.at)
    cluster.expect_nothing("  ... its engine is adopted", before)


def test_manager_and_then_its_engine(cluster: Cluster) -> None:
    """No exit status is lost: the shim keeps it for the next manager."""
    node, before = cluster.node_of(FOLLOWER), cluster.before()
    os.kill(cluster.manager(node), signal.SIGKILL)
    cluster.d.wait(lambda: cluster.d.node_states()[node] == "unreachable", f"{node} to be out of sight")
    os.kill(before.pids[FOLLOWER], signal.SIGKILL)
    cluster.d.wait(lambda: not runs(before.pids[FOLLOWER]), "the engine to be reaped")
    cluster.restart_manager(node)
    cluster.expect_restart("engine killed while its manager was dead", before, blamed=FOLLOWER)
    assert cluster.groups()[0]["last_failure"]["exit_signal"] == signal.SIGKILL


@pytest.mark.parametrize("slot", [MASTER, FOLLOWER], ids=["master", "follower"])
def test_shim(cluster: Cluster, slot: str) -> None:
    """Exactly one restart, told as what it was, and no orphan."""
    shim, before = cluster.shim(slot), cluster.before()
    os.kill(shim, signal.SIGKILL)
    cluster.expect_restart(f"kill -9 of the shim of {role(slot)}", before, blamed=slot, words="shim")


def test_controller(cluster: Cluster) -> None:
    before = cluster.before()
    os.kill(cluster.controller(), signal.SIGKILL)
    assert cluster.d.controller is not None
    cluster.d.controller.wait(10)
    cluster.restart_controller()
    cluster.wait_settled()
    measured.note("kill -9 of the controller", None, None, time.time() - before.at)
    cluster.expect_nothing("  ... its engines go on", before)


def test_controller_and_then_an_engine(cluster: Cluster) -> None:
    """What ends while no controller looks is repaired by the next one."""
    before = cluster.before()
    os.kill(cluster.controller(), signal.SIGKILL)
    os.kill(before.pids[FOLLOWER], signal.SIGKILL)
    cluster.restart_controller()
    cluster.d.wait(lambda: cluster.groups()[0]["generation"] > before.generations[0], "a next generation", 30.0)
    cluster.wait_settled()
    measured.note("controller and a follower's engine killed together", None, None, time.time() - before.at)
    cluster.untouched(before, 1)


def test_both_engines_of_a_gang(cluster: Cluster) -> None:
    before = cluster.before()
    for slot in (MASTER, FOLLOWER):
        os.kill(before.pids[slot], signal.SIGKILL)
    cluster.expect_restart("kill -9 of all engines of a gang at once", before)


def role(slot: str) -> str:
    return "the master" if slot == MASTER else "a follower"
