"""Logs over the session: the last lines, following, cancelling, and what is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from motor_rpc import control_pb2 as pb

from nodemanager.slots import SlotKey
from tests.nodemanager import wire
from tests.nodemanager.manager import Direct, direct
from tests.nodemanager.places import until

KEY = SlotKey("prefill-0", 0, 0)


def text(one: Direct, request_id: str = "r") -> str:
    chunks = [m.log_chunk for m in one.sent if m.log_chunk.request_id == request_id]
    return b"".join(chunk.data for chunk in chunks).decode()


def ended(one: Direct) -> Any:
    return next((m.log_chunk for m in one.sent if m.log_chunk.end), None)


async def test_tail_and_end(place: Path) -> None:
    async with direct(place) as one:
        one.records.note(KEY, 1, 3)
        log = one.manager.config.log_dir / "prefill-0_0_0.3.log"
        log.write_text("".join(f"{number}\n" for number in range(1000)))
        await one.command(log_request=pb.LogRequest(request_id="r", slot=wire.slot(), tail_lines=2))
        await until(lambda: ended(one))
        assert text(one) == "998\n999\n" and ended(one).error == ""


async def test_follow_until_cancelled(place: Path) -> None:
    async with direct(place) as one:
        log = one.manager.config.log_dir / "nodemanager.log"
        log.write_text("old\n")
        await one.command(log_request=pb.LogRequest(request_id="r", tail_lines=5, follow=True))
        await until(lambda: text(one) == "old\n")
        await asyncio.sleep(0.1)
        with log.open("a") as file:
            file.write("new\n")
        await until(lambda: text(one) == "old\nnew\n")
        await one.command(log_cancel=pb.LogCancel(request_id="r"))
        with log.open("a") as file:
            file.write("later\n")
        await asyncio.sleep(0.3)
        assert text(one) == "old\nnew\n" and ended(one) is None


async def test_no_log(place: Path) -> None:
    async with direct(place) as one:
        await one.command(log_request=pb.LogRequest(request_id="r", slot=wire.slot(), generation=7))
        await until(lambda: ended(one))
        assert "prefill-0/0/0 generation 7" in ended(one).error


async def test_long_logs_come_in_chunks(place: Path) -> None:
    async with direct(place) as one:
        log = one.manager.config.log_dir / "nodemanager.log"
        log.write_text(("x" * 999 + "\n") * 200)
        await one.command(log_request=pb.LogRequest(request_id="r", tail_lines=200))
        await until(lambda: ended(one))
        assert len(text(one)) == 200_000 and max(len(m.log_chunk.data) for m in one.sent) <= 65536
