"""The controller's end of the wire, as far as a node's tests need one: a real gRPC server, driven by the
test.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from motor_rpc import control_pb2 as pb
from motor_rpc import control_pb2_grpc

from engine_launch.command import command_digest
from engine_launch.model import NodeLocal

NODE_ENV = {"VLLM_HOST_IP": "address", "GLOO_SOCKET_IFNAME": "interface", "CUDA_VISIBLE_DEVICES": "devices"}


class Session:
    """One node's stream. `messages` holds everything that came up but heartbeats."""

    def __init__(self, register: pb.RegisterMsg) -> None:
        self.register = register
        self.messages: list[pb.NodeMessage] = []
        self.times: list[float] = []
        self.down: asyncio.Queue[pb.ControllerMessage | None] = asyncio.Queue()
        self.arrived = asyncio.Condition()
        self.beats = 0
        self.over = asyncio.Event()

    async def until(self, wanted: Callable[[pb.NodeMessage], Any], seconds: float = 8.0) -> pb.NodeMessage:
        """The first message, past or to come, that fits."""
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            async with self.arrived:
                for message in self.messages[seen:]:
                    if wanted(message):
                        return message
                seen = len(self.messages)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"did not come; came instead:\n{self.messages}")
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.arrived.wait(), left)

    async def state(self, state: str, seconds: float = 8.0, rank: int | None = None) -> pb.SlotReport:
        """The first report of this state, of any slot or of one node rank."""
        number = pb.EngineState.Value(f"ENGINE_STATE_{state.upper()}")
        message = await self.until(
            lambda m: (
                m.WhichOneof("body") == "slot_report"
                and m.slot_report.state == number
                and (rank is None or m.slot_report.slot.node_rank == rank)
            ),
            seconds,
        )
        return message.slot_report

    async def prepared(self, seconds: float = 15.0) -> pb.PrepareReport:
        return (await self.until(lambda m: m.HasField("prepare_report"), seconds)).prepare_report

    async def refused(self, seconds: float = 8.0) -> pb.CommandRefused:
        return (await self.until(lambda m: m.HasField("command_refused"), seconds)).command_refused

    def forget_messages(self) -> None:
        self.messages.clear()


class Controller:
    """Accepts sessions; `answer` decides the first message each gets."""

    def __init__(self, deployment_id: str = "default", epoch: int = 1, interval: float = 0.5) -> None:
        self.deployment_id = deployment_id
        self.epoch = epoch
        self.interval = interval
        self.sessions: list[Session] = []
        self.new_session = asyncio.Condition()
        self.acknowledge = True
        self.refusal: pb.Refused | None = None
        self.refused: list[pb.RegisterMsg] = []
        self.port = 0

    async def Session(self, requests: AsyncIterator[pb.NodeMessage], context: Any) -> AsyncIterator[Any]:
        first = await anext(requests)
        if self.refusal is not None:
            self.refused.append(first.register)
            yield self.message(refused=self.refusal)
            return
        session = Session(first.register)
        reader = asyncio.create_task(self._read(requests, session))
        async with self.new_session:
            self.sessions.append(session)
            self.new_session.notify_all()
        yield self.message(registered=pb.Registered(heartbeat_interval_seconds=self.interval, node_timeout_seconds=7.0))
        try:
            while (message := await session.down.get()) is not None:
                yield message
        finally:
            session.over.set()
            reader.cancel()

    async def _read(self, requests: AsyncIterator[pb.NodeMessage], session: Session) -> None:
        async for message in requests:
            if message.HasField("heartbeat"):
                session.beats += 1
                if self.acknowledge:
                    ack = pb.HeartbeatAck(sequence=message.heartbeat.sequence)
                    session.down.put_nowait(self.message(heartbeat_ack=ack))
                continue
            async with session.arrived:
                session.messages.append(message)
                session.times.append(time.monotonic())
                session.arrived.notify_all()
        session.down.put_nowait(None)

    async def session(self, number: int = 0, seconds: float = 10.0) -> Session:
        """The `number`th session that was ever opened, waited for."""
        async with self.new_session:
            await asyncio.wait_for(self.new_session.wait_for(lambda: len(self.sessions) > number), seconds)
        return self.sessions[number]

    def message(self, **body: Any) -> pb.ControllerMessage:
        return pb.ControllerMessage(epoch=self.epoch, deployment_id=self.deployment_id, **body)

    def send(self, session: Session, **body: Any) -> None:
        session.down.put_nowait(self.message(**body))


