"""An engine that no controller reaches ends in time, with a manager and without one."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from motor_rpc import control_pb2 as pb

from nodemanager.lease import FENCE_MARGIN_SECONDS, ORPHAN_GRACE, SELF_FENCE, first_grace, lease
from tests.nodemanager import wire
from tests.nodemanager.places import Node, free_port, until

FENCE = 2.0


@pytest.mark.parametrize(
    ("orphan", "fence", "heard", "grace", "why", "renew"),
    [
        (600.0, 0.0, None, 600.0, ORPHAN_GRACE, True),
        (None, 0.0, 5.0, None, ORPHAN_GRACE, True),
        (600.0, 30.0, 100.0, 30.0 + FENCE_MARGIN_SECONDS, SELF_FENCE, True),
        (600.0, 30.0, 80.0, 10.0 + FENCE_MARGIN_SECONDS, SELF_FENCE, True),
        (None, 30.0, 100.0, 30.0 + FENCE_MARGIN_SECONDS, SELF_FENCE, True),
        (5.0, 30.0, 100.0, 5.0, ORPHAN_GRACE, True),
        (600.0, 30.0, None, None, SELF_FENCE, False),
    ],
)
def test_grants(
    orphan: float | None, fence: float, heard: float | None, grace: float | None, why: str, renew: bool
) -> None:
    found = lease(orphan, fence, heard, now=100.0)
    assert (found.grace, found.why, found.renew, found.silent) == (grace, why, renew, None)
    assert 0 < found.pause <= 60


def test_the_fence_is_due() -> None:
    found = lease(600.0, 30.0, heard_at=69.0, now=100.0)
    assert found.silent == 31.0 and not found.renew


def test_the_first_grace_is_the_shorter_of_both() -> None:
    assert first_grace(600.0, 0.0) == 600.0 and first_grace(None, 0.0) is None
    assert first_grace(600.0, 30.0) == 30.0 and first_grace(None, 30.0) == 30.0 and first_grace(10.0, 30.0) == 10.0


@dataclass
class Fenced:
    controller: wire.Controller
    node: Node
    session: wire.Session
    pid: int


@pytest.fixture
async def fenced(place: Path) -> AsyncIterator[Fenced]:
    """A ready engine with a fence of FENCE seconds."""
    async with wire.serve(wire.Controller(interval=0.2)) as controller:
        node = Node(place / "n0", controller.port)
        node.start()
        session = await controller.session()
        start = wire.start(wire.slot(), "tiny", 0, free_port(), self_fence_seconds=FENCE)
        controller.send(session, start=start)
        ready = await session.state("ready")
        yield Fenced(controller, node, session, ready.pid)
        if node.process is not None:
            node.end(signal.SIGKILL)


async def test_nothing_happens_while_a_controller_is_heard(fenced: Fenced) -> None:
    await asyncio.sleep(FENCE * 2)
    assert psutil.pid_exists(fenced.pid)
    stop = pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1)
    fenced.controller.send(fenced.session, stop=stop)
    await fenced.session.state("stopped")


async def test_a_manager_that_hears_nobody_stops_its_engine(fenced: Fenced) -> None:
    fenced.controller.refusal = pb.Refused(code="not_leader", reason="the test says so", retry=True)
    fenced.controller.acknowledge = False
    began = time.monotonic()
    await until(lambda: fenced.node.status()["state"] == "reaped", 10.0)
    assert FENCE - 0.5 < time.monotonic() - began < FENCE + 3.0
    stop = fenced.node.status()["stop"]
    assert stop["by"] == "node manager" and stop["mode"] == "failure"
    assert stop["reason"].startswith("self_fence: no controller heard for 2 s")
    fenced.controller.refusal, fenced.controller.acknowledge = None, True
    session = await fenced.controller.session(1, 15.0)
    held = session.register.holdings[0]
    if held.state == pb.ENGINE_STATE_STOPPING:  # reaped, and not looked over yet
        held = await session.state("stopped")
    assert held.state == pb.ENGINE_STATE_STOPPED and "self_fence: no controller heard" in held.reason


async def test_without_a_manager_the_shim_ends_it(fenced: Fenced) -> None:
    fenced.node.end(signal.SIGKILL)
    began = time.monotonic()
    await until(lambda: fenced.node.status()["state"] == "reaped", 10.0)
    assert time.monotonic() - began < FENCE + FENCE_MARGIN_SECONDS + 2.0
    stop = fenced.node.status()["stop"]
    assert stop["by"] == "shim" and stop["mode"] == "failure" and "(self_fence)" in stop["reason"]


async def test_new_managers_that_hear_nobody_grant_nothing(fenced: Fenced) -> None:
    """However many come and go: the time runs from the last word of a controller."""
    began = time.monotonic()
    fenced.controller.refusal = pb.Refused(code="not_leader", reason="the test says so", retry=True)
    for _ in range(2):
        fenced.node.end(signal.SIGKILL)
        fenced.node.start()
        await asyncio.sleep(1.2)
    await until(lambda: fenced.node.status()["state"] == "reaped", 10.0)
    assert time.monotonic() - began < FENCE + FENCE_MARGIN_SECONDS + 2.0
    assert not _alive(fenced.pid)


async def test_an_adopting_manager_keeps_the_fence(fenced: Fenced) -> None:
    fenced.node.end(signal.SIGKILL)
    fenced.node.start()
    fenced.session = await fenced.controller.session(1)
    await asyncio.sleep(FENCE + FENCE_MARGIN_SECONDS + 1.0)
    assert _alive(fenced.pid), "it is heard, so the engine lives"
    fenced.controller.refusal = pb.Refused(code="not_leader", reason="the test says so", retry=True)
    fenced.session.down.put_nowait(None)
    await until(lambda: fenced.node.status()["state"] == "reaped", 10.0)
    assert "self_fence" in fenced.node.status()["stop"]["reason"]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.Error):
        return False
