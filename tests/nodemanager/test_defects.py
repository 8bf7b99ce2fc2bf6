"""A defect of the manager itself: said, and the engine can still be ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from motor_rpc import control_pb2 as pb

from nodemanager import supervisor
from nodemanager.slots import SlotKey
from tests.nodemanager import wire
from tests.nodemanager.manager import Direct, direct
from tests.nodemanager.places import free_port, until

KEY = SlotKey("prefill-0", 0, 0)


async def stop(one: Direct) -> pb.SlotReport:
    await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
    return await one.state("stopped", 15.0)


async def started(one: Direct) -> pb.SlotReport:
    await one.command(start=wire.start(wire.slot(), "tiny", 0, free_port()))
    return await one.state("ready")


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a defect")


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


async def test_a_supervisor_that_breaks_says_so_and_its_engine_ends(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct(place) as one:
        ready = await started(one)
        supervised = one.manager.slots[KEY]
        monkeypatch.setattr(supervised, "_take", broken)
        assert supervised._client is not None
        supervised._client.close()  # the next status comes with the next connection
        failed = await one.state("failed", 15.0)
        assert failed.reason.startswith("rank 0: internal error: ZeroDivisionError: a defect; the engine may still run")
        assert not _gone(ready.pid), "losing its supervisor does not end an engine"
        stopped = await stop(one)
        assert "ended by force after an internal error" in stopped.reason
        assert _gone(ready.pid) and supervised.finished.is_set()


async def test_one_error_alone_changes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with direct(place) as one:
        await started(one)
        supervised = one.manager.slots[KEY]
        take, calls = supervised._take, []

        def once(status: dict[str, Any]) -> None:
            calls.append(status)
            if len(calls) == 1:
                broken()
            take(status)

        monkeypatch.setattr(supervised, "_take", once)
        assert supervised._client is not None
        supervised._client.close()
        await until(lambda: len(calls) >= 2)
        assert supervised.state == supervisor.READY
        assert not [m for m in one.sent if m.slot_report.state == pb.ENGINE_STATE_FAILED]
        assert "internal" not in (await stop(one)).reason


async def test_a_look_that_breaks_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with direct(place) as one:
        ready = await started(one)
        monkeypatch.setattr(one.manager.slots[KEY], "_evaluate", broken)
        failed = await one.state("failed", 15.0)
        assert "internal error: ZeroDivisionError" in failed.reason
        await stop(one)
        assert _gone(ready.pid)


async def test_a_command_that_breaks_is_answered(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with direct(place) as one:
        monkeypatch.setattr(one.manager.preparer, "prepare", broken)
        await one.command(prepare=wire.prepare(wire.slot(), "tiny", 0))
        refused = await one.answer("command_refused")
        assert refused.command == "prepare" and "internal error: ZeroDivisionError('a defect')" in refused.reason
