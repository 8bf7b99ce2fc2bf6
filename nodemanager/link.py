"""The session with a controller: dial, register, beat, and start again whenever it breaks.

Liveness is our own deadline: gRPC's keepalive does not notice a stopped peer. Three beats without an
answer end the session. Nothing that happens here ever stops an engine.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from motor_rpc import control_pb2 as pb
from motor_rpc import control_pb2_grpc

from nodemanager.deadline import within
from nodemanager.netif import AddressError, bracketed

log = logging.getLogger(__name__)

MISSED_ACKS = 3
REGISTER_SECONDS = 10.0  # until the controller's first answer
BACKOFF_SECONDS = (0.5, 8.0)  # first and longest limit of the random wait
REFUSED_SECONDS = 60.0  # before a refused node asks again

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # a new dial is a new connection, not a shared broken one
    ("grpc.enable_http_proxy", 0),  # http_proxy of the machine is not meant for this
]


Call: TypeAlias = Any  # grpc.aio.StreamStreamCall[pb.NodeMessage, pb.ControllerMessage]; grpc has no types


@dataclass
class LinkState:
    """What /status says about the link."""

    state: str = "connecting"  # connecting | connected | refused
    controller: str = ""
    since: float = field(default_factory=time.time)
    detail: str = ""
    last_ack: float = 0.0
    heard_at: float | None = None  # monotonic: the last word of a controller that this node is registered with


class SessionEnded(Exception):
    """The session is over; `wait` is the time to stay away if the controller said so."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class Link:
    """Keeps one session to one of the controllers.

    `register` makes the first message of a session (AddressError: there is no usable address yet);
    `handle` gets every command. Messages sent while there is no session are dropped: registration carries
    everything that matters.
    """

    def __init__(
        self,
        controllers: list[tuple[str, int]],
        register: Callable[[], Awaitable[pb.RegisterMsg]],
        handle: Callable[[pb.ControllerMessage], Awaitable[None]],
        backoff: tuple[float, float] = BACKOFF_SECONDS,
        refused_seconds: float = REFUSED_SECONDS,
    ) -> None:
        self._controllers = controllers
        self._register = register
        self._handle = handle
        self._backoff = backoff
        self._refused_seconds = refused_seconds
        self._outgoing: asyncio.Queue[pb.NodeMessage] | None = None
        self._renewal: asyncio.Future[str] | None = None  # of the present session
        self.state = LinkState()

    def send(self, message: pb.NodeMessage) -> bool:
        """Queue a message for the present session; False if there is none."""
        if self._outgoing is None:
            return False
        self._outgoing.put_nowait(message)
        return True

    def renew(self, reason: str) -> None:
        """End the present session, so that the node registers anew: what it offers has changed."""
        if self._renewal is not None and not self._renewal.done():
            self._renewal.set_result(reason)

    async def run(self) -> None:
        """Until cancelled."""
        attempt = 0
        while True:
            host, port = self._controllers[attempt % len(self._controllers)]
            connected_at = time.monotonic()
            wait = None
            try:
                await self._session(f"{bracketed(host)}:{port}")
            except SessionEnded as ended:
                self._note("refused" if ended.wait is not None else "connecting", f"{host}:{port}", str(ended))
                wait = ended.wait
            except Exception as error:
                # A defect here must not leave the node without a link, nor without a word.
                log.exception("the session with %s:%d failed", host, port)
                self._note("connecting", f"{host}:{port}", repr(error))
            if time.monotonic() - connected_at > 30.0:
                attempt = 0
            # Full jitter: thousands of nodes lose one controller at the same moment.
            limit = min(self._backoff[1], self._backoff[0] * 2 ** min(attempt // len(self._controllers), 10))
            attempt += 1
            await asyncio.sleep(random.uniform(0, limit) if wait is None else wait * random.uniform(0.8, 1.2))

    def _note(self, state: str, controller: str, detail: str) -> None:
        if (state, detail) != (self.state.state, self.state.detail):
            log.log(
                logging.INFO if state == "connected" else logging.WARNING,
                "controller %s: %s", controller, f"{state}: {detail}" if detail else state,
            )  # fmt: skip
        if state != self.state.state:
            self.state.since = time.time()
        self.state.state, self.state.controller, self.state.detail = state, controller, detail

    async def _session(self, target: str) -> None:
        """One session, always ended by SessionEnded."""
        try:
            register = await self._register()
        except AddressError as error:
            raise SessionEnded(str(error)) from error
        # From here on changes are queued: nothing may fall between the holdings just collected and the session.
        self._outgoing = asyncio.Queue()
        try:
            await self._hold_session(target, register, self._outgoing)
        finally:
            self._outgoing = None

    async def _hold_session(
        self, target: str, register: pb.RegisterMsg, outgoing: asyncio.Queue[pb.NodeMessage]
    ) -> None:
        async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
            call: Call = control_pb2_grpc.ControlStub(channel).Session()  # type: ignore[no-untyped-call]
            tasks: list[asyncio.Task[None]] = []
            try:
                registered = await self._introduce(call, register)
                self._note("connected", target, "")
                self.state.last_ack = self.state.heard_at = time.monotonic()
                tasks = [
                    asyncio.create_task(self._write(call, outgoing)),
                    asyncio.create_task(self._beat(outgoing, registered.heartbeat_interval_seconds)),
                    asyncio.create_task(self._read(call)),
                    asyncio.create_task(self._until_renewed()),
                ]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.cancelled():  # grpc's way to say that the call was cancelled; not ours to end by
                        raise SessionEnded("the call was cancelled")
                    task.result()
                raise SessionEnded("the session ended")
            except grpc.aio.AioRpcError as error:
                raise SessionEnded(f"{error.code().name}: {error.details()}") from error
            finally:
                call.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_renewed(self) -> None:
        self._renewal = asyncio.get_running_loop().create_future()
        raise SessionEnded(f"registering again: {await self._renewal}")

    async def _introduce(self, call: Call, register: pb.RegisterMsg) -> pb.Registered:
        """Register and wait for the first answer."""
        try:
            await within(REGISTER_SECONDS, call.write(pb.NodeMessage(register=register)))
            answer = await within(REGISTER_SECONDS, call.read())
        except asyncio.TimeoutError:
            raise SessionEnded(f"no answer to the registration within {REGISTER_SECONDS:g} s") from None
        except asyncio.InvalidStateError as error:
            raise SessionEnded(f"the call broke: {error}") from error
        if answer is grpc.aio.EOF:
            raise SessionEnded(f"{(await call.code()).name}: {await call.details() or 'the controller hung up'}")
        if answer.WhichOneof("body") == "refused":
            self._refused(answer.refused)
        if answer.WhichOneof("body") != "registered":
            raise SessionEnded(f"expected Registered or Refused, got {answer.WhichOneof('body') or 'nothing known'}")
        registered: pb.Registered = answer.registered
        return registered

    def _refused(self, refused: pb.Refused) -> None:
        """A refusal without `retry` is still retried, slowly: what was wrong may be put right at the
        controller.
        """
        wait = None if refused.retry or refused.code == "not_leader" else self._refused_seconds
        raise SessionEnded(f"refused ({refused.code}): {refused.reason}", wait)

    async def _write(
        self,
        call: Call,
        outgoing: asyncio.Queue[pb.NodeMessage],
    ) -> None:
        while True:
            message = await outgoing.get()
            try:
                await call.write(message)
            except asyncio.InvalidStateError as error:
                raise SessionEnded(f"the call broke: {error}") from error

    async def _beat(self, outgoing: asyncio.Queue[pb.NodeMessage], interval: float) -> None:
        sequence = 0
        while True:
            silent = time.monotonic() - self.state.last_ack
            if silent > MISSED_ACKS * interval + interval / 2:
                raise SessionEnded(f"no answer to {MISSED_ACKS} heartbeats ({silent:.1f} s)")
            sequence += 1
            outgoing.put_nowait(pb.NodeMessage(heartbeat=pb.HeartbeatMsg(sequence=sequence)))
            await asyncio.sleep(interval * random.uniform(0.9, 1.0))

    async def _read(self, call: Call) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                raise SessionEnded(f"{(await call.code()).name}: {await call.details() or 'the stream ended'}")
            self.state.heard_at = time.monotonic()
            kind = message.WhichOneof("body")
            if kind == "heartbeat_ack":
                self.state.last_ack = self.state.heard_at
            elif kind == "refused":
                self._refused(message.refused)
            elif kind == "registered":
                log.warning("a second Registered in one session: ignored")
            else:
                await self._handle(message)
