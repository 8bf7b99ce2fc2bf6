"""A node that says anything, to a real controller with honest nodes: it hurts nobody but itself."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from motor_rpc import control_pb2 as pb

from controller.api import pace
from tests.cluster.deployment import Deployment
from tests.fuzz.messages import message_of
from tests.fuzz.profile import tried

SESSION = "/motor.rpc.v1.Control/Session"
KNOWN = (
    "n1",
    "n2",
    "evil",
    "default",
    "prefill-0",
    "prefill",
    "vllm",
    "vllm@0.32",
    "0.32.0",
    "127.0.0.1",
    "10.9.9.9",
    "cpu",
)
_number = itertools.count()

bodies = message_of(pb.NodeMessage, KNOWN)


def honest(name: str = "", **fields: Any) -> pb.NodeMessage:
    """A registration that is accepted: a spare without devices."""
    values: dict[str, Any] = {
        "protocol": 1, "node_id": name or f"evil-{next(_number)}", "incarnation": 1, "boot_id": "b",
        "deployment_id": "default", "address": "127.0.9.9", "device_kind": "cpu",
        "engines": [pb.EngineOffer(name="vllm", version="0.32.0")],
    }  # fmt: skip
    return pb.NodeMessage(register=pb.RegisterMsg(**{**values, **fields}))


def talk(deployment: Deployment, content: Iterable[bytes], seconds: float = 10.0, read: bool = True) -> list[bytes]:
    """Open a stream, say all of it, and end it; what came back. A stream that is cut off is no error."""
    said = threading.Event()

    def saying() -> Iterator[bytes]:
        yield from content
        said.set()

    answers = []
    with grpc.insecure_channel(
        f"127.0.0.1:{deployment.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call = channel.stream_stream(SESSION)(saying(), timeout=seconds)
        try:
            if read:
                answers = list(call)
            else:
                said.wait(seconds)
        except grpc.RpcError as error:
            assert error.code() in (
                grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED,
                grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE,
            ), error  # fmt: skip
        finally:
            call.cancel()
    return answers


@pytest.fixture
def unharmed(running: Deployment) -> Iterator[Deployment]:
    """What runs goes on in the same generation, its nodes keep their session, and the controller its memory."""

    def engines() -> dict[str, Any]:
        return {
            slot: (one["node_id"], one["pid"], one["state"], one["connected"])
            for slot, one in running.members().items()
        }

    assert running.controller is not None
    process = psutil.Process(running.controller.pid)
    before, memory = engines(), process.memory_info().rss
    assert all(state == "ready" and connected for _, _, state, connected in before.values())
    yield running
    assert engines() == before
    assert {name: running.node_states()[name] for name in ("n1", "n2")} == {"n1": "assigned", "n2": "assigned"}
    assert (process.memory_info().rss - memory) >> 20 < 150, "megabytes more"


@given(st.lists(st.binary(max_size=200), max_size=4))
@tried(15)
def test_bytes(unharmed: Deployment, content: list[bytes]) -> None:
    talk(unharmed, content)


@given(bodies, st.integers(0, 200), st.binary(max_size=10))
@tried(15)
def test_a_registration_that_is_cut_or_goes_on(
    unharmed: Deployment, body: pb.NodeMessage, cut: int, more: bytes
) -> None:
    whole = honest().SerializeToString()
    talk(unharmed, [whole[: cut % len(whole)] + more])
    talk(unharmed, [honest().SerializeToString(), body.SerializeToString()[:cut], more])


@given(message_of(pb.RegisterMsg, KNOWN))
@tried(40)
def test_any_registration(unharmed: Deployment, register: pb.RegisterMsg) -> None:
    register.protocol = 1
    talk(unharmed, [pb.NodeMessage(register=register).SerializeToString()])


@given(st.lists(bodies, min_size=1, max_size=12))
@tried(40)
def test_a_registered_node_that_says_anything(unharmed: Deployment, content: list[pb.NodeMessage]) -> None:
    answers = talk(unharmed, [honest().SerializeToString(), *(body.SerializeToString() for body in content)])
    assert not answers or pb.ControllerMessage.FromString(answers[0]).WhichOneof("body") in ("registered", "refused")


@given(st.data())
@tried(20)
def test_reports_about_the_slots_of_others(unharmed: Deployment, data: st.DataObject) -> None:
    """In every state and of the very generation that runs there."""
    run = unharmed.members()
    group = unharmed.group()
    content = [honest()]
    for _ in range(8):
        slot = pb.Slot(instance="prefill-0", dp_rank=0, node_rank=data.draw(st.integers(0, len(run))))
        report = data.draw(message_of(pb.SlotReport, KNOWN))
        report.slot.CopyFrom(slot)
        report.generation = data.draw(st.sampled_from([group["generation"], group["generation"] + 1]))
        report.run_id = data.draw(st.sampled_from([group["run_id"], "other"]))
        report.state = data.draw(st.integers(0, 6))
        refused = pb.CommandRefused(slot=slot, generation=report.generation, command="start", code="port", reason="x")
        prepared = pb.PrepareReport(slot=slot, generation=report.generation, ok=data.draw(st.booleans()))
        content += [
            pb.NodeMessage(slot_report=report),
            pb.NodeMessage(command_refused=refused),
            pb.NodeMessage(prepare_report=prepared),
        ]
    talk(unharmed, [body.SerializeToString() for body in content])


def test_thousands_of_messages_and_one_that_is_too_large(unharmed: Deployment) -> None:
    chunk = pb.NodeMessage(log_chunk=pb.LogChunk(request_id="no such request", data=b"x" * 50_000)).SerializeToString()
    unknown = pb.NodeMessage().SerializeToString()
    talk(unharmed, [honest().SerializeToString(), *[chunk] * 300, *[unknown] * 2000], 60.0)
    talk(unharmed, [honest(hostname="h" * (5 << 20)).SerializeToString()])
    talk(unharmed, [honest().SerializeToString(), b"\xff" * (5 << 20)])
    log = (unharmed.root / "controller.out").read_text()
    assert log.count("is not understood here") < 200, "a line for each would fill the disk"


def test_a_node_that_never_stops_talking_is_read_slowly(unharmed: Deployment) -> None:
    """As fast as it can for some seconds: no more is read of it than was meant, and nobody else notices."""
    beat = pb.NodeMessage(heartbeat=pb.HeartbeatMsg(sequence=1)).SerializeToString()
    began = time.monotonic()

    def beats() -> Iterator[bytes]:
        yield honest("talker").SerializeToString()
        while time.monotonic() < began + 4.0:
            yield beat

    with grpc.insecure_channel(f"127.0.0.1:{unharmed.grpc_port}") as channel:
        call = channel.stream_stream(SESSION)(beats(), timeout=60.0)
        answers = 0
        for _ in call:
            answers += 1
            if time.monotonic() > began + 4.0:
                break
        spent = time.monotonic() - began
        call.cancel()
    assert pace.MESSAGES_AT_ONCE < answers < pace.MESSAGES_AT_ONCE + pace.MESSAGES_PER_SECOND * (spent + 1.0)
    assert (unharmed.root / "controller.out").read_text().count("node talker: 2000 messages at once") == 1


def test_a_node_that_reads_nothing_loses_its_stream(unharmed: Deployment) -> None:
    beat = pb.NodeMessage(heartbeat=pb.HeartbeatMsg(sequence=2**63)).SerializeToString()
    first = honest("deaf")
    stop = threading.Event()

    def beats() -> Iterator[bytes]:
        yield first.SerializeToString()
        for _ in range(200_000):
            if stop.is_set():
                return
            yield beat

    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]  # the peer may send 64 kB ahead
    channel = grpc.insecure_channel(f"127.0.0.1:{unharmed.grpc_port}", options=options)
    call = channel.stream_stream(SESSION)(beats())
    try:
        unharmed.wait(
            lambda: any("has not read" in event["sentence"] for event in unharmed.events("node deaf")), "its end", 60.0
        )
    finally:
        stop.set()
        call.cancel()
        channel.close()
