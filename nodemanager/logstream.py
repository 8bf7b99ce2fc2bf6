"""Sends an engine's log, or the manager's own, over the session: the last lines, then what comes, until
cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from motor_rpc import control_pb2 as pb

from engine_launch.secrets import Mask
from nodemanager.log_follower import LogFollower, tail

CHUNK = 64 << 10
DEFAULT_TAIL = 100
LONGEST_TAIL = 10_000
PLAIN = Mask()  # knows no value, only what a secret looks like


class LogStreams:
    """The log requests that are being answered. `send` returns False once the session is gone."""

    def __init__(self, send: Callable[[pb.NodeMessage], bool]) -> None:
        self._send = send
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, request: pb.LogRequest, path: Path | None, missing: str = "", mask: Mask = PLAIN) -> None:
        """Begin to answer, with `mask` over every line; with no `path` the answer is the error `missing`."""
        self.cancel(request.request_id)
        task = asyncio.create_task(self._answer(request, path, missing, mask))
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda done: self._forget(request.request_id, done))

    def _forget(self, request_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(request_id) is task:
            del self._tasks[request_id]

    def cancel(self, request_id: str) -> None:
        task = self._tasks.pop(request_id, None)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        for request_id in list(self._tasks):
            self.cancel(request_id)

    async def _answer(self, request: pb.LogRequest, path: Path | None, missing: str, mask: Mask) -> None:
        name = request.request_id
        if path is None or not path.exists():
            self._chunk(name, end=True, error=missing or f"{path}: not there")
            return
        follower = LogFollower(path, lambda lines: self._lines(name, lines, mask))
        count = min(request.tail_lines or DEFAULT_TAIL, LONGEST_TAIL)
        if request.follow:
            follower.skip_to_end()
        self._lines(name, tail(path, count), mask)
        if request.follow:
            await follower.follow()
        self._chunk(name, end=True)

    def _lines(self, name: str, lines: list[str], mask: Mask) -> None:
        data = "".join(mask(line) + "\n" for line in lines).encode()
        for start in range(0, len(data), CHUNK):
            self._chunk(name, data=data[start : start + CHUNK])

    def _chunk(self, name: str, data: bytes = b"", end: bool = False, error: str = "") -> None:
        chunk = pb.LogChunk(request_id=name, data=data, end=end, error=error)
        if not self._send(pb.NodeMessage(log_chunk=chunk)):
            self.cancel(name)
