"""Asks an engine's API server how it is. A health endpoint has no events, so this one thing is polled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nodemanager.deadline import within
from nodemanager.netif import bracketed, network_error

PROBE_SECONDS = 5.0  # a busy API server may take long; one slow answer alone changes nothing


@dataclass(frozen=True)
class Health:
    """One answer: ok = 200. `detail` says what came instead."""

    ok: bool
    detail: str


async def probe(host: str, port: int, path: str, timeout: float = PROBE_SECONDS) -> Health:
    """GET `path` with an own time limit. Never raises for anything the server or the network does."""
    where = f"http://{bracketed(host)}:{port}{path}"
    try:
        status = await within(timeout, _status_line(host, port, path))
    except asyncio.TimeoutError:
        return Health(False, f"{where}: no answer within {timeout:g} s")
    except OSError as error:
        return Health(False, f"{where}: {network_error(error)}")
    except ValueError:
        return Health(False, f"{where}: not an HTTP answer")
    if len(status) < 2 or not status[1].isdigit():
        return Health(False, f"{where}: not an HTTP answer")
    return Health(status[1] == "200", f"{where}: {' '.join(status[1:]).strip()}")


async def _status_line(host: str, port: int, path: str) -> list[str]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {bracketed(host)}:{port}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        await writer.drain()
        return (await reader.readline()).decode(errors="replace").split(" ", 2)
    finally:
        writer.close()
