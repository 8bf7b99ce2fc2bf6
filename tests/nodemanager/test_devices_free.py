"""A slot is free when its devices' memory is: the stop waits for it, and says so when it does not come."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from motor_rpc import control_pb2 as pb

from nodemanager import devices_free
from nodemanager.device_memory import Occupied
from nodemanager.limits import MIB
from tests.nodemanager import wire
from tests.nodemanager.fake_tools import FakeTools
from tests.nodemanager.manager import Direct, direct
from tests.nodemanager.places import free_port

FREE = "0, GPU-aa, 0, 0, 4, 60\n"
FULL = "0, GPU-aa, 0, 0, 71000, 80\n"


@pytest.fixture
def tool(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`nvidia-smi`; what it prints of the device's memory stands in the file that this returns."""
    monkeypatch.setattr(devices_free, "PAUSE_SECONDS", (0.05, 0.1))
    says = place / "memory"
    says.write_text(FREE)
    users = {"--query-compute-apps=gpu_uuid,pid --format=csv,noheader,nounits": "echo GPU-aa, 812"}
    FakeTools(place / "bin", monkeypatch).tool("nvidia-smi", users, f"cat {says}")
    return says


async def started(one: Direct) -> None:
    await one.command(start=wire.start(wire.slot(), "tiny", 0, free_port(), devices=["GPU-aa"]))
    await one.state("ready")


async def stopped(one: Direct) -> pb.SlotReport:
    await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
    return await one.state("stopped")


def settings(seconds: float) -> dict[str, object]:
    return {"devices": {"kind": "nvidia", "names": ["GPU-aa"]}, "limits": {"devices_free_seconds": seconds}}


async def test_stopped_waits_for_the_memory(place: Path, tool: Path) -> None:
    async with direct(place, **settings(30.0)) as one:
        await started(one)
        tool.write_text(FULL)
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
        with pytest.raises(AssertionError, match="not within 2"):
            await one.state("stopped", 2.0)
        assert not one.manager.slots[next(iter(one.manager.slots))].finished.is_set()
        tool.write_text(FREE)
        report = await one.state("stopped")
        assert not report.devices_busy and "not free" not in report.reason


async def test_memory_that_is_not_freed_is_named_with_its_holder(place: Path, tool: Path) -> None:
    async with direct(place, **settings(0.5)) as one:
        await started(one)
        tool.write_text(FULL)
        began = time.monotonic()
        report = await stopped(one)
        assert time.monotonic() - began > 0.5
        assert report.devices_busy
        expected = "devices not free 0.5 s after the last process ended: device GPU-aa: 71000 MB in use by pid 812"
        assert report.reason.endswith(expected), report.reason


async def test_what_cannot_be_known_counts_as_free(place: Path, tool: Path) -> None:
    async with direct(place, **settings(30.0)) as one:
        await started(one)
        tool.write_text("no devices were found\n")
        began = time.monotonic()
        assert not (await stopped(one)).devices_busy
        assert time.monotonic() - began < 5.0


def test_occupied_reads_well() -> None:
    assert str(Occupied("3", 5 * MIB, ())) == "device 3: 5 MB in use"
