"""Nodes out of sight: what serves goes on, what loads is waited for, what is dead is replaced (rules 5 and 7).

Each node is a host of its own. `cut` takes only the way between a node and the controller; `pull` its whole cable.
The scripted engine computes as one: a request is answered only when every rank takes part.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest

from demo.namespaces import Network, network
from tests.cluster.deployment import Deployment, engine_section, free_port

pytestmark = [pytest.mark.netns, pytest.mark.faults]

CANARY_DEADLINE = 3.0
NODE_TIMEOUT = 3.0
HEALTH = {
    "canary_deadline": CANARY_DEADLINE,
    "canary_interval": 120.0,  # the nodes' own canaries stay out of it
    "sample_interval": 1.0,
    "warm_up_deadline": 60.0,
}


@dataclass
class Cluster:
    """A deployment over hosts whose cables can be pulled."""

    d: Deployment
    hosts: Network

    def cut(self, *numbers: int) -> None:
        """Nothing of these nodes reaches the controller any more; each other they reach."""
        for number in numbers:
            self._route("add", number)

    def mend(self, *numbers: int) -> None:
        for number in numbers:
            self._route("del", number)

    def _route(self, verb: str, number: int) -> None:
        namespace, controller = self.hosts.nodes[number - 1].namespace, self.hosts.controller_address
        ip("-n", namespace, "route", verb, "blackhole", f"{controller}/32")

    def pull(self, number: int) -> None:
        self.hosts.set_link(self.hosts.nodes[number - 1], up=False)

    def kill(self, number: int) -> None:
        """The node dies: everything on it, nothing says a word."""
        namespace = self.hosts.nodes[number - 1].namespace
        done = subprocess.run(
            ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True, timeout=10
        )
        for pid in done.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        process = self.d.nodes[f"n{number}"].process
        assert process is not None
        process.wait(10)
        self.d.nodes[f"n{number}"].process = None

    def up(self, nodes: int) -> dict[str, int]:
        """Start everything and wait until it serves; the pid of each engine."""
        self.start(nodes)
        self.d.wait_ready(60.0)
        return self.pids()

    def start(self, nodes: int) -> None:
        self.d.start_controller()
        for number in range(1, nodes + 1):
            self.add(number)

    def add(self, number: int) -> None:
        controllers = [f"{self.hosts.controller_address}:{self.d.grpc_port}"]
        self.d.add_node(number, controllers=controllers, insecure=True).start()
        self.d.wait(lambda: f"n{number}" in self.d.node_states(), f"n{number} to register", 20.0)

    def pids(self) -> dict[str, int]:
        return {slot: member["pid"] for slot, member in self.d.members().items()}

    def codes(self) -> list[str]:
        return [event["code"] for event in self.d.events()]

    def answers(self) -> bool:
        """A request from a host of the group itself, because the controller's host may be cut off."""
        member = self.d.members()["union-0/0/0"]
        url = f"http://{member['address']}:{member['api_port']}/v1/completions"
        python = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], b'{}'), timeout=5)"
        place = self.hosts.nodes[1]
        done = subprocess.run(
            [*place.command_prefix, "python3", "-c", python, url], capture_output=True, timeout=20, check=False
        )
        return done.returncode == 0

    def nothing_restarted(self, before: dict[str, int]) -> None:
        assert self.pids() == before
        assert self.d.group()["generation"] == 1 and self.d.group()["restarts"] == 0
        assert all(psutil.pid_exists(pid) for pid in before.values())


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


Make = Callable[..., Cluster]


