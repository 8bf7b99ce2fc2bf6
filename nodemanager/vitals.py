"""The signs of life of one engine process on this node: canary, progress, devices, early signs in its log.

Nothing is judged here. The core on the controller knows all ranks of a gang and what is normal for it; a node tells
what it has seen, and when that changes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from motor_rpc import control_pb2 as pb
from motor_rpc.http_ask import Place

from engine_launch.model import WarningPattern
from nodemanager import activity, canary
from nodemanager.activity import Activity
from nodemanager.canary import CanaryState, Outcome
from nodemanager.checks import Checks
from nodemanager.progress import Progress
from nodemanager.records import StartRecord
from nodemanager.telemetry.collector import Look

log = logging.getLogger(__name__)

WARM_FILE = "warm"  # in a generation's folder: its engine has answered a canary once
LONGEST_PACE = 5.0  # seconds between two looks at the counters
LATE_REPORT_SECONDS = 5.0  # between two reports while a canary is late
WARNING_KEPT_SECONDS = 600.0
LONGEST_WARNING = 300
# Flat looks in a row at which a node tells again: a verdict counts them, and a report for each look is too many.
FLAT_STEPS = (1, 3, 6, 12, 24, 60, 120)
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Facts:
    """What the engine's profile says about signs of life."""

    metrics_path: str = "/metrics"
    progress_counters: Sequence[str] = ()
    warnings: Sequence[WarningPattern] = ()


