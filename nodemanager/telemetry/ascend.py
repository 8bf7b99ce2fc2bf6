"""Ascend devices: the stream of `npu-smi info watch`, else single calls of npu-smi, else the DCMI library.

The tool comes first because it is a process of its own: a driver in trouble blocks it, and not a thread of the
manager.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Mapping

from nodemanager.telemetry import dcmi
from nodemanager.telemetry.ascend_text import (
    Chip,
    ChipState,
    Usage,
    WatchParser,
    parse_info,
    parse_mapping,
    parse_usages,
)
from nodemanager.telemetry.source import DeviceSample, Source, TelemetryError, Unavailable
from nodemanager.telemetry.tool import Stream, run_tool

TOOL = "npu-smi"
PERIOD_SECONDS = 2  # of the stream; the busiest line between two looks counts
INFO_SECONDS = 60.0  # memory, health and processes are asked for this rarely: `npu-smi info` takes seconds
INFO_LIMIT_SECONDS = 10.0


def find(limit: float) -> Source:
    """The best source that is there. Tries it: a tool without a driver is as good as none."""
    reasons = []
    if shutil.which(TOOL):
        try:
            chips = parse_mapping(run_tool([TOOL, "info", "-m"], limit))
            if not chips:
                raise TelemetryError(f"{TOOL} info -m names no chip with a logic id")
            # Without stdbuf a pipe is filled before anything of it is seen, which takes minutes on a small machine.
            return NpuWatch(chips, limit) if shutil.which("stdbuf") else NpuPoll(chips, limit)
        except TelemetryError as error:
            reasons.append(str(error))
    else:
        reasons.append(f"{TOOL} is not on the PATH of the node manager")
    try:
        return dcmi.Dcmi(dcmi.load())
    except TelemetryError as error:
        reasons.append(str(error))
    return Unavailable("; ".join(reasons))


class _Info:
    """The slow facts, asked for rarely and aside: no look waits for them, and a failure leaves them unknown."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._asked_at: float | None = None
        self._asking: threading.Thread | None = None
        self._known: Mapping[Chip, ChipState] = {}

    def of(self, chip: Chip) -> ChipState | None:
        return self._known.get(chip)

    def refresh(self) -> None:
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at < INFO_SECONDS:
            return
        if self._asking is None or not self._asking.is_alive():
            self._asked_at = now
            self._asking = threading.Thread(target=self._ask, daemon=True, name="npu-smi info")
            self._asking.start()

    def _ask(self) -> None:
        known: Mapping[Chip, ChipState] = {}
        with contextlib.suppress(TelemetryError):
            known = parse_info(run_tool([TOOL, "info"], max(self._limit, INFO_LIMIT_SECONDS)))
        self._known = known


def _sample(name: str, usage: Usage, state: ChipState | None, at: float) -> DeviceSample:
    slow = state.usage if state else Usage()
    return DeviceSample(
        name=name,
        at=at,
        compute_pct=usage.compute,
        membw_pct=usage.bandwidth,
        mem_used_bytes=usage.memory if usage.memory is not None else slow.memory,
        power_w=usage.power if usage.power is not None else slow.power,
        health=state.health if state else None,
        pids=state.pids if state else None,
    )


class NpuWatch:
    """One long-lived `npu-smi info watch` for the whole node. A stream that ends is begun again by the next look;
    one that never says anything is given up for single calls.
    """

    name = "npu-smi watch"

    def __init__(self, chips: Mapping[str, Chip], limit: float) -> None:
        self._chips = chips
        self._limit = limit
        self._parser = WatchParser()
        self._peaks: dict[Chip, tuple[Usage, float]] = {}
        self._lock = threading.Lock()
        argv = ["stdbuf", "-oL", TOOL, "info", "watch", "-d", str(PERIOD_SECONDS)]
        self._stream = Stream(argv, self._line)
        self._ever = False
        self._instead: NpuPoll | None = None
        self._info = _Info(limit)

    def _line(self, line: str) -> None:
        reading = self._parser.feed(line)
        if reading is None:
            return
        chip, usage = reading
        with self._lock:
            before = self._peaks.get(chip)
            self._ever = True
            self._peaks[chip] = (_peak(before[0], usage) if before else usage, time.monotonic())

    def sample(self) -> list[DeviceSample]:
        if self._instead is not None:
            return self._instead.sample()
        if not self._stream.running:
            self._stream.start()
        self._info.refresh()
        peaks = self._take()
        if not peaks and not self._ever:
            self._stream.close()
            self._instead = NpuPoll(self._chips, self._limit)
            self.name = f"{self._instead.name} (npu-smi info watch: {self._stream.last_words or 'no output'})"
            return self._instead.sample()
        if not peaks:
            self._stream.close()  # stuck or ended: the next look begins it anew
            raise TelemetryError(f"npu-smi info watch says nothing any more: {self._stream.last_words}")
        return [
            _sample(name, peaks[chip][0], self._info.of(chip), peaks[chip][1])
            for name, chip in self._chips.items()
            if chip in peaks
        ]

    def _take(self) -> dict[Chip, tuple[Usage, float]]:
        """What came since the last look; waits for the first lines of a new stream, within the limit."""
        deadline = time.monotonic() + self._limit
        while True:
            with self._lock:
                if set(self._chips.values()) <= set(self._peaks) or time.monotonic() > deadline:
                    peaks, self._peaks = self._peaks, {}
                    return peaks
            if not self._stream.running and not self._peaks:
                return {}
            time.sleep(0.05)

    def close(self) -> None:
        self._stream.close()


def _peak(one: Usage, other: Usage) -> Usage:
    """The busiest of two readings; `other` is the newer one."""
    compute, bandwidth = _higher(one.compute, other.compute), _higher(one.bandwidth, other.bandwidth)
    return Usage(compute, bandwidth, other.memory, other.power)


def _higher(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None


class NpuPoll:
    """`npu-smi info -t usages` for each card at each look."""

    name = "npu-smi"

    def __init__(self, chips: Mapping[str, Chip], limit: float) -> None:
        self._chips = chips
        self._limit = limit
        self._info = _Info(limit)

    def sample(self) -> list[DeviceSample]:
        self._info.refresh()
        usages: dict[Chip, Usage] = {}
        problem = ""
        for npu in sorted({chip.npu for chip in self._chips.values()}):
            try:
                usages.update(parse_usages(run_tool([TOOL, "info", "-t", "usages", "-i", str(npu)], self._limit), npu))
            except TelemetryError as error:
                problem = str(error)
        if not usages:
            raise TelemetryError(problem or f"{TOOL} info -t usages prints no usage")
        now = time.monotonic()
        return [
            _sample(name, usages[chip], self._info.of(chip), now)
            for name, chip in self._chips.items()
            if chip in usages
        ]

    def close(self) -> None:
        pass
