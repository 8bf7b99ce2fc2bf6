"""Which commands are obeyed: epochs, generations, digests, limits."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from motor_rpc import control_pb2 as pb

from nodemanager import records as records_module
from nodemanager import supervisor
from nodemanager.slots import SlotKey
from tests.nodemanager import wire
from tests.nodemanager.manager import direct
from tests.nodemanager.places import free_port, until

STOPPED = pb.ENGINE_STATE_STOPPED
KEY = SlotKey("prefill-0", 0, 0)


def start(**fields: Any) -> pb.StartCmdMsg:
    return wire.start(wire.slot(), "tiny", 0, fields.pop("api_port", 0) or free_port(), **fields)


@pytest.mark.parametrize(
    ("epoch", "generation", "code"), [(4, 9, "stale_epoch"), (5, 6, "stale_generation"), (6, 6, "stale_generation")]
)
async def test_older_than_the_newest_is_refused(place: Path, epoch: int, generation: int, code: str) -> None:
    async with direct(place) as one:
        one.records.note(KEY, 5, 7)
        for body in (
            {"start": start(generation=generation)},
            {"prepare": wire.prepare(wire.slot(), "tiny", 0, generation=generation)},
            {"stop": pb.StopCmdMsg(slot=wire.slot(), generation=generation, mode="failure")},
        ):
            await one.command(epoch=epoch, **body)
            refused = await one.answer("command_refused")
            assert refused.code == code and refused.command == next(iter(body))
            assert (refused.newest_epoch, refused.newest_generation) == (5, 7)
        assert not list(one.records.generations())


async def test_other_slots_have_their_own_newest(place: Path) -> None:
    async with direct(place) as one:
        one.records.note(KEY, 5, 7)
        await one.command(epoch=5, stop=pb.StopCmdMsg(slot=wire.slot(1), generation=1, mode="failure"))
        assert (await one.answer("slot_report")).state == pb.ENGINE_STATE_STOPPED


async def test_foreign_deployment_is_refused(place: Path) -> None:
    async with direct(place) as one:
        await one.command(deployment_id="other", start=start())
        refused = await one.answer("command_refused")
        assert refused.code == "deployment" and "'default'" in refused.reason and "'other'" in refused.reason
        assert one.records.newest(KEY).generation == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"probe_request": pb.ProbeRequest(deadline_seconds=math.nan)},
            "a finite number, got probe_request.deadline_seconds: nan",
        ),
        (
            {"stop": pb.StopCmdMsg(slot=wire.slot(), grace_seconds=math.inf)},
            "a finite number, got stop.grace_seconds: inf",
        ),
        (
            {"start": pb.StartCmdMsg(slot=wire.slot(), health=pb.HealthSettings(canary_interval_seconds=-math.inf))},
            "a finite number, got start.health.canary_interval_seconds: -inf",
        ),
        ({"prepare": pb.PrepareMsg(model="a\0b")}, "no NUL character, got prepare.model: 'a\\x00b'"),
        ({"start": pb.StartCmdMsg(argv=["vllm", "\0"])}, "no NUL character, got start.argv: '\\x00'"),
        ({"start": pb.StartCmdMsg(env={"A": "\0"})}, "no NUL character, got start.env.A: '\\x00'"),
        ({"start": pb.StartCmdMsg(api_port=65536)}, "a port up to 65535, got start.api_port: 65536"),
        ({"prepare": pb.PrepareMsg(ports=[8000, 70000])}, "a port up to 65535, got prepare.ports: 70000"),
        (
            {"probe_request": pb.ProbeRequest(prompt_tokens=2**32 - 1)},
            "at most 100000 tokens, got probe_request.prompt_tokens: 4294967295",
        ),
    ],
)
async def test_a_number_that_nobody_can_mean_is_refused(place: Path, body: dict[str, Any], words: str) -> None:
    async with direct(place) as one:
        await one.command(**body)
        refused = await one.answer("command_refused")
        assert refused.code == "limits" and refused.reason == f"expected {words}"
        assert one.records.newest(KEY).generation == 0


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"argv_digest": "0" * 64}, "argv", "argv_digest"),
        ({"env": {"LD_PRELOAD": "/x.so"}}, "limits", "LD_PRELOAD"),
        ({"env": {"PYTHONPATH": "/x"}}, "limits", "PYTHONPATH"),
        ({"engine": "atom"}, "limits", "'atom'"),
        ({"engine_profile": "vllm@0.1"}, "limits", "engine_profile"),
        ({"devices": ["7"]}, "limits", "no device 7"),
        ({"address": "203.0.113.9"}, "limits", "203.0.113.9"),
        ({"stop_grace_seconds": 0.0}, "limits", "stop_grace_seconds"),
        ({"node_env": {"X": "moon"}}, "argv", "moon"),
        ({"argv": ["vllm", "serve", "unknown/model"]}, "limits", "model_roots"),
        ({"argv": ["python", "-m", "any.server", "--model", "tiny"]}, "limits", "expected vllm serve"),
    ],
)
async def test_what_cannot_be_verified_is_not_started(
    place: Path, fields: dict[str, Any], code: str, words: str
) -> None:
    async with direct(place) as one:
        await one.command(start=start(**fields))
        refused = await one.answer("command_refused")
        assert refused.code == code and words in refused.reason
        assert not list(one.records.generations())


async def test_devices_are_leased_by_name(place: Path) -> None:
    async with direct(place) as one:
        await one.command(start=start(devices=["1"]))
        await one.state("ready")
        await one.command(start=wire.start(wire.slot(0, "prefill-1"), "tiny", 0, free_port(), devices=["1"]))
        refused = await one.answer("command_refused")
        assert "leased already: 1 (slot prefill-0/0/0)" in refused.reason
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
        await one.state("stopped")


async def test_a_newer_generation_waits_for_the_end_of_the_older(place: Path) -> None:
    async with direct(place) as one:
        await one.command(start=start())
        first = await one.state("ready")
        await one.command(start=start(generation=2))
        assert "generation 1 of this slot still runs" in (await one.answer("command_refused")).reason
        # The refused start was seen: the older generation can only be stopped now.
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=2, mode="failure", grace_seconds=1))
        await until(lambda: {m.slot_report.generation for m in one.sent if m.slot_report.state == STOPPED} == {1, 2})
        assert (await one.state("stopped")).pid == first.pid
        await one.command(forget=pb.ForgetMsg(slot=wire.slot(), generation=1))
        await asyncio.sleep(0.05)
        assert not list(one.records.generations())
        one.sent.clear()
        await one.command(start=start(generation=3))
        await one.state("starting")
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=3, mode="failure", grace_seconds=1))
        await asyncio.wait_for(one.manager.slots[KEY].finished.wait(), 5)


async def test_forget_keeps_what_runs(place: Path) -> None:
    async with direct(place) as one:
        await one.command(start=start())
        await one.state("ready")
        await one.command(forget=pb.ForgetMsg(slot=wire.slot(), generation=1))
        assert "still runs" in (await one.answer("command_refused")).reason
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="planned", grace_seconds=1))
        await one.state("stopped")


async def test_full_disk_starts_nothing_and_stops_all_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with direct(place) as one:
        await one.command(start=start())
        await one.state("ready")

        def full(path: str, value: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(records_module, "write_json", full)
        await one.command(start=wire.start(wire.slot(0, "prefill-1"), "tiny", 0, free_port()))
        refused = await one.answer("command_refused")
        assert refused.code == "limits" and "No space left" in refused.reason
        await one.command(epoch=9, stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
        assert (await one.state("stopped")).generation == 1


async def test_group_ready_goes_both_ways_and_survives_the_manager(place: Path) -> None:
    master = free_port()
    async with direct(place) as one:
        for rank in range(2):
            message = wire.start(wire.slot(rank), "tiny", master, free_port(), 2)
            await one.command(start=message)
        follower = SlotKey("prefill-0", 0, 1)

        async def become(ready: bool, state: str) -> None:
            one.sent.clear()
            await one.command(group_ready=pb.GroupReadyMsg(slot=wire.slot(1), generation=1, ready=ready))
            await one.state(state, rank=1)

        await one.state("ready")
        await become(True, "ready")
        await become(False, "loading")
        assert "the group's master is not" in one.manager.slots[follower].reason
        await become(True, "ready")
        one.manager.detach()
    async with direct(place) as two:
        await two.manager.adopt()
        held = {h.slot.node_rank: h.state for h in (await two.manager.register()).holdings}
        assert held == {0: pb.ENGINE_STATE_READY, 1: pb.ENGINE_STATE_READY}
        for rank in range(2):
            stop = pb.StopCmdMsg(slot=wire.slot(rank), generation=1, mode="failure", grace_seconds=2)
            await two.command(stop=stop)
        await asyncio.wait_for(asyncio.gather(*(s.finished.wait() for s in two.manager.slots.values())), 8)


async def test_a_frozen_shim_does_not_keep_its_engine(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LAST_RESORT_SECONDS", 0.2)
    async with direct(place) as one:
        await one.command(start=start())
        ready = await one.state("ready")
        os.kill(one.node.status()["shim_pid"], signal.SIGSTOP)
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=0.3))
        await one.state("stopped")
        assert not psutil.pid_exists(ready.pid) or psutil.Process(ready.pid).status() == psutil.STATUS_ZOMBIE


async def test_unknown_message_is_answered(place: Path) -> None:
    async with direct(place) as one:
        await one.manager.handle(pb.ControllerMessage(epoch=1, deployment_id="default"))
        assert "does not know" in (await one.answer("command_refused")).reason
        await one.command(start=pb.StartCmdMsg(slot=pb.Slot(instance="../../etc")))
        assert "slot.instance" in (await one.answer("command_refused")).reason


async def test_a_folder_without_a_start_is_no_engine(place: Path) -> None:
    """The manager was killed between mkdir and the record: nothing was started."""
    async with direct(place) as one:
        one.records.folder(KEY, 1).mkdir(parents=True)
        await one.manager.adopt()
        assert one.manager.slots == {} and not list(one.records.generations())
