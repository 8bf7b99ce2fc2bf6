"""Where REST comes in: to the term's application while this process leads, else on to the leader."""

from __future__ import annotations

from urllib.parse import parse_qs, quote

from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from controller.api.access import READING, Message, Receive, Scope, Send
from controller.api.metrics import render_standby
from controller.leadership import Leadership

STALE_HEADER = b"motor-stale-since"


class RestDoor:
    """An ASGI application over those of the terms."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        who = self._leadership
        if who.term is not None and who.term.service.may_order():
            await who.term.app(scope, receive, send)
            return
        answer = self._probe(scope["path"]) or self._pass_on(scope)
        if answer is not None:
            await answer(scope, receive, send)
        elif who.ended is not None and scope["method"] in READING and _may_be_old(scope):
            # Better an old picture, marked as such, than none for who is called out at night.
            await who.ended.app(scope, receive, _marked(send, who.since_text()))
        else:
            await self._nobody()(scope, receive, send)

    def _probe(self, path: str) -> Response | None:
        """What a standby answers itself."""
        if path in ("/livez", "/healthz"):
            return PlainTextResponse("ok\n")
        if path == "/metrics":
            return Response(render_standby(), media_type=CONTENT_TYPE_LATEST)
        if path == "/readyz":
            return self._not_ready()
        return None

    def _not_ready(self) -> Response:
        leader = self._leadership.leader
        if leader is None:
            return self._nobody()
        body = {"error": f"standby: {leader.rest} leads", "fix": f"ask {leader.rest}", "leader": leader.rest}
        return JSONResponse(body, 503)

    def _pass_on(self, scope: Scope) -> Response | None:
        """307 keeps the method: orders arrive as they were given."""
        leader = self._leadership.leader
        if leader is None:
            return None
        path = scope.get("raw_path", b"").decode("ascii") or quote(scope["path"])
        query = scope.get("query_string", b"").decode("ascii")
        return RedirectResponse(f"{leader.rest.rstrip('/')}{path}" + (f"?{query}" if query else ""), 307)

    def _nobody(self) -> Response:
        who = self._leadership
        body = {
            "error": f"no controller leads since {who.since_text()}: {who.why()}",
            "fix": "engines keep running and nothing is changed; see whether the store (etcd) has a quorum, and ask "
            "the other controllers",
            "leader": "",
        }
        return JSONResponse(body, 503)


def _may_be_old(scope: Scope) -> bool:
    """A router must not take an old inventory for a new one, where another controller may lead that this one does not
    hear of: it keeps the list it has, or asks for an old one in so many words."""
    if not scope["path"].startswith("/v1/instances"):
        return True
    return scope["path"] == "/v1/instances" and parse_qs(scope.get("query_string", b"")).get(b"stale") == [b"true"]


def _marked(send: Send, since: str) -> Send:
    """Every answer says that it is old."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (STALE_HEADER, since.encode())]
        await send(message)

    return wrapped
