"""REST for operators, routers and Prometheus, in the controller's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from motor_rpc.deadline import within

from controller.api import schemas
from controller.api.identity import NodeCertificates
from controller.api.log_streams import LogStreams, LogUnavailable
from controller.api.metrics import render_metrics
from controller.api.openapi_page import PAGE
from controller.api.problems import RESPONSES, same_shape
from controller.api.tls import ServerTls
from controller.core import status, status_brief
from controller.core.events import StoryLine
from controller.service import ControllerService

MAX_EVENTS = 1000
MAX_WAIT_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 15.0
GATHER_SECONDS = 0.1


def make_app(
    service: ControllerService,
    logs: LogStreams,
    tls: ServerTls | None = None,
    certificates: NodeCertificates | None = None,
) -> FastAPI:
    """The REST application of one controller."""
    app = FastAPI(
        title="motor-controller",
        version=version("motor-pcp"),
        description="Status of one deployment: nodes, instances, events, logs. Errors are `{error, fix}`.",
        docs_url=None,  # its page loads scripts from elsewhere; ours at /docs does not
        redoc_url=None,
        responses=RESPONSES,
    )
    same_shape(app)
    started = service.clock()

    @app.exception_handler(LogUnavailable)
    async def log_unavailable(_: Request, error: LogUnavailable) -> JSONResponse:
        return problem(503, str(error), "see `motorctl status` for the node's state")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(PAGE)

    @app.get("/v1/status", response_model=schemas.Status, tags=["status"])
    async def get_status(
        limit: int = Query(
            0, ge=0, le=1_000_000, description="at most so many members and nodes, those that need a look; 0: all"
        ),
    ) -> Response:
        """Everything in one answer: instances, groups, members, nodes, and what is missing since when and why."""
        now = service.status_time()
        s = service.state
        view = status_brief.deployment(s, now, limit) if limit else status.deployment(s, now)
        answer = {
            **view,
            "problems": [
                *view["problems"],
                *(tls.problems() if tls else ()),
                *(certificates.problems() if certificates else ()),
            ],
            "store_error": service.store_trouble(),
            "stale_since": _wall(service, service.over_at) if service.over else "",
            "stale_reason": service.over,
            "uptime_seconds": round(now - started, 1),
            "version": version("motor-pcp"),
        }
        return JSONResponse(answer)  # as it is: checking it against the model took longer than making it

    @app.get("/v1/nodes", response_model=list[schemas.Node], tags=["status"])
    async def get_nodes() -> Response:
        """Every node that has registered, with its state and the reason."""
        now = service.status_time()
        return JSONResponse([status.node(service.state, node, now) for node in service.state.nodes.values()])

    @app.get("/v1/instances", response_model=list[schemas.Endpoint], tags=["inventory"])
    async def get_instances(
        stale: bool = Query(False, description="while no controller leads: answer the last list known, not 503"),
    ) -> list[dict[str, Any]]:
        """The router's inventory: API servers of ready groups only. Headless nodes are never in it."""
        return status.inventory(service.state)

    @app.get("/v1/instances/stream", tags=["inventory"])
    async def stream_instances() -> StreamingResponse:
        """The inventory as server-sent events: one `inventory` event now and one at each change. A master is out of it
        before it is told to stop."""
        return StreamingResponse(_inventory_stream(service), media_type="text/event-stream")

    @app.get("/v1/events", response_model=schemas.Events, tags=["status"])
    async def get_events(
        after: int = Query(0, ge=0, description="only events with a larger sequence number"),
        limit: int = Query(200, ge=1, le=MAX_EVENTS),
        subject: str = Query("", description="only this subject and what is below it, e.g. prefill-0/1 or node n7"),
        wait_seconds: float = Query(0.0, ge=0.0, le=MAX_WAIT_SECONDS, description="wait this long for a first one"),
    ) -> dict[str, Any]:
        """Decisions with their reasons, oldest first. Without `after`: the newest `limit`."""
        lines = _events(service, after, subject)
        deadline = service.clock() + wait_seconds
        while not lines and not service.over and (left := deadline - service.clock()) > 0:
            changed = service.changed
            try:
                await within(left, changed.wait())
            except asyncio.TimeoutError:
                break
            lines = _events(service, after, subject)
        lines = lines[:limit] if after else lines[-limit:]
        last = lines[-1].sequence if lines else max(after, 0)
        return {"events": [_event(service, line) for line in lines], "next_after": last}

    @app.get("/v1/logs/{target:path}", tags=["logs"], responses={404: {"model": schemas.Problem}})
    async def get_logs(
        target: str,
        tail: int = Query(200, ge=0, le=100_000, description="lines from the end"),
        follow: bool = Query(False),
    ) -> Response:
        """The log of a slot's engine (`instance/dp_rank/node_rank`) or of a node's manager (its node_id)."""
        slot = service.slot_of(target)
        if slot is not None:
            node = service.state.node_of(slot)
            if node is None:
                return problem(404, f"slot {slot} has no node", "see `motorctl status` for what is missing")
            node_id = node.offer.node_id
        elif target in service.state.nodes:
            node_id = target
        else:
            known = [str(s) for scope in service.state.scopes.values() for s in scope.members]
            names = ", ".join([*service.state.nodes, *known][:20])
            return problem(404, f"'{target}' is neither a node nor a slot", f"known: {names}")
        chunks = logs.read(node_id, slot, tail, follow)
        first = await anext(chunks, b"")  # an error before the first chunk is an HTTP error, not a broken stream
        return StreamingResponse(_after(first, chunks), media_type="text/plain; charset=utf-8")

    @app.post("/v1/orders", response_model=schemas.Answer, tags=["orders"], responses={409: {"model": schemas.Problem}})
    async def post_order(order: schemas.Order) -> Any:
        """Pause or resume the deployment; cordon, uncordon, drain, declare-lost or clean a node; restart, stop or start
        an instance or a group. Answers once it is begun; /v1/status and /v1/events tell how it goes."""
        answer = service.order(order.order, order.target, order.reason)
        if not answer.ok:
            return problem(409, answer.sentence)
        return {"done": answer.sentence}

    @app.post(
        "/v1/step-down", response_model=schemas.Answer, tags=["orders"], responses={409: {"model": schemas.Problem}}
    )
    async def post_step_down(order: schemas.StepDown) -> Any:
        """Give the lead up at once, for a standby to take it. Engines and what is decided stay as they are."""
        answer = service.step_down(order.reason)
        if not answer.ok:
            return problem(409, answer.sentence, "a standby needs a store that controllers share: store.kind etcd")
        return {"done": answer.sentence}

    @app.get("/livez", tags=["probes"], response_class=PlainTextResponse)
    async def livez() -> str:
        """200 while the event loop runs, on a standby as well."""
        return "ok\n"

    @app.get("/healthz", tags=["probes"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """The same as /livez."""
        return "ok\n"

    @app.get("/readyz", tags=["probes"], responses={503: {"model": schemas.Problem}})
    async def readyz() -> Response:
        """200 when this controller leads and can start engines: its store is writable. Says nothing about the engines.
        A standby answers 503 with the leader's address."""
        if service.store_error:
            return problem(503, service.store_error, "running engines are not touched; free the disk or repair it")
        return JSONResponse({"ready": True, "epoch": service.state.epoch})

    @app.get("/metrics", tags=["probes"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus text format."""
        own, nodes = tls.not_after() if tls else None, certificates.first_end() if certificates else None
        body, content_type = render_metrics(service.state, service.clock(), own, nodes)
        return Response(body, media_type=content_type)

    return app


def problem(code: int, error: str, fix: str = "") -> JSONResponse:
    return JSONResponse({"error": error, "fix": fix}, code)


def _events(service: ControllerService, after: int, subject: str) -> list[StoryLine]:
    story = service.state.story
    fresh = min(len(story), service.state.story_count - after)
    lines = [story[index] for index in range(len(story) - fresh, len(story))] if fresh > 0 else []
    if subject:
        lines = [line for line in lines if line.subject == subject or line.subject.startswith(subject + "/")]
    return lines


def _event(service: ControllerService, line: StoryLine) -> dict[str, Any]:
    return {
        "sequence": line.sequence,
        "at": _wall(service, line.at),
        "subject": line.subject,
        "code": line.code,
        "sentence": line.sentence,
        "fields": line.fields,
    }


def _wall(service: ControllerService, at: float) -> str:
    return datetime.fromtimestamp(service.wall_offset + at, timezone.utc).isoformat(timespec="milliseconds")


async def _more_news(service: ControllerService, losses: int) -> None:
    """A thousand groups that become ready together are not told one by one. A loss is told at once."""
    until = service.clock() + GATHER_SECONDS
    while service.state.inventory_losses == losses and not service.over and (left := until - service.clock()) > 0:
        try:
            await within(left, service.changed.wait())
        except asyncio.TimeoutError:
            return


async def _inventory_stream(service: ControllerService) -> AsyncIterator[str]:
    told = losses = -1
    while True:
        changed = service.changed
        s = service.state
        if told not in (-1, s.inventory_changes) and losses == s.inventory_losses:
            await _more_news(service, losses)
        if told != s.inventory_changes:  # most events change nothing of it, and it is long
            told, losses = s.inventory_changes, s.inventory_losses
            yield f"event: inventory\ndata: {json.dumps(status.inventory(s))}\n\n"
        if service.over:
            return  # the reader asks again, and finds the controller that leads
        try:
            await within(KEEP_ALIVE_SECONDS, changed.wait())
        except asyncio.TimeoutError:
            yield ": nothing new\n\n"  # a reader that is gone is noticed by writing to it


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
