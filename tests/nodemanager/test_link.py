"""The session with a controller, over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable

import pytest
from motor_rpc import control_pb2 as pb

from nodemanager.link import Link
from nodemanager.netif import AddressError
from tests.nodemanager import wire
from tests.nodemanager.places import free_port, until

QUICK = (0.02, 0.1)


class Node:
    """What stands behind the link."""

    def __init__(self) -> None:
        self.registrations = 0
        self.commands: list[pb.ControllerMessage] = []
        self.broken: Exception | None = None

    async def register(self) -> pb.RegisterMsg:
        self.registrations += 1
        if self.broken is not None:
            raise self.broken
        return pb.RegisterMsg(protocol=1, node_id="n1", incarnation=self.registrations)

    async def handle(self, message: pb.ControllerMessage) -> None:
        self.commands.append(message)


@contextlib.asynccontextmanager
async def linked(
    node: Node,
    *ports: int,
    refused_seconds: float = 0.2,
    backoff: tuple[float, float] = QUICK,
    may_dial: Callable[[str], bool] = lambda host: True,
) -> AsyncIterator[Link]:
    controllers = [("127.0.0.1", p) for p in ports]
    link = Link(controllers, node.register, node.handle, backoff, refused_seconds, may_dial=may_dial)
    task = asyncio.create_task(link.run())
    try:
        yield link
        assert not task.done(), task
    finally:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=10.0)
        assert done, "a link that is told to end ends"


async def test_register_first_then_beats_and_commands() -> None:
    node = Node()
    async with wire.serve(wire.Controller(interval=0.05)) as controller, linked(node, controller.port) as link:
        session = await controller.session()
        assert session.register.node_id == "n1"
        controller.send(session, placement=pb.PlacementMsg(state="spare"))
        await until(lambda: node.commands and session.beats > 5)
        assert node.commands[0].placement.state == "spare" and node.commands[0].epoch == 1
        assert link.state.state == "connected"
        assert link.send(pb.NodeMessage(slot_report=pb.SlotReport(reason="hello")))
        await session.until(lambda m: m.slot_report.reason == "hello")


async def test_three_missing_answers_end_the_session() -> None:
    node = Node()
    async with wire.serve(wire.Controller(interval=0.1)) as controller, linked(node, controller.port):
        first = await controller.session()
        await until(lambda: first.beats >= 2)
        controller.acknowledge = False
        began = time.monotonic()
        await controller.session(1)
        assert 0.2 < time.monotonic() - began < 2.0
        assert first.over.is_set()


@pytest.mark.parametrize("interval", [0.0, -1.0, math.nan, math.inf])
async def test_an_interval_that_cannot_be_is_no_session(interval: float) -> None:
    """NaN would put asyncio's timers out of order, and zero would beat without a pause."""
    node = Node()
    async with wire.serve(wire.Controller(interval=interval)) as controller, linked(node, controller.port) as link:
        session = await controller.session(1)
        assert session.beats == 0
        assert f"expected a number above 0, got {interval}" in link.state.detail
        controller.interval = 0.05
        await until(lambda: link.state.state == "connected")


async def test_a_broken_stream_is_dialled_again_with_a_new_registration() -> None:
    node = Node()
    async with wire.serve(wire.Controller()) as controller, linked(node, controller.port):
        first = await controller.session()
        first.down.put_nowait(None)
        second = await controller.session(1)
        assert (first.register.incarnation, second.register.incarnation) == (1, 2)


async def test_a_node_whose_offer_changed_registers_again() -> None:
    node = Node()
    async with wire.serve(wire.Controller()) as controller, linked(node, controller.port) as link:
        first = await controller.session()
        await until(lambda: link.state.state == "connected" and first.beats)
        link.renew("vllm was 0.32.0, and is 0.33.0 now")
        second = await controller.session(1)
        assert first.over.is_set() and second.register.incarnation == 2
        await until(lambda: second.beats > 1)
        assert len(controller.sessions) == 2, "once"


async def test_the_next_controller_is_tried() -> None:
    node = Node()
    async with wire.serve(wire.Controller()) as controller, linked(node, free_port(), controller.port):
        await controller.session()


async def test_a_controller_that_comes_back() -> None:
    node = Node()
    async with wire.serve(wire.Controller()) as controller:
        port = controller.port
        async with linked(node, port) as link:
            await controller.session()
            first = controller
            async with contextlib.AsyncExitStack() as stack:
                first.sessions[0].down.put_nowait(None)
                await until(lambda: link.state.state == "connected")
                await stack.aclose()
    async with linked(node, port) as link:
        await until(lambda: "UNAVAILABLE" in link.state.detail)
        assert not link.send(pb.NodeMessage()) or link.state.state == "connecting"
        async with wire.serve(wire.Controller(epoch=2), port) as again:
            await again.session()


