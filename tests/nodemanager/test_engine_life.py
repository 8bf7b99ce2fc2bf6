"""What a manager reports of its engine, with the manager as a process and the scripted engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from motor_rpc import control_pb2 as pb

from tests.nodemanager import wire
from tests.nodemanager.places import Node, free_port, get, until

BOUND = 0.5  # seconds for what should take less than 0.1, on a busy machine


@dataclass
class One:
    """One node with one single-node engine."""

    controller: wire.Controller
    node: Node
    session: wire.Session
    api: int

    def start(self, generation: int = 1, **fields: Any) -> None:
        message = wire.start(wire.slot(), "tiny", 0, self.api, generation=generation, **fields)
        self.controller.send(self.session, start=message)

    async def ready(self) -> pb.SlotReport:
        self.start()
        return await self.session.state("ready")

    def stop(self, mode: str = "failure", grace: float = 0.0, generation: int = 1) -> None:
        message = pb.StopCmdMsg(
            slot=wire.slot(), generation=generation, mode=mode, reason="the test says so", grace_seconds=grace
        )
        self.controller.send(self.session, stop=message)

    async def over(self) -> pb.SlotReport:
        """Stop the engine and the manager."""
        self.stop()
        report = await self.session.state("stopped")
        self.node.end()
        return report

    async def next_session(self, number: int = 1) -> wire.Session:
        self.session = await self.controller.session(number)
        return self.session


@pytest.fixture
async def one(place: Path, request: pytest.FixtureRequest) -> AsyncIterator[One]:
    """Parametrise indirectly with the engine's behaviour, or {"settings": ..., "behaviour": ...}."""
    given = getattr(request, "param", {})
    settings = given.get("settings", {})
    behaviour = given.get("behaviour", {} if settings else given)
    behaviour = {"control": str(place / "n0" / "control"), **behaviour}
    async with wire.serve(wire.Controller()) as controller:
        node = Node(place / "n0", controller.port, settings=settings, behaviour=behaviour)
        node.start()
        yield One(controller, node, await controller.session(), free_port())
        if node.process is not None:
            node.end(signal.SIGKILL)


async def test_killed_engine_is_reported_at_once_with_its_signal(one: One) -> None:
    ready = await one.ready()
    began = time.monotonic()
    os.kill(ready.pid, signal.SIGKILL)
    failed = await one.session.state("failed")
    assert one.session.times[-1] - began < BOUND
    assert failed.exit_signal == signal.SIGKILL and not failed.HasField("exit_code")
    assert "SIGKILL" in failed.reason and "rank 0" in failed.reason
    assert 0 < len(failed.last_log_lines) <= 50
    assert any("Application startup complete" in line for line in failed.last_log_lines)
    assert one.node.local_status()["status"] == "abnormal"
    assert (await one.over()).exit_signal == signal.SIGKILL


@pytest.mark.parametrize("one", [{"exit_after": [0.3, 0]}], indirect=True)
async def test_exit_0_is_a_failure(one: One) -> None:
    one.start()
    failed = await one.session.state("failed")
    assert failed.exit_code == 0
    assert "code 0" in failed.reason and "nobody asked" in failed.reason
    await one.over()


@pytest.mark.parametrize("one", [{"exit_at": ["weights", 3]}], indirect=True)
async def test_crash_while_loading_tells_the_stage(one: One) -> None:
    one.start()
    failed = await one.session.state("failed")
    assert failed.exit_code == 3 and failed.stage == "weights"
    await one.over()


async def test_taken_api_port_is_refused_before_the_start(one: One) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", one.api)
    one.start()
    refused = await one.session.refused()
    assert refused.code == "port" and str(one.api) in refused.reason and str(os.getpid()) in refused.reason
    server.close()
    one.node.end()


@pytest.mark.parametrize("one", [{"slow_start": 0.6}], indirect=True)
async def test_port_taken_during_the_start_has_its_class(one: One) -> None:
    one.start()
    await one.session.until(lambda m: m.slot_report.stage == "weights")
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", one.api)
    failed = await one.session.state("failed")
    assert failed.failure_class == "port" and "already in use" in failed.reason
    server.close()
    await one.over()


