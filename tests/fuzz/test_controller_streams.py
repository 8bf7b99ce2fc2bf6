"""A controller that says anything, to a real node manager: it goes on, and obeys the next one that makes sense."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import psutil
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from motor_rpc import control_pb2 as pb
from motor_rpc import control_pb2_grpc

from tests.fuzz.messages import message_of
from tests.fuzz.profile import examples, tried
from tests.nodemanager import wire
from tests.nodemanager.conftest import place  # noqa: F401  a fixture of theirs
from tests.nodemanager.places import Node, free_port

KNOWN = (
    "n0",
    "default",
    "prefill-0",
    "prefill-1",
    "prefill",
    "tiny",
    "vllm",
    "vllm@0.32",
    "127.0.0.1",
    "0",
    "1",
    "address",
)
SESSION = "/motor.rpc.v1.Control/Session"

commands = message_of(pb.ControllerMessage, KNOWN)

# gRPC logs bytes that are no message by itself.
_GRPCS_OWN = re.compile(
    r".*Exception deserializing message!\nTraceback .*\n(?:  .*\n)*google.protobuf.*DecodeError.*\n"
)


def batch(number: int, drawn: int) -> list[pb.ControllerMessage]:
    """Commands of any content, by the seed `drawn`; half of them of the right deployment and a believable epoch."""
    made: list[pb.ControllerMessage] = []
    print(f"seed {drawn}")  # shown with a failure

    @given(
        st.lists(commands, min_size=number, max_size=number), st.lists(st.booleans(), min_size=number, max_size=number)
    )
    @seed(drawn)
    @settings(tried(1, seconds=60), max_examples=4)  # the first one is always the simplest; the last one is kept
    def draw(messages: list[pb.ControllerMessage], plausible: list[bool]) -> None:
        made[:] = messages
        for message, so in zip(messages, plausible, strict=True):
            if message.HasField("refused"):
                message.refused.retry = True  # else the node stays away for a minute, as it should
                message.refused.leader = ""
            if so:
                message.deployment_id, message.epoch = "default", 1

    draw()
    return made


class Raw(grpc.GenericRpcHandler):
    """Answers the first stream with `content`, bytes that need not be messages; later ones are refused."""

    def __init__(self, content: list[bytes]) -> None:
        self.content = content
        self.over = asyncio.Event()

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.session)

    async def session(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            await anext(requests)
            for one in self.content:
                yield one
        finally:  # also when the node has heard enough
            self.over.set()


async def say(port: int, content: list[bytes]) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    raw = Raw(content)
    server.add_generic_rpc_handlers((raw,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        await asyncio.wait_for(raw.over.wait(), 30)
        await asyncio.sleep(0.1)
    finally:
        await server.stop(0)


async def start_one(controller: wire.Controller, number: int) -> None:
    """The honest controller's whole life of an engine, in a slot of its own."""
    session = await controller.session(len(controller.sessions), 30)
    slot = wire.slot(0, f"honest-{number}")
    controller.send(session, start=wire.start(slot, "tiny", 0, free_port(), devices=[]))
    await session.until(lambda m: m.slot_report.slot == slot and m.slot_report.state == pb.ENGINE_STATE_READY, 30)
    controller.send(session, stop=pb.StopCmdMsg(slot=slot, generation=1, mode="failure", grace_seconds=1))
    await session.until(lambda m: m.slot_report.slot == slot and m.slot_report.state == pb.ENGINE_STATE_STOPPED, 30)


async def test_a_node_outlives_what_controllers_say(place: Path) -> None:  # noqa: F811
    """Bytes, messages of any content and thousands of them; after each an honest controller starts an engine."""
    assert control_pb2_grpc.ControlStub is not None
    port = free_port()
    # The same one many times over: the wait between two dials grows with each round of the list.
    node = Node(place / "n0", port, settings={"controllers": [f"127.0.0.1:{port}"] * 30})
    process = psutil.Process(node.start().pid)
    registered = pb.ControllerMessage(
        epoch=1,
        deployment_id="default",
        registered=pb.Registered(heartbeat_interval_seconds=0.5, node_timeout_seconds=7),
    ).SerializeToString()
    # What asks for nothing to be done, as often as it likes.
    harmless = pb.ControllerMessage(epoch=1, deployment_id="default", log_cancel=pb.LogCancel(request_id="x"))
    rounds: list[list[bytes]] = [
        [],
        [b"\xff\xff\xff"],
        [registered, b"\x00" * 100, registered],
        [registered[:5], registered],
        [registered, b"x" * (5 << 20)],
        [registered, *[harmless.SerializeToString()] * examples(2000)],
    ]
    chance = random.Random(None if "FUZZ" in os.environ else 1)
    for _ in range(examples(3)):
        drawn = batch(40, chance.getrandbits(64))
        rounds.append([registered, *(message.SerializeToString() for message in drawn)])
    memory = 0
    for number, content in enumerate(rounds):
        await say(port, content)
        async with wire.serve(wire.Controller(), port) as controller:
            await start_one(controller, number)
        memory = memory or process.memory_info().rss
    assert node.process is not None and node.process.poll() is None
    assert (process.memory_info().rss - memory) >> 20 < 150, "megabytes more"
    text = _GRPCS_OWN.sub("", node.output())
    for word in ("Traceback", "internal error"):
        where = text.find(word)
        assert where < 0, text[max(0, where - 1500) : where + 3000]
    with contextlib.suppress(Exception):
        node.end()
