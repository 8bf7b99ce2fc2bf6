"""One start of one engine, seen through its shim: its state, why, and what is reported about it.

starting -> loading <-> ready            an exit nobody asked for, whatever its code -> failed
any of them, asked to stop -> stopping -> stopped (reaped, and no process with this start's marks is left)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from motor_rpc import control_pb2 as pb

from nodemanager import left_overs, shim_client
from nodemanager.devices_free import wait_until_free
from nodemanager.engine_report import slot_report
from nodemanager.engine_start import (
    CONTROLLER,
    FAILED,
    LOADING,
    MANAGER,
    READY,
    STARTING,
    STOPPED,
    STOPPING,
    StopRequest,
    Surroundings,
    state_name,
)
from nodemanager.evidence import EndOfEngine, explain_end, last_lines
from nodemanager.force import end_by_force
from nodemanager.idleness import TELL_SECONDS
from nodemanager.lease import SELF_FENCE, lease
from nodemanager.log_follower import LogFollower
from nodemanager.readiness import Readiness
from nodemanager.records import StartRecord, boot_id
from nodemanager.shim import send_signal
from nodemanager.shim_client import ShimClient, ShimError
from nodemanager.telemetry.collector import Watched
from nodemanager.telemetry.process_cpu import WorkerProcess
from nodemanager.unreported_end import SILENT_SECONDS, UnreportedEnd, exit_of
from nodemanager.vitals import Vitals

log = logging.getLogger(__name__)

TRIES, CALM_SECONDS = 3, 10.0  # a defect that comes back so often, each time within so long, is reported
LOOK_SECONDS = {LOADING: 0.5, READY: 2.0}
LAUNCHING_SECONDS = 2.0  # a shim that an earlier manager launched in its last moment appears within this time
LAST_RESORT_SECONDS = 15.0  # over the grace, until the manager kills past a shim that does not obey


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
        self.devices_busy = ""  # what was not free when the wait for it was over
        self.vitals = Vitals(record, folder, around.facts(record), self._evaluate)
        self.readiness = Readiness(record, self.tracker, self.vitals, around.worker_title)
        self.stop_request: StopRequest | None = None
        self.finished = asyncio.Event()  # nothing of this start runs any more
        self.looked = asyncio.Event()  # `state` is what was seen, not what was assumed
        self._status: dict[str, Any] = {}
        self._unreported = UnreportedEnd()
        self._found_out: dict[str, Any] = {}  # how an engine ended whose shim did not say so
        self._look_now = asyncio.Event()
        self._stop_asked = asyncio.Event()
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
            await self._live(adopt)
        except Exception as error:
            log.exception("%s: its supervision broke", self.key)
            await self._go_on_broken(error)
        finally:
            self._watch_no_more()
            for task in self._helpers:
                task.cancel()
            if self._client is not None:
                self._client.close()

    async def _live(self, adopt: bool) -> None:
        if adopt:
            self._follower.read_rest()
            self.tracker.since = _modified(self.record.log_file)
            self.readiness.idleness.begin(self.tracker.since)
        else:
            await self._launch()
        await self._keep(self._see_to_its_end, give_up=True)

    async def _see_to_its_end(self) -> None:
        await self._attend()
        await self._leave_nothing()

    async def _keep(self, work: Callable[[], Awaitable[None]], give_up: bool = False) -> None:
        """Do `work` until it is done: an engine must not lose its supervisor to a full table. An error that stays is
        reported; then it goes on all the same, or is raised with `give_up`.
        """
        failures = 0
        while True:
            began_at = time.monotonic()
            try:
                await work()
                return
            except Exception as error:
                log.exception("%s: going on after an error", self.key)
                failures = failures + 1 if time.monotonic() - began_at < CALM_SECONDS else 1
                if failures >= TRIES:
                    if give_up:
                        raise
                    self._internal_error(error)
                await asyncio.sleep(1.0)

    def _internal_error(self, error: Exception) -> None:
        """A defect here, not of the engine; but an engine that nobody can look after is no good either."""
        if self.state in (FAILED, STOPPING, STOPPED):
            return
        text = f"internal error: {type(error).__name__}: {error}; the engine may still run, see the node manager's log"
        try:
            self._become(FAILED, f"rank {self.key.node_rank}: {text}")
        except Exception:
            log.exception("%s: cannot be reported", self.key)

    async def _go_on_broken(self, error: Exception) -> None:
        """Say so, and wait for the word to end it."""
        self._internal_error(error)
        if self.stop_request is None:
            await self._stop_asked.wait()
        await end_by_force(self._left_overs, lambda: self.around.records.status(self.folder), str(self.key))
        if self.end is None:
            self.end = EndOfEngine(f"rank {self.key.node_rank}: ended by force after an internal error", None, None, "")
        self.finished.set()
        self._stopped()

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
        self._renew_lease()
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
        if self.stop_request is None and stop.get("by") in (CONTROLLER, MANAGER):
            # Asked for when an earlier manager ran: what comes of it is a stop, not a failure.
            grace = self.record.drain_seconds + self.record.stop_grace
            self.stop_request = StopRequest(stop["mode"], grace, stop["reason"], stop["by"])
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
            for work in (self._follower.follow, self._renew, self._look_again, self.vitals.watch):
                self._helpers.append(asyncio.create_task(self._keep(work)))
            checks = self.vitals.checks
            watched = Watched(
                tuple(self.record.devices), self._worker_processes, checks.sample_interval, checks.collector_timeout,
                self.vitals.take_look,
            )  # fmt: skip
            self.around.telemetry.watch(str(self.key), watched)
        if self.state == STARTING:
            self._become(LOADING, self.readiness.judge(False)[1])

    def _engine_ended(self) -> None:
        """Called for `exit` and again for `reaped`; the first one counts."""
        if self.end is not None:
            return
        self._watch_no_more()
        self._follower.read_rest()
        self.last_lines = last_lines(Path(self.record.log_file))
        asked = self.stop_request is not None
        self.end = explain_end(self.record.key.node_rank, self._status, self.tracker, asked)
        self.readiness.end()
        if asked:
            self._become(STOPPING, f"{self.end.text}; ending what is left of it")
        else:
            self._become(FAILED, self.end.text)

    def _shim_lost(self, stored: dict[str, Any]) -> None:
        """The shim was killed: its engine has no parent that could report its end, so it is ended here."""
        self._status = {**stored, "state": "reaped", "shim_lost": stored.get("state") != "exited", **self._found_out}
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
        around = self.around
        self.devices_busy = await wait_until_free(around.occupied, self.record.devices, around.devices_free_seconds)
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
        self._watch_no_more()
        self._stop_asked.set()
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
        self.readiness.group_ready = ready
        self._evaluate()

    def _send_stop(self) -> None:
        request = self.stop_request
        if self._client is not None and request is not None:
            self._client.stop(request.grace, request.mode, request.by, request.reason)

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
        busy = f"; {self.devices_busy}" if self.devices_busy else ""
        why = f" ({request.reason})" if request and request.by == MANAGER else ""
        self._become(STOPPED, f"{request.mode if request else 'planned'} stop{why} done: {how}{busy}")

    # --- while it runs

    def _watch_no_more(self) -> None:
        """No questions during a stop: a server that drains answers them with nonsense."""
        self.around.telemetry.drop(str(self.key))
        self.vitals.stop()

    def _worker_processes(self) -> list[WorkerProcess]:
        return [WorkerProcess(str(self.key), one.title, one.pid) for one in self.readiness.presence.computing]

    async def _renew(self) -> None:
        """Keep the shim's lease; end the engine where no controller was heard for `self_fence`."""
        while True:
            pause = self._renew_lease()
            await asyncio.sleep(pause)

    def _renew_lease(self) -> float:
        """Seconds until it has to be done again."""
        granted = lease(self.around.orphan_grace, self.record.self_fence, self.around.heard_at(), time.monotonic())
        if granted.silent is not None and self.stop_request is None and self.end is None:
            reason = f"{SELF_FENCE}: no controller heard for {granted.silent:.0f} s"
            self.stop(StopRequest("failure", self.record.stop_grace, reason, MANAGER))
        elif granted.renew and self._client is not None:
            self._client.renew(granted.grace, granted.why)
        return granted.pause

    async def _look_again(self) -> None:
        while True:
            self._look_now.clear()
            self._end_silent_shim()
            if self.state in LOOK_SECONDS:
                await self.readiness.look(self.pid, loading=self.state == LOADING)
                self._evaluate()
                self.looked.set()
            doubtful = self.state == READY and self.readiness.doubtful
            pause = LOOK_SECONDS[LOADING] if doubtful else LOOK_SECONDS.get(self.state, 1.0)
            alarm = asyncio.get_running_loop().call_later(pause, self._look_now.set)
            await self._look_now.wait()
            alarm.cancel()

    def _end_silent_shim(self) -> None:
        """A frozen shim never tells that its engine ended: without it the end is found here, see `_shim_lost`."""
        silent = self._unreported.silent_for(self._status, time.monotonic())
        if silent >= SILENT_SECONDS and not self._found_out:
            self._found_out = {"shim_silent": silent, **exit_of(self._status)}
            log.error("%s: the engine is over and its shim has not said so for %.0f s: killing it", self.key, silent)
            send_signal(int(self._status["shim_pid"]), int(self._status["shim_start"]), signal.SIGKILL)

    def _read_lines(self, lines: list[str]) -> None:
        now = time.monotonic()
        before = (self.tracker.stage, self.tracker.fatal)
        for line in lines:
            self.tracker.feed(line, now)
            self.readiness.idleness.line(line, now)
            if self.state == READY:
                self.vitals.take_line(line)
        if (self.tracker.stage, self.tracker.fatal) != before:
            self._look_now.set()
        self._evaluate()

    @property
    def workers_seen(self) -> int:
        return self.readiness.presence.seen

    @property
    def workers_up(self) -> bool:
        return self.readiness.workers_up

    def _evaluate(self) -> None:
        """Loading or ready, from what was last seen."""
        if self.state in (LOADING, READY):
            ready, why = self.readiness.judge(self.state == READY)
            self._become(READY if ready else LOADING, why)

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
        idle = int(self.idle_seconds() // TELL_SECONDS) if self.state == LOADING else 0
        return (
            self.state, self.reason, self.tracker.stage, self.workers_seen, self.workers_up, idle, self.vitals.news()
        )  # fmt: skip

    def _changed(self) -> None:
        self._told = self._worth_telling()
        self.around.on_change(self)

    def stage_seconds(self) -> float:
        return max(0.0, time.monotonic() - self.tracker.since)

    def idle_seconds(self) -> float:
        return self.readiness.idleness.seconds(time.monotonic())

    def report(self) -> pb.SlotReport:
        """What the controller is told; complete each time."""
        return slot_report(self)


def _modified(path: str) -> float:
    """When a file was last written, on the monotonic clock: a silent engine entered its stage with its last
    line.
    """
    try:
        return time.monotonic() - max(0.0, time.time() - Path(path).stat().st_mtime)
    except OSError:
        return time.monotonic()
