"""One line of the log for everything that is ordered over REST: who, from where, what, and what came of it."""

from __future__ import annotations

import logging

from controller.api.access import CALLER, READING, App, Caller, Message, Receive, Scope, Send, client_address

log = logging.getLogger("controller.audit")

SHOWN = 400  # bytes of a body


class Audit:
    """Logs requests that are no reading. Stands inside Access and BodyLimit: the caller is known, the body whole."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        body = b""
        status = 0

        async def hear() -> Message:
            nonlocal body
            message = await receive()
            body = body or message.get("body", b"")
            return message

        async def tell(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, hear, tell)
        finally:
            caller = scope.get(CALLER) or Caller("anonymous", client_address(scope))
            # ascii(): a body with line breaks must not write lines of its own into the log
            shown = ascii(body[:SHOWN].decode("utf-8", errors="replace"))
            log.info(
                "%s from %s: %s %s %s -> %s",
                caller.name, caller.address, scope["method"], ascii(scope["path"])[1:-1], shown, status or "no answer",
            )  # fmt: skip
