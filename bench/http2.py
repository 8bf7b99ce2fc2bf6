"""The client's half of HTTP/2, as much of it as gRPC streams need: thousands of streams for a fraction of a core.

`grpc.aio` costs a client as much as it costs the server, and then the client is what one measures. Response headers are
not decoded: a stream's end is told with its reset code only.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Protocol

HEADER = struct.Struct(">BHBBI")  # length (24 bit), type, flags, stream
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
INITIAL_WINDOW, INITIAL_WINDOW_SIZE = 65_535, 4  # RFC 9113: the default, and the setting that changes it
LARGEST_WINDOW = 2**31 - 1
LARGEST_FRAME = 16_384
GIVE_BACK = 1 << 20  # bytes taken before the server's window on the connection is opened again


class Reader(Protocol):
    """Who hears what arrives on a stream."""

    def take(self, payload: bytes) -> None: ...

    def ended(self, why: str) -> None: ...


class Stream:
    """One call. `send` never blocks: what exceeds the server's window waits in order."""

    __slots__ = ("connection", "number", "partial", "reader", "waiting", "window")

    def __init__(self, connection: Connection, number: int, reader: Reader) -> None:
        self.connection = connection
        self.number = number
        self.reader = reader
        self.window = connection.stream_window
        self.partial = b""
        self.waiting: deque[bytes] | None = None

    def send(self, payload: bytes) -> None:
        """One gRPC message."""
        framed = b"\0" + len(payload).to_bytes(4, "big") + payload
        for at in range(0, len(framed), LARGEST_FRAME):
            self.connection.data(self, framed[at : at + LARGEST_FRAME])

    def cancel(self) -> None:
        """Reset the stream; the reader hears nothing more."""
        self.connection.reset(self)

    def arrived(self, data: bytes) -> None:
        buffer = self.partial + data if self.partial else data
        at = 0
        while len(buffer) - at >= 5:
            end = at + 5 + int.from_bytes(buffer[at + 1 : at + 5], "big")
            if end > len(buffer):
                break
            self.reader.take(buffer[at + 5 : end])
            at = end
        self.partial = buffer[at:]


class Connection(asyncio.Protocol):
    """One TCP connection with any number of streams."""

    def __init__(self, authority: str) -> None:
        self._headers = _request_headers(authority)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._out: list[bytes] = []
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._window = INITIAL_WINDOW
        self._blocked: deque[tuple[Stream, bytes]] = deque()
        self._taken = 0
        self.stream_window = INITIAL_WINDOW

    @property
    def open(self) -> bool:
        return self._transport is not None

    def call(self, reader: Reader) -> Stream:
        """Open a stream; ConnectionError when the connection is gone."""
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        stream = Stream(self, self._next, reader)
        self._streams[stream.number] = stream
        self._next += 2
        self._put(HEADERS, END_HEADERS, stream.number, self._headers)
        return stream

    def close(self) -> None:
        """Hang up; no reader hears of it."""
        self._streams.clear()
        if self._transport is not None:
            self._transport.abort()

    def reset(self, stream: Stream) -> None:
        if self._streams.pop(stream.number, None) is not None and self._transport is not None:
            self._put(RST_STREAM, 0, stream.number, (8).to_bytes(4, "big"))

    def data(self, stream: Stream, part: bytes) -> None:
        size = len(part)
        if stream.waiting or size > stream.window:
            stream.waiting = stream.waiting or deque()
            stream.waiting.append(part)
        elif self._blocked or size > self._window:
            self._blocked.append((stream, part))
            stream.window -= size
        else:
            stream.window -= size
            self._window -= size
            self._put(DATA, 0, stream.number, part)

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._put(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, LARGEST_WINDOW))
        self._put(WINDOW_UPDATE, 0, 0, (LARGEST_WINDOW - INITIAL_WINDOW).to_bytes(4, "big"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.reader.ended(f"connection lost: {exc or 'closed'}")

    def data_received(self, data: bytes) -> None:
        buffer = self._rest + data if self._rest else data
        at, size = 0, len(buffer)
        while size - at >= HEADER.size:
            high, low, kind, flags, number = HEADER.unpack_from(buffer, at)
            end = at + HEADER.size + (high << 16 | low)
            if end > size:
                break
            self._frame(kind, flags, number & LARGEST_WINDOW, buffer[at + HEADER.size : end])
            at = end
        self._rest = buffer[at:]

    def _frame(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if kind == DATA:
            self._taken += len(body)
            if self._taken > GIVE_BACK:
                self._put(WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4, "big"))
                self._taken = 0
            if stream := self._streams.get(number):
                stream.arrived(body)
        elif kind == WINDOW_UPDATE:
            self._opened(number, int.from_bytes(body, "big"))
        elif kind == PING and not flags & ACK:
            self._put(PING, ACK, 0, body)
        elif kind == SETTINGS and not flags & ACK:
            self._settings(body)
        elif kind == RST_STREAM:
            self._end(number, f"RST_STREAM {int.from_bytes(body, 'big')}")
        elif kind == GOAWAY and self._transport is not None:
            self._transport.close()
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self._end(number, "the server ended the stream")

    def _end(self, number: int, why: str) -> None:
        if stream := self._streams.pop(number, None):
            stream.reader.ended(why)

    def _settings(self, body: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", body):
            if name == INITIAL_WINDOW_SIZE:
                difference, self.stream_window = value - self.stream_window, value
                for number in list(self._streams):
                    self._opened(number, difference)
        self._put(SETTINGS, ACK, 0, b"")

    def _opened(self, number: int, more: int) -> None:
        """The server takes `more` bytes, on the connection (0) or a stream."""
        if number == 0:
            self._window += more
        elif stream := self._streams.get(number):
            stream.window += more
            waiting, stream.waiting = stream.waiting, None
            for part in waiting or ():
                self.data(stream, part)
        while self._blocked and len(self._blocked[0][1]) <= self._window:
            blocked, part = self._blocked.popleft()
            if blocked.number in self._streams:
                self._window -= len(part)
                self._put(DATA, 0, blocked.number, part)

    def _put(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)  # one system call for all of this turn
        self._out.append(HEADER.pack(len(body) >> 16, len(body) & 0xFFFF, kind, flags, number) + body)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(b"".join(out))


def _request_headers(authority: str) -> bytes:
    """HPACK without tables of our own: two indexed fields, the rest as literals."""
    fields = {
        ":path": "/motor.rpc.v1.Control/Session",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    literals = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return b"\x83\x86" + literals  # :method POST, :scheme http


def _text(text: str) -> bytes:
    assert len(text) < 127, text
    return bytes([len(text)]) + text.encode()
