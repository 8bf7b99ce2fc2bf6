"""Who may ask what over REST: a bearer token's role against the method of the request.

All of this is plain ASGI. Starlette's BaseHTTPMiddleware puts a queue between an endpoint and its client, and then a
stream of server-sent events does not notice that its reader is gone.
"""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from controller.api.tokens import Role, TokenFile

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

# Open to everyone: probes say nothing but up or down, and the page at /docs holds nothing of the deployment. A browser
# sends no token when it opens a page; what that page then fetches, it asks for with the token it was given.
OPEN = frozenset({"/livez", "/readyz", "/healthz", "/docs"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Headers of a proxy: the request was passed on by something on this machine, and may come from anywhere.
FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})
CALLER = "motor.caller"  # key of the Caller in the scope


@dataclass(frozen=True)
class Caller:
    """Who sent a request, as the audit line names them."""

    name: str  # the token's, or `anonymous`
    address: str  # as the connection has it; what X-Forwarded-For claims is never looked at


class Access:
    """Lets a request through to `app`, or answers 401 (no valid token) or 403 (a token of the lesser role).

    `tokens` None: no tokens are configured, and only the page of another site in a browser of this machine is kept
    out (`open_hosts` None: not even that).
    """

    def __init__(
        self, app: App, tokens: TokenFile | None, *, loopback_read: bool, open_hosts: frozenset[str] | None
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._loopback_read = loopback_read
        self._open_hosts = open_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # there is no web socket here, and none gets past the tokens
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = client_address(scope)
        wanted = Role.READ if scope["method"] in READING else Role.OPERATE
        if scope["path"] in OPEN and wanted is Role.READ:
            caller = Caller("anonymous", address)
        elif self._tokens is None:
            if not self._is_local_host(scope):
                await answer(
                    send, 403, "the Host header is not this controller's: a web page may be asking in your name",
                    "use the address it listens on, or configure motor_controller_config.access.tokens_file",
                )  # fmt: skip
                return
            caller = Caller("anonymous", address)
        elif (presented := bearer(scope)) is not None:
            token = self._tokens.find(presented)
            if token is None:
                await _unauthorized(send, "the token is not valid")
                return
            if not token.role.allows(wanted):
                await answer(
                    send, 403, f"the token {token.name} may only read",
                    "use one with the role operate: `motorctl token add NAME --role operate`",
                )  # fmt: skip
                return
            caller = Caller(token.name, address)
        elif self._loopback_read and wanted is Role.READ and is_local(scope) and self._is_local_host(scope):
            caller = Caller("loopback", address)
        else:
            await _unauthorized(send, "no token")
            return
        scope[CALLER] = caller
        await self._app(scope, receive, send)

    def _is_local_host(self, scope: Scope) -> bool:
        """False where a browser was led here by a name of somebody else's that points to 127.0.0.1 (DNS rebinding):
        such a request bears that name."""
        if self._open_hosts is None:
            return True
        given = next((value for name, value in scope["headers"] if name == b"host"), b"")
        try:
            host = urlsplit(f"//{given.decode('latin-1')}").hostname or ""
        except ValueError:
            return False
        return not host or host in self._open_hosts or is_literal(host)


def bearer(scope: Scope) -> str | None:
    """The presented token; None if there is none. Two of them are none."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1:
        return "" if given else None
    kind, _, token = given[0].decode("latin-1").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def client_address(scope: Scope) -> str:
    """The peer of the connection."""
    client = scope.get("client")
    return client[0] if client else "unknown"


def is_local(scope: Scope) -> bool:
    """True for a peer on loopback that passes on nobody else's request."""
    try:
        address = ipaddress.ip_address(client_address(scope).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback and not any(name in FORWARDED for name, _ in scope["headers"])


def is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _unauthorized(send: Send, what: str) -> None:
    """Says nothing about which token was near."""
    await answer(
        send, 401, what, "send `Authorization: Bearer TOKEN`; motorctl takes it from MOTOR_TOKEN or --token-file",
        ((b"www-authenticate", b'Bearer realm="motor"'),),
    )  # fmt: skip


async def answer(send: Send, status: int, error: str, fix: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """A whole response of the shape every error has. The connection ends: an unread body would follow."""
    body = json.dumps({"error": error, "fix": fix}).encode()
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*head, *headers]})
    await send({"type": "http.response.body", "body": body})
