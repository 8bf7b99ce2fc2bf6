"""The wall clock of one daemon jumps: nothing that runs is touched, because no decision reads it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.deployment import PlacedNode
from tests.faults import invariants, measured
from tests.faults.cluster import CANARY_DEADLINE, INSTANCE, NODE_TIMEOUT, Cluster, Make

FOLLOWER = f"{INSTANCE}/0/1"
HOUR = 3600


class Clock:
    """The wall clock of programs that are started with `env`; it jumps when told."""

    def __init__(self, file: Path, library: str) -> None:
        self.file = file
        self.env = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # a wall clock that is set does not move the monotonic one
        }
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """Off by so much from now on."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.rename(self.file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert found, "libfaketime is missing; Debian's package faketime has it"
    return Clock(tmp_path / "clock", str(found[0]))


def for_a_while(holds: Callable[[], object], seconds: float = NODE_TIMEOUT + CANARY_DEADLINE) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        holds()
        time.sleep(0.25)


def test_managers_clock(make: Make, clock: Clock) -> None:
    """Only a start is refused while the clock is wrong: logs and certificates would be wrong, too.

    libfaketime breaks some sleeps of threads (EINVAL), which prepare would run into: the manager gets the clock when
    its engine runs, and a right one, by another restart, before the next start.
    """
    cluster = make(2)
    cluster.up(2)
    node, before = cluster.node_of(FOLLOWER), cluster.before()
    restart_with(cluster, node, clock.env)
    time.sleep(1.0)  # its first heartbeats are answered
    right = cluster.before()
    for seconds in (HOUR, -HOUR):
        clock.jump(seconds)
        for_a_while(lambda: stays(cluster, before.pids))
    assert "unreachable" not in cluster.codes_since(right), "nobody went out of sight"
    cluster.expect_nothing("clock of a manager jumps by an hour, both ways", before)
    killed_at = time.monotonic()
    os.kill(before.pids[FOLLOWER], signal.SIGKILL)
    cluster.d.wait(lambda: "behind the controller's clock" in cluster.groups()[0]["waiting_for"], "the refusal", 40.0)
    measured.note("  ... a start there is refused", time.monotonic() - killed_at, None, None)
    restart_with(cluster, node, {})
    cluster.wait_settled(60.0)
    invariants.check(cluster)


def restart_with(cluster: Cluster, name: str, env: dict[str, str]) -> None:
    node = cluster.d.nodes[name]
    assert isinstance(node, PlacedNode)
    node.end()
    node.prefix = (*cluster.place_of(name).command_prefix, "env", *(f"{key}={value}" for key, value in env.items()))
    node.start()
    cluster.d.wait(lambda: cluster.d.node_states()[name] in ("assigned", "spare"), f"{name} to be back", 30.0)


def test_controllers_clock(make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(2)
    with monkeypatch.context() as patch:
        for name, value in clock.env.items():
            patch.setenv(name, value)
        cluster.d.start_controller()
    for number in (1, 2):
        cluster.add(number)
    cluster.wait_settled(60.0)
    before = cluster.before()
    for seconds in (HOUR, -HOUR):
        clock.jump(seconds)
        for_a_while(lambda: stays(cluster, before.pids))
    clock.jump(0)
    assert "unreachable" not in cluster.codes_since(before), "nobody went out of sight"
    cluster.expect_nothing("clock of the controller jumps by an hour, both ways", before)
    before = cluster.before()
    os.kill(before.pids[FOLLOWER], signal.SIGKILL)
    cluster.expect_restart("  ... and it repairs as before", before)
    invariants.check(cluster)


def stays(cluster: Cluster, pids: dict[str, int]) -> None:
    group = cluster.groups()[0]
    assert group["state"] == "ready"
    assert {m["slot"]: m["pid"] for m in group["members"]} == pids
