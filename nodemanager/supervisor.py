"""One start of one engine, seen through its shim: its state, why, and what is reported about it.

starting -> loading <-> ready            an exit nobody asked for, whatever its code -> failed
any of them, asked to stop -> stopping -> stopped (reaped, and no process with this start's marks is left)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from motor_rpc import control_pb2 as pb

from nodemanager import health, left_overs, shim_client, workers
from nodemanager.aside import in_thread
from nodemanager.evidence import EndOfEngine, explain_end
from nodemanager.log_follower import LogFollower, tail
from nodemanager.records import Records, StartRecord, boot_id
from nodemanager.shim_client import ShimClient, ShimError
from nodemanager.stages import LAST_LINES, StageTracker

log = logging.getLogger(__name__)

STARTING = pb.ENGINE_STATE_STARTING
LOADING = pb.ENGINE_STATE_LOADING
READY = pb.ENGINE_STATE_READY
FAILED = pb.ENGINE_STATE_FAILED
STOPPING = pb.ENGINE_STATE_STOPPING
STOPPED = pb.ENGINE_STATE_STOPPED

CONTROLLER = "controller"  # who asks a shim to stop, as its record says

LONGEST_RENEWAL_SECONDS = 60.0
LOOK_SECONDS = {LOADING: 0.5, READY: 2.0}
COUNT_SECONDS = {LOADING: 1.0, READY: 5.0}  # the process table is not free to read
COUNT_LIMIT_SECONDS = 2.0
HEALTH_STRIKES = 3  # a ready engine that is late once is not unready
LAUNCHING_SECONDS = 2.0  # a shim that an earlier manager launched in its last moment appears within this time
LAST_RESORT_SECONDS = 15.0  # over the grace, until the manager kills past a shim that does not obey


def state_name(state: int) -> str:
    """`ready` for ENGINE_STATE_READY."""
    return pb.EngineState.Name(state).removeprefix("ENGINE_STATE_").lower()


@dataclass(frozen=True)
class StopRequest:
    """Who asked for the end of an engine, and how much time it gets from SIGTERM to SIGKILL (seconds)."""

    mode: str  # planned | failure
    grace: float
    reason: str


@dataclass
class Surroundings:
    """What a supervisor needs to know of its node."""

    owner: left_overs.Owner
    records: Records
    orphan_grace: float | None
    tracker: Callable[[StartRecord], StageTracker]
    on_change: Callable[[Supervisor], None]
    worker_title: re.Pattern[str] = field(default=workers.WORKER_TITLE)


class Supervisor:
    """The life of one start. `run()` ends when the engine is gone and nothing of it is left."""

    def __init__(self, record: StartRecord, folder: Path, around: Surroundings) -> None:
        self.record = record
        self.key = record.key
        self.folder = folder
        self.around = around
        self.state: pb.EngineState = STARTING
        self.reason = "starting the shim"
        self.tracker = around.tracker(record)
        self.pid = 0
        self.end: EndOfEngine | None = None
        self.last_lines: list[str] = []
        self.workers_seen = 0
        self.group_ready = False
        self.stop_request: StopRequest | None = None
        self.finished = asyncio.Event()  # nothing of this start runs any more
        self.looked = asyncio.Event()  # `state` is what was seen, not what was assumed
        self._status: dict[str, Any] = {}
        self._health: health.Health | None = None
        self._strikes = 0
        self._counted_at = 0.0
        self._look_now = asyncio.Event()
        self._counting: asyncio.Task[None] | None = None
        self._client: ShimClient | None = None
        self._helpers: list[asyncio.Task[None]] = []
        self._watching = False
        self._told: tuple[object, ...] = ()
        self._begun_at = time.monotonic()
        self._follower = LogFollower(Path(record.log_file), self._read_lines)

    # --- the life

    async def run(self, adopt: bool = False) -> None:
        """Start the engine (or adopt the one that an earlier manager started) and see it to its end."""
        try:
            if adopt:
                self._follower.read_rest()
                self.tracker.since = _modified(self.record.log_file)
            else:
                await self._launch()
            await self._keep(self._see_to_its_end)
        finally:
            for task in self._helpers:
                task.cancel()
            if self._client is not None:
                self._client.close()

    async def _see_to_its_end(self) -> None:
        await self._attend()
        await self._leave_nothing()

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` until it is done: an engine must not lose its supervisor to a defect or a full table."""
        while True:
            try:
                await work()
                return
            except Exception:
                log.exception("%s: going on after an error", self.key)
                await asyncio.sleep(1.0)

    async def _launch(self) -> None:
        try:
            await shim_client.launch(self.folder)
        except (ShimError, OSError) as error:
            # The launcher may have failed, or been killed, after the shim was off: only the record decides.
            if not self.around.records.status(self.folder):
                self._status = {"state": "reaped", "launch_error": str(error)}
                self._engine_ended()

    async def _attend(self) -> None:
        """Stay connected to the shim until the end is recorded or the shim is gone."""
        pause = 0.05
        while self._status.get("state") != "reaped":
            with contextlib.suppress(OSError):
                self._client = await ShimClient.connect(self.folder)
                pause = 0.05
                await self._converse(self._client)
            if self._status.get("state") == "reaped":
                break
            # Life first, record second: a shim writes its last word before it goes.
            living = shim_client.alive(self.around.records.status(self.folder), boot_id())
            stored = self.around.records.status(self.folder)
            if stored.get("state") == "reaped":
                self._take(stored)
            elif not living and (stored or time.monotonic() - self._begun_at > LAUNCHING_SECONDS):
                self._shim_lost(stored)
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
        shim_client.collect(self._status)

    async def _converse(self, client: ShimClient) -> None:
        client.renew(self.around.orphan_grace)
        if self.stop_request is not None:
            self._send_stop()
        try:
            async for status in client.events():
                self._take(status)
        finally:
            self._client = None
            client.close()

    def _take(self, status: dict[str, Any]) -> None:
        """A new status of the shim."""
        self._status = status
        self.pid = int(status.get("engine_pid") or 0)
        stop = status.get("stop") or {}
        if self.stop_request is None and stop.get("by") == CONTROLLER:
            # Asked for when an earlier manager ran: what comes of it is a stop, not a failure.
            grace = self.record.drain_seconds + self.record.stop_grace
            self.stop_request = StopRequest(stop["mode"], grace, stop["reason"])
            if status["state"] == "stopping":
                self._become(STOPPING, f"{stop['mode']} stop: {stop['reason']}")
                self.looked.set()
        if status["state"] in ("running", "stopping"):
            self._engine_runs()
        elif status["state"] in ("exited", "reaped"):
            self._engine_ended()

    def _engine_runs(self) -> None:
        if not self._watching:
            self._watching = True
            for work in (self._follower.follow, self._renew, self._look_again):
                self._helpers.append(asyncio.create_task(self._keep(work)))
        if self.state == STARTING:
            self._become(LOADING, self._loading_reason())

    def _engine_ended(self) -> None:
        """Called for `exit` and again for `reaped`; the first one counts."""
        if self.end is not None:
            return
        self._follower.read_rest()
        self.last_lines = tail(Path(self.record.log_file), LAST_LINES)
        asked = self.stop_request is not None
        self.end = explain_end(self.record.key.node_rank, self._status, self.tracker, asked)
        self.workers_seen = 0
        if asked:
            self._become(STOPPING, f"{self.end.text}; ending what is left of it")
        else:
            self._become(FAILED, self.end.text)

    def _shim_lost(self, stored: dict[str, Any]) -> None:
        """The shim was killed: its engine has no parent that could report its end, so it is ended here."""
        self._status = {**stored, "state": "reaped", "shim_lost": stored.get("state") != "exited"}
        self._status["rebooted"] = bool(stored) and stored.get("boot_id") != boot_id()
        self.pid = int(stored.get("engine_pid") or 0)
        self._engine_ended()

    async def _leave_nothing(self) -> None:
        """The end is the end only when no process of this start is left."""
        while True:
            left = await left_overs.end(self._left_overs)
            if not left:
                break
            pids = " ".join(map(str, left[:10]))
            self._become(self.state, f"{len(left)} process(es) do not die after SIGKILL: {pids}")
        self.finished.set()
        if self.stop_request is not None:
            self._stopped()
        else:
            self._changed()

    def _left_overs(self) -> list[left_overs.Process]:
        return left_overs.of_generation(self.around.owner, str(self.key), self.record.generation, self._status)

    # --- commands

    def stop(self, request: StopRequest) -> None:
        """Begin the end, or shorten it; asked in any state, the end is `stopped`."""
        if self.stop_request is None or request.grace < self.stop_request.grace:
            self.stop_request = request
            if not self.finished.is_set():
                self._helpers.append(asyncio.create_task(self._last_resort(request.grace)))
        if self.state == STOPPED:
            self._changed()
        elif self.finished.is_set():
            self._stopped()
        else:
            self._become(STOPPING, f"{request.mode} stop: {request.reason}")
            self._send_stop()

    def set_group_ready(self, ready: bool) -> None:
        """The controller's word on the group's master; without it a follower is not ready."""
        self.group_ready = ready
        self._evaluate()

    def _send_stop(self) -> None:
        request = self.stop_request
        if self._client is not None and request is not None:
            self._client.stop(request.grace, request.mode, CONTROLLER, request.reason)

    async def _last_resort(self, grace: float) -> None:
        """A frozen or deaf shim must not keep the engine alive."""
        await asyncio.sleep(grace + LAST_RESORT_SECONDS)
        if self._status.get("state") in ("running", "stopping"):
            log.error("%s: the shim did not stop the engine in time; killing both", self.key)
            await left_overs.end(self._left_overs)
            if shim_client.alive(self._status, boot_id()):
                os.kill(int(self._status["shim_pid"]), signal.SIGKILL)

    def _stopped(self) -> None:
        request = self.stop_request
        how = self.end.text if self.end else "nothing was running"
        self._become(STOPPED, f"{request.mode if request else 'planned'} stop done: {how}")

    # --- while it runs

    async def _renew(self) -> None:
        """Keep the shim's lease, whether or not a controller can be heard."""
        grace = self.around.orphan_grace
        while True:
            if self._client is not None:
                self._client.renew(grace)
            await asyncio.sleep(min(LONGEST_RENEWAL_SECONDS, grace / 10 if grace else LONGEST_RENEWAL_SECONDS))

    async def _look_again(self) -> None:
        while True:
            self._look_now.clear()
            if self.state in LOOK_SECONDS:
                await self._look()
                self._evaluate()
                self.looked.set()
            doubtful = self.state == READY and self._strikes > 0
            pause = LOOK_SECONDS[LOADING] if doubtful else LOOK_SECONDS.get(self.state, 1.0)
            alarm = asyncio.get_running_loop().call_later(pause, self._look_now.set)
            await self._look_now.wait()
            alarm.cancel()

    async def _look(self) -> None:
        if self.record.api_port:
            found = await health.probe(self.record.api_host, self.record.api_port, self.record.health_path)
            self._strikes = 0 if found.ok else self._strikes + 1
            self._health = found
        now = time.monotonic()
        if now - self._counted_at >= COUNT_SECONDS.get(self.state, 1.0) and self._counting is None:
            self._counted_at = now
            self._counting = asyncio.create_task(self._count_workers())
        if self._counting is not None:
            # Reading a process in trouble may block for ever: the last count stands, and nothing else waits.
            await asyncio.wait([self._counting], timeout=COUNT_LIMIT_SECONDS)

    async def _count_workers(self) -> None:
        titles = await in_thread(workers.worker_titles, self.pid, self.around.worker_title)
        self._counting = None
        self.workers_seen = len(titles)

    def _read_lines(self, lines: list[str]) -> None:
        now = time.monotonic()
        # Not `any(...)`: every line has to be fed.
        if [line for line in lines if self.tracker.feed(line, now)]:
            self._look_now.set()
            if self.state == LOADING:
                self._become(LOADING, self._loading_reason())

    @property
    def workers_up(self) -> bool:
        """Every expected worker is there and has met the others."""
        return self.workers_seen >= self.record.expected_workers and self.tracker.past_rendezvous

    def _evaluate(self) -> None:
        """Loading or ready, from what was last seen."""
        if self.state not in (LOADING, READY):
            return
        if self.record.api_port:
            ready = self._health is not None and (
                self._health.ok or (self.state == READY and self._strikes < HEALTH_STRIKES)
            )
            why = "the API server answers"
        else:
            ready = self.workers_up and self.group_ready
            why = "all workers are up and the master is ready"
        if ready:
            self._become(READY, why)
        elif self.state == READY:
            self._become(LOADING, self._lost_readiness())
        else:
            self._become(LOADING, self._loading_reason())

    def _lost_readiness(self) -> str:
        if self.record.api_port:
            return f"was ready: {self._health.detail if self._health else 'no answer'}"
        if not self.workers_up:
            return f"was ready: {self.workers_seen} of {self.record.expected_workers} workers are left"
        return "was ready: the group's master is not"

    def _loading_reason(self) -> str:
        rank = f"rank {self.key.node_rank}"
        if not self.record.api_port and self.workers_up:
            return f"{rank}: workers are up, waiting for the group's master"
        return f"{rank}: {self.tracker.headline}"

    # --- telling

    def _become(self, state: pb.EngineState, reason: str) -> None:
        if state != self.state:
            level = logging.ERROR if state == FAILED else logging.INFO
            log.log(level, "%s generation %d: %s: %s", self.key, self.record.generation, state_name(state), reason)
        self.state, self.reason = state, reason
        if state in (FAILED, STOPPED):
            self.looked.set()
        if self._worth_telling() != self._told:
            self._changed()

    def _worth_telling(self) -> tuple[object, ...]:
        return (self.state, self.reason, self.tracker.stage, self.workers_seen, self.workers_up)

    def _changed(self) -> None:
        self._told = self._worth_telling()
        self.around.on_change(self)

    def stage_seconds(self) -> float:
        return max(0.0, time.monotonic() - self.tracker.since)

    def report(self) -> pb.SlotReport:
        """What the controller is told; complete each time."""
        record = self.record
        message = pb.SlotReport(
            slot=self.key.message(), generation=record.generation, epoch=record.epoch, run_id=record.run_id,
            config_digest=record.config_digest, state=self.state, stage=self.tracker.stage,
            stage_seconds=self.stage_seconds(), reason=self.reason, workers_up=self.workers_up,
            workers_seen=self.workers_seen, workers_expected=record.expected_workers, pid=self.pid,
            argv_digest=record.argv_digest, env_digest=record.env_digest, devices=record.devices,
            address=record.address, master_addr=record.master_addr, master_port=record.master_port,
            api_port=record.api_port, dp_rpc_port=record.dp_rpc_port,
        )  # fmt: skip
        if self.end is not None:
            if self.end.exit_code is not None:
                message.exit_code = self.end.exit_code
            if self.end.exit_signal is not None:
                message.exit_signal = self.end.exit_signal
            if self.state == FAILED:
                message.last_log_lines.extend(self.last_lines)
                message.failure_class = self.end.failure_class
        return message


def _modified(path: str) -> float:
    """When a file was last written, on the monotonic clock: a silent engine entered its stage with its last
    line.
    """
    try:
        return time.monotonic() - max(0.0, time.time() - Path(path).stat().st_mtime)
    except OSError:
        return time.monotonic()
