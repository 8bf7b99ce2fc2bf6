"""Engines on the CPU: the processor time of the worker processes between two looks.

A worker that waits for a peer uses next to none (3 % of a core measured on vLLM 0.32 with a frozen follower), a
frozen one none at all. Memory traffic is not known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nodemanager.telemetry.source import DeviceSample

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STOPPED = {"T": "stopped by a signal", "t": "stopped by a debugger", "Z": "dead", "X": "dead", "D": "in the kernel"}


@dataclass(frozen=True)
class WorkerProcess:
    """A process that computes for a slot. `name` is its title, such as VLLM::Worker_TP1."""

    owner: str
    name: str
    pid: int


@dataclass(frozen=True)
class _Reading:
    cpu_seconds: float
    started: int
    state: str
    resident_bytes: int
    at: float


class ProcessCpu:
    """`workers` is asked at each look: workers come and go. A percentage is one of one core, and may exceed 100."""

    name = "process CPU"

    def __init__(self, workers: Callable[[], Sequence[WorkerProcess]]) -> None:
        self._workers = workers
        self._last: dict[int, _Reading] = {}

    def sample(self) -> list[DeviceSample]:
        readings: dict[int, _Reading] = {}
        samples = []
        for worker in self._workers():
            now = _read(worker.pid)
            if now is None:
                continue
            readings[worker.pid] = now
            samples.append(self._sample(worker, now))
        self._last = readings
        return samples  # none at all is normal while an engine starts

    def _sample(self, worker: WorkerProcess, now: _Reading) -> DeviceSample:
        before = self._last.get(worker.pid)
        usage = None
        if before is not None and before.started == now.started and now.at > before.at:
            usage = 100 * (now.cpu_seconds - before.cpu_seconds) / (now.at - before.at)
        return DeviceSample(
            name=f"{worker.name} (pid {worker.pid})",
            at=now.at,
            compute_pct=usage,
            mem_used_bytes=now.resident_bytes,
            health=_STOPPED.get(now.state, "OK"),
            pids=(worker.pid,),
            owner=worker.owner,
        )

    def close(self) -> None:
        self._last = {}


def _read(pid: int) -> _Reading | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a hot path
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    # proc(5): state is field 3, utime and stime 14 and 15, starttime 22, rss 24; here field 3 is the first.
    cpu = (int(fields[11]) + int(fields[12])) / _TICK
    return _Reading(cpu, int(fields[19]), fields[0], int(fields[21]) * _PAGE, time.monotonic())