@pytest.mark.parametrize("one", [{"ignore_sigterm": True}], indirect=True)
async def test_deaf_engine_is_killed_after_its_grace(one: One) -> None:
    await one.ready()
    began = time.monotonic()
    one.stop(grace=0.5)
    stopped = await one.session.state("stopped")
    assert 0.4 < time.monotonic() - began < 3.0
    assert stopped.exit_signal == signal.SIGKILL
    one.node.end()


@pytest.mark.parametrize("one", [{"hang_at": "rendezvous"}], indirect=True)
async def test_stop_while_loading_ends_as_stopped(one: One) -> None:
    one.start()
    loading = await one.session.until(lambda m: m.slot_report.stage == "engine")
    assert loading.slot_report.reason == "rank 0: starting workers"
    slot = (await asyncio.to_thread(one.node.local_status))["slots"][0]
    assert slot["progress"].startswith("rank 0: starting workers ")
    one.stop(mode="planned")
    assert (await one.session.state("stopped")).reason.startswith("planned stop done")
    assert not [m for m in one.session.messages if m.slot_report.state == pb.ENGINE_STATE_FAILED]
    one.node.end()


@pytest.mark.parametrize("one", [{"grandchild": True}], indirect=True)
async def test_stopped_means_that_nothing_is_left(one: One) -> None:
    await one.ready()
    one.stop()
    await one.session.state("stopped")
    left = [p for p in psutil.process_iter() if _cwd(p) == str(one.node.folder())]
    assert [p for p in left if "shim.py" not in " ".join(p.cmdline())] == []
    one.node.end()


