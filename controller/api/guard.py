"""Everything that stands between a connection and an endpoint of REST, in its order."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from controller.api.access import Access, App
from controller.api.audit import Audit
from controller.api.limits import BodyLimit, InFlight, RateLimit, client_key
from controller.api.tokens import TokenFile, TokenFileError, read_tokens
from controller.config.controller_rules import Settings

HEAD_SECONDS = 10.0  # for the lines of a request to arrive, and for a connection to send its first one
PER_CLIENT, IN_ALL = 256, 2000  # connections; descriptors are what the node streams need too
HEAD_BYTES = 16 << 10  # the request's lines together


def guarded(app: App, settings: Settings, tokens: TokenFile | None) -> App:
    """`app` behind rate limit, tokens, and limits of what runs at a time and of bodies.

    The rate comes first, so that wrong tokens cost their sender something; a body is read only for who may send one.
    """
    inner = InFlight(BodyLimit(Audit(app), settings.access.max_body_bytes))
    names = None if settings.insecure else _own_names(settings)
    access = Access(inner, tokens, loopback_read=settings.access.loopback_read, open_hosts=names)
    return RateLimit(access, settings.access.rate_per_second, settings.access.burst)


def open_tokens(settings: Settings) -> TokenFile | None:
    """The configured tokens; None without any. TokenFileError if the file cannot be used: a typing error in its path
    must not open anything, nor lock everyone out without a word."""
    path = settings.access.tokens_file
    if path is None:
        return None
    _, problems = read_tokens(path)
    if problems:
        raise TokenFileError("\n".join(problems))
    return TokenFile(path)


def _own_names(settings: Settings) -> frozenset[str]:
    """Names by which this machine may be asked on loopback without a token."""
    return frozenset({"localhost", socket.gethostname().lower(), settings.rest.host.lower()})


class GuardedHttp(H11Protocol):
    """uvicorn's protocol with what it lacks: an end to connections that do not finish a request's lines (uvicorn has a
    time limit only between two requests), and a number of connections that one client may hold."""

    held: ClassVar[Counter[str]] = Counter()  # of this process, by client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._key = client_key(self.client[0]) if self.client else "unknown"
        self.held[self._key] += 1
        self._answered: object = None
        self._watch: asyncio.TimerHandle | None = self.loop.call_later(HEAD_SECONDS, self._look)
        if self.held[self._key] > PER_CLIENT or len(self.connections) > IN_ALL:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self.held[self._key] -= 1
        if not self.held[self._key]:
            del self.held[self._key]
        super().connection_lost(exc)

    def _look(self) -> None:
        """Between two looks a connection has to have begun a request, or be busy with one."""
        cycle = self.cycle
        if cycle is None or (cycle.response_complete and cycle is self._answered):
            self.transport.abort()
            return
        self._answered = cycle if cycle.response_complete else None
        self._watch = self.loop.call_later(HEAD_SECONDS, self._look)


def uvicorn_limits() -> dict[str, Any]:
    """For `uvicorn.Config`. Proxy headers: uvicorn trusts those of 127.0.0.1 unless told not to, and then anyone on
    this machine is whom they say they are."""
    return {
        "http": GuardedHttp,
        "ws": "none",
        "proxy_headers": False,
        "server_header": False,
        "h11_max_incomplete_event_size": HEAD_BYTES,
    }