class Vitals:
    """Of one start. `on_news` is called when something worth telling has changed."""

    def __init__(self, record: StartRecord, folder: Path, facts: Facts, on_news: Callable[[], None]) -> None:
        self.checks = Checks.from_record(record.health)
        self._record = record
        self._mark = folder / WARM_FILE
        self._on_news = on_news
        self._has_api = record.api_port > 0
        checks = self.checks if self._has_api else Checks(canary_off_reason="headless: the group's master is asked")
        self.canary = CanaryState(checks, self._mark.exists(), time.monotonic())
        self._target = canary.target_of(record, self.checks)
        self._progress = Progress(self.api, facts.metrics_path, facts.progress_counters)
        self._warnings = [(re.compile(one.pattern), one.meaning) for one in facts.warnings]
        self._warning = ("", 0.0)
        self._warnings_seen = 0
        self._devices = Activity(self.checks.usage_threshold)
        self._answers = asyncio.Event()  # the API server: nothing is sent before
        self._wake = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._stopped = False
        self._told_late_at = 0.0

    @property
    def api(self) -> Place:
        """The API server; of no use where `api_port` is 0."""
        return self._target.place

    # --- what the supervisor tells

    def api_answers(self) -> None:
        self._answers.set()

    def take_line(self, line: str) -> None:
        """A line of a ready engine's log."""
        for expression, meaning in self._warnings:
            if expression.search(line):
                self._warning = (f"{meaning}: {line.strip()}"[:LONGEST_WARNING], time.monotonic())
                self._warnings_seen += 1
                return

    def take_look(self, look: Look) -> None:
        """A look at this slot's own devices."""
        self._devices.feed(look.samples, look.at, look.problem, look.source)
        self._on_news()

    def stop(self) -> None:
        """No canary during a stop: one under way is taken back."""
        self._stopped = True
        self._wake.set()
        if self._asking is not None:
            self._asking.cancel()

    # --- asking

    @property
    def warm(self) -> bool:
        """The first request is behind it, or none is ever sent."""
        return self.canary.warm

    async def watch(self) -> None:
        """Ask the API server for signs of life until the stop."""
        if not self._has_api:
            return
        await self._answers.wait()
        pace = min(LONGEST_PACE, self.checks.canary_interval / 3, self.checks.canary_deadline / 3)
        try:
            while not self._stopped:
                if self.warm and await self._progress.moved(min(self.checks.collector_timeout, 2 * pace)):
                    self.canary.progressed(time.monotonic())
                now = time.monotonic()
                if self.canary.due(now) and not self._stopped:
                    name, number = self.canary.send(now)
                    self._asking = asyncio.create_task(self._ask(name, number))
                self._tell(now)
                await self._pause(pace)
        finally:
            if self._asking is not None:
                self._asking.cancel()

    async def _pause(self, seconds: float) -> None:
        self._wake.clear()
        if not self.warm:
            seconds = min(seconds, canary.WARM_UP_RETRY_SECONDS)
        alarm = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        await self._wake.wait()
        alarm.cancel()

    async def _ask(self, name: str, number: int) -> None:
        outcome = await canary.send(self._target, name, number)
        self._asking = None
        self._answered(outcome)

    def _answered(self, outcome: Outcome) -> None:
        now = time.monotonic()
        was_warm, was_late = self.warm, self.canary.late(now)
        self.canary.ended(outcome, now)
        if was_late or not outcome.ok:
            log.log(logging.INFO if outcome.ok else logging.WARNING, "%s: %s", self._record.slot, self.canary.last)
        if self.warm and not was_warm:
            log.info("%s: warm-up: %s", self._record.slot, self.canary.last)
            try:
                self._mark.touch()
            except OSError as error:  # the next manager asks once more before it calls the engine ready
                log.warning("%s: %s", self._mark, error.strerror)
        self._wake.set()
        self._tell(now)

    # --- telling

    def _tell(self, now: float) -> None:
        if self.canary.late(now) and now - self._told_late_at >= LATE_REPORT_SECONDS:
            self._told_late_at = now
        self._on_news()

    def news(self) -> tuple[object, ...]:
        """Differs when there is something to tell; never for each look or each answer."""
        devices = self._devices.now
        return (
            self.canary.word(time.monotonic()),
            self.canary.failures,
            self._told_late_at,
            devices.state,
            sum(devices.flat_samples >= step for step in FLAT_STEPS),
            devices.still,
            _NUMBERS.sub("", devices.detail) if devices.state == activity.UNKNOWN else "",
            self._warnings_seen,
        )

    def message(self) -> pb.Liveness:
        now = time.monotonic()
        one, devices = self.canary, self._devices.now
        warning, warned_at = self._current_warning(now)
        return pb.Liveness(
            canary=one.word(now),
            canary_detail=self._record.mask(one.off or one.last),
            canary_running_seconds=one.running(now) if one.late(now) else 0.0,
            canary_failures=one.failures,
            progress_seconds=now - one.progress_at if one.progress_at is not None else -1.0,
            devices=devices.state,
            devices_detail=devices.detail,
            devices_seconds=now - devices.since if devices.since else 0.0,
            flat_samples=devices.flat_samples,
            flat_peak_percent=devices.flat_peak,
            warning=self._record.mask(warning),
            warning_seconds=now - warned_at if warning else 0.0,
        )

    def _current_warning(self, now: float) -> tuple[str, float]:
        """The newest one, unless the engine has proved since that it computes."""
        text, at = self._warning
        progress = self.canary.progress_at
        outdated = now - at > WARNING_KEPT_SECONDS or (progress is not None and progress > at)
        return ("", 0.0) if outdated else (text, at)

    def status(self) -> dict[str, Any]:
        """For this node's /status. Canaries are counted, so that an engine's own request counts can be corrected."""
        message = self.message()
        return {
            "canary": message.canary,
            "canary_detail": message.canary_detail,
            "canary_running_seconds": round(message.canary_running_seconds, 1),
            "canaries": {"sent": self.canary.sent, "answered": self.canary.answered, "failed": self.canary.failed},
            "progress_seconds": round(message.progress_seconds, 1),
            "devices": message.devices,
            "devices_detail": message.devices_detail,
            "devices_seconds": round(message.devices_seconds, 1),
            "flat_samples": message.flat_samples,
            "warning": message.warning,
        }
