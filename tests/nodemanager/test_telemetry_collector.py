"""The collector: who gets which sample, and that nothing blocks it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from nodemanager.telemetry.collector import Collector, Look, Watched, own_samples
from nodemanager.telemetry.process_cpu import WorkerProcess
from nodemanager.telemetry.source import DeviceSample, TelemetryError
from tests.nodemanager.places import until


class Scripted:
    """A source that does what it is told."""

    name = "scripted"

    def __init__(self) -> None:
        self.blocked = threading.Event()
        self.blocked.set()
        self.error: Exception | None = None
        self.looks = 0
        self.closed = False

    def sample(self) -> list[DeviceSample]:
        self.looks += 1
        assert self.blocked.wait(10)
        if self.error:
            raise self.error
        return [
            DeviceSample(str(number), time.monotonic(), 10.0 * number, aliases=(f"GPU-{number}",))
            for number in range(3)
        ]

    def close(self) -> None:
        self.closed = True


def watched(looks: list[Look], devices: Sequence[str], interval: float = 0.05, limit: float = 0.2) -> Watched:
    return Watched(tuple(devices), lambda: [], interval, limit, looks.append)


async def wait_for(looks: list[Look], count: int) -> None:
    await until(lambda: len(looks) >= count)


async def test_every_slot_gets_its_own_devices() -> None:
    source = Scripted()
    collector = Collector(lambda workers: source)
    one: list[Look] = []
    two: list[Look] = []
    collector.watch("a", watched(one, ["2", "0"]))
    collector.watch("b", watched(two, ["GPU-1", "7"]))
    await wait_for(two, 2)
    assert [sample.name for sample in one[0].samples] == ["2", "0"] and one[0].problem == ""
    assert [sample.name for sample in two[0].samples] == ["1"] and two[0].problem == "not seen: 7"
    assert collector.source == one[0].source == "scripted"
    collector.drop("a")
    collector.drop("b")
    await asyncio.sleep(0.15)
    looks = source.looks
    await asyncio.sleep(0.2)
    assert source.looks == looks, "nobody wants to know, nobody looks"
    collector.close()
    assert source.closed


async def test_a_blocked_look_is_unknown_and_no_second_one_begins() -> None:
    source = Scripted()
    collector = Collector(lambda workers: source)
    looks: list[Look] = []
    collector.watch("a", watched(looks, ["0"]))
    await wait_for(looks, 1)
    source.blocked.clear()
    began = len(looks)
    await wait_for(looks, began + 3)
    assert all(not look.samples and "has not answered for" in look.problem for look in looks[began + 1 :])
    blocked_looks = source.looks
    await wait_for(looks, len(looks) + 2)
    assert source.looks == blocked_looks
    source.blocked.set()
    looks.clear()
    await wait_for(looks, 2)
    assert looks[-1].samples and not looks[-1].problem
    collector.close()


@pytest.mark.parametrize(
    ("error", "problem"),
    [(TelemetryError("no driver"), "no driver"), (ValueError("a defect"), "scripted: ValueError: a defect")],
)
async def test_errors_are_unknown_with_their_reason(error: Exception, problem: str) -> None:
    source = Scripted()
    source.error = error
    collector = Collector(lambda workers: source)
    looks: list[Look] = []
    collector.watch("a", watched(looks, ["0"]))
    await wait_for(looks, 2)
    assert (looks[0].samples, looks[0].problem) == ((), problem)
    source.error = None
    looks.clear()
    await wait_for(looks, 2)
    assert looks[-1].samples
    collector.close()


async def test_workers_of_all_slots_are_asked_for() -> None:
    seen: list[Sequence[WorkerProcess]] = []
    source = Scripted()

    def choose(workers):  # type: ignore[no-untyped-def]
        seen.append(workers())
        return source

    collector = Collector(choose)
    looks: list[Look] = []
    process = WorkerProcess("a", "W", 5)
    collector.watch("a", Watched((), lambda: [process], 0.05, 0.2, looks.append))
    await wait_for(looks, 1)
    assert seen == [[process]]
    collector.close()


def test_processes_belong_to_their_slot() -> None:
    samples = [DeviceSample("W0", 0.0, 1.0, owner="a"), DeviceSample("W1", 0.0, 2.0, owner="b")]
    assert own_samples("b", ["0"], samples) == ([samples[1]], [])
    assert own_samples("c", ["0"], samples) == ([], [])
    assert own_samples("c", ["0"], []) == ([], [])
