"""Node streams: one bidirectional gRPC stream per node, opened by the node."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from motor_rpc import control_pb2 as pb
from motor_rpc import control_pb2_grpc
from motor_rpc.deadline import within

from controller.api import identity, wire
from controller.api.admission import Admission
from controller.api.log_streams import LogStreams
from controller.api.pace import MESSAGES_AT_ONCE, MESSAGES_PER_SECOND, Pace
from controller.api.revoked import RevokedFile
from controller.core import events as e
from controller.service import ControllerService
from controller.store.interface import StoreError

log = logging.getLogger(__name__)

NOT_LEADER = "not_leader"  # code of a refusal: dial another controller
BUSY = "busy"  # code of a refusal: come again later
HELD_UP_SECONDS = 1.0  # a timer as late as that: the process did not run, or not enough
REGISTER_DEADLINE = 10.0  # a stream that says nothing for this long is closed
QUEUED_MESSAGES = 512  # a node that reads none of so many loses its stream rather than the controller its memory
FIRST_UNKNOWN = frozenset({1, 10, 100, 1_000, 10_000, 100_000})  # of a session's messages that are logged
LAST_WRITE_SECONDS = 2.0  # a node that reads nothing may keep a write for ever
NO_MESSAGE = "expected a NodeMessage, got bytes that are none"
BROKEN_STREAM = (grpc.aio.BaseError, asyncio.InvalidStateError)  # what grpc raises when the other side is gone
SERVER_OPTIONS = [
    # 5,000 streams opened at once lost up to 943 with the default of 1,000
    ("grpc.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),  # a second controller on the port has to fail, not share it
]


class NodeSession:
    """One stream's outgoing side: messages leave in the order they were sent, while `may_order` says so."""

    def __init__(self, session_id: str, may_order: Callable[[], bool], fingerprint: str = "") -> None:
        self.session_id = session_id
        self.fingerprint = fingerprint  # of the node's certificate; empty where none is looked at
        self.last_heard = 0.0
        self._may_order = may_order
        self._outgoing: deque[pb.ControllerMessage] = deque()
        self._last: pb.ControllerMessage | None = None
        self._more = asyncio.Event()
        self._ended = False
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why the stream ends
        self.watch: asyncio.TimerHandle | None = None

    def is_over(self, cause: str) -> None:
        if not self.over.done():
            self.over.set_result(cause)

    def finished(self, task: asyncio.Task[Any]) -> None:
        """The reader or the writer has ended: the other has nobody to work for."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BROKEN_STREAM):
            log.error("session %s: a defect ends it", self.session_id, exc_info=error)
        self.is_over("stream ended" if error is not None or task.cancelled() else task.result() or "stream ended")

    def send(self, message: pb.ControllerMessage) -> None:
        if self._ended:
            return
        if len(self._outgoing) >= QUEUED_MESSAGES:
            self._ended = True
            self._outgoing.clear()
            self.is_over(f"it has not read {QUEUED_MESSAGES} messages that wait for it")
            return
        self._outgoing.append(message)
        self._more.set()

    def end(self, last: pb.ControllerMessage | None, reason: str) -> None:
        """Send what waits and `last`, then close the stream."""
        if self._ended:
            return
        if last is not None:
            self._last = last
            self._outgoing.append(last)
        self._ended = True
        self._more.set()

    async def pump(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Write until the session is ended. What was queued before a long sleep (SIGSTOP, a stalled machine) is
        dropped if another controller may lead by now: the clock is looked at before each message, not when it is
        queued. A session's last word says why it ends and orders nothing."""
        while True:
            while self._outgoing:
                message = self._outgoing.popleft()
                if message is self._last or self._may_order():
                    await context.write(message)
            if self._ended:
                return
            self._more.clear()
            await self._more.wait()

    async def let_go(self, writer: asyncio.Task[Any]) -> None:
        """No more is written, and what is under way is waited for: gRPC sends no status beside a write (it fails with
        ExecuteBatchError), and the stream would then hang until the node gives it up. Seen once in 500 streams."""
        self._ended = True
        self._outgoing.clear()
        self._more.set()
        await asyncio.wait({writer}, timeout=LAST_WRITE_SECONDS)
        if not writer.cancel() and not writer.cancelled():
            writer.exception()  # retrieved, so that nobody complains


async def first_message(context: grpc.aio.ServicerContext[Any, Any]) -> pb.RegisterMsg | None:
    """The registration, or None after answering why not (rule 11)."""
    try:
        message = await within(REGISTER_DEADLINE, context.read())
    except asyncio.TimeoutError:
        message = grpc.aio.EOF
    except DecodeError:
        await refuse(context, "protocol", NO_MESSAGE)
        return None
    if message is grpc.aio.EOF:
        return None
    if message.WhichOneof("body") != "register":
        got = message.WhichOneof("body") or "nothing known"
        await refuse(context, "protocol", f"expected RegisterMsg first, got {got}")
        return None
    register: pb.RegisterMsg = message.register
    if register.protocol not in wire.UNDERSTOOD:
        await refuse(
            context, "protocol",
            f"the node speaks protocol {register.protocol} (motor {register.motor_version}), this controller "
            f"understands {', '.join(map(str, wire.UNDERSTOOD))}; upgrade the older of the two",
        )  # fmt: skip
        return None
    if problem := wire.implausible(message):
        await refuse(context, "protocol", problem)
        return None
    if not register.node_id or not register.boot_id:
        await refuse(context, "protocol", "node_id and boot_id must not be empty")
        return None
    if problem := identity.mismatch(context, register.node_id):
        await refuse(context, "identity", problem)
        return None
    return register


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any], code: str, reason: str, retry: bool = False, leader: str = ""
) -> None:
    """Answer a stream that has no session. `leader`: host:port of the controller to dial instead."""
    if code not in (NOT_LEADER, BUSY):  # after a failover or a restart all nodes hear these
        log.warning("stream from %s refused: %s", context.peer(), reason)
    refused = pb.Refused(code=code, reason=reason, retry=retry, leader=leader)
    await context.write(pb.ControllerMessage(refused=refused))


