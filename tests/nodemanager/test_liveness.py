"""What nodes report of an engine's life: real processes, one engine over two nodes, the scripted engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from motor_rpc import control_pb2 as pb

from tests.nodemanager import wire
from tests.nodemanager.places import Node, free_port

DEADLINE = 1.0  # of the canary, as wire.health has it


@dataclass
class Gang:
    """One engine over `nodes`."""

    controller: wire.Controller
    nodes: list[Node]
    sessions: list[wire.Session]
    control: Path

    def tell(self, rank: int | None = None, **behaviour: Any) -> None:
        """Change how the scripted engine behaves, of one rank or of all."""
        self.control.mkdir(exist_ok=True)
        new = self.control / "new"
        new.write_text(json.dumps(behaviour))
        new.rename(self.control / f"{'all' if rank is None else rank}.json")

    async def start(self, **fields: Any) -> None:
        master, api, nnodes = free_port(), free_port(), len(self.nodes)
        for rank, session in enumerate(self.sessions):
            message = wire.start(wire.slot(rank), "tiny", master, api, nnodes, devices=[str(rank)], **fields)
            self.controller.send(session, start=message)

    async def ready(self, **fields: Any) -> list[pb.SlotReport]:
        await self.start(**fields)
        reports = [await self.sessions[0].state("ready")]
        for rank in range(1, len(self.nodes)):
            word = pb.GroupReadyMsg(slot=wire.slot(rank), generation=1, ready=True)
            self.controller.send(self.sessions[rank], group_ready=word)
            reports.append(await self.sessions[rank].state("ready"))
        return reports

    async def life(self, rank: int, wanted: Callable[[pb.Liveness], Any], seconds: float = 10.0) -> pb.Liveness:
        """The first liveness that fits, of reports from now on."""
        session = self.sessions[rank]
        session.forget_messages()
        found = await session.until(
            lambda m: m.slot_report.HasField("liveness") and wanted(m.slot_report.liveness),
            seconds,
        )
        return found.slot_report.liveness

    def worker(self, rank: int) -> psutil.Process:
        engine = psutil.Process(self.nodes[rank].status(rank)["engine_pid"])
        return next(p for p in engine.children(recursive=True) if p.cmdline()[0].startswith("VLLM::Worker"))

    async def over(self) -> None:
        for rank, session in enumerate(self.sessions):
            stop = pb.StopCmdMsg(slot=wire.slot(rank), generation=1, mode="failure", reason="over", grace_seconds=0.1)
            self.controller.send(session, stop=stop)
        for session, node in zip(self.sessions, self.nodes, strict=True):
            await session.state("stopped")
            node.end()


@pytest.fixture
async def gang(place: Path, request: pytest.FixtureRequest) -> AsyncIterator[Gang]:
    """Parametrise indirectly with the number of nodes."""
    count = getattr(request, "param", 1)
    control = place / "control"
    async with wire.serve(wire.Controller()) as controller:
        nodes, sessions = [], []
        for rank in range(count):
            node = Node(place / f"n{rank}", controller.port, behaviour={"control": str(control)})
            node.start()
            nodes.append(node)
            sessions.append(await controller.session(rank))
        yield Gang(controller, nodes, sessions, control)
        for node in nodes:
            if node.process is not None:
                node.end(signal.SIGKILL)


@pytest.mark.parametrize("gang", [2], indirect=True)
async def test_a_frozen_follower_makes_the_canary_late_and_its_device_flat(gang: Gang) -> None:
    await gang.ready()
    frozen = gang.worker(1)
    frozen.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    late = await gang.life(0, lambda life: life.canary == "late")
    assert time.monotonic() - began < 0.6 + DEADLINE + 1.5, "interval, deadline, and some time to look"
    assert late.canary_running_seconds > DEADLINE
    # the look that first says so may have come before the master's: ask the node itself
    flat = await until_status(gang.nodes[1], lambda life: life["flat_samples"] >= 3)
    assert flat["devices"] == "flat" and flat["canary"] == "off"
    assert f"pid {frozen.pid}" in flat["devices_detail"] and "stopped by a signal" in flat["devices_detail"]
    status = await status_of(gang.nodes[0])
    assert status["state"] == "ready", "whether it hangs is for the controller to say"

    frozen.send_signal(signal.SIGCONT)
    ok = await gang.life(0, lambda life: life.canary == "ok")
    assert ok.canary_failures == 0 and 0 <= ok.progress_seconds < 2.0
    assert "answered after" in ok.canary_detail
    await gang.over()


@pytest.mark.parametrize("gang", [2], indirect=True)
async def test_a_slow_engine_is_late_and_busy(gang: Gang) -> None:
    await gang.ready()
    gang.tell(step_seconds=1.8)
    late = await gang.life(0, lambda life: life.canary == "late" and life.devices == "busy")
    assert late.canary_running_seconds > DEADLINE
    follower = await until_status(gang.nodes[1], lambda life: life["devices"] == "busy")
    assert "Worker_TP1" in follower["devices_detail"]
    gang.tell(step_seconds=0.002)
    await gang.life(0, lambda life: life.canary == "ok")
    await gang.over()


async def status_of(node: Node) -> dict[str, Any]:
    slot: dict[str, Any] = (await asyncio.to_thread(node.local_status))["slots"][0]
    return slot


async def until_status(node: Node, wanted: Callable[[dict[str, Any]], Any], seconds: float = 10.0) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while True:
        life: dict[str, Any] = (await status_of(node))["liveness"]
        if wanted(life):
            return life
        assert time.monotonic() < deadline, life
        await asyncio.sleep(0.1)


async def test_ready_only_after_a_warm_up_canary(gang: Gang) -> None:
    gang.tell(hang_requests=True)
    await gang.start()
    warming = await gang.sessions[0].until(lambda m: m.slot_report.reason == "rank 0: warm-up canary")
    assert warming.slot_report.state == pb.ENGINE_STATE_LOADING
    assert warming.slot_report.liveness.canary == "waiting"
    await asyncio.sleep(0.7)
    assert not [m for m in gang.sessions[0].messages if m.slot_report.state == pb.ENGINE_STATE_READY]
    gang.tell()
    ready = await gang.sessions[0].state("ready")
    assert ready.reason == "the engine answers a canary" and ready.liveness.canary == "ok"
    canaries = (await status_of(gang.nodes[0]))["liveness"]["canaries"]
    assert canaries["sent"] == canaries["answered"] >= 1
    await gang.over()


async def test_a_warm_up_that_is_late_says_so(gang: Gang) -> None:
    gang.tell(hang_requests=True)
    await gang.start(health=wire.health(warm_up_deadline_seconds=0.8))
    late = await gang.sessions[0].until(lambda m: "not answered within 0.8 s" in m.slot_report.reason)
    assert late.slot_report.liveness.canary == "late"
    gang.tell()
    await gang.sessions[0].state("ready")
    await gang.over()


async def test_an_engine_that_takes_no_completions_is_ready_without_canary(gang: Gang) -> None:
    gang.tell(request_status=404)
    (ready,) = await gang.ready()
    assert ready.liveness.canary == "off" and "HTTP 404" in ready.liveness.canary_detail
    await gang.over()


async def test_errors_while_warming_up_are_tried_again(gang: Gang) -> None:
    gang.tell(request_status=503)
    await gang.start()
    await gang.sessions[0].until(lambda m: "warm-up canary failed: HTTP 503" in m.slot_report.reason)
    gang.tell()
    await gang.sessions[0].state("ready")
    await gang.over()


async def test_the_next_manager_asks_no_warm_up_and_an_idle_engine_is_quiet(gang: Gang) -> None:
    await gang.ready(health=wire.health(canary_interval_seconds=30.0, canary_deadline_seconds=30.0))
    node = gang.nodes[0]
    node.end(signal.SIGKILL)
    gang.tell(hang_requests=True)
    node.start()
    session = await gang.controller.session(1)
    held = session.register.holdings[0]
    assert held.state == pb.ENGINE_STATE_READY and held.liveness.canary == "waiting"
    gang.sessions = [session]
    await asyncio.sleep(2.5)
    reports = [m for m in session.messages if m.HasField("slot_report")]
    assert len(reports) <= 4, "flat, and a few steps of its count"
    await gang.over()


async def test_turned_off_means_ready_by_health_alone(gang: Gang) -> None:
    gang.tell(hang_requests=True)
    off = wire.health(canary=False, canary_off_reason="enable_virtual_inference is false")
    (ready,) = await gang.ready(health=off)
    assert ready.reason == "the API server answers"
    assert (ready.liveness.canary, ready.liveness.canary_detail) == ("off", "enable_virtual_inference is false")
    await gang.over()


async def test_an_early_sign_in_the_log_is_told_and_outlived(gang: Gang) -> None:
    await gang.ready()
    line = "No available shared memory broadcast block found in 60 seconds. This typically happens when ..."
    with (gang.nodes[0].root / "log" / "prefill-0_0_0.1.log").open("a") as log:
        log.write(f"(EngineCore pid=1) INFO 12-01 10:00:00 [shm_broadcast.py:1] {line}\n")
    life = await gang.life(0, lambda life: life.warning)
    assert life.warning.startswith("a worker does not take its work") and "in 60 seconds" in life.warning
    assert life.warning_seconds < 5.0
    later = await until_status(gang.nodes[0], lambda life: not life["warning"])
    assert later["canary"] == "ok", "an answered canary proves it wrong"
    await gang.over()


@pytest.mark.parametrize("gang", [2], indirect=True)
async def test_a_killed_worker_is_missed_by_name(gang: Gang) -> None:
    gang.tell(worker_exit_seconds=20.0)
    await gang.ready()
    gang.sessions[1].forget_messages()
    os.kill(gang.worker(1).pid, signal.SIGKILL)
    message = await gang.sessions[1].until(lambda m: "workers are left" in m.slot_report.reason, 10.0)
    report = message.slot_report
    assert report.state == pb.ENGINE_STATE_LOADING and not report.workers_up and report.workers_seen == 0
    assert report.reason.startswith("was ready: 0 of 1 workers are left; gone: VLLM::Worker_TP1")
    await gang.over()


async def test_idleness_while_loading_is_reported(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    gang.tell(hang_at="weights")
    await gang.start()
    await gang.sessions[0].until(lambda m: m.slot_report.stage == "joined")
    await asyncio.sleep(1.5)
    assert (await status_of(gang.nodes[0]))["idle_seconds"] > 1.0
    await gang.over()
