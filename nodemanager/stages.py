"""How far an engine's start has come, and why it ended, from the lines of its own log. Pure: no files, no
clock.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine_launch.model import FatalPattern, StageMarker

LAST_LINES = 50  # evidence that a failure report carries
LONGEST_LINE = 2000  # characters; an engine may print a whole configuration in one line


@dataclass(frozen=True)
class Fatal:
    """The line that says why an engine ends."""

    failure_class: str  # configuration | port | transient | group
    meaning: str
    line: str


class StageTracker:
    """Feeds on log lines. A stage never goes back: several processes print into one log, not in step.

    `since` is the time, on the caller's clock, at which the stage was entered.
    """

    def __init__(
        self, stages: Sequence[StageMarker], fatal: Sequence[FatalPattern], worker_stage: str, now: float
    ) -> None:
        self._stages = [(marker, re.compile(marker.pattern)) for marker in stages]
        self._fatal = [(pattern, re.compile(pattern.pattern)) for pattern in fatal]
        names = [marker.stage for marker in stages]
        self._workers_at = names.index(worker_stage) if worker_stage in names else len(names)
        self._reached = -1
        self._fatal_rank = len(self._fatal)
        self.since = now
        self.fatal: Fatal | None = None
        self.lines: deque[str] = deque(maxlen=LAST_LINES)

    def feed(self, line: str, now: float) -> bool:
        """Take in one line; True if the stage changed."""
        line = line.rstrip()[:LONGEST_LINE]
        if not line:
            return False
        self.lines.append(line)
        self._look_for_failure(line)
        changed = False
        for index in range(len(self._stages) - 1, self._reached, -1):
            if self._stages[index][1].search(line):
                self._reached = index
                self.since = now
                changed = True
                break
        return changed

    def _look_for_failure(self, line: str) -> None:
        """The earliest pattern of the list wins (it forbids a restart), and of one pattern the first line."""
        for index in range(self._fatal_rank):
            pattern, expression = self._fatal[index]
            if expression.search(line):
                self._fatal_rank = index
                self.fatal = Fatal(pattern.failure_class, pattern.meaning, line)
                return

    @property
    def stage(self) -> str:
        """Name of the stage reached; empty before the first marker."""
        return self._stages[self._reached][0].stage if self._reached >= 0 else ""

    @property
    def headline(self) -> str:
        return self._stages[self._reached][0].headline if self._reached >= 0 else "waiting for the engine's first line"

    @property
    def past_rendezvous(self) -> bool:
        """True when at least one worker has met all the others."""
        return self._reached >= self._workers_at

    def describe(self, rank: int, now: float) -> str:
        """One clause for people: "rank 2: waiting for rendezvous 95 s"."""
        return f"rank {rank}: {self.headline} {max(0.0, now - self.since):.0f} s"
