"""Log lines asked for over REST, fetched through the node's stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

from motor_rpc import control_pb2 as pb
from motor_rpc.deadline import within

from controller.api import wire
from controller.core.model import SlotKey
from controller.service import ControllerService

FIRST_CHUNK_SECONDS = 10.0
QUEUED_CHUNKS = 256  # a reader slower than that loses its stream rather than the controller its memory


class LogUnavailable(Exception):
    """The log cannot be had; the message says why."""


class LogStreams:
    def __init__(self, service: ControllerService) -> None:
        self._service = service
        self._open: dict[tuple[str, str], asyncio.Queue[pb.LogChunk]] = {}  # by node and request

    def take(self, node_id: str, chunk: pb.LogChunk) -> None:
        """A chunk arrived on `node_id`'s stream; one that this node was not asked for is dropped."""
        queue = self._open.get((node_id, chunk.request_id))
        if queue is None:
            return
        if queue.full():
            queue.get_nowait()
            chunk = pb.LogChunk(request_id=chunk.request_id, end=True, error="the reader is too slow; stream ended")
        queue.put_nowait(chunk)

    def end(self, reason: str) -> None:
        """No node will send a chunk any more: readers are told, and ask again elsewhere."""
        for node_id, request_id in self._open:
            self.take(node_id, pb.LogChunk(request_id=request_id, end=True, error=reason))

    async def read(self, node_id: str, slot: SlotKey | None, tail_lines: int, follow: bool) -> AsyncIterator[bytes]:
        """Lines of an engine's log, or of the node manager's own. LogUnavailable before the first chunk if the node
        has no stream, does not answer, or has no such log."""
        request_id = secrets.token_hex(8)
        queue: asyncio.Queue[pb.LogChunk] = asyncio.Queue(QUEUED_CHUNKS)
        self._open[node_id, request_id] = queue
        request = pb.LogRequest(request_id=request_id, tail_lines=tail_lines, follow=follow)
        if slot is not None:
            request.slot.CopyFrom(wire.slot_message(slot))
        ended = False
        try:
            if not self._service.send_to_node(node_id, log_request=request):
                raise LogUnavailable(f"node {node_id} has no stream to this controller")
            first = True
            while True:
                try:
                    chunk = await within(FIRST_CHUNK_SECONDS if first else None, queue.get())
                except asyncio.TimeoutError as error:
                    raise LogUnavailable(f"node {node_id} has not answered in {FIRST_CHUNK_SECONDS:.0f} s") from error
                if chunk.error:
                    ended = True
                    if first:
                        raise LogUnavailable(chunk.error)
                    yield f"\n[{chunk.error}]\n".encode()
                    return
                first = False
                if chunk.data:
                    yield chunk.data
                if chunk.end:
                    ended = True
                    return
        finally:
            del self._open[node_id, request_id]
            if not ended:
                self._service.send_to_node(node_id, log_cancel=pb.LogCancel(request_id=request_id))
