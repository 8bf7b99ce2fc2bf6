"""Looks at devices -> flat, busy, busy without memory, unknown; idleness of a start; from tables."""

from __future__ import annotations

import pytest

from nodemanager.activity import Activity, DevicesState
from nodemanager.idleness import Idleness, Usage
from nodemanager.telemetry.source import DeviceSample

Row = list[tuple[float | None, float | None]]  # (compute, memory bandwidth) of each device


def walk(rows: list[Row], problem: str = "") -> DevicesState:
    """One look every 5 s, beginning at 100."""
    activity = Activity(3.0)
    for number, row in enumerate(rows):
        samples = [DeviceSample(str(i), 0.0, compute, memory) for i, (compute, memory) in enumerate(row)]
        activity.feed(samples, 100.0 + 5 * number, problem)
    return activity.now


@pytest.mark.parametrize(
    ("rows", "state", "since", "flat"),
    [
        ([], "unknown", 0.0, 0),
        ([[]], "unknown", 100.0, 0),
        ([[(0, 0)]], "flat", 100.0, 1),
        ([[(2.9, 0), (2.9, 0)]] * 4, "flat", 100.0, 4),
        ([[(3.0, 5)]], "busy", 100.0, 0),
        ([[(50, 5)], [(0, 0)], [(0, 0)]], "flat", 105.0, 2),
        ([[(0, 0)], [(0, 0)], [(50, 5)]], "busy", 110.0, 0),
        # one flat device among busy ones makes the slot flat
        ([[(90, 20), (0, 0)]] * 3, "flat", 100.0, 3),
        # two devices that are flat in turn never add up
        ([[(90, 20), (0, 0)], [(0, 0), (90, 20)], [(90, 20), (0, 0)]], "flat", 110.0, 1),
        # a missing device or value ends its run and proves nothing
        ([[(0, 0)], [(None, None)]], "unknown", 105.0, 0),
        ([[(0, 0)], [], [(0, 0)]], "flat", 110.0, 1),
        ([[(90, 20), (None, None)]], "unknown", 100.0, 0),
        ([[(0, 0), (None, None)]], "flat", 100.0, 1),
        # a deadlocked collective: all compute, none moves memory
        ([[(96, 0), (95, 0.5)]] * 3, "busy_without_memory", 100.0, 0),
        ([[(96, 0), (95, 12)]], "busy", 100.0, 0),
        ([[(96, None)]], "busy", 100.0, 0),
        ([[(40, 0)]], "busy", 100.0, 0),
        ([[(96, 0)], [(96, 9)], [(96, 0)]], "busy_without_memory", 110.0, 0),
        # processor time of several threads
        ([[(350, None)]], "busy", 100.0, 0),
    ],
)
def test_states(rows: list[Row], state: str, since: float, flat: int) -> None:
    now = walk(rows)
    assert (now.state, now.since, now.flat_samples) == (state, since, flat)


def test_the_detail_names_the_device_and_why() -> None:
    activity = Activity(3.0)
    stopped = DeviceSample("VLLM::Worker_TP1 (pid 7)", 0.0, 0.0, health="stopped by a signal")
    busy = DeviceSample("VLLM::Worker_TP0 (pid 6)", 0.0, 99.0)
    now = activity.feed([busy, stopped], 1.0, source="process CPU")
    assert now.detail == (
        "process CPU: VLLM::Worker_TP1 (pid 7) at 0 %, below 3 %, stopped by a signal; 1 of 2 devices are flat"
    )
    assert activity.feed([], 2.0, "npu-smi did not end within 5 s", "npu-smi").detail == (
        "npu-smi: npu-smi did not end within 5 s"
    )
    assert activity.feed([DeviceSample("3", 0.0)], 3.0).detail == "no utilisation of 3"


def test_a_problem_is_unknown_even_with_busy_devices() -> None:
    assert walk([[(90, 20)]], "not seen: 5").state == "unknown"
    assert walk([[(0, 0)]], "not seen: 5").state == "flat"


# --- idleness


@pytest.mark.parametrize(
    ("line", "idle"),
    [
        ("INFO Loading safetensors checkpoint shards: 40%", 0.0),
        ("", 60.0),
        ('INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 200 OK', 60.0),
        ('INFO:     127.0.0.1:4 - "GET /metrics HTTP/1.1" 200 OK', 60.0),
        ('INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK', 0.0),
    ],
)
def test_lines_are_progress_but_our_own_questions_are_not(line: str, idle: float) -> None:
    idleness = Idleness(100.0)
    idleness.line(line, 160.0)
    assert idleness.seconds(160.0) == idle


MIB = 1 << 20


@pytest.mark.parametrize(
    ("before", "after", "idle"),
    [
        ({1: Usage(5.0, 0)}, {1: Usage(5.0, 0)}, 20.0),
        ({1: Usage(5.0, 0)}, {1: Usage(5.3, 0)}, 20.0),  # it polls while it waits
        ({1: Usage(5.0, 0)}, {1: Usage(7.5, 0)}, 0.0),
        ({1: Usage(5.0, 10)}, {1: Usage(5.0, 10 + MIB)}, 0.0),
        ({1: Usage(5.0, 10)}, {1: Usage(5.0, 999)}, 20.0),
        ({1: Usage(5.0, 10)}, {1: Usage(5.0, 10), 2: Usage(0.1, 2 * MIB)}, 0.0),  # a new process
        ({1: Usage(5.0, 10)}, {}, 20.0),
        # sixteen that poll are no work
        ({n: Usage(0.0, 0) for n in range(16)}, {n: Usage(0.3, 0) for n in range(16)}, 20.0),
    ],
)
def test_usage(before: dict[int, Usage], after: dict[int, Usage], idle: float) -> None:
    idleness = Idleness(100.0)
    assert idleness.wants_usage(110.0)
    idleness.usage(before, 110.0)
    assert not idleness.wants_usage(119.0) and idleness.wants_usage(120.0)
    idleness.usage(after, 120.0)
    assert idleness.seconds(120.0) == idle


def test_an_adopted_start_is_idle_since_its_last_line() -> None:
    idleness = Idleness(100.0)
    idleness.begin(40.0)
    assert idleness.seconds(100.0) == 60.0


def test_a_rank_that_froze_while_idle_is_told_from_one_that_waits() -> None:
    waits, frozen = Activity(3.0), Activity(3.0)
    for look in range(20):
        waits.feed([DeviceSample("w", 0.0, 1.5, None)], float(look))
        frozen.feed([DeviceSample("w", 0.0, 1.5 if look < 10 else 0.0, None)], float(look))
    assert (waits.now.flat_samples, frozen.now.flat_samples) == (20, 20)
    assert not waits.now.still and frozen.now.still