@pytest.fixture
def cluster(deploy: Callable[..., Deployment]) -> Iterator[Make]:
    """Makes a cluster of so many hosts; `timers` are the controller's."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and ip")
    with contextlib.ExitStack() as stack:

        def make(hosts: int, timers: dict[str, float] | None = None, **engine: Any) -> Cluster:
            made = stack.enter_context(network(hosts, may_fall_back=False))
            section = {**engine_section(**engine), "health_check_config": HEALTH}
            times = {"heartbeat_interval": 0.5, "node_timeout": NODE_TIMEOUT, "restart_backoff": 0.3, "stop_grace": 5.0}
            d = deploy(
                {"motor_engine_union_config": section},
                places=made.nodes,
                insecure=True,
                grpc={"host": "0.0.0.0", "port": free_port()},
                timers={**times, **(timers or {})},
            )
            stack.callback(d.close)
            return Cluster(d, made)

        yield make


@pytest.mark.parametrize("cut_off", [2, 1], ids=["follower", "master"])
def test_a_serving_gang_with_one_node_out_of_sight_stays(cluster: Make, cut_off: int) -> None:
    c = cluster(2)
    before = c.up(2)
    c.cut(cut_off)
    node, other = f"n{cut_off}", f"n{3 - cut_off}"
    c.d.wait(lambda: c.d.node_states()[node] == "unreachable", f"{node} to be out of sight")
    # proved by the node that is in sight: the controller itself could not reach a cut master
    said = c.d.wait(
        lambda: [e["sentence"] for e in c.d.events("union-0/0") if e["code"] == "silent_but_serving"],
        "proof of life", 20.0,
    )  # fmt: skip
    assert f"asked by node {other}: " in said[0] and f"on {node}" in said[0]
    time.sleep(NODE_TIMEOUT + CANARY_DEADLINE + 3.0)  # longer than a dead gang would be given
    group = c.d.group()
    assert group["state"] == "ready" and "out of sight" in group["waiting_for"] and node in group["waiting_for"]
    assert c.d.status()["problems"], "it is shown as a problem although it serves"
    assert c.answers()
    assert [e["node_id"] for e in c.d.get("/v1/instances")] == ["n1"]
    c.nothing_restarted(before)
    c.mend(cut_off)
    c.d.wait(lambda: c.d.node_states()[node] == "assigned", f"{node} to be back", 30.0)
    c.d.wait(lambda: not c.d.status()["problems"], "no problem to be left")
    c.nothing_restarted(before)


def test_a_serving_gang_that_is_out_of_sight_as_a_whole_stays(cluster: Make) -> None:
    c = cluster(3)
    before = c.up(3)
    c.cut(1, 2)
    for node in ("n1", "n2"):
        c.d.wait(lambda n=node: c.d.node_states()[n] == "unreachable", f"{node} to be out of sight")  # type: ignore[misc]
    said = c.d.wait(
        lambda: [e["sentence"] for e in c.d.events("union-0/0") if e["code"] == "no_one_in_sight"],
        "the controller's own question", 30.0,
    )  # fmt: skip
    assert "asked by the controller: " in said[0] and "nothing is done" in said[0]
    time.sleep(NODE_TIMEOUT + CANARY_DEADLINE + 3.0)
    assert c.answers()
    assert c.d.node_states()["n3"] == "spare", "nobody takes the slots of a gang that may be alive"
    c.nothing_restarted(before)
    c.mend(1, 2)
    for node in ("n1", "n2"):
        c.d.wait(lambda n=node: c.d.node_states()[n] == "assigned", f"{node} to be back", 30.0)  # type: ignore[misc]
    c.d.wait_ready()
    c.nothing_restarted(before)


def test_a_loading_gang_waits_for_a_node_out_of_sight(cluster: Make) -> None:
    c = cluster(3, {"start_unreachable_grace": 60.0})
    c.d.start_controller()
    for number in (1, 2, 3):
        (c.d.root / f"control-n{number}").mkdir()
        c.d.behave(number, slow_start=12.0)
        c.add(number)
    c.d.wait(lambda: c.d.members()["union-0/0/1"]["pid"], "the follower to load")
    before = c.pids()
    c.cut(2)
    c.d.wait(lambda: c.d.node_states()["n2"] == "unreachable", "n2 to be out of sight")
    assert c.d.group()["state"] == "starting"
    time.sleep(NODE_TIMEOUT + 2.0)
    c.nothing_restarted(before)
    assert "n2, unreachable" in c.d.group()["waiting_for"], "status names who is out of sight"
    c.mend(2)
    c.d.wait_ready(60.0)
    c.nothing_restarted(before)


def test_a_loading_gang_does_not_wait_for_ever(cluster: Make) -> None:
    grace = 6.0
    c = cluster(3, {"start_unreachable_grace": grace})
    c.d.start_controller()
    for number in (1, 2, 3):
        (c.d.root / f"control-n{number}").mkdir()
        c.d.behave(number, slow_start=25.0)
        c.add(number)
    c.d.wait(lambda: c.d.members()["union-0/0/1"]["pid"], "the follower to load")
    old = c.pids()["union-0/0/1"]
    c.cut(2)
    c.d.wait(lambda: c.d.node_states()["n2"] == "unreachable", "n2 to be out of sight")
    began = time.monotonic()
    for number in (1, 3):
        c.d.behave(number)
    c.d.wait(lambda: c.d.group()["generation"] == 2, "the next generation", 30.0)
    assert time.monotonic() - began > grace - 1.0
    assert f"has been unreachable for {grace:.0f} s while the gang starts" in c.d.group()["last_failure"]["reason"]
    c.d.wait_ready(60.0)
    assert {m["node_id"] for m in c.d.members().values()} == {"n1", "n3"}
    c.mend(2)  # it comes back with an engine of the old generation, which ends before it gets anything new
    c.d.wait(lambda: c.d.node_states()["n2"] == "spare", "n2 to be a spare", 30.0)
    c.d.wait(lambda: not psutil.pid_exists(old), "the old engine to be gone", 20.0)
    assert c.d.group()["generation"] == 2


@pytest.mark.parametrize("dead", [2, 1], ids=["follower", "master"])
def test_a_dead_node_is_replaced_by_a_spare(cluster: Make, dead: int) -> None:
    c = cluster(3)
    before = c.up(3)
    c.pull(dead)
    c.kill(dead)
    began = time.monotonic()
    c.d.wait(lambda: c.d.group()["generation"] == 2, "the next generation", 60.0)
    c.d.wait_ready(60.0)
    took = time.monotonic() - began
    members = c.d.members()
    assert {m["node_id"] for m in members.values()} == {"n1", "n2", "n3"} - {f"n{dead}"}
    assert members[f"union-0/0/{dead - 1}"]["node_id"] == "n3", "the other rank keeps its place"
    assert not set(c.pids().values()) & set(before.values())
    assert took < NODE_TIMEOUT + CANARY_DEADLINE + 30.0
    assert httpx.get(c.d.get("/v1/instances")[0]["url"] + "/v1/models", trust_env=False).status_code == 200


def test_with_self_fence_a_lost_gang_is_replaced_and_never_runs_twice(cluster: Make) -> None:
    fence = 10.0
    c = cluster(4, {"self_fence": fence})
    before = c.up(4)
    c.cut(1, 2)
    began = time.monotonic()
    dead_at: dict[int, float] = {}

    def note() -> bool:
        for pid in before.values():
            if not _runs(pid):
                dead_at.setdefault(pid, time.monotonic())
        return bool(c.d.group()["generation"] == 2)

    c.d.wait(note, "the next generation", 50.0)
    assert set(dead_at) == set(before.values()), "the old engines were gone before the new ones started"
    assert min(dead_at.values()) - began > fence - 2.0
    c.d.wait_ready(60.0)
    assert {m["node_id"] for m in c.d.members().values()} == {"n3", "n4"}
    c.mend(1, 2)
    for node in ("n1", "n2"):
        c.d.wait(lambda n=node: c.d.node_states()[n] == "spare", f"{node} to be a spare", 30.0)  # type: ignore[misc]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
