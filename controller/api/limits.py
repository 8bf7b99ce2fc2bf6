"""What one client may take of the controller: requests per second, requests at a time, bytes of a body."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from motor_rpc.deadline import within

from controller.api.access import App, Message, Receive, Scope, Send, answer, client_address

ADDRESSES = 4096  # buckets kept; the one unused for longest goes, and comes back full
PER_CLIENT, IN_ALL = 64, 512  # requests in flight; those that last are event streams, followed logs and long polls
BODY_SECONDS = 10.0  # for a whole body to arrive


def client_key(address: str) -> str:
    """What shares a budget: an IPv4 address, or an IPv6 /64, of which one machine has all addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


class Buckets:
    """A token bucket for each client, of bounded memory."""

    def __init__(self, rate: float, burst: int, size: int = ADDRESSES, clock: Callable[[], float] = time.monotonic):
        self._rate, self._burst, self._size, self._clock = rate, burst, size, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # left, at what time

    def take(self, key: str) -> float:
        """Take one; 0 if there was one, else the seconds until there is."""
        now = self._clock()
        left, then = self._buckets.pop(key, (float(self._burst), now))
        left = min(float(self._burst), left + (now - then) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._buckets[key] = (left - 1 if not wait else left, now)
        if len(self._buckets) > self._size:
            self._buckets.popitem(last=False)
        return wait

    def __len__(self) -> int:
        return len(self._buckets)


class RateLimit:
    """429 for a client that asks more often than `rate` a second, after `burst` at once."""

    def __init__(self, app: App, rate: float, burst: int) -> None:
        self._app = app
        self._buckets = Buckets(rate, burst)
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (wait := self._buckets.take(client_key(client_address(scope)))):
            await answer(
                send, 429, f"more than {self._rate:g} requests a second from {client_address(scope)}",
                "ask less often, or raise motor_controller_config.access.rate_per_second",
                ((b"retry-after", str(math.ceil(wait)).encode()),),
            )  # fmt: skip
            return
        await self._app(scope, receive, send)


class InFlight:
    """Bounds the requests that run at the same time, and with them the open event streams: of one client (429), and of
    all (503)."""

    def __init__(self, app: App, per_client: int = PER_CLIENT, in_all: int = IN_ALL) -> None:
        self._app = app
        self._per_client, self._in_all = per_client, in_all
        self._running: Counter[str] = Counter()
        self._all = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        key = client_key(client_address(scope))
        retry = ((b"retry-after", b"1"),)
        if self._running[key] >= self._per_client:
            fix = "close streams that nobody reads"
            await answer(send, 429, f"{self._per_client} requests of {key} are running", fix, retry)
            return
        if self._all >= self._in_all:
            await answer(send, 503, f"{self._in_all} requests are running", "ask again later", retry)
            return
        self._running[key] += 1
        self._all += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._all -= 1
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]


class BodyLimit:
    """Reads a body before anything acts on it: 413 when it is larger than `largest`, 408 when it does not come.

    Bodies here are orders of a few hundred bytes, so that holding one costs nothing, and an endpoint never sees half.
    """

    def __init__(self, app: App, largest: int, seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._largest, self._seconds = largest, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        try:
            body = await within(self._seconds, self._read(scope, receive))
        except asyncio.TimeoutError:
            await answer(send, 408, f"the body did not come within {self._seconds:g} s", "send it at once")
            return
        except _TooLargeError:
            await answer(
                send, 413, f"the body is larger than {self._largest} bytes",
                "raise motor_controller_config.access.max_body_bytes if that is meant",
            )  # fmt: skip
            return
        if body is None:
            return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None if the client went away."""
        if any(name == b"content-length" and int(value) > self._largest for name, value in scope["headers"]):
            raise _TooLargeError
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._largest:
                raise _TooLargeError
            if not message.get("more_body", False):
                return bytes(body)


class _TooLargeError(Exception):
    pass


def _has_body(scope: Scope) -> bool:
    """As HTTP/1.1 says it: by its length, or in chunks."""
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])
