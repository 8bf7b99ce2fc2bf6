"""Engine processes that no shim looks after any more: found by their marks, or by session and start time."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodemanager.aside import in_thread
from nodemanager.environment import GENERATION_MARK, NODE_MARK, SLOT_MARK, STATE_MARK
from nodemanager.records import boot_id
from nodemanager.shim import process_stat, send_signal

log = logging.getLogger(__name__)

KILL_SECONDS = 10.0


@dataclass(frozen=True)
class Process:
    """A living process and the marks in its environment (empty where it cannot be read)."""

    pid: int
    started: int  # clock ticks since boot, tells a reused pid
    session: int
    marks: Mapping[str, str]


def processes() -> list[Process]:
    """All processes of this machine that this user may look into; zombies and this process left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        stat = process_stat(pid)
        if stat is None or stat[2] in "ZX":
            continue
        try:
            found.append(Process(pid, stat[1], os.getsid(pid), _marks(pid)))
        except OSError:
            continue
    return found


def _marks(pid: int) -> dict[str, str]:
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    marks = {}
    for entry in block.split(b"\0"):
        if entry.startswith(b"MOTOR_"):
            name, _, value = entry.decode(errors="replace").partition("=")
            marks[name] = value
    return marks


@dataclass(frozen=True)
class Owner:
    """Whose processes: two managers of one machine have different state folders, if not different ids."""

    node_id: str
    state_dir: str

    def marks(self) -> dict[str, str]:
        return {NODE_MARK: self.node_id, STATE_MARK: self.state_dir}

    def started(self, process: Process) -> bool:
        return all(process.marks.get(name) == value for name, value in self.marks().items())


def of_generation(owner: Owner, slot: str, generation: int, status: Mapping[str, Any]) -> list[Process]:
    """Processes of one start. `status` is the shim's record of it, for those that lost their environment."""
    session = int(status.get("engine_pid") or 0) if status.get("boot_id") == boot_id() else 0
    if session:
        leader = process_stat(session)
        if leader is not None and leader[1] != status.get("engine_start"):
            session = 0  # the pid was reused, which the kernel does only when the session is empty
    return [
        process
        for process in processes()
        if (session and process.session == session)
        or (
            owner.started(process)
            and process.marks.get(SLOT_MARK) == slot
            and process.marks.get(GENERATION_MARK) == str(generation)
        )
    ]


def of_slot(owner: Owner, slot: str) -> list[Process]:
    """Processes of any start of a slot, by their marks."""
    return [p for p in processes() if owner.started(p) and p.marks.get(SLOT_MARK) == slot]


async def end(select: Callable[[], list[Process]]) -> list[int]:
    """SIGKILL what `select` finds until it finds nothing; the pids that are left after KILL_SECONDS."""
    deadline = time.monotonic() + KILL_SECONDS
    pause = 0.02
    while True:
        left = await in_thread(select)
        if not left or time.monotonic() > deadline:
            return [process.pid for process in left]
        for process in left:
            log.warning("ending left-over process %d", process.pid)
            send_signal(process.pid, process.started, signal.SIGKILL)
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.5)
