"""Which source a node reads, by the kind of its devices and by what is really there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodemanager.telemetry import amd, ascend, nvidia
from nodemanager.telemetry.process_cpu import ProcessCpu, WorkerProcess
from nodemanager.telemetry.source import Source, Unavailable


def choose(kind: str, limit: float, workers: Callable[[], Sequence[WorkerProcess]]) -> Source:
    """The best source for devices of this kind (cpu | ascend | nvidia | amd). May block: run it in a thread.

    `limit` is for each command-line tool, in seconds. Where nothing is there the source's own reason says what was
    looked for; the processor time of a device engine is no stand-in, since its workers spin while they wait.
    """
    if kind == "cpu":
        return ProcessCpu(workers)
    if kind == "ascend":
        return ascend.find(limit)
    if kind == "nvidia":
        return nvidia.find(limit)
    if kind == "amd":
        return amd.find(limit)
    return Unavailable(f"no telemetry is known for devices of kind {kind!r}")