async def test_refused_is_said_and_retried_slowly() -> None:
    node = Node()
    controller = wire.Controller()
    controller.refusal = pb.Refused(code="deployment", reason="expected a, got b", retry=False)
    async with wire.serve(controller), linked(node, controller.port, refused_seconds=0.5) as link:
        await until(lambda: link.state.state == "refused")
        assert link.state.detail == "refused (deployment): expected a, got b"
        await asyncio.sleep(0.2)
        assert node.registrations == 1
        controller.refusal = None
        await controller.session()
        await until(lambda: link.state.state == "connected")


@pytest.mark.parametrize("code", ["not_leader", "cloned"])
async def test_refused_with_retry_is_retried_soon(code: str) -> None:
    node = Node()
    controller = wire.Controller()
    controller.refusal = pb.Refused(code=code, reason="later", retry=code == "cloned")
    async with wire.serve(controller), linked(node, controller.port, refused_seconds=60.0):
        await until(lambda: node.registrations >= 3)


def not_leader(*leader: wire.Controller | str) -> pb.Refused:
    named = "".join(one if isinstance(one, str) else f"127.0.0.1:{one.port}" for one in leader)
    return pb.Refused(code="not_leader", reason="another leads", leader=named)


async def test_the_leader_that_a_standby_names_is_dialled_at_once() -> None:
    """Its address is in no list, and no wait comes before it."""
    node = Node()
    async with wire.serve(wire.Controller()) as standby, wire.serve(wire.Controller()) as leader:
        standby.refusal = not_leader(leader)
        async with linked(node, standby.port, backoff=(30.0, 30.0)) as link:
            await leader.session(seconds=5.0)
            await until(lambda: link.state.controller == f"127.0.0.1:{leader.port}")
        assert len(standby.refused) == 1


async def test_two_standbys_that_name_each_other_are_no_loop() -> None:
    node = Node()
    async with wire.serve(wire.Controller()) as one, wire.serve(wire.Controller()) as other:
        one.refusal, other.refusal = not_leader(other), not_leader(one)
        async with linked(node, one.port, other.port, backoff=(60.0, 60.0)):
            await until(lambda: len(one.refused) + len(other.refused) >= 3)
            await asyncio.sleep(0.3)
            assert len(one.refused) + len(other.refused) == 3, "two are followed, then it waits"


async def test_a_named_leader_that_does_not_answer_is_told_to_the_standby() -> None:
    node, dead = Node(), f"127.0.0.1:{free_port()}"
    async with wire.serve(wire.Controller()) as standby:
        standby.refusal = not_leader(dead)
        async with linked(node, free_port(), standby.port):
            await until(lambda: any(told.tried_controller == dead for told in standby.refused))
            standby.refusal = None
            await standby.session()


@pytest.mark.parametrize("named", ["nonsense:port:1", "[::1", "-", "10.1.1.1:1028"])
async def test_a_leader_that_cannot_or_may_not_be_dialled_is_left_out(named: str) -> None:
    node = Node()
    async with wire.serve(wire.Controller()) as standby:
        standby.refusal = not_leader(named)
        async with linked(node, standby.port, may_dial=lambda host: host.startswith("127.")):
            await until(lambda: len(standby.refused) >= 3)


async def test_a_session_that_ends_with_another_leader_moves_over() -> None:
    node = Node()
    async with (
        wire.serve(wire.Controller()) as deposed,
        wire.serve(wire.Controller(epoch=2)) as leader,
        linked(node, deposed.port, backoff=(30.0, 30.0)),
    ):
        session = await deposed.session()
        deposed.send(session, refused=not_leader(leader))
        await leader.session(seconds=5.0)


async def test_no_address_yet_is_no_end() -> None:
    node = Node()
    node.broken = AddressError("no route")
    async with wire.serve(wire.Controller()) as controller, linked(node, controller.port) as link:
        await until(lambda: node.registrations >= 2)
        assert "no route" in link.state.detail
        node.broken = RuntimeError("a defect")
        await until(lambda: "a defect" in link.state.detail)
        node.broken = None
        await controller.session()


async def test_a_silent_peer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something accepts the connection and never speaks HTTP/2."""
    monkeypatch.setattr("nodemanager.link.REGISTER_SECONDS", 0.3)
    node = Node()
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with linked(node, port) as link:
        await until(lambda: node.registrations >= 2)
        assert link.state.state == "connecting"
    server.close()
