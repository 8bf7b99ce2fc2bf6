"""The session with a controller: dial, register, beat, and start again whenever it breaks.

Liveness is our own deadline: gRPC's keepalive does not notice a stopped peer. Three beats without an
answer end the session. Nothing that happens here ever stops an engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from motor_rpc import control_pb2 as pb
from motor_rpc import control_pb2_grpc
from motor_rpc.deadline import within
from motor_rpc.tls import TlsError

from nodemanager.config import parse_endpoint
from nodemanager.dial import Dialer
from nodemanager.netif import AddressError, bracketed
from nodemanager.route import End, Endpoint, Route

log = logging.getLogger(__name__)

MISSED_ACKS = 3
NO_MESSAGE = "expected a ControllerMessage, got bytes that are none"  # grpc hands over None for them
REGISTER_SECONDS = 10.0  # until the controller's first answer
BACKOFF_SECONDS = (0.5, 8.0)  # first and longest limit of the random wait
SETTLED_SECONDS = 5.0  # a session of this length was one: the waits before the next begin anew
REFUSED_SECONDS = 60.0  # before a refused node asks again

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
    """The session is over; `wait` is the time to stay away if the controller said so, `leader` whom it named."""

    def __init__(
        self, reason: str, end: End | None = None, wait: float | None = None, leader: Endpoint | None = None
    ) -> None:
        super().__init__(reason)
        self.end = end  # None: as the dial's state has it, BROKE or NO_ANSWER
        self.wait = wait
        self.leader = leader


class Link:
    """Keeps one session to one of the controllers.

    `register` makes the first message of a session (AddressError: there is no usable address yet);
    `handle` gets every command. Messages sent while there is no session are dropped: registration carries
    everything that matters.
    """

    def __init__(
        self,
        controllers: list[Endpoint],
        register: Callable[[], Awaitable[pb.RegisterMsg]],
        handle: Callable[[pb.ControllerMessage], Awaitable[None]],
        backoff: tuple[float, float] = BACKOFF_SECONDS,
        refused_seconds: float = REFUSED_SECONDS,
        dialer: Dialer | None = None,
        may_dial: Callable[[str], bool] = lambda host: True,
    ) -> None:
        self._route = Route(controllers, may_dial)
        self._register = register
        self._handle = handle
        self._backoff = backoff
        self._refused_seconds = refused_seconds
        self._dialer = dialer or Dialer(None)
        self._registered_at: float | None = None  # monotonic, of the present session
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
        route = self._route
        while True:
            target = _text(route.target)
            self._registered_at = None
            end, wait, leader = End.REFUSED, None, None
            try:
                await self._session(target)
            except SessionEnded as ended:
                self._note("refused" if ended.wait is not None else "connecting", target, str(ended))
                wait, leader = ended.wait, ended.leader
                end = ended.end or (End.NO_ANSWER if self._registered_at is None else End.BROKE)
            except Exception as error:
                # A defect here must not leave the node without a link, nor without a word.
                log.exception("the session with %s failed", target)
                self._note("connecting", target, repr(error))
            if self._registered_at is not None and (
                # A leader that ends in order is no broken one: two hand-overs may come soon after each other.
                end is End.NOT_LEADER or time.monotonic() - self._registered_at > SETTLED_SECONDS
            ):
                route.settled()
            # Full jitter: thousands of nodes lose one controller at the same moment.
            limit = min(self._backoff[1], self._backoff[0] * 2 ** min(route.rounds, 10))
            if route.after(end, leader):
                log.info("controller %s names %s as the leader", target, _text(route.target))
                continue
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
            raise SessionEnded(str(error), End.REFUSED) from error
        if self._route.tried is not None:
            register.tried_controller = _text(self._route.tried)
        # From here on changes are queued: nothing may fall between the holdings just collected and the session.
        self._outgoing, self._renewal = asyncio.Queue(), asyncio.get_running_loop().create_future()
        try:
            await self._hold_session(target, register, self._outgoing, self._renewal)
        finally:
            self._outgoing = self._renewal = None

    async def _hold_session(
        self,
        target: str,
        register: pb.RegisterMsg,
        outgoing: asyncio.Queue[pb.NodeMessage],
        renewal: asyncio.Future[str],
    ) -> None:
        try:
            opened = await self._dialer.channel(target)
        except TlsError as error:
            raise SessionEnded(str(error), End.REFUSED) from error
        async with opened as channel:
            call: Call = control_pb2_grpc.ControlStub(channel).Session()  # type: ignore[no-untyped-call]
            tasks: list[asyncio.Task[None]] = []
            try:
                registered = await self._introduced(target, call, register)
                self._registered_at = time.monotonic()
                self._route.registered()
                self._note("connected", target, "")
                self.state.last_ack = self.state.heard_at = time.monotonic()
                tasks = [
                    asyncio.create_task(self._write(call, outgoing)),
                    asyncio.create_task(self._beat(outgoing, registered.heartbeat_interval_seconds)),
                    asyncio.create_task(self._read(call)),
                    asyncio.create_task(self._until_renewed(renewal)),
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

    async def _until_renewed(self, renewal: asyncio.Future[str]) -> None:
        raise SessionEnded(f"registering again: {await renewal}")

    async def _introduced(self, target: str, call: Call, register: pb.RegisterMsg) -> pb.Registered:
        """As `_introduce`. A dial that fails is explained: gRPC's own words for a refused certificate say nothing."""
        try:
            return await self._introduce(call, register)
        except grpc.aio.AioRpcError as error:
            said = f"{error.code().name}: {error.details()}"
        raise SessionEnded(await self._dialer.explain(target, said))

    async def _introduce(self, call: Call, register: pb.RegisterMsg) -> pb.Registered:
        """Register and wait for the first answer."""
        try:
            await within(REGISTER_SECONDS, call.write(pb.NodeMessage(register=register)))
            answer = await within(REGISTER_SECONDS, call.read())
        except asyncio.TimeoutError:
            raise SessionEnded(f"no answer to the registration within {REGISTER_SECONDS:g} s") from None
        except asyncio.InvalidStateError as error:
            raise SessionEnded(f"the call broke: {error}") from error
        if answer is None:
            raise SessionEnded(NO_MESSAGE)
        if answer is grpc.aio.EOF:
            raise SessionEnded(f"{(await call.code()).name}: {await call.details() or 'the controller hung up'}")
        if answer.WhichOneof("body") == "refused":
            self._refused(answer.refused)
        if answer.WhichOneof("body") != "registered":
            raise SessionEnded(f"expected Registered or Refused, got {answer.WhichOneof('body') or 'nothing known'}")
        registered: pb.Registered = answer.registered
        if not 0 < registered.heartbeat_interval_seconds < math.inf:
            got = registered.heartbeat_interval_seconds
            raise SessionEnded(
                f"heartbeat_interval_seconds: expected a number above 0, got {got}; is it a motor-controller?"
            )
        return registered

    def _refused(self, refused: pb.Refused) -> None:
        """A refusal without `retry` is still retried, slowly: what was wrong may be put right at the
        controller.
        """
        reason = f"refused ({refused.code}): {refused.reason}"
        if refused.code == "not_leader":
            raise SessionEnded(reason, End.NOT_LEADER, leader=_named(refused.leader))
        raise SessionEnded(reason, End.REFUSED, None if refused.retry else self._refused_seconds)

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
                raise SessionEnded(f"no answer to {MISSED_ACKS} heartbeats ({silent:.1f} s)", End.SILENT)
            sequence += 1
            outgoing.put_nowait(pb.NodeMessage(heartbeat=pb.HeartbeatMsg(sequence=sequence)))
            await asyncio.sleep(interval * random.uniform(0.9, 1.0))

    async def _read(self, call: Call) -> None:
        while True:
            message = await call.read()
            if message is None:
                raise SessionEnded(NO_MESSAGE)
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


def _text(endpoint: Endpoint) -> str:
    return f"{bracketed(endpoint[0])}:{endpoint[1]}"


def _named(leader: str) -> Endpoint | None:
    """The leader that a refusal names; None for none, or for what is no address."""
    if not leader:
        return None
    try:
        return parse_endpoint(leader)
    except ValueError as error:
        log.warning("a controller names a leader that cannot be dialled: %s", error)
        return None
