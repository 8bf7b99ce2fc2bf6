"""Real vLLM under real daemons in network namespaces: start, tokens, a killed worker, adoption."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from demo.engine_environment import ensure_engine_environment
from demo.namespaces import Network, network
from demo.tiny_model import ensure_dense_model, ensure_moe_model
from tests.cluster.conftest import deploy  # noqa: F401 - the fixture
from tests.cluster.deployment import Deployment, free_port

pytestmark = [pytest.mark.vllm, pytest.mark.netns]

START_SECONDS = 400.0  # a bound against a hang; a start takes 20-60 s on two idle cores


def say(text: str) -> None:
    print(text, flush=True)


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Network]:
    with network(request.param, may_fall_back=False) as made:
        yield made


def section(model: str, port: int, **engine_config: Any) -> dict[str, Any]:
    return {
        "engine_type": "vllm",
        "engine_profile": "vllm@0.32",
        "engine_config": {
            "model": model,
            "served-model-name": "tiny",
            "nnodes": 2,
            "master-port": free_port(64),
            "port": port,
            "max-model-len": 512,
            "max-num-seqs": 2,
            "enforce-eager": True,
            "dtype": "float32",
            **engine_config,
        },
        "env": {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    }


def by_python(number: int, python: Path) -> dict[str, Any]:
    """How node `number` runs its engine."""
    return {"python": str(python)}


def start(
    d: Deployment,
    hosts: Network,
    model: Path,
    scratch: Path,
    how: Callable[[int, Path], dict[str, Any]] = by_python,
) -> None:
    """Controller on this side of the bridge, one manager in each namespace."""
    engine = ensure_engine_environment(say)
    d.start_controller()
    for number in range(1, len(hosts.nodes) + 1):
        node = d.add_node(
            number,
            controllers=[f"{hosts.controller_address}:{d.grpc_port}"],
            insecure=True,
            model_roots=[str(model.parent)],
            engines={
                "vllm": {
                    **how(number, engine.python),
                    "env": {"HOME": str(scratch), "TMPDIR": str(scratch)},
                }
            },
        )
        node.start()
        d.wait(lambda n=number: f"n{n}" in d.node_states(), f"n{number} to register", 60.0)  # type: ignore[misc]


def complete(d: Deployment, index: int = 0) -> list[int]:
    """Token ids for a fixed prompt at temperature 0."""
    url = d.get("/v1/instances")[index]["url"]
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    answer = httpx.post(url + "/v1/completions", json=body, timeout=120.0, trust_env=False)
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def open_grpc(hosts: Network) -> dict[str, Any]:
    return {"grpc": {"host": "0.0.0.0", "port": free_port()}, "insecure": True}


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_gang_of_two_serves_survives_a_controller_and_restarts_when_a_worker_dies(
    hosts: Network,
    deploy: Callable[..., Deployment],  # noqa: F811
    scratch: Path,
) -> None:
    model = ensure_dense_model(say)
    settings = open_grpc(hosts)
    d = deploy(
        {"motor_engine_union_config": section(model.name, free_port(64), **{"tensor-parallel-size": 2})},
        places=hosts.nodes,
        **settings,
        timers={"restart_backoff": 0.5},
    )
    start(d, hosts, model, scratch)
    d.wait_ready(START_SECONDS)
    first = complete(d)
    assert len(first) == 8
    members = d.members()
    assert members["union-0/0/1"]["workers_seen"] == 1

    d.end_controller(signal.SIGKILL)
    d.start_controller()
    d.wait_ready(60.0)
    assert {s: m["pid"] for s, m in d.members().items()} == {s: m["pid"] for s, m in members.items()}

    # vLLM's headless parent ends with code 0, five seconds after its worker was killed; that is a failure all the same
    parent = psutil.Process(members["union-0/0/1"]["pid"])
    (worker,) = [p for p in parent.children(recursive=True) if any("VLLM::Worker" in word for word in p.cmdline())]
    os.kill(worker.pid, signal.SIGKILL)
    d.wait(lambda: d.group()["generation"] == 2, "the next generation", 90.0)
    d.wait_ready(START_SECONDS)
    assert d.group()["last_failure"]["slot"] == "union-0/0/1"
    assert d.members()["union-0/0/0"]["pid"] != members["union-0/0/0"]["pid"], "the whole gang restarts"
    assert complete(d) == first


@pytest.mark.parametrize("hosts", [4], indirect=True)
def test_replica_groups_over_four_hosts_give_the_same_tokens(
    hosts: Network,
    deploy: Callable[..., Deployment],  # noqa: F811
    scratch: Path,
) -> None:
    model = ensure_dense_model(say)
    settings = open_grpc(hosts)
    config = {"tensor-parallel-size": 2, "data-parallel-size": 2}
    d = deploy(
        {"motor_engine_union_config": section(model.name, free_port(64), **config)}, places=hosts.nodes, **settings
    )
    start(d, hosts, model, scratch)
    d.wait_ready(START_SECONDS)
    assert [e["node_id"] for e in d.get("/v1/instances")] == ["n1", "n3"]
    assert complete(d, 0) == complete(d, 1)


@pytest.mark.parametrize("hosts", [4], indirect=True)
def test_native_world_over_four_hosts_comes_up_with_the_ranks_as_computed(
    hosts: Network,
    deploy: Callable[..., Deployment],  # noqa: F811
    scratch: Path,
) -> None:
    model = ensure_moe_model(say)
    settings = open_grpc(hosts)
    config = {
        "tensor-parallel-size": 2,
        "data-parallel-size": 2,
        "enable-expert-parallel": True,
        "load-format": "dummy",
    }
    engine = section(model.name, free_port(64), **config)
    # generation with experts fails on the CPU, so there is no canary to be answered; ranks and readiness are the point
    engine["health_check_config"] = {"enable_virtual_inference": False}
    d = deploy({"motor_engine_union_config": engine}, places=hosts.nodes, **settings)
    start(d, hosts, model, scratch)
    d.wait_ready(START_SECONDS)
    assert d.status()["instances"][0]["restart_scope"] == "instance"
    for rank, slot in enumerate(["union-0/0/0", "union-0/0/1", "union-0/1/0", "union-0/1/1"]):
        log = d.get(f"/v1/logs/{slot}?tail=2000")
        expected = (
            f"rank {rank} in world size 4 is assigned as DP rank {rank // 2}, PP rank 0, PCP rank 0, TP rank {rank % 2}"
        )
        assert expected in log, f"{slot}: {expected}"
