"""The states of an engine start, who asks for its end, and what a supervisor has to know of its node."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from motor_rpc import control_pb2 as pb

from nodemanager import left_overs, workers
from nodemanager.device_memory import Occupied
from nodemanager.records import Records, StartRecord
from nodemanager.stages import StageTracker
from nodemanager.telemetry.collector import Collector
from nodemanager.vitals import Facts

if TYPE_CHECKING:
    from nodemanager.supervisor import Supervisor

STARTING = pb.ENGINE_STATE_STARTING
LOADING = pb.ENGINE_STATE_LOADING
READY = pb.ENGINE_STATE_READY
FAILED = pb.ENGINE_STATE_FAILED
STOPPING = pb.ENGINE_STATE_STOPPING
STOPPED = pb.ENGINE_STATE_STOPPED

CONTROLLER, MANAGER = "controller", "node manager"  # who asks a shim to stop, as its record says


def state_name(state: int) -> str:
    """`ready` for ENGINE_STATE_READY."""
    return pb.EngineState.Name(state).removeprefix("ENGINE_STATE_").lower()


@dataclass(frozen=True)
class StopRequest:
    """Who asked for the end of an engine, and how much time it gets from SIGTERM to SIGKILL (seconds)."""

    mode: str  # planned | failure
    grace: float
    reason: str
    by: str = CONTROLLER


async def _none_occupied(devices: Sequence[str]) -> list[Occupied]:
    return []


@dataclass
class Surroundings:
    """What a supervisor needs to know of its node."""

    owner: left_overs.Owner
    records: Records
    orphan_grace: float | None
    tracker: Callable[[StartRecord], StageTracker]
    on_change: Callable[[Supervisor], None]
    facts: Callable[[StartRecord], Facts]
    telemetry: Collector
    heard_at: Callable[[], float | None] = lambda: None  # a controller's last word, on the monotonic clock
    occupied: Callable[[Sequence[str]], Awaitable[list[Occupied]]] = _none_occupied
    devices_free_seconds: float = 60.0  # after this a stop is confirmed although they are not free
    worker_title: re.Pattern[str] = field(default=workers.WORKER_TITLE)
