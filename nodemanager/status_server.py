"""The node's own status over HTTP, on loopback only: GET /status."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from motor_rpc.deadline import within

log = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
RETRY_SECONDS = 30.0


class StatusServer:
    """Serves what `status` returns as JSON. A port that is taken is retried: it must not keep engines from
    being looked after.
    """

    def __init__(self, port: int, status: Callable[[], dict[str, Any]]) -> None:
        self._wanted = port
        self._status = status
        self._server: asyncio.Server | None = None
        self._retry: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port in use; 0 while there is none."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server and self._server.sockets else 0

    async def start(self) -> None:
        try:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._wanted)
        except OSError as error:
            log.error(
                "status_port %d: %s; no /status until it is free or changed in the node file",
                self._wanted, error.strerror,
            )  # fmt: skip
            self._retry = asyncio.create_task(self._try_again())

    async def _try_again(self) -> None:
        while self._server is None:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._wanted)
            except OSError:
                continue
            log.info("status_port %d is free again", self._wanted)

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await within(REQUEST_SECONDS, reader.readuntil(b"\r\n\r\n"))
            method, target, *_ = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            if target.partition("?")[0] != "/status":
                code, body = "404 Not Found", {"error": f"no such path: {target}", "paths": ["/status"]}
            elif method not in ("GET", "HEAD"):
                code, body = "405 Method Not Allowed", {"error": f"{method}: only GET"}
            else:
                code, body = "200 OK", self._status()
            data = json.dumps(body, indent=1).encode() + b"\n"
            writer.write(
                f"HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + (b"" if method == "HEAD" else data)
            )
            await within(REQUEST_SECONDS, writer.drain())
        except (
            OSError,
            ValueError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.TimeoutError,
        ):
            pass
        finally:
            writer.close()