class ControlServicer(control_pb2_grpc.ControlServicer):
    """The node streams of a controller that leads."""

    def __init__(self, service: ControllerService, logs: LogStreams, revoked: RevokedFile | None = None) -> None:
        self._service = service
        self._logs = logs
        self._revoked = revoked
        self.certificates = identity.NodeCertificates()
        self._numbers = itertools.count(1)
        self._admission = Admission()

    async def Session(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """The whole life of one node stream."""
        first = await first_message(context)
        if first is not None:
            await self.serve(first, context)

    async def serve(self, first: pb.RegisterMsg, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """A node stream from its registration on."""
        service = self._service
        if not await self._admission.enter():
            await refuse(context, BUSY, "too many nodes register at once; come again in some seconds", retry=True)
            return
        fingerprint = identity.fingerprint(context) if self._revoked is not None else ""
        if problem := self._is_revoked(fingerprint):
            await refuse(context, "identity", f"{first.node_id}: {problem}")
            return
        try:
            if first.deployment_id == service.deployment.plan.deployment_id:
                await service.raise_epoch(wire.newest_epoch(first))
        except StoreError as error:
            await refuse(context, "store", f"the epoch cannot be stored: {error}", retry=True)
            return
        offer, remarks = await service.judge(wire.offer(first))
        if not service.may_order():
            await refuse(context, NOT_LEADER, service.over, retry=True)
            return
        session = NodeSession(f"s{next(self._numbers)}", service.may_order, fingerprint)
        session.last_heard = service.clock()
        service.sessions[session.session_id] = session
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(session.pump(context))]
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
            if service.node_sessions.get(node_id) == session.session_id:  # it was not refused
                self.certificates.add(node_id, identity.certificate(context))
            tasks.append(asyncio.create_task(self._read(session, node_id, context)))
            for task in tasks:
                task.add_done_callback(session.finished)
            self._watch(session)
            cause = await session.over
        finally:
            session.over.cancel()
            if session.watch is not None:
                session.watch.cancel()
            for task in tasks[1:]:
                task.cancel()
            service.sessions.pop(session.session_id, None)
            if service.node_sessions.get(node_id) == session.session_id:
                del service.node_sessions[node_id]
                self.certificates.remove(node_id)
                service.prober.node_gone(node_id, cause)
            service.feed(e.NodeDisconnected(service.clock(), service.nonce(), session.session_id, node_id, cause))
            await session.let_go(tasks[0])

    async def _read(self, session: NodeSession, node_id: str, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        service = self._service
        pace, paced = Pace(), False
        unknown = 0
        while True:
            try:
                message = await context.read()
            except DecodeError:
                return NO_MESSAGE
            if message is grpc.aio.EOF:
                return "stream ended"
            if problem := wire.implausible(message):
                log.warning("node %s: %s; its stream ends", node_id, problem)
                return problem
            session.last_heard = service.clock()
            if wait := pace.wait(session.last_heard):
                if not paced:
                    log.warning(
                        "node %s: %d messages at once, expected some ten a second: it is read at %d a second; look at "
                        "its log", node_id, MESSAGES_AT_ONCE, MESSAGES_PER_SECOND,
                    )  # fmt: skip
                paced = True
                await asyncio.sleep(wait)
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
                self._logs.take(node_id, message.log_chunk)
            elif kind == "probe_report":
                service.prober.take(node_id, message.probe_report)
            else:
                event = wire.event(message, session.session_id, node_id, session.last_heard, service.nonce())
                if event is None:
                    unknown += 1
                    if unknown in FIRST_UNKNOWN:
                        what = kind or "an unknown message"
                        log.warning("node %s sent %s, which is not understood here (%d)", node_id, what, unknown)
                else:
                    service.feed(event)

    def _is_revoked(self, fingerprint: str) -> str:
        """Why a peer with this certificate may not be here; empty if it may."""
        if self._revoked is None or not fingerprint or not self._revoked.holds(fingerprint):
            return ""
        return (
            f"its certificate {fingerprint[:16]}... is revoked in {self._revoked.path}; "
            "motorctl certs node DIR NODE_ID --force makes another one"
        )

    def _watch(self, session: NodeSession, due: float = math.inf) -> None:
        """Heartbeats only move `last_heard`; this wakes once per timeout, not once per beat. It looks at what has been
        revoked, too. When it wakes late, this process was held up, and what nodes have said meanwhile is not read yet:
        they get another interval."""
        if problem := self._is_revoked(session.fingerprint):
            session.is_over(problem)
            return
        timers = self._service.deployment.plan.timers
        now = self._service.clock()
        silent = now - session.last_heard
        wait = timers.node_timeout - silent
        if now - due > HELD_UP_SECONDS:
            wait = timers.heartbeat_interval
        elif wait <= 0:
            session.is_over(f"no heartbeat for {silent:.1f} s")
            return
        session.watch = asyncio.get_running_loop().call_later(wait, self._watch, session, now + wait)
