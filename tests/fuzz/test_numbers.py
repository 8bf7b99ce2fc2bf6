"""NaN and infinity, which messages can carry, are stopped at both doors: no limit of time would hold against them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from motor_rpc import control_pb2 as pb
from motor_rpc.finite import not_finite

from controller.api import wire
from tests.cluster.deployment import Deployment
from tests.fuzz.test_node_streams import honest, talk


def doubles(message: Message) -> Iterator[tuple[Message, str]]:
    """Every number of `message` that is no count; parts that are not there yet are made."""
    for field in message.DESCRIPTOR.fields:
        if field.cpp_type == Field.CPPTYPE_DOUBLE:
            yield message, field.name
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"].cpp_type
            assert kind != Field.CPPTYPE_DOUBLE, f"{field.full_name}: nobody looks into maps"
        elif field.message_type is not None:
            below = getattr(message, field.name)
            yield from doubles(below if isinstance(below, Message) else below.add())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["slot_report", "register"])
def test_a_node_is_not_believed(where: str, bad: float) -> None:
    """Each of them: wire.py adds them up by name, and a new field must be among them."""
    found = 0
    for index in range(len(list(doubles(pb.SlotReport())))):
        message = pb.NodeMessage()
        report = message.slot_report if where == "slot_report" else message.register.holdings.add()
        part, name = list(doubles(report))[index]
        assert not wire.implausible(message)
        setattr(part, name, bad)
        assert f"expected finite numbers, got {where}." in wire.implausible(message), name
        assert f"{name}: {bad}" in wire.implausible(message)
        found += 1
    assert found >= 7


@pytest.mark.parametrize("kind", [field.name for field in pb.NodeMessage.DESCRIPTOR.oneofs_by_name["body"].fields])
def test_only_reports_have_them(kind: str) -> None:
    """So that a heartbeat costs nothing."""
    message = pb.NodeMessage()
    places = {type(part).__name__ for part, _ in doubles(getattr(message, kind))}
    assert places <= {"SlotReport", "Liveness"}


def test_each_of_a_command_is_found() -> None:
    message = pb.ControllerMessage()
    total = 0
    for field in pb.ControllerMessage.DESCRIPTOR.oneofs_by_name["body"].fields:
        for part, name in doubles(getattr(message, field.name)):
            setattr(part, name, math.nan)
            assert not_finite(message).endswith(f"{name}: nan")
            part.ClearField(name)  # type: ignore[arg-type]
            total += 1
    assert total > 10


def test_the_stream_of_such_a_node_is_refused(running: Deployment) -> None:
    held = pb.SlotReport(
        slot=pb.Slot(instance="prefill-0", dp_rank=0, node_rank=0), generation=1, idle_seconds=math.nan
    )
    (answer,) = talk(running, [honest(holdings=[held]).SerializeToString()])
    refused = pb.ControllerMessage.FromString(answer).refused
    assert refused.code == "protocol" and "holdings.idle_seconds: nan" in refused.reason
