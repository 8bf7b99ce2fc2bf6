"""What breaks a real engine, with Motor in charge: each is repaired, or leaves the engine answering.

vLLM 0.32 by itself: a master answers 200 on `/health` for ever with a frozen follower, a follower never notices a dead
master, a headless parent ends with code 0 after its worker was killed, either side waits for one that never starts for
more than 25 minutes without a word.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from demo.namespaces import Network, network
from demo.tiny_model import ensure_dense_model
from tests.cluster.conftest import deploy  # noqa: F401 - the fixture
from tests.cluster.deployment import Deployment, free_port
from tests.vllm.test_real_engine import START_SECONDS, complete, open_grpc, say, section, start

pytestmark = [pytest.mark.vllm, pytest.mark.netns]

MASTER, FOLLOWER = "union-0/0/0", "union-0/0/1"
RENDEZVOUS_LIMIT = 60.0
NOTICED_SECONDS = 120.0  # a bound against a hang: a headless engine takes 13 s to obey a SIGTERM


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(2, may_fall_back=False) as made:
        yield made


def two_ranks() -> dict[str, Any]:
    """The section of one gang: a tensor-parallel rank on each of two nodes."""
    return section(ensure_dense_model(say).name, free_port(64), **{"tensor-parallel-size": 2})


def worker_of(d: Deployment, slot: str) -> psutil.Process:
    parent = psutil.Process(d.members()[slot]["pid"])
    (worker,) = [p for p in parent.children(recursive=True) if any("VLLM::Worker" in word for word in p.cmdline())]
    return worker


def repaired(d: Deployment, generation: int, what: str, began: float, tokens: list[int]) -> None:
    """The next generation serves the same tokens; says how long it took."""
    d.wait(lambda: d.group()["generation"] == generation, f"generation {generation} after: {what}", NOTICED_SECONDS)
    noticed = time.monotonic() - began
    d.wait_ready(START_SECONDS)
    say(f"{what}: next generation after {noticed:.1f} s, serving again after {time.monotonic() - began:.1f} s")
    assert complete(d) == tokens


def test_every_fault_is_repaired_and_nobody_restarts_a_healthy_engine(
    hosts: Network,
    deploy: Callable[..., Deployment],  # noqa: F811
    scratch: Path,
) -> None:
    model = ensure_dense_model(say)
    engine = two_ranks()
    engine["health_check_config"] = {
        "canary_interval": 3,
        "canary_deadline": 6,
        "max_failure_count": 3,
        "sample_interval": 2,
    }
    d = deploy(
        {"motor_engine_union_config": engine}, places=hosts.nodes, **open_grpc(hosts), timers={"restart_backoff": 0.5}
    )
    start(d, hosts, model, scratch)
    d.wait_ready(START_SECONDS)
    tokens = complete(d)
    pids = {slot: member["pid"] for slot, member in d.members().items()}

    # manager killed, controller killed: the engine keeps answering, nothing restarts
    d.nodes["n1"].end(signal.SIGKILL)
    assert complete(d) == tokens
    d.nodes["n1"].start()
    d.end_controller(signal.SIGKILL)
    d.start_controller()
    d.wait_ready(60.0)
    assert complete(d) == tokens
    assert {slot: member["pid"] for slot, member in d.members().items()} == pids

    # follower frozen: `/health` stays 200, the canary finds it
    began = time.monotonic()
    url = d.get("/v1/instances")[0]["url"]
    os.kill(worker_of(d, FOLLOWER).pid, signal.SIGSTOP)
    time.sleep(3.0)
    assert httpx.get(url + "/health", trust_env=False).status_code == 200, "vLLM itself notices nothing"
    repaired(d, 2, "follower's worker frozen", began, tokens)
    assert "hung" in d.group()["last_failure"]["reason"] and d.group()["last_failure"]["slot"] == FOLLOWER

    # master killed: its follower would wait for ever
    began = time.monotonic()
    os.kill(d.members()[MASTER]["pid"], signal.SIGKILL)
    repaired(d, 3, "master killed", began, tokens)

    # follower's worker killed: the headless parent ends with code 0
    began = time.monotonic()
    os.kill(worker_of(d, FOLLOWER).pid, signal.SIGKILL)
    repaired(d, 4, "follower's worker killed", began, tokens)


def test_a_stray_sigterm_to_either_engine_is_repaired(
    hosts: Network,
    deploy: Callable[..., Deployment],  # noqa: F811
    scratch: Path,
) -> None:
    """vLLM obeys it and ends with code 0, as if somebody had asked for that; the other side stays."""
    d = deploy(
        {"motor_engine_union_config": two_ranks()},
        places=hosts.nodes,
        **open_grpc(hosts),
        timers={"restart_backoff": 0.5},
    )
    start(d, hosts, ensure_dense_model(say), scratch)
    d.wait_ready(START_SECONDS)
    tokens = complete(d)

    for generation, slot, whose in ((2, MASTER, "master's"), (3, FOLLOWER, "follower's")):
        before = {one: member["pid"] for one, member in d.members().items()}
        began = time.monotonic()
        os.kill(before[slot], signal.SIGTERM)
        repaired(d, generation, f"SIGTERM to the {whose} engine", began, tokens)
        failure = d.group()["last_failure"]
        assert (failure["slot"], failure["exit_code"]) == (slot, 0), failure
        assert not set(before.values()) & {member["pid"] for member in d.members().values()}, "the whole gang restarts"


@pytest.mark.parametrize(("held", "waiting"), [(FOLLOWER, MASTER), (MASTER, FOLLOWER)], ids=["follower", "master"])
def test_a_side_that_never_starts_is_named_and_the_gang_comes_up_without_the_obstacle(
    hosts: Network,
    deploy: Callable[..., Deployment],  # noqa: F811
    scratch: Path,
    held: str,
    waiting: str,
) -> None:
    """The engine's command of one node waits while a file is there: as an import from a mount that hangs would."""
    obstacle = scratch / "obstacle"
    obstacle.touch()
    held_node = 1 + int(held.rpartition("/")[2])  # nodes fill slots in their order

    def command(number: int, python: Path) -> dict[str, Any]:
        waits = f"while [ -e {obstacle} ]; do sleep 0.2; done; " if number == held_node else ""
        script = scratch / f"vllm-{number}"
        script.write_text(f'{waits}exec {python} -m vllm.entrypoints.cli.main "$@"\n')
        return {"command": ["/bin/sh", str(script)], "version": "0.32.0+cpu"}

    # Only the waiting side's limit is to be met: on busy cores a start may take minutes to its rendezvous, and the two
    # sides are seconds apart there.
    timers = {"restart_backoff": 0.5, "configuration_limit": 1200.0, "rendezvous_limit": RENDEZVOUS_LIMIT}
    d = deploy({"motor_engine_union_config": two_ranks()}, places=hosts.nodes, **open_grpc(hosts), timers=timers)
    start(d, hosts, ensure_dense_model(say), scratch, command)
    began = time.monotonic()
    d.wait(lambda: d.members()[waiting]["stage"] == "rendezvous", f"{waiting} to wait for the other", START_SECONDS)
    met = time.monotonic()
    assert d.members()[held]["stage"] == ""
    failure = d.wait(lambda: d.group()["last_failure"], "the limit", 5 * RENDEZVOUS_LIMIT)
    named = time.monotonic()
    assert failure["slot"] == held, failure
    rank = waiting.rpartition("/")[2]
    for words in (
        f"rank {rank}: waiting for rendezvous for ",
        f"the limit is {RENDEZVOUS_LIMIT:.0f} s",
        f"furthest behind: {held} on n{held_node} (starting)",
    ):
        assert words in failure["reason"], failure["reason"]
    obstacle.unlink()
    d.wait_ready(START_SECONDS)
    now = time.monotonic()
    say(
        f"{held} never starts: {waiting} at its rendezvous after {met - began:.1f} s, named {named - met:.1f} s later "
        f"(limit {RENDEZVOUS_LIMIT:.0f} s), ready {now - named:.1f} s after the obstacle went"
    )
    assert d.group()["generation"] == 2
    assert len(complete(d)) == 8
