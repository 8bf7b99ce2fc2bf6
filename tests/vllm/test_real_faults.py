"""What breaks a real engine, with Motor in charge: each is repaired, or leaves the engine answering.

vLLM 0.32 by itself: a master answers 200 on `/health` for ever with a frozen follower, a follower never notices a dead
master, a headless parent ends with code 0 after its worker was killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from demo.namespaces import Network, network
from demo.tiny_model import ensure_dense_model
from tests.cluster.conftest import deploy  # noqa: F401 - the fixture
from tests.cluster.deployment import Deployment, free_port
from tests.vllm.test_real_engine import START_SECONDS, complete, open_grpc, say, section, start

pytestmark = [pytest.mark.vllm, pytest.mark.netns]


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(2, may_fall_back=False) as made:
        yield made


def worker_of(d: Deployment, slot: str) -> psutil.Process:
    parent = psutil.Process(d.members()[slot]["pid"])
    (worker,) = [p for p in parent.children(recursive=True) if any("VLLM::Worker" in word for word in p.cmdline())]
    return worker


def repaired(d: Deployment, generation: int, what: str, began: float, tokens: list[int]) -> None:
    """The next generation serves the same tokens; says how long it took."""
    d.wait(lambda: d.group()["generation"] == generation, f"generation {generation} after: {what}", 120.0)
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
    engine = section(model.name, free_port(64), **{"tensor-parallel-size": 2})
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
    os.kill(worker_of(d, "union-0/0/1").pid, signal.SIGSTOP)
    time.sleep(3.0)
    assert httpx.get(url + "/health", trust_env=False).status_code == 200, "vLLM itself notices nothing"
    repaired(d, 2, "follower's worker frozen", began, tokens)
    assert "hung" in d.group()["last_failure"]["reason"] and d.group()["last_failure"]["slot"] == "union-0/0/1"

    # master killed: its follower would wait for ever
    began = time.monotonic()
    os.kill(d.members()["union-0/0/0"]["pid"], signal.SIGKILL)
    repaired(d, 3, "master killed", began, tokens)

    # follower's worker killed: the headless parent ends with code 0
    began = time.monotonic()
    os.kill(worker_of(d, "union-0/0/1").pid, signal.SIGKILL)
    repaired(d, 4, "follower's worker killed", began, tokens)