@contextlib.asynccontextmanager
async def serve(controller: Controller, port: int = 0) -> AsyncIterator[Controller]:
    """Run it on loopback; no stream outlives the block."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    control_pb2_grpc.add_ControlServicer_to_server(controller, server)
    controller.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield controller
    finally:
        for session in controller.sessions:
            session.down.put_nowait(None)
        await server.stop(0.1)


def slot(rank: int = 0, instance: str = "prefill-0", dp_rank: int = 0) -> pb.Slot:
    return pb.Slot(instance=instance, dp_rank=dp_rank, node_rank=rank)


def prepare(where: pb.Slot, model: str, master_port: int, nnodes: int = 1, **fields: Any) -> pb.PrepareMsg:
    """A PrepareMsg as the controller makes it; `fields` replace what is given here."""
    values: dict[str, Any] = {
        "slot": where,
        "generation": 1,
        "run_id": "run-1",
        "config_digest": "digest",
        "engine": "vllm",
        "engine_version": "0.32.0",
        "model": model,
        "address": "127.0.0.1",
        "is_master": where.node_rank == 0,
        "master_addr": "127.0.0.1",
        "master_port": master_port if nnodes > 1 else 0,
        "deadline_seconds": 5.0,
        "reservation_seconds": 60.0,
    }
    return pb.PrepareMsg(**{**values, **fields})


def health(headless: bool = False, **fields: Any) -> pb.HealthSettings:
    """As the controller makes them, but in a hurry; `fields` replace what is given here."""
    values: dict[str, Any] = {
        "canary": not headless,
        "canary_interval_seconds": 0.6,
        "canary_deadline_seconds": 1.0,
        "warm_up_deadline_seconds": 10.0,
        "canary_prompt_tokens": 4,
        "served_model": "tiny",
        "usage_threshold_percent": 3.0,
        "sample_interval_seconds": 0.3,
        "collector_timeout_seconds": 5.0,
    }
    return pb.HealthSettings(**{**values, **fields})


def start(
    where: pb.Slot, model: str, master_port: int, api_port: int, nnodes: int = 1, **fields: Any
) -> pb.StartCmdMsg:
    """A StartCmdMsg for one worker per node; `fields` replace what is given here, the digest follows."""
    headless = where.node_rank > 0
    argv = ["vllm", "serve", model, "--tensor-parallel-size", str(nnodes)]
    if nnodes > 1:
        argv += ["--nnodes", str(nnodes), "--node-rank", str(where.node_rank)]
        argv += ["--master-addr", "127.0.0.1", "--master-port", str(master_port)]
    argv += ["--headless"] if headless else ["--host", "127.0.0.1", "--port", str(api_port)]
    values: dict[str, Any] = {
        "slot": where,
        "generation": 1,
        "run_id": "run-1",
        "config_digest": "digest",
        "node_rank": where.node_rank,
        "master_dp_ip": "127.0.0.1",
        "master_port": master_port,
        "headless": headless,
        "role": "prefill",
        "engine": "vllm",
        "engine_profile": "vllm@0.32",
        "argv": argv,
        "env": {"VLLM_NO_USAGE_STATS": "1"},
        "node_env": NODE_ENV,
        "api_port": 0 if headless else api_port,
        "api_host": "" if headless else "127.0.0.1",
        "health_path": "" if headless else "/health",
        "expected_workers": 1,
        "stop_grace_seconds": 3.0,
        "health": health(headless),
    }
    message = pb.StartCmdMsg(**{**values, **fields})
    if "argv_digest" not in fields:
        kinds = {name: NodeLocal(kind) for name, kind in message.node_env.items() if kind in list(NodeLocal)}
        message.argv_digest = command_digest(tuple(message.argv), dict(message.env), kinds)
    return message
