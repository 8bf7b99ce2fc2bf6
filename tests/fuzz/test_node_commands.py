"""Commands of any content from a controller that the node obeys: none meets a defect, and none that wants an answer is
left without one."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from motor_rpc import control_pb2 as pb

from engine_launch.command import command_digest
from tests.fuzz.messages import message_of
from tests.fuzz.profile import tried
from tests.fuzz.test_controller_streams import KNOWN
from tests.fuzz.test_numbers import doubles
from tests.nodemanager import wire
from tests.nodemanager.conftest import place  # noqa: F401  a fixture of theirs
from tests.nodemanager.manager import direct
from tests.nodemanager.places import until

ANSWERED = ("prepare", "start", "stop", "probe_request", "log_request")
COMMANDS = [field.name for field in pb.ControllerMessage.DESCRIPTOR.oneofs_by_name["body"].fields]


class Defects(logging.Handler):
    """What is logged of exceptions that nobody has foreseen."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or "internal error" in record.getMessage():
            self.found.append(logging.Formatter().format(record))


def obeyed(kind: str, body: Any, number: int) -> pb.ControllerMessage:
    """For a slot that exists, of a generation that is new, and with a deadline that a test can wait for."""
    message = pb.ControllerMessage(epoch=1, deployment_id="default")
    command = getattr(message, kind)
    command.CopyFrom(body)
    for part, name in doubles(command):
        if not math.isfinite(getattr(part, name)):
            part.ClearField(name)
    for name in ("master_port", "api_port", "dp_rpc_port", "port"):
        if name in command.DESCRIPTOR.fields_by_name:
            setattr(command, name, getattr(command, name) % 65536)
    if "slot" in command.DESCRIPTOR.fields_by_name:
        command.slot.CopyFrom(wire.slot(number % 3))
    if "generation" in command.DESCRIPTOR.fields_by_name:
        command.generation = number
    if kind == "prepare":
        command.ports[:] = [port % 65536 for port in command.ports]
    if kind in ("prepare", "probe_request"):
        command.deadline_seconds = min(max(command.deadline_seconds, 0.1), 0.2)
    if kind == "start":
        command.node_env.clear()
        command.argv_digest = command_digest(tuple(command.argv), dict(command.env), {})
        command.stop_grace_seconds = 1.0
    return message


@pytest.mark.parametrize("kind", sorted(set(COMMANDS) - {"registered", "refused", "heartbeat_ack"}))
async def test_each_command(place: Path, kind: str) -> None:  # noqa: F811
    bodies = message_of(type(getattr(pb.ControllerMessage(), kind)), KNOWN)
    defects, numbers = Defects(), itertools.count(1)
    drawn: list[pb.ControllerMessage] = []

    @given(st.lists(st.tuples(bodies, st.booleans()), min_size=8, max_size=8))
    @tried(10, seconds=60.0)
    def draw(content: list[tuple[Any, bool]]) -> None:
        for body, believable in content:
            as_it_is = pb.ControllerMessage(epoch=1, deployment_id="default", **{kind: body})
            drawn.append(obeyed(kind, body, next(numbers)) if believable else as_it_is)

    draw()
    logging.getLogger().addHandler(defects)
    try:
        async with direct(place, devices={"kind": "cpu", "count": 2}) as one:
            for message in drawn:
                one.sent.clear()
                await one.manager.handle(message)
                if one.manager._tasks:
                    await asyncio.wait(one.manager._tasks, timeout=10.0)
                if kind in ANSWERED:
                    await until(lambda: one.sent, 10.0, f"an answer to {message}")
                assert not defects.found, f"{message}\n{defects.found[0]}"
    finally:
        logging.getLogger().removeHandler(defects)
