"""Follows an engine's log file: the kernel says when it grew (inotify), so a silent engine costs nothing.

The engine writes to the file itself, through the descriptor it got from the shim: no process in between
that could block it or lose lines when it dies. inotify is called through ctypes because the standard
library has no door to it; where it is refused (its per-user limit is small on some systems) the file is
looked at every half second.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

IN_MODIFY = 0x2
IN_NONBLOCK = os.O_NONBLOCK
IN_CLOEXEC = os.O_CLOEXEC

POLL_SECONDS = 0.5
QUIET_SECONDS = 0.1  # after a change was read: a chatty engine wakes us ten times a second at most
CHUNK = 1 << 20
HEAD_BYTES = 8 << 20  # of a long log: its start holds the stages,
TAIL_BYTES = 256 << 10  # its end the evidence


def open_inotify(path: Path) -> int | None:
    """A descriptor that becomes readable when `path` grows; None where the kernel refuses."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = int(libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC))
        if descriptor < 0:
            return None
        if int(libc.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY)) < 0:
            os.close(descriptor)
            return None
        return descriptor
    except (OSError, AttributeError):
        return None


class LogFollower:
    """Calls `on_lines` with complete lines as they are written, from the start of the file."""

    def __init__(self, path: Path, on_lines: Callable[[list[str]], None]) -> None:
        self._path = path
        self._on_lines = on_lines
        self._offset = 0
        self._rest = b""

    def skip_to_end(self) -> None:
        """Start with the next line that is written."""
        with contextlib.suppress(OSError):
            self._offset = self._path.stat().st_size

    def read_new(self) -> bool:
        """Hand over what was written since the last call, a chunk at most; True if there may be more."""
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:  # truncated by a log rotation
                    self._offset, self._rest = 0, b""
                if self._offset >= HEAD_BYTES and size - self._offset > TAIL_BYTES + CHUNK:
                    self._offset, self._rest = size - TAIL_BYTES, b""
                file.seek(self._offset)
                data = file.read(CHUNK)
        except OSError:
            return False
        self._offset += len(data)
        # Progress bars end their lines with a carriage return.
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > CHUNK:
            self._rest = b""
        if lines:
            self._on_lines([line.decode(errors="replace") for line in lines])
        return len(data) == CHUNK

    def read_rest(self) -> None:
        """Everything up to the end of the file, an unfinished last line too."""
        while self.read_new():
            pass
        if self._rest:
            rest, self._rest = self._rest, b""
            self._on_lines([rest.decode(errors="replace")])

    async def _catch_up(self) -> None:
        more = True
        while more:
            more = self.read_new()
            await asyncio.sleep(0)

    async def follow(self) -> None:
        """Until cancelled."""
        descriptor = open_inotify(self._path)
        if descriptor is None:
            while True:
                await self._catch_up()
                await asyncio.sleep(POLL_SECONDS)
        grew = asyncio.Event()
        loop = asyncio.get_running_loop()

        def drain() -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 65536)
            grew.set()

        loop.add_reader(descriptor, drain)
        try:
            while True:
                grew.clear()
                await self._catch_up()
                await grew.wait()
                await asyncio.sleep(QUIET_SECONDS)
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def tail(path: Path, lines: int) -> list[str]:
    """The last `lines` lines of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    text = data.replace(b"\r", b"\n").decode(errors="replace").split("\n")
    if text and not text[-1]:
        text.pop()
    return text[-lines:] if lines else []
