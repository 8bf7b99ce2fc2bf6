"""The manager's end of a shim: start one, talk to it, tell whether it lives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from nodemanager import shim
from nodemanager.aside import ChildIsLateError, run_child
from nodemanager.shim import LOG_FILE, SOCKET_FILE, process_stat

LAUNCH_SECONDS = 30.0


class ShimError(Exception):
    """The shim could not be started or reached; the text says why."""


async def launch(folder: Path) -> None:
    """Start the shim of a generation folder; returns when it has started the engine, or recorded why it could
    not.

    The process started here only waits for the shim's word. The shim itself is its child in a session of
    its own, which systemd's KillMode=process, a closed terminal or this manager's end do not touch.
    ShimError if it refuses.
    """
    argv = [sys.executable, "-I", "-S", shim.__file__, str(folder)]
    try:
        ended = await run_child(argv, None, LAUNCH_SECONDS)
    except ChildIsLateError as error:
        raise ShimError(f"{error}; see {folder / LOG_FILE}") from None
    if ended.code != 0:
        raise ShimError(f"the shim did not start: {ended.errors}; see {folder / LOG_FILE}")


def alive(status: Mapping[str, Any], boot_id: str) -> bool:
    """True while the recorded shim process runs: same boot, same pid, same start time, not a zombie."""
    if status.get("boot_id") != boot_id:
        return False
    stat = process_stat(int(status.get("shim_pid") or 0))
    return stat is not None and stat[1] == status.get("shim_start") and stat[2] not in "ZX"


def collect(status: Mapping[str, Any]) -> None:
    """Reap an ended shim if this process is its parent, as it is when the manager runs as PID 1 of a
    container.
    """
    pid = int(status.get("shim_pid") or 0)
    if pid > 0:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


class ShimClient:
    """One connection to a shim."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def connect(folder: Path) -> ShimClient:
        """OSError if nobody listens. The folder goes in as a descriptor: a socket's path is limited to 108
        bytes.
        """
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return ShimClient(*await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"))
        finally:
            os.close(descriptor)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Statuses as they come, the present one first; ends when the connection does."""
        while True:
            try:
                line = await self._reader.readline()
            except (OSError, ValueError):
                return
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)

    def renew(self, grace: float | None, why: str = "orphan_grace") -> None:
        """From now on the engine may run for `grace` seconds (None = for ever) without another renewal; `why` names the
        setting for the shim's log.
        """
        self._send({"op": "renew", "orphan_grace": grace, "why": why})

    def stop(self, grace: float, mode: str, by: str, reason: str) -> None:
        """SIGTERM now, SIGKILL to the tree after `grace` seconds; a second call can only shorten that."""
        self._send({"op": "stop", "grace": grace, "mode": mode, "by": by, "reason": reason})

    def close(self) -> None:
        self._writer.close()

    def _send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")
