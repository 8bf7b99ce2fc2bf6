"""What one client may take: real sockets against the guard that the controller puts around REST."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest
import uvicorn

from controller.api import guard
from controller.api.access import App, Message, Receive, Scope, Send
from controller.api.guard import GuardedHttp, guarded, uvicorn_limits
from controller.api.limits import BodyLimit, Buckets, InFlight, client_key
from controller.config.controller_rules import AccessSettings
from tests.config.files import engine, file_with, load

SETTINGS = load(file_with(prefill=engine())).settings


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body; /stream never ends by itself."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"begun\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    body = b""
    more = True
    while more:
        message: Message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[int]:
    config = uvicorn.Config(app, port=0, log_level="error", access_log=False, lifespan="off", **uvicorn_limits())
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[method-assign]
    task = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        server.force_exit = True
        await task


class Raw:
    """A connection on which nothing is sent but what the test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, method: str = "GET", path: str = "/", *head: str, body: bytes = b"") -> tuple[int, str]:
        """(status, everything up to the end of the head)."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *head, "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)
        text = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode()
        return int(text.split()[1]), text.lower()

    async def closed(self, seconds: float = 10.0) -> bool:
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(65536), seconds):
                pass
        return True

    def close(self) -> None:
        self.writer.close()


def behind(**access: object) -> App:
    return guarded(echo, dataclasses.replace(SETTINGS, access=AccessSettings(**access)), None)  # type: ignore[arg-type]


async def test_more_than_the_burst_is_told_when_to_come_back() -> None:
    async with serving(behind(rate_per_second=0.5, burst=3)) as port:
        answers = [await (await Raw.to(port)).ask() for _ in range(5)]
    assert [status for status, _ in answers] == [200, 200, 200, 429, 429]
    assert "retry-after: 2" in answers[3][1]


async def test_a_body_is_bounded_however_its_length_is_told() -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    async with serving(behind(max_body_bytes=2048)) as port:
        assert (await (await Raw.to(port)).ask("POST", "/", "Content-Length: 4", body=b"1234"))[0] == 200
        # 413 before a single byte of it has arrived
        assert (await (await Raw.to(port)).ask("POST", "/", "Content-Length: 1000000000000"))[0] == 413
        chunked = "Transfer-Encoding: chunked"
        assert (await (await Raw.to(port)).ask("POST", "/", chunked, body=chunk * 2 + b"0\r\n\r\n"))[0] == 200
        assert (await (await Raw.to(port)).ask("POST", "/", chunked, body=chunk * 3))[0] == 413
        assert (await (await Raw.to(port)).ask("GET", "/", "Content-Length: 4096"))[0] == 413


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async with serving(BodyLimit(echo, 100, seconds=0.2)) as port:
        assert (await (await Raw.to(port)).ask("POST", "/", "Content-Length: 10", body=b"half"))[0] == 408


async def test_open_streams_are_bounded_and_free_again_when_their_readers_go() -> None:
    async with serving(InFlight(echo, per_client=3)) as port:
        streams = [await Raw.to(port) for _ in range(3)]
        for stream in streams:
            assert (await stream.ask("GET", "/stream"))[0] == 200
        assert (await (await Raw.to(port)).ask())[0] == 429
        streams[0].close()
        for _ in range(100):
            status, _ = await (await Raw.to(port)).ask()
            if status == 200:
                break
            await asyncio.sleep(0.02)
        assert status == 200
        for stream in streams:
            stream.close()
    async with serving(InFlight(echo, per_client=3, in_all=1)) as port:
        first = await Raw.to(port)
        await first.ask("GET", "/stream")
        assert (await (await Raw.to(port)).ask())[0] == 503
        first.close()


async def test_a_connection_has_to_ask_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn alone keeps a connection for ever that sends nothing, or a byte now and then."""
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.3)
    async with serving(echo) as port:
        silent, slow, stream = await Raw.to(port), await Raw.to(port), await Raw.to(port)
        await stream.ask("GET", "/stream")
        closed = asyncio.create_task(slow.closed())
        for byte in b"GET / HTTP/1.1\r\nX: " + b"a" * 40:
            if closed.done():
                break
            with contextlib.suppress(ConnectionError):
                slow.writer.write(bytes([byte]))
                await slow.writer.drain()
            await asyncio.sleep(0.05)
        assert closed.done(), "a byte now and then keeps it open"
        assert await silent.closed()
        with pytest.raises(asyncio.TimeoutError):  # what is answered may take as long as it wants
            assert await stream.reader.readuntil(b"begun\n")
            await stream.closed(0.5)
        stream.close()


async def test_lines_of_a_request_are_bounded() -> None:
    async with serving(echo) as port:
        connection = await Raw.to(port)
        with contextlib.suppress(ConnectionError):
            assert (await connection.ask("GET", "/", "X: " + "a" * 200_000))[0] == 400


async def test_one_client_holds_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PER_CLIENT", 5)
    async with serving(echo) as port:
        held = [await Raw.to(port) for _ in range(5)]
        for one in held:
            await one.ask()
        assert await (await Raw.to(port)).closed()
        for one in held:
            one.close()
        await asyncio.sleep(0.1)
        assert not GuardedHttp.held, "every connection was counted down again"


async def test_nobody_is_who_a_header_says_they_are() -> None:
    """uvicorn takes X-Forwarded-For of 127.0.0.1 at its word by default; a rate limit would then count nothing."""
    async with serving(behind(rate_per_second=0.01, burst=2)) as port:
        answers = [await (await Raw.to(port)).ask("GET", "/", f"X-Forwarded-For: 10.0.0.{n}") for n in range(4)]
    assert [status for status, _ in answers] == [200, 200, 429, 429]


async def test_a_web_socket_gets_nowhere() -> None:
    upgrade = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==",
    )
    async with serving(behind()) as port:
        assert (await (await Raw.to(port)).ask("GET", "/", *upgrade))[0] == 200, "answered as the plain request it is"


def test_buckets_fill_again_and_are_of_bounded_memory() -> None:
    now = [0.0]
    buckets = Buckets(2.0, 2, size=10, clock=lambda: now[0])
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 0.5]
    now[0] = 0.5
    assert [buckets.take("a") for _ in range(2)] == [0, 0.5]
    now[0] = 1000.0
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 0.5]
    for number in range(1000):
        buckets.take(str(number))
    assert len(buckets) == 10


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_who_shares_a_budget(address: str, key: str) -> None:
    assert client_key(address) == key
