"""What was last seen of a running engine, and whether that is ready.

A process with an API server is ready when the server answers, the engine behind it has answered a request once, and
no worker is gone; one without is ready when all its workers are up and the group's master is ready.
"""

from __future__ import annotations

import asyncio
import re
import time

from nodemanager import health, workers
from nodemanager.aside import in_thread
from nodemanager.idleness import Idleness
from nodemanager.records import StartRecord
from nodemanager.stages import StageTracker
from nodemanager.vitals import Vitals

HEALTH_STRIKES = 3  # a ready engine that is late once is not unready
COUNT_LIMIT_SECONDS = 2.0
COUNT_WHILE_LOADING = 1.0  # seconds between two looks at the workers: the process table is not free to read
COUNT_WHILE_READY = 5.0


class Readiness:
    """Of one start. `pid` is the engine's main process."""

    def __init__(
        self, record: StartRecord, tracker: StageTracker, vitals: Vitals, worker_title: re.Pattern[str]
    ) -> None:
        self.record = record
        self.tracker = tracker
        self.vitals = vitals
        self.presence = workers.Presence(record.expected_workers)
        self.idleness = Idleness(time.monotonic())
        self.group_ready = False
        self.ended = False
        self._was_ready = False
        self._title = worker_title
        self._health: health.Health | None = None
        self._strikes = 0
        self._counted_at = 0.0
        self._counting: asyncio.Task[None] | None = None

    # --- looking

    @property
    def doubtful(self) -> bool:
        """The last answer was bad: look again soon."""
        return self._strikes > 0

    async def look(self, pid: int, loading: bool) -> None:
        """Ask the API server and count the workers; each with a limit."""
        record = self.record
        if record.api_port:
            limit = self.vitals.checks.collector_timeout
            found = await health.probe(self.vitals.api, record.health_path, limit)
            self._strikes = 0 if found.ok else self._strikes + 1
            self._health = found
            if found.ok:
                self.vitals.api_answers()
        now = time.monotonic()
        # A follower's parent says at once that a worker died, and ends five seconds later.
        pause = COUNT_WHILE_LOADING if loading or self.tracker.fatal else COUNT_WHILE_READY
        if now - self._counted_at >= pause and self._counting is None:
            self._counted_at = now
            self._counting = asyncio.create_task(self._count(pid, loading and self.idleness.wants_usage(now)))
        if self._counting is not None:
            # Reading a process in trouble may block for ever: the last count stands, and nothing else waits.
            await asyncio.wait([self._counting], timeout=COUNT_LIMIT_SECONDS)

    async def _count(self, pid: int, usage: bool) -> None:
        began = time.monotonic()
        try:
            tree = await in_thread(workers.look_at_tree, pid, self._title, usage)
        finally:
            self._counting = None
        if tree is None or self.ended:
            return
        self.presence.take(tree)
        if usage:
            self.idleness.usage(tree.usage, began)

    def end(self) -> None:
        """The engine is gone, and so are its workers."""
        self.ended = True
        self.presence.clear()

    # --- judging

    @property
    def workers_up(self) -> bool:
        """Every expected worker is there and has met the others."""
        return self.presence.complete and self.tracker.past_rendezvous

    def judge(self, is_ready: bool) -> tuple[bool, str]:
        """(ready, why), from what was last seen. `is_ready`: it has been so far."""
        if self.record.api_port:
            answers = self._health is not None and (self._health.ok or (is_ready and self._strikes < HEALTH_STRIKES))
            ready = answers and self.vitals.warm and not self.presence.lost
            why = "the engine answers a canary" if self.vitals.checks.canary else "the API server answers"
        else:
            ready = self.workers_up and self.group_ready
            why = "all workers are up and the master is ready"
        if ready:
            self._was_ready = True
            return True, why
        return False, self._lost() if self._was_ready else self._loading()

    def _lost(self) -> str:
        presence = self.presence
        if presence.lost or (not self.record.api_port and not presence.complete):
            gone = f"; gone: {', '.join(presence.lost)}" if presence.lost else ""
            return f"was ready: {presence.seen} of {presence.expected} workers are left{gone}"
        if self.record.api_port:
            return f"was ready: {self._health.detail if self._health else 'no answer'}"
        return "was ready: the group's master is not"

    def _loading(self) -> str:
        rank = f"rank {self.record.key.node_rank}"
        if not self.record.api_port and self.workers_up:
            return f"{rank}: workers are up, waiting for the group's master"
        if self.record.api_port and self._health is not None and self._health.ok and not self.vitals.warm:
            return f"{rank}: {self._warm_up()}"
        return f"{rank}: {self.tracker.headline}"

    def _warm_up(self) -> str:
        if self.vitals.canary.late(time.monotonic()):
            return f"warm-up canary not answered within {self.vitals.checks.warm_up_deadline:g} s"
        if self.vitals.canary.failures:
            return f"warm-up canary failed: {self.vitals.canary.why}"
        return "warm-up canary"
