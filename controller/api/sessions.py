"""Node streams: one bidirectional gRPC stream per node, opened by the node."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import Any

import grpc
from motor_rpc import control_pb2 as pb
from motor_rpc import control_pb2_grpc

from controller.api import wire
from controller.api.log_streams import LogStreams
from controller.core import events as e
from controller.service import ControllerService

log = logging.getLogger(__name__)

REGISTER_DEADLINE = 10.0  # a stream that says nothing for this long is closed
SERVER_OPTIONS = [
    # 5,000 streams opened at once lost up to 943 with the default of 1,000
    ("grpc.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),  # a second controller on the port has to fail, not share it
]


class NodeSession:
    """One stream's outgoing side: messages leave in the order they were sent."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.last_heard = 0.0
        self._outgoing: deque[pb.ControllerMessage] = deque()
        self._more = asyncio.Event()
        self._ended = False

    def send(self, message: pb.ControllerMessage) -> None:
        if not self._ended:
            self._outgoing.append(message)
            self._more.set()

    def end(self, last: pb.ControllerMessage | None, reason: str) -> None:
        """Send what waits and `last`, then close the stream."""
        if self._ended:
            return
        if last is not None:
            self._outgoing.append(last)
        self._ended = True
        self._more.set()

    async def pump(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Write until the session is ended."""
        while True:
            while self._outgoing:
                await context.write(self._outgoing.popleft())
            if self._ended:
                return
            self._more.clear()
            await self._more.wait()


class ControlServicer(control_pb2_grpc.ControlServicer):
    def __init__(self, service: ControllerService, logs: LogStreams) -> None:
        self._service = service
        self._logs = logs
        self._numbers = itertools.count(1)

    async def Session(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """The whole life of one node stream."""
        first = await self._first_message(context)
        if first is None:
            return
        service = self._service
        await service.raise_epoch(wire.newest_epoch(first))
        offer, remarks = await service.judge(wire.offer(first))
        session = NodeSession(f"s{next(self._numbers)}")
        session.last_heard = service.clock()
        service.sessions[session.session_id] = session
        writer = asyncio.create_task(session.pump(context))
        reader: asyncio.Task[str] | None = None
        watch: asyncio.Task[str] | None = None
        node_id = first.node_id
        cause = "stream ended"
        try:
            service.feed(
                e.NodeRegistered(
                    service.clock(),
                    service.nonce(),
                    session.session_id,
                    first.deployment_id,
                    offer,
                    tuple(wire.report(held) for held in first.holdings),
                    wire.seen(first),
                    remarks,
                )
            )
            reader = asyncio.create_task(self._read(session, node_id, context))
            watch = asyncio.create_task(self._watch(session))
            done, _ = await asyncio.wait({reader, watch, writer}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reader, watch):
                if task in done and not task.cancelled() and task.exception() is None:
                    cause = task.result()
        finally:
            for pending in (reader, watch, writer):
                if pending is not None:
                    pending.cancel()
            service.sessions.pop(session.session_id, None)
            if service.node_sessions.get(node_id) == session.session_id:
                del service.node_sessions[node_id]
                service.prober.node_gone(node_id, cause)
            service.feed(e.NodeDisconnected(service.clock(), service.nonce(), session.session_id, node_id, cause))

    async def _first_message(self, context: grpc.aio.ServicerContext[Any, Any]) -> pb.RegisterMsg | None:
        """The registration, or None after answering why not (rule 11)."""
        try:
            message = await asyncio.wait_for(context.read(), REGISTER_DEADLINE)
        except asyncio.TimeoutError:
            message = grpc.aio.EOF
        if message is grpc.aio.EOF:
            return None
        if message.WhichOneof("body") != "register":
            await self._refuse(
                context,
                "protocol",
                f"expected RegisterMsg first, got {message.WhichOneof('body') or 'nothing known'}",
            )
            return None
        register: pb.RegisterMsg = message.register
        if register.protocol not in wire.UNDERSTOOD:
            await self._refuse(
                context, "protocol",
                f"the node speaks protocol {register.protocol} (motor {register.motor_version}), this controller "
                f"understands {', '.join(map(str, wire.UNDERSTOOD))}; upgrade the older of the two",
            )  # fmt: skip
            return None
        if not register.node_id or not register.boot_id:
            await self._refuse(context, "protocol", "node_id and boot_id must not be empty")
            return None
        return register

    async def _refuse(self, context: grpc.aio.ServicerContext[Any, Any], code: str, reason: str) -> None:
        log.warning("stream from %s refused: %s", context.peer(), reason)
        message = pb.ControllerMessage(
            epoch=self._service.state.epoch,
            deployment_id=self._service.deployment.plan.deployment_id,
            refused=pb.Refused(code=code, reason=reason, retry=False),
        )
        await context.write(message)

    async def _read(self, session: NodeSession, node_id: str, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        service = self._service
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                return "stream ended"
            session.last_heard = service.clock()
            kind = message.WhichOneof("body")
            if kind == "heartbeat":
                session.send(
                    pb.ControllerMessage(
                        epoch=service.state.epoch,
                        deployment_id=service.deployment.plan.deployment_id,
                        heartbeat_ack=pb.HeartbeatAck(sequence=message.heartbeat.sequence),
                    )
                )
            elif kind == "log_chunk":
                self._logs.take(message.log_chunk)
            elif kind == "probe_report":
                service.prober.take(node_id, message.probe_report)
            else:
                event = wire.event(message, session.session_id, node_id, session.last_heard, service.nonce())
                if event is None:
                    log.warning("node %s sent %s, which is not understood here", node_id, kind or "an unknown message")
                else:
                    service.feed(event)

    async def _watch(self, session: NodeSession) -> str:
        """Heartbeats only move `last_heard`; this wakes once per timeout, not once per beat."""
        timeout = self._service.deployment.plan.timers.node_timeout
        while True:
            silent = self._service.clock() - session.last_heard
            if silent >= timeout:
                return f"no heartbeat for {silent:.1f} s"
            await asyncio.sleep(timeout - silent)
