"""A full disk under a node's state and logs: what runs goes on, what has to start waits and says why.

The store's disk is in tests/cluster/test_full_disk.py.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx

from tests.faults import invariants, measured
from tests.faults.cluster import CANARY_DEADLINE, INSTANCE, NODE_TIMEOUT, Make

FOLLOWER = f"{INSTANCE}/0/1"
SIZE = "8m"


def small_disk(folder: Path) -> tuple[str, ...]:
    """A prefix: the command gets a small file system at `folder`, in a mount name space that ends with it."""
    folder.mkdir()
    program = f'mount -t tmpfs -o size={SIZE} small "$0" && exec "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", program, str(folder))


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return filler


def test_full_disk_of_a_node(make: Make) -> None:
    cluster = make(2)
    small = cluster.d.root / "small"
    cluster.d.start_controller()
    cluster.add(1)
    cluster.d.wait(lambda: "n1" in cluster.d.node_states(), "n1, so that n2 is the follower")
    settings = {"state_dir": str(small / "state"), "log_dir": str(small / "log"), "limits": {"disk_mb": 1}}
    cluster.add(2, prefix=small_disk(small), **settings)
    cluster.wait_settled(60.0)
    try:
        node, before = cluster.node_of(FOLLOWER), cluster.before()
        assert node == "n2" and not list(small.iterdir()), "the small disk is the node's alone"
        filler = fill(Path(f"/proc/{cluster.manager(node)}/root{small}"))
        end = time.monotonic() + NODE_TIMEOUT + CANARY_DEADLINE
        while time.monotonic() < end:
            cluster.untouched(before, 0)
            assert cluster.answers()
        cluster.expect_nothing("full disk under state and logs of a node", before)

        killed_at = time.monotonic()
        os.kill(before.pids[FOLLOWER], signal.SIGKILL)
        cluster.d.wait(lambda: cluster.groups()[0]["state"] == "stopping", "the failure")
        measured.note("  ... then its engine is killed", time.monotonic() - killed_at, None, None)
        # An end that is not on disk is not confirmed, and nothing is started over an engine in doubt.
        unconfirmed = "not yet confirmed by: union-0/0/1 on n2"
        cluster.d.wait(lambda: unconfirmed in cluster.groups()[0]["waiting_for"], "the node to be named")
        time.sleep(NODE_TIMEOUT)
        assert unconfirmed in cluster.groups()[0]["waiting_for"], "it waits for the disk"
        assert cluster.d.status()["problems"]
        freed = time.monotonic()
        filler.unlink()
        cluster.wait_settled(60.0)
        measured.note("  ... room again", None, None, time.monotonic() - freed)
        assert cluster.groups()[0]["restarts"] == 1
        invariants.check(cluster)
    finally:
        # From outside its mount name space nobody finds this node's engines: they end by an order.
        httpx.post(cluster.d.url + "/v1/orders", json={"order": "stop", "target": INSTANCE}, trust_env=False)
        cluster.d.wait(lambda: cluster.groups()[0]["state"] == "stopped", "the stop", 30.0)
