"""Signs of life of a real vLLM over two nodes: warm-up, counters, a frozen worker, its return."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from motor_rpc import control_pb2 as pb

from demo.engine_environment import ensure_engine_environment
from demo.tiny_model import ensure_dense_model
from engine_launch.command import build_command
from engine_launch.model import Assignment, EngineSpec, ParallelShape, Role, Translation
from engine_launch.profiles import resolve
from nodemanager.progress import sum_of_counters
from tests.cluster.deployment import free_port  # below the ephemeral ports: a start takes long
from tests.nodemanager import wire
from tests.nodemanager.conftest import place  # noqa: F401 - the fixture
from tests.nodemanager.places import Node, get

pytestmark = pytest.mark.vllm

START_SECONDS = 300.0  # a bound against a hang; a start takes 30-60 s on two idle cores
DEADLINE = 4.0


def say(text: str) -> None:
    print(text, flush=True)


def make_node(root: Path, controller: wire.Controller, model: Path) -> Node:
    environment = {"VLLM_CACHE_ROOT": str(root / "vllm"), "HOME": str(root)}
    engine = {"python": str(ensure_engine_environment(say).python), "env": environment}
    settings = {"engines": {"vllm": engine}, "model_roots": [str(model.parent)]}
    return Node(root, controller.port, settings=settings)


def start_message(rank: int, nnodes: int, model: str, master: int, api: int) -> pb.StartCmdMsg:
    """What a controller sends, made by the same functions."""
    spec = EngineSpec(
        "vllm", "vllm@0.32", "vllm", ParallelShape(tp=nnodes, nnodes=nnodes), Translation.REPLICA, model,
        {
            "model": model, "tensor-parallel-size": nnodes, "nnodes": nnodes, "master-port": master,
            "max-model-len": 512, "max-num-seqs": 2, "enforce-eager": True, "dtype": "float32",
        },
        env={
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )  # fmt: skip
    has_api = api if rank == 0 else None
    command = build_command(
        spec, Assignment("prefill-0", Role.PREFILL, 0, rank, "127.0.0.1", "127.0.0.1", master, has_api, None)
    )
    return wire.start(
        wire.slot(rank), model, master, api, nnodes, argv=command.argv, env=dict(command.env),
        node_env={name: source.value for name, source in command.node_env.items()}, argv_digest=command.argv_digest,
        health=wire.health(
            command.headless, canary_interval_seconds=3.0, canary_deadline_seconds=DEADLINE,
            warm_up_deadline_seconds=120.0, sample_interval_seconds=1.0, served_model=model,
        ),
        stop_grace_seconds=5.0,
    )  # fmt: skip


def counters(port: int) -> float | None:
    """The sum of the engine's progress counters."""
    metrics = get(f"http://127.0.0.1:{port}/metrics")[1]
    return sum_of_counters(metrics, resolve("vllm@0.32").progress_counters)


async def life(node: Node) -> dict[str, Any]:
    """The signs of life as the node shows them."""
    slot = (await asyncio.to_thread(node.local_status))["slots"][0]
    return slot["liveness"] or {}


async def until_life(node: Node, seconds: float, **wanted: Any) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while True:
        now = await life(node)
        if all(now.get(name) == value for name, value in wanted.items()):
            return now
        assert time.monotonic() < deadline, f"wanted {wanted}, got {now}"
        await asyncio.sleep(0.2)


async def test_warm_up_counters_and_a_frozen_worker(place: Path) -> None:  # noqa: F811
    model = ensure_dense_model(say)
    master, api = free_port(), free_port()
    async with wire.serve(wire.Controller()) as controller:
        nodes = [make_node(place / f"n{rank}", controller, model) for rank in range(2)]
        sessions = []
        for rank, node in enumerate(nodes):
            node.start()
            sessions.append(await controller.session(rank))
            controller.send(sessions[rank], start=start_message(rank, 2, model.name, master, api))
        try:
            await watch_it(controller, nodes, sessions)
        finally:
            for rank, session in enumerate(sessions):
                stop = pb.StopCmdMsg(slot=wire.slot(rank), generation=1, mode="failure", reason="over")
                controller.send(session, stop=stop)
            for session, node in zip(sessions, nodes, strict=True):
                await session.state("stopped", 60.0)
                node.end()


async def watch_it(controller: wire.Controller, nodes: list[Node], sessions: list[wire.Session]) -> None:
    ready = await sessions[0].state("ready", START_SECONDS)
    assert ready.reason == "the engine answers a canary"
    say(f"warm-up: {ready.liveness.canary_detail}")
    await sessions[1].until(lambda m: m.slot_report.workers_up, 60.0)
    controller.send(sessions[1], group_ready=pb.GroupReadyMsg(slot=wire.slot(1), generation=1, ready=True))
    await sessions[1].state("ready")

    # the canary's own tokens move the engine's counters
    before, counted = await life(nodes[0]), counters(ready.api_port)
    assert counted is not None and counted > 0
    await asyncio.sleep(8.0)
    after = await until_life(nodes[0], 5.0, canary="ok")
    assert after["canaries"]["answered"] > before["canaries"]["answered"] and after["canaries"]["failed"] == 0
    assert (counters(ready.api_port) or 0) > counted
    assert after["progress_seconds"] < 6.0
    assert after["devices"] in ("flat", "busy"), after

    engine = psutil.Process(nodes[1].status(1)["engine_pid"])
    worker = next(p for p in engine.children(recursive=True) if "VLLM::Worker" in " ".join(p.cmdline()))
    worker.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    await until_life(nodes[0], 3.0 + DEADLINE + 6.0, canary="late")
    say(f"late after {time.monotonic() - began:.1f} s")
    frozen = await until_life(nodes[1], 10.0, devices="flat")
    assert str(worker.pid) in frozen["devices_detail"] and "stopped by a signal" in frozen["devices_detail"]
    say(f"master: {await life(nodes[0])}")
    say(f"follower: {frozen}")

    worker.send_signal(signal.SIGCONT)
    back = await until_life(nodes[0], 20.0, canary="ok")
    say(f"back: {back['canary_detail']}")
