"""Thousands of nodes in one process: node managers as the controller sees them, without engines or files."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from motor_rpc import control_pb2 as pb
from motor_rpc.deadline import within

from bench.http2 import Connection, Stream
from nodemanager.link import BACKOFF_SECONDS, MISSED_ACKS, REGISTER_SECONDS

DEVICES = [str(index) for index in range(8)]
ENGINES = [pb.EngineOffer(name="vllm", version="0.32.0", profile="vllm@0.32.0")]


@dataclass
class Seen:
    """What the fleet has seen since `Fleet.reset`. Times are of time.perf_counter()."""

    registered: int = 0
    registered_at: float = 0.0
    prepared: int = 0
    started: int = 0
    started_at: float = 0.0
    ready: int = 0
    stopped: int = 0
    stopped_at: float = 0.0
    acks: int = 0
    lost: int = 0  # streams that had been registered and ended without the fleet's doing
    refused: int = 0
    failed_dials: int = 0
    ends: dict[str, int] = field(default_factory=dict)  # why streams ended
    delays: list[float] = field(default_factory=list)  # heartbeat to acknowledgement, seconds


class Fleet:
    """`count` nodes on `shared` connections, or on one each (shared=0, as real managers)."""

    def __init__(self, host: str, port: int, count: int, shared: int = 4, first: int = 0) -> None:
        self.target = (host, port)
        self.shared = shared
        self.seen = Seen()
        self.nodes = [LoadNode(self, first + number) for number in range(count)]
        self.beating = True
        self.reconnecting = False  # nodes whose stream ended dial again, as a manager does
        self.measuring = False
        self.connections: list[Connection] = []
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def reset(self) -> None:
        self.seen = Seen()

    async def connect(self) -> None:
        """Open the shared connections."""
        self.connections = [await self._dial() for _ in range(self.shared)]

    async def dial(self, number: int) -> Connection:
        """A connection for the node with this number. OSError."""
        if not self.shared:
            return await self._dial()
        index = number % self.shared
        if not self.connections[index].open:
            self.connections[index] = await self._dial()
        return self.connections[index]

    async def _dial(self) -> Connection:
        authority = f"{self.target[0]}:{self.target[1]}"
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(authority), *self.target)
        return connection

    async def until(self, done: Callable[[Seen], bool], what: str, seconds: float = 120.0) -> Seen:
        """Wait for something to be seen; AssertionError after `seconds` without it."""
        end = time.perf_counter() + seconds
        while not done(self.seen):
            left = end - time.perf_counter()
            assert left > 0, f"waited {seconds:g} s for {what}; seen: {self._summary()}"
            self._changed.clear()
            try:
                await within(min(left, 1.0), self._changed.wait())
            except asyncio.TimeoutError:
                pass
        return self.seen

    def _summary(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.seen).items() if name != "delays"}

    def changed(self) -> None:
        self._changed.set()

    def keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End everything, without a word of it from the nodes."""
        self.reconnecting = False
        for node in self.nodes:
            node.leave()
        for connection in {*self.connections, *(node.connection for node in self.nodes if node.connection)}:
            connection.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class LoadNode:
    """One node. A prepare is answered at once; a started engine comes up when the fleet's owner says so."""

    __slots__ = (
        "address", "attempt", "beat_timer", "connection", "fleet", "heard_at", "held", "interval", "node_id", "number",
        "seen_slot", "sent_at", "sequence", "stream",
    )  # fmt: skip

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.number = number
        self.node_id = f"n{number}"
        # 198.18.0.0/15 is set aside for benchmarks; nothing is sent there
        self.address = f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        self.connection: Connection | None = None
        self.stream: Stream | None = None
        self.held: pb.SlotReport | None = None
        self.seen_slot: pb.SlotSeen | None = None
        self.interval = 0.0
        self.sequence = 0
        self.sent_at = self.heard_at = 0.0
        self.beat_timer: asyncio.TimerHandle | None = None
        self.attempt = 0

    def register(self, connection: Connection) -> None:
        """Open a stream and say who this is."""
        self.connection = connection
        self.interval = 0.0
        self.stream = connection.call(self)
        message = pb.RegisterMsg(
            protocol=1, node_id=self.node_id, incarnation=1, boot_id=f"boot-{self.number}", deployment_id="default",
            hostname=self.node_id, motor_version="bench", address=self.address, device_kind="nvidia", devices=DEVICES,
            engines=ENGINES, holdings=[self.held] if self.held else [], seen=[self.seen_slot] if self.seen_slot else [],
        )  # fmt: skip
        self._send(register=message)

    async def come_back(self) -> None:
        """Dial until registered, with the node manager's waits."""
        loop = asyncio.get_running_loop()
        while self.fleet.reconnecting:
            limit = min(BACKOFF_SECONDS[1], BACKOFF_SECONDS[0] * 2 ** min(self.attempt, 10))
            self.attempt += 1
            await asyncio.sleep(random.uniform(0, limit))
            try:
                self.register(await self.fleet.dial(self.number))
            except OSError:
                self.fleet.seen.failed_dials += 1
                continue
            self.beat_timer = loop.call_later(REGISTER_SECONDS, self._no_answer)
            return

    def _no_answer(self) -> None:
        self.leave()
        self.ended(f"no answer to the registration within {REGISTER_SECONDS:g} s")

    def leave(self) -> None:
        """End the stream."""
        self._stop_beating()
        if self.stream is not None:
            self.stream.cancel()
            self.stream = None
        if not self.fleet.shared and self.connection is not None:
            self.connection.close()
            self.connection = None

    def beat(self) -> None:
        """One heartbeat, and the next one in its time. Drops the stream after three missing acknowledgements."""
        now = time.perf_counter()
        if now - self.heard_at > (MISSED_ACKS + 0.5) * self.interval:
            self.leave()
            self.ended(f"no acknowledgement for {now - self.heard_at:.1f} s")
            return
        self.send_beat(now)
        self.beat_timer = asyncio.get_running_loop().call_later(self.interval * random.uniform(0.9, 1.0), self.beat)

    def send_beat(self, now: float) -> None:
        self.sequence += 1
        self.sent_at = now
        self._send(heartbeat=pb.HeartbeatMsg(sequence=self.sequence))

    def up(self) -> None:
        """The engine has come up: a master is ready, a follower has its workers."""
        assert self.held is not None
        master = bool(self.held.api_port)
        self.held.state = pb.ENGINE_STATE_READY if master else pb.ENGINE_STATE_LOADING
        self.held.workers_up = True
        if master:
            self._ready()
        self._send(slot_report=self.held)

    def fail(self) -> None:
        """The engine dies."""
        assert self.held is not None
        self.held.state = pb.ENGINE_STATE_FAILED
        self.held.reason = "the engine exited"
        self._send(slot_report=self.held)

    # -- what arrives ------------------------------------------------------------------------------------------------

    def ended(self, why: str) -> None:
        self._stop_beating()
        self.stream = None
        self.fleet.seen.ends[why] = self.fleet.seen.ends.get(why, 0) + 1
        if self.interval:
            self.fleet.seen.lost += 1
        if self.fleet.reconnecting:
            self.fleet.keep(asyncio.get_running_loop().create_task(self.come_back()))
        self.fleet.changed()

    def take(self, payload: bytes) -> None:
        message = pb.ControllerMessage.FromString(payload)
        kind = message.WhichOneof("body")
        seen = self.fleet.seen
        now = self.heard_at = time.perf_counter()
        if kind == "heartbeat_ack":
            seen.acks += 1
            if self.fleet.measuring:
                seen.delays.append(now - self.sent_at)
            self.fleet.changed()
            return
        if kind == "registered":
            self._registered(message.registered, now)
        elif kind == "refused":
            seen.refused += 1
            self.interval = 0.0
        elif kind == "prepare":
            seen.prepared += 1
            p = message.prepare
            self.seen_slot = pb.SlotSeen(slot=p.slot, generation=p.generation, epoch=message.epoch)
            self._send(prepare_report=pb.PrepareReport(slot=p.slot, generation=p.generation, ok=True, model_digest="m"))
        elif kind == "start":
            seen.started += 1
            seen.started_at = now
            self._start(message)
        elif kind == "group_ready" and self.held is not None and message.group_ready.ready:
            if self.held.state == pb.ENGINE_STATE_LOADING:
                self.held.state = pb.ENGINE_STATE_READY
                self._ready()
                self._send(slot_report=self.held)
        elif kind == "stop":
            seen.stopped += 1
            seen.stopped_at = now
            self._stop(message.stop)
        elif kind == "forget":
            self.held = None
        self.fleet.changed()

    def _registered(self, registered: pb.Registered, now: float) -> None:
        self.attempt = 0
        self.interval = registered.heartbeat_interval_seconds
        self.fleet.seen.registered += 1
        self.fleet.seen.registered_at = now
        self._stop_beating()
        if self.fleet.beating:
            later = self.interval * random.random()
            self.beat_timer = asyncio.get_running_loop().call_later(later, self.beat)

    def _start(self, message: pb.ControllerMessage) -> None:
        start = message.start
        self.held = pb.SlotReport(
            slot=start.slot, generation=start.generation, epoch=message.epoch, run_id=start.run_id,
            config_digest=start.config_digest, state=pb.ENGINE_STATE_STARTING, devices=start.devices,
            address=start.address, master_addr=start.master_dp_ip, master_port=start.master_port,
            api_port=start.api_port, workers_expected=start.expected_workers,
        )  # fmt: skip

    def _stop(self, stop: pb.StopCmdMsg) -> None:
        report = self.held or pb.SlotReport(slot=stop.slot, generation=stop.generation)
        report.state = pb.ENGINE_STATE_STOPPED
        self._send(slot_report=report)

    def _ready(self) -> None:
        self.fleet.seen.ready += 1
        self.fleet.changed()

    def _stop_beating(self) -> None:
        if self.beat_timer is not None:
            self.beat_timer.cancel()
            self.beat_timer = None

    def _send(self, **body: Any) -> None:
        if self.stream is not None:
            self.stream.send(pb.NodeMessage(**body).SerializeToString())
