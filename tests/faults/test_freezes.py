"""SIGSTOP: a frozen engine is found although /health is 200, a frozen daemon stops nobody's engine."""

from __future__ import annotations

import os
import signal
import time

import httpx
import pytest

from nodemanager.unreported_end import SILENT_SECONDS
from tests.faults import measured
from tests.faults.cluster import CANARY_DEADLINE, INSTANCE, NODE_TIMEOUT, STARTED_AGAIN, STOP_GRACE, Cluster, runs

MASTER, FOLLOWER = f"{INSTANCE}/0/0", f"{INSTANCE}/0/1"
HANG = "the canary is late"


@pytest.mark.parametrize("slot", [MASTER, FOLLOWER], ids=["master", "follower"])
def test_worker(cluster: Cluster, slot: str) -> None:
    """The hang that /health does not show: requests wait for ever."""
    worker, before = cluster.worker(slot), cluster.before()
    with cluster.frozen(worker):
        member = cluster.d.members()[MASTER]
        url = f"http://{member['address']}:{member['api_port']}/health"
        assert httpx.get(url, trust_env=False).status_code == 200
        cluster.expect_restart(f"SIGSTOP of one worker of {role(slot)}", before, words=HANG, seconds=60.0)
    assert not runs(worker)


def test_engine_of_the_master(cluster: Cluster) -> None:
    before = cluster.before()
    with cluster.frozen(before.pids[MASTER]):
        cluster.expect_restart("SIGSTOP of the engine of the master", before, words=HANG, seconds=60.0)
    assert not runs(before.pids[MASTER]), "it is deaf to SIGTERM, not to SIGKILL"


def test_engine_of_a_follower(cluster: Cluster) -> None:
    """Its workers go on without it, so nothing is restarted; but a later stop has to get rid of it."""
    before = cluster.before()
    with cluster.frozen(before.pids[FOLLOWER]):
        watch(cluster, CANARY_DEADLINE + 4.0, lambda: cluster.untouched(before, 0))
        cluster.expect_nothing("SIGSTOP of the engine of a follower (workers go on)", before)
        frozen, before = before.pids[FOLLOWER], cluster.before()
        os.kill(before.pids[MASTER], signal.SIGKILL)
        bound = STOP_GRACE + STARTED_AGAIN
        cluster.expect_restart("  ... and then kill -9 of the master", before, blamed=MASTER, seconds=bound)
    assert not runs(frozen)


@pytest.mark.parametrize("slot", [MASTER, FOLLOWER], ids=["master", "follower"])
def test_manager(cluster: Cluster, slot: str) -> None:
    node, before = cluster.node_of(slot), cluster.before()
    with cluster.frozen(cluster.manager(node)):
        cluster.d.wait(lambda: cluster.d.node_states()[node] == "unreachable", f"{node} to be out of sight")
        seen = time.time() - before.at
        # it is asked first after one node timeout, then once in each canary deadline
        watch(cluster, 2 * (NODE_TIMEOUT + CANARY_DEADLINE), lambda: cluster.untouched(before, 0))
        assert "silent_but_serving" in cluster.codes_since(before), "it is said"
        assert cluster.d.status()["problems"] and cluster.answers()
    measured.note(f"SIGSTOP of the manager of {role(slot)}", seen, None, None)
    cluster.expect_nothing("  ... SIGCONT: nothing was restarted", before)


def test_manager_while_its_engine_ends(cluster: Cluster) -> None:
    """Seen as soon as it goes on: by then the gang may already have been given up for lack of proof of life."""
    node, before = cluster.node_of(FOLLOWER), cluster.before()
    with cluster.frozen(cluster.manager(node)):
        cluster.d.wait(lambda: cluster.d.node_states()[node] == "unreachable", f"{node} to be out of sight")
        os.kill(before.pids[FOLLOWER], signal.SIGKILL)
        cluster.expect_restart("follower killed while its manager is frozen", before, seconds=60.0, settle=False)
        assert cluster.node_of(FOLLOWER) != node, "the spare has taken over"
    cluster.wait_settled()


def test_shim(cluster: Cluster) -> None:
    shim, before = cluster.shim(FOLLOWER), cluster.before()
    with cluster.frozen(shim):
        watch(cluster, CANARY_DEADLINE + SILENT_SECONDS + 2.0, lambda: cluster.untouched(before, 0))
        assert cluster.answers()
    cluster.expect_nothing("SIGSTOP of a shim", before)


def test_shim_while_its_engine_ends(cluster: Cluster) -> None:
    """Nobody reaps the engine and nobody says that it ended: the manager sees a zombie, and kills the shim."""
    shim, before = cluster.shim(FOLLOWER), cluster.before()
    with cluster.frozen(shim):
        os.kill(before.pids[FOLLOWER], signal.SIGKILL)
        what = "follower killed while its shim is frozen"
        cluster.expect_restart(what, before, blamed=FOLLOWER, seconds=60.0, told_bound=False)
    assert not runs(shim)


def test_controller(cluster: Cluster) -> None:
    """For longer than the node timeout: nodes give it up; woken up, it does not judge them by its own sleep."""
    before = cluster.before()
    names = list(cluster.d.nodes)
    said = {name: len(cluster.d.nodes[name].output()) for name in names}
    with cluster.frozen(cluster.controller()):
        for name in names:
            cluster.d.wait(
                lambda n=name: "connecting" in cluster.d.nodes[n].output()[said[n] :],  # type: ignore[misc]
                f"{name} to give the controller up",
            )
        time.sleep(max(0.0, before.at + NODE_TIMEOUT + 2.0 - time.time()))
        assert all(runs(pid) for pid in before.pids.values())
    cluster.expect_nothing(f"SIGSTOP of the controller for {time.time() - before.at:.0f} s", before)


def test_a_busy_gang_is_not_a_hung_one(cluster: Cluster) -> None:
    """One step that takes twice the canary's deadline, all devices busy: late, but not hung."""
    before = cluster.before()
    seconds = 2 * CANARY_DEADLINE + 2.0
    nodes = [cluster.node_of(slot) for slot in (MASTER, FOLLOWER)]
    member = cluster.d.members()[MASTER]
    for node in nodes:
        cluster.behave(node, step_seconds=seconds)
    request = cluster.ask(f"http://{member['address']}:{member['api_port']}/v1/completions", 60.0)
    try:
        cluster.d.wait(lambda: "canary_late" in cluster.codes_since(before), "the canary to be late", 30.0)
        for node in nodes:
            cluster.behave(node)
        assert request.wait(60) == 0, "the long request is answered"
    finally:
        for node in nodes:
            cluster.behave(node)
        request.kill()
        request.wait()
    cluster.d.wait(lambda: "canary_answered" in cluster.codes_since(before), "the canary's answer", 30.0)
    cluster.expect_nothing("a busy step of twice the canary's deadline", before)


def watch(cluster: Cluster, seconds: float, holds: object) -> None:
    """`holds` is true all the time for so long."""
    assert callable(holds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        holds()
        time.sleep(0.25)


def role(slot: str) -> str:
    return "the master" if slot == MASTER else "a follower"
