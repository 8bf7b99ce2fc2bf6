"""Asks an engine's API server how it is. A health endpoint has no events, so this one thing is polled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from motor_rpc.deadline import within
from motor_rpc.http_ask import NotHttpError, Place, Request, ask

from nodemanager.netif import network_error

PROBE_SECONDS = 5.0  # a busy API server may take long; one slow answer alone changes nothing


@dataclass(frozen=True)
class Health:
    """One answer: ok = 200. `detail` says what came instead."""

    ok: bool
    detail: str


async def probe(place: Place, path: str, timeout: float = PROBE_SECONDS) -> Health:
    """GET `path` with an own time limit. Never raises for anything the server or the network does."""
    where = place.url(path)
    try:
        answer = await within(timeout, ask(place, Request(path)))
    except asyncio.TimeoutError:
        return Health(False, f"{where}: no answer within {timeout:g} s")
    except OSError as error:
        return Health(False, f"{where}: {network_error(error)}")
    except NotHttpError:
        return Health(False, f"{where}: not an HTTP answer")
    return Health(answer.status == 200, f"{where}: {answer.status} {answer.reason}".strip())
