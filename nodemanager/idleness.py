"""How long an engine that loads has shown no progress: no line, no bytes read or written, no work done. Pure.

Reading weights over a network file system, from the page cache (mapped: only processor time shows) or compiling
graphs may be silent for many minutes; a start that hangs does none of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# What Motor's own questions leave in the log of a server: no progress, and no evidence.
OWN_QUESTIONS = re.compile(r'"(?:GET|HEAD) /(?:health|metrics|ping)\b')

SOME_BYTES = 1 << 20  # in one interval: below it are heartbeats and logs
SOME_WORK = 0.2  # of a core, of one process: a process that polls while it waits takes some hundredths
USAGE_SECONDS = 10.0  # between two readings
TELL_SECONDS = 60.0  # of idleness, between two reports


@dataclass(frozen=True)
class Usage:
    """What a process has used so far."""

    cpu_seconds: float
    io_bytes: int  # read and written, the page cache included


class Idleness:
    """`now` is the monotonic clock everywhere."""

    def __init__(self, now: float) -> None:
        self._progress_at = now
        self._last: tuple[float, Mapping[int, Usage]] | None = None

    def begin(self, at: float) -> None:
        """The last progress was at `at`: for an engine that an earlier manager started."""
        self._progress_at = at

    def line(self, text: str, now: float) -> None:
        if text and not OWN_QUESTIONS.search(text):
            self._progress_at = now

    def wants_usage(self, now: float) -> bool:
        return self._last is None or now - self._last[0] >= USAGE_SECONDS

    def usage(self, processes: Mapping[int, Usage], now: float) -> None:
        """Take in a reading of the whole process tree."""
        last, self._last = self._last, (now, processes)
        if last is None or now <= last[0]:
            return
        enough_work = SOME_WORK * (now - last[0])
        nothing = Usage(0.0, 0)
        for pid, used in processes.items():
            before = last[1].get(pid, nothing)
            if used.io_bytes - before.io_bytes >= SOME_BYTES or used.cpu_seconds - before.cpu_seconds >= enough_work:
                self._progress_at = now
                return

    def seconds(self, now: float) -> float:
        return max(0.0, now - self._progress_at)
