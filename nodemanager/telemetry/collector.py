"""Takes looks at the node's devices while somebody wants them, and hands every slot its own.

A driver or a tool in trouble may block for ever. So a look runs in a thread of its own with a limit, a second one
is not begun before the first is over, and the manager only ever waits for the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nodemanager.aside import in_thread
from nodemanager.telemetry.process_cpu import WorkerProcess
from nodemanager.telemetry.source import DeviceSample, Source, TelemetryError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What one look found of one slot's devices; `problem` says why something is not known."""

    at: float
    samples: tuple[DeviceSample, ...]
    problem: str
    source: str


@dataclass(frozen=True)
class Watched:
    """A slot that wants to know. `devices` are its own by name; `workers` its processes, for CPU engines."""

    devices: tuple[str, ...]
    workers: Callable[[], Sequence[WorkerProcess]]
    interval: float
    limit: float
    deliver: Callable[[Look], None]


class Collector:
    """One per node. `choose` finds a source when the first slot asks for one."""

    def __init__(self, choose: Callable[[Callable[[], Sequence[WorkerProcess]]], Source]) -> None:
        self._choose = choose
        self._source: Source | None = None
        self._watched: dict[str, Watched] = {}
        self._wanted = asyncio.Event()
        self._looking: asyncio.Task[list[DeviceSample]] | None = None
        self._looking_since = 0.0
        self._running: asyncio.Task[None] | None = None
        self.problem = ""

    @property
    def source(self) -> str:
        """Name of the source; empty before anybody asked."""
        return self._source.name if self._source else ""

    def watch(self, slot: str, watched: Watched) -> None:
        """Begin with the next look; a second call replaces the first."""
        self._watched[slot] = watched
        self._wanted.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="telemetry")

    def drop(self, slot: str) -> None:
        self._watched.pop(slot, None)

    def close(self) -> None:
        """End the looks and what the source keeps running."""
        if self._running is not None:
            self._running.cancel()
        if self._source is not None:
            self._source.close()

    async def _run(self) -> None:
        """Until cancelled. Costs nothing while no slot is watched."""
        while True:
            if not self._watched:
                self._wanted.clear()
                await self._wanted.wait()
            began = time.monotonic()
            try:
                await self._look()
            except Exception:  # a defect of one source must not end the looks of all slots for ever
                log.exception("telemetry: this look failed")
            interval = min((one.interval for one in self._watched.values()), default=5.0)
            await asyncio.sleep(max(0.05, began + interval - time.monotonic()))

    async def _look(self) -> None:
        samples, problem = await self._sample(max((one.limit for one in self._watched.values()), default=5.0))
        if problem != self.problem:
            if problem:
                log.warning("telemetry (%s): %s", self.source or "none", problem)
            else:
                log.info("telemetry (%s): devices are seen", self.source)
        self.problem = problem
        for slot, watched in list(self._watched.items()):
            own, missing = own_samples(slot, watched.devices, samples)
            why = problem or (f"not seen: {', '.join(missing[:8])}" if missing else "")
            if slot in self._watched:
                watched.deliver(Look(time.monotonic(), tuple(own), why, self.source))

    async def _sample(self, limit: float) -> tuple[list[DeviceSample], str]:
        if self._looking is None:
            self._looking_since = time.monotonic()
            self._looking = asyncio.create_task(in_thread(self._sample_now))
        await asyncio.wait({self._looking}, timeout=limit)
        if not self._looking.done():
            spent = time.monotonic() - self._looking_since
            return [], f"{self.source or 'the tool'} has not answered for {spent:.0f} s"
        task, self._looking = self._looking, None
        try:
            return task.result(), ""
        except TelemetryError as error:
            return [], str(error)
        except Exception as error:
            log.exception("telemetry (%s)", self.source)
            return [], f"{self.source}: {type(error).__name__}: {error}"

    def _sample_now(self) -> list[DeviceSample]:
        if self._source is None:
            self._source = self._choose(self._workers)
            log.info("telemetry: %s", self._source.name)
        return self._source.sample()

    def _workers(self) -> list[WorkerProcess]:
        found: list[WorkerProcess] = []
        for watched in list(self._watched.values()):
            with contextlib.suppress(RuntimeError):
                found.extend(watched.workers())
        return found


def own_samples(
    slot: str, devices: Sequence[str], samples: Sequence[DeviceSample]
) -> tuple[list[DeviceSample], list[str]]:
    """The samples of one slot, and the names of its devices that have none: its own processes where the samples are
    of processes, else its devices in the order they were given.
    """
    if not samples or any(sample.owner for sample in samples):
        return [sample for sample in samples if sample.owner == slot], []
    named: dict[str, DeviceSample] = {}
    for sample in samples:
        for name in (sample.name, *sample.aliases):
            named.setdefault(name, sample)
    return [named[name] for name in devices if name in named], [name for name in devices if name not in named]
