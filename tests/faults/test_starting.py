"""Starts that cannot succeed: taken ports, models that vanish or hang, stages without end, engines deaf to SIGTERM."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from demo.enter import inside
from demo.namespaces import NETNS_FOLDER
from tests.faults import invariants, measured
from tests.faults.cluster import INSTANCE, STARTED_AGAIN, STOP_GRACE, Cluster, Make, runs

MASTER, FOLLOWER = f"{INSTANCE}/0/0", f"{INSTANCE}/0/1"


def test_port_taken_between_prepare_and_start(cluster: Cluster) -> None:
    """A stranger is faster than the engine: it fails at start-up, and the gang comes up on the next port."""
    master, before = cluster.node_of(MASTER), cluster.before()
    place = cluster.place_of(master)
    port = cluster.d.members()[MASTER]["master_port"] + 1  # a next generation takes the next port
    with ThreadPoolExecutor(1) as aside:
        # It waits from before the fault on: prepare listens for a tenth of a second only.
        grabbed = aside.submit(inside, NETNS_FOLDER / place.namespace, lambda: grab(place.address, port))
        os.kill(before.pids[FOLLOWER], signal.SIGKILL)
        stranger = grabbed.result(30)
    try:
        assert stranger is not None, "the stranger was too slow"
        cluster.d.wait(
            lambda: cluster.groups()[0]["generation"] > before.generations[0] + 1, "another generation", 60.0
        )
        cluster.wait_settled()
    finally:
        if stranger is not None:
            stranger.close()
    measured.note("master port taken between prepare and start", None, None, time.time() - before.at)
    group = cluster.groups()[0]
    assert {m["master_port"] for m in group["members"]}.isdisjoint({port}), "all members moved to another port"
    assert group["last_failure"]["failure_class"] == "port" and str(port) in group["last_failure"]["reason"]
    cluster.untouched(before, 1)


def grab(address: str, port: int, seconds: float = 25.0) -> socket.socket | None:
    """Wait until prepare listens on the port, then take it in the moment it is given back."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                break
    while time.monotonic() < deadline:
        stranger = socket.socket()
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stranger.bind(("", port))
            stranger.listen()
            return stranger
        except OSError as error:
            stranger.close()
            if error.errno != errno.EADDRINUSE:
                raise
    return None


def test_model_vanishes_and_a_spare_has_it(cluster: Cluster) -> None:
    node, before = cluster.node_of(FOLLOWER), cluster.before()
    model = cluster.d.nodes[node].model
    hidden = model.with_name("hidden")
    model.rename(hidden)
    try:
        os.kill(before.pids[FOLLOWER], signal.SIGKILL)
        cluster.d.wait(lambda: cluster.groups()[0]["state"] == "ready" and refusals(cluster, node), "the spare", 40.0)
        assert "not there" in refusals(cluster, node)[-1] and str(model) in refusals(cluster, node)[-1]
        assert cluster.node_of(FOLLOWER) != node
        assert cluster.groups()[0]["restarts"] == before.restarts[0] + 1, "a refusal costs no restart"
        measured.note("model vanished before a restart, spare has it", None, None, time.time() - before.at)
    finally:
        hidden.rename(model)
    cluster.untouched(before, 1)


@pytest.fixture
def pair(make: Make) -> Iterator[Cluster]:
    """Two nodes, no spare, short limits. Each its own: who waits at the rendezvous must not be judged before the one
    that does not come."""
    cluster = make(2, timers={"configuration_limit": 5.0, "rendezvous_limit": 8.0, "load_idle_limit": 12.0})
    cluster.up(2, limits={"file_seconds": 2.0})
    yield cluster
    cluster.wait_settled()
    invariants.check(cluster)


def test_model_that_blocks_and_nobody_else(pair: Cluster) -> None:
    """A hung mount: the file is there and reading it never ends. Said, and over when the mount answers."""
    node, before = pair.node_of(FOLLOWER), pair.before()
    config = pair.d.nodes[node].model / "config.json"
    kept = config.with_name("kept")
    config.rename(kept)
    os.mkfifo(config)
    try:
        os.kill(before.pids[FOLLOWER], signal.SIGKILL)
        pair.d.wait(lambda: "no answer from the file system" in pair.groups()[0]["waiting_for"], "the refusal", 40.0)
        measured.note("model on a hung mount: refusal shown", time.time() - before.at, None, None)
        assert node in pair.groups()[0]["waiting_for"] and pair.groups()[0]["state"] == "assembling"
        assert pair.d.nodes[node].process is not None and pair.d.node_states()[node] != "unreachable", "it still talks"
    finally:
        config.unlink()
        kept.rename(config)
    answers_at = time.monotonic()
    pair.wait_settled(60.0)
    measured.note("  ... mount answers again", None, None, time.monotonic() - answers_at)


def test_start_that_never_gets_ready(pair: Cluster) -> None:
    """Each limit of a stage, on a follower that stops for ever; the rank behind is named, then it comes up."""
    node = pair.node_of(FOLLOWER)
    for hang_at, stage, limit, words in (
        ("rendezvous", "engine", 5, ("in stage 'engine'",)),
        ("joined", "rendezvous", 8, ("waiting for rendezvous",)),
        # or the same limit of the master is over first, which has loaded and waits; it too names the rank behind
        ("kv_cache", "weights", 12, ("no progress in stage 'weights'", f"{FOLLOWER} on {node} (weights)")),
    ):
        before = pair.before()
        pair.behave(node, hang_at=hang_at)
        os.kill(before.pids[FOLLOWER], signal.SIGKILL)

        def failures(before: object = before, words: tuple[str, ...] = words) -> list[str]:
            lines = [e["sentence"] for e in pair.events_since(before) if e["code"] == "failed"]  # type: ignore[arg-type]
            return [line for line in lines if any(word in line for word in words)]

        said = pair.d.wait(failures, f"the limit of stage {stage}", 40.0)
        assert f"the limit is {limit} s" in said[0]
        measured.note(f"start hangs in stage '{stage}' (limit {limit} s)", time.time() - before.at, None, None)
        pair.behave(node)
        pair.wait_settled(60.0)


def test_sigterm_deaf_engines(cluster: Cluster) -> None:
    """SIGKILL after the grace; nothing of the deaf tree is left."""
    nodes = [cluster.node_of(slot) for slot in (MASTER, FOLLOWER)]
    before = cluster.before()
    for node in nodes:
        cluster.behave(node, ignore_sigterm=True)
    os.kill(before.pids[FOLLOWER], signal.SIGKILL)  # the next ones are deaf
    cluster.expect_restart("(preparation: the next engines are deaf)", before)
    for node in nodes:
        cluster.behave(node)
    before = cluster.before()
    os.kill(before.pids[MASTER], signal.SIGKILL)
    cluster.expect_restart(
        f"SIGTERM-deaf follower (grace {STOP_GRACE:g} s)", before, blamed=MASTER, seconds=STOP_GRACE + STARTED_AGAIN
    )
    assert not runs(before.pids[FOLLOWER])
    assert time.time() - before.at > STOP_GRACE, "it had its grace"


def refusals(cluster: Cluster, node: str) -> list[str]:
    return [e["sentence"] for e in cluster.d.events(f"node {node}") if e["code"] == "refused"]
