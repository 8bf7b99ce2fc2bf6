"""One HTTP request to an engine's API server on a connection of its own, with the whole answer.

It stands beside the stubs because both daemons ask engines, and neither may import the other. Plain asyncio streams:
the node manager's environment holds no HTTP client, a request may stay unanswered for minutes, and closing the
connection takes it back.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST_ANSWER = 8 << 20  # bytes; the metrics of a large engine take some hundred thousand


class NotHttpError(Exception):
    """Something answered that is not an HTTP answer, or a too long one."""


@dataclass(frozen=True)
class Place:
    """An API server."""

    host: str
    port: int
    tls: bool = False

    def url(self, path: str) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{path}"

    @property
    def authority(self) -> str:
        """As URLs and the Host header have it: a literal IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Request:
    path: str
    body: bytes | None = None  # with one it is a POST of JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    status: int
    reason: str  # the words behind the number
    body: bytes


async def ask(place: Place, request: Request) -> Answer:
    """Send it and wait for the end of the answer, without a limit. OSError or NotHttpError if there is none.

    OSError, too, for a place that cannot exist: it may have come in a message.
    """
    head = [f"{'GET' if request.body is None else 'POST'} {request.path} HTTP/1.1"]
    head += [f"Host: {place.authority}", "Connection: close"]
    if request.body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(request.body)}"]
    head += [f"{name}: {value}" for name, value in request.headers.items()]
    if not place.host:  # asyncio would take this machine
        raise OSError(f"expected a host, got {place.host!r}")
    try:
        reader, writer = await asyncio.open_connection(place.host, place.port, ssl=_context() if place.tls else None)
    except (ValueError, OverflowError) as error:  # a label of a name that is too long, a port beyond 65535
        raise OSError(f"not an address of an API server: {error}") from None
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + (request.body or b""))
        await writer.drain()
        return await _read(reader)
    except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise NotHttpError(f"not an HTTP answer: {error}") from None
    finally:
        writer.close()


def _context() -> ssl.SSLContext:
    """The engine's certificate is not verified: it bears the name that clients of the engine use, and these requests go
    to addresses. What they ask is whether an engine that Motor started still computes.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _read(reader: asyncio.StreamReader) -> Answer:
    words = (await reader.readline()).decode("latin-1").strip().split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise ValueError("the connection was closed" if words == [""] else "no status line")
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Answer(int(words[1]), words[2] if len(words) > 2 else "", await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        content = bytearray()
        while size := int((await reader.readline()).split(b";")[0], 16):
            content += await reader.readexactly(_checked(len(content) + size) - len(content))
            await reader.readline()
        return bytes(content)
    if "content-length" in headers:
        return await reader.readexactly(_checked(int(headers["content-length"])))
    content = bytearray()
    while part := await reader.read(65536):
        content += part
        _checked(len(content))
    return bytes(content)


def _checked(size: int) -> int:
    if not 0 <= size <= LONGEST_ANSWER:
        raise ValueError(f"a body of {size} bytes, expected at most {LONGEST_ANSWER}")
    return size