def _cwd(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""


async def test_stop_without_an_engine_is_answered(one: One) -> None:
    one.stop(generation=3)
    stopped = await one.session.state("stopped")
    assert stopped.generation == 3 and not stopped.run_id
    one.start(generation=3)
    refused = await one.session.refused()
    assert refused.code == "stale_generation" and refused.newest_generation == 3
    one.node.end()


async def test_health_that_stays_bad_makes_it_unready(one: One) -> None:
    control = one.node.root / "control"
    control.mkdir()
    await one.ready()
    one.session.forget_messages()
    (control / "all.json").write_text('{"health": 503}')
    loading = await one.session.state("loading")
    assert "was ready" in loading.reason and "503" in loading.reason
    one.session.forget_messages()
    (control / "all.json").write_text("{}")
    await one.session.state("ready")
    await one.over()


async def test_the_same_start_twice_is_one_engine(one: One) -> None:
    one.start()
    one.start()
    ready = await one.session.state("ready")
    one.start()
    await asyncio.sleep(0.3)
    states = [m.slot_report for m in one.session.messages if m.HasField("slot_report")]
    assert {report.pid for report in states} - {0} == {ready.pid}
    assert not [m for m in one.session.messages if m.HasField("command_refused")]
    engines = [p for p in psutil.process_iter() if "scripted_engine.py" in " ".join(_words(p))]
    assert len([p for p in engines if str(one.api) in _words(p) and not _words(p)[0].startswith("VLLM")]) == 1
    await one.over()


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_manager_killed_engine_lives_and_is_adopted(one: One) -> None:
    ready = await one.ready()
    one.node.end(signal.SIGKILL)
    assert get(f"http://127.0.0.1:{one.api}/health")[0] == 200
    one.node.start()
    session = await one.next_session()
    held = session.register.holdings
    assert [(h.generation, h.pid, h.state) for h in held] == [(1, ready.pid, pb.ENGINE_STATE_READY)]
    assert (held[0].run_id, held[0].epoch, held[0].api_port) == ("run-1", 1, one.api)
    assert session.register.incarnation == 2
    os.kill(ready.pid, signal.SIGKILL)
    began = time.monotonic()
    await session.state("failed")
    assert time.monotonic() - began < BOUND
    await one.over()


async def test_manager_that_ends_leaves_the_engine(one: One) -> None:
    ready = await one.ready()
    assert one.node.end(signal.SIGTERM) == 0
    assert psutil.pid_exists(ready.pid)
    assert get(f"http://127.0.0.1:{one.api}/health")[0] == 200
    one.node.start()
    await one.next_session()
    await one.over()


async def test_an_end_while_no_manager_ran_is_not_lost(one: One) -> None:
    ready = await one.ready()
    one.node.end(signal.SIGKILL)
    os.kill(ready.pid, signal.SIGTERM)
    await until(lambda: one.node.status()["state"] == "reaped")
    one.node.start()
    session = await one.next_session()
    held = session.register.holdings[0]
    assert held.state == pb.ENGINE_STATE_FAILED and held.exit_code == 0 and held.last_log_lines
    await one.over()


@pytest.mark.parametrize("one", [{"stop_seconds": 6.0}], indirect=True)  # longer than a manager takes to start
async def test_a_stop_outlives_the_manager_that_began_it(one: One) -> None:
    await one.ready()
    one.stop(mode="planned", grace=20.0)
    await one.session.state("stopping")
    await until(lambda: one.node.status()["state"] == "stopping")
    one.node.end(signal.SIGKILL)
    one.node.start()
    session = await one.next_session()
    assert session.register.holdings[0].state == pb.ENGINE_STATE_STOPPING
    assert (await session.state("stopped")).exit_code == 0
    one.node.end()
    one.node.start()
    session = await one.next_session(2)
    assert session.register.holdings[0].state == pb.ENGINE_STATE_STOPPED
    one.node.end()


@pytest.mark.parametrize("one", [{"settings": {"orphan_grace": 0.7}}], indirect=True)
async def test_engine_without_a_manager_ends_after_orphan_grace(one: One) -> None:
    ready = await one.ready()
    await asyncio.sleep(1.0)  # the manager renews
    assert psutil.pid_exists(ready.pid)
    one.node.end(signal.SIGKILL)
    await until(lambda: one.node.status()["state"] == "reaped", 6.0)
    one.node.start()
    session = await one.next_session()
    assert "orphan_grace" in session.register.holdings[0].reason
    await one.over()


@pytest.mark.parametrize("one", [{"grandchild": True, "ignore_sigterm": True}], indirect=True)
async def test_killed_shim_is_one_failure_and_no_orphan(one: One) -> None:
    await one.ready()
    os.kill(one.node.status()["shim_pid"], signal.SIGKILL)
    failed = await one.session.state("failed")
    assert "shim lost" in failed.reason
    await until(lambda: not [p for p in psutil.process_iter() if _cwd(p) == str(one.node.folder())])
    await one.over()


@pytest.mark.parametrize("one", [{"grandchild": True, "ignore_sigterm": True}], indirect=True)
async def test_engine_that_ends_under_a_frozen_shim_is_found_with_its_signal(one: One) -> None:
    """Nobody reaps it; what is left of it goes as well, the shim too."""
    ready = await one.ready()
    shim_pid = one.node.status()["shim_pid"]
    os.kill(shim_pid, signal.SIGSTOP)
    os.kill(ready.pid, signal.SIGKILL)
    failed = await one.session.state("failed", 30.0)
    assert f"SIGKILL; its shim (pid {shim_pid}) was frozen" in failed.reason
    assert failed.exit_signal == signal.SIGKILL
    await until(lambda: not [p for p in psutil.process_iter() if _cwd(p) == str(one.node.folder())])
    await one.over()


async def test_shim_and_manager_killed_leaves_no_orphan_once_a_manager_runs(one: One) -> None:
    ready = await one.ready()
    shim_pid = one.node.status()["shim_pid"]
    one.node.end(signal.SIGKILL)
    os.kill(ready.pid, signal.SIGSTOP)  # so that the kernel's SIGTERM does not end it first
    os.kill(shim_pid, signal.SIGKILL)
    one.node.start()
    session = await one.next_session()
    assert session.register.holdings[0].state == pb.ENGINE_STATE_FAILED
    await until(lambda: not _words(psutil.Process(ready.pid)) if psutil.pid_exists(ready.pid) else True)
    await one.over()


async def test_second_manager_on_the_same_folder_says_who_runs(one: One) -> None:
    first = one.node.process
    assert first is not None
    second = one.node.start()
    assert await asyncio.to_thread(second.wait, 10) == 1
    assert f"pid {first.pid}" in one.node.output()
    one.node.process = first
    one.node.end()


async def test_operator_stops_the_engines_without_a_manager(one: One) -> None:
    await one.ready()
    one.node.end(signal.SIGTERM)
    process = one.node.start("stop", "--engines", "--grace", "3")
    assert await asyncio.to_thread(process.wait, 10) == 0
    one.node.process = None
    assert "nothing is left" in one.node.output()
    assert one.node.status()["stop"]["by"] == "operator"
    one.node.start()
    session = await one.next_session()
    assert session.register.holdings[0].state == pb.ENGINE_STATE_FAILED
    assert "operator" in session.register.holdings[0].reason
    await one.over()
