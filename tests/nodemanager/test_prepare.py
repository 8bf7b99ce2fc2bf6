"""Prepare: each check, good and bad, and the reservation."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from motor_rpc import control_pb2 as pb

from nodemanager import model_check
from nodemanager.config import Engine
from nodemanager.engine_offer import EngineError, Versions, final_argv
from nodemanager.environment import ScriptCache
from nodemanager.slots import SlotKey
from tests.nodemanager import wire
from tests.nodemanager.manager import Direct, direct
from tests.nodemanager.places import free_port, until

OTHER = SlotKey("other", 0, 0)


async def report(one: Direct, rank: int = 0, model: str = "tiny", epoch: int = 1, **fields: Any) -> pb.PrepareReport:
    message = wire.prepare(wire.slot(rank), model, fields.pop("port", 0), fields.pop("nnodes", 1), **fields)
    await one.command(epoch=epoch, prepare=message)
    return await one.answer("prepare_report")


def item(answer: pb.PrepareReport, name: str) -> pb.PrepareItem:
    return next(entry for entry in answer.items if entry.name == name)


async def test_all_good(place: Path) -> None:
    async with direct(place) as one:
        answer = await report(one, devices=["0"], ports=[free_port()])
        assert answer.ok, answer
        assert len(answer.model_digest) == 64 and answer.engine_version == "0.32.0"
        assert item(answer, "address").detail == "127.0.0.1 on lo"


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"address": "203.0.113.1"}, "address", "not an address of this machine"),
        ({"devices": ["5"]}, "devices", "no device 5 here, the node file has: 0, 1"),
        ({"engine": "atom"}, "engine", "no engine 'atom' in the node file, it has: vllm"),
        ({"engine_version": "0.31.0"}, "engine", "expected version 0.31.0 as the rest of the group, got 0.32.0"),
        ({"model": "missing"}, "model", "allow_hub_models"),
        ({"model": "/missing/model"}, "model", "/missing/model is not below model_roots"),
    ],
)
async def test_one_bad_item(place: Path, fields: dict[str, Any], name: str, words: str) -> None:
    async with direct(place) as one:
        answer = await report(one, **fields)
        assert not answer.ok
        assert [entry.name for entry in answer.items if not entry.ok] == [name]
        assert words in item(answer, name).detail
        assert one.manager.preparer.leased(OTHER) == {}


async def test_the_environment_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = {"command": [sys.executable], "version": "0.32.0"}
    async with direct(place, engines={"vllm": engine}) as one:
        assert item(await report(one), "environment").detail == "nothing to leave out"
    monkeypatch.setenv("RANK_TABLE_FILE", "/left/over.json")
    monkeypatch.setenv("HCCL_IF_IP", "10.9.9.9")
    async with direct(place, engines={"vllm": {**engine, "env": {"RANK_ID": "0"}}}) as one:
        answer = await report(one)
        detail = item(answer, "environment").detail
        assert answer.ok and detail.startswith("WARNING: not passed on from the manager's environment: ")
        assert "HCCL_IF_IP, RANK_TABLE_FILE" in detail
        assert "passed on as the node file says: RANK_ID; Motor makes no rank table" in detail


async def test_taken_port_names_its_holder(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with direct(place) as one:
            answer = await report(one, ports=[port])
            assert f"{port} (held by " in item(answer, "ports").detail
            assert f"pid {os.getpid()}" in item(answer, "ports").detail


async def test_followers_reach_the_master(place: Path) -> None:
    port = free_port()
    async with direct(place) as one:
        # The follower begins first and keeps trying.
        await one.command(prepare=wire.prepare(wire.slot(1), "tiny", port, 2))
        await asyncio.sleep(0.4)
        await one.command(prepare=wire.prepare(wire.slot(0), "tiny", port, 2))
        answers = [await one.answer("prepare_report") for _ in range(2)]
        assert [a.ok for a in answers] == [True, True], answers
        assert answers[0].slot.node_rank == 0
        await one.command(release=pb.ReleaseMsg(slot=wire.slot(0), generation=1))
        await until(lambda: not _listens(port))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_an_unreachable_master(place: Path) -> None:
    port = free_port()
    async with direct(place) as one:
        answer = await report(one, rank=1, port=port, nnodes=2, deadline_seconds=0.5)
        assert "Connection refused, tried for 0.5 s" in item(answer, "master").detail

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400\n")
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", port)
        answer = await report(one, rank=1, port=port, nnodes=2, deadline_seconds=0.5, generation=2)
        assert "something else listens there" in item(answer, "master").detail
        server.close()


async def test_reservation_keeps_devices_and_port_until_it_ends(place: Path) -> None:
    port, api = free_port(), free_port()
    async with direct(place) as one:
        first = await report(one, port=port, nnodes=2, devices=["0"], ports=[port, api], reservation_seconds=0.6)
        assert first.ok
        message = wire.prepare(wire.slot(0, "decode-0"), "tiny", 0, devices=["0"], ports=[api])
        await one.command(prepare=message)
        answer = await one.answer("prepare_report")
        assert "leased already: 0 (slot prefill-0/0/0)" in item(answer, "devices").detail
        assert f"{api} (reserved for slot prefill-0/0/0)" in item(answer, "ports").detail
        assert _listens(port)
        await asyncio.sleep(0.7)
        message.generation = 2
        await one.command(prepare=message)
        assert (await one.answer("prepare_report")).ok
        assert not _listens(port)


async def test_a_newer_epoch_ends_reservations(place: Path) -> None:
    port = free_port()
    async with direct(place) as one:
        assert (await report(one, port=port, nnodes=2)).ok
        await one.command(epoch=2, release=pb.ReleaseMsg(slot=wire.slot(0, "decode-0"), generation=1))
        assert not _listens(port)


async def test_stop_cancels_a_prepare(place: Path) -> None:
    async with direct(place) as one:
        message = wire.prepare(wire.slot(1), "tiny", free_port(), 2, deadline_seconds=60.0, devices=["0"])
        await one.command(prepare=message)
        await asyncio.sleep(0.3)
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(1), generation=1, mode="failure"))
        assert (await one.answer("slot_report")).state == pb.ENGINE_STATE_STOPPED
        assert one.manager.preparer.leased(OTHER) == {}


async def test_a_stop_of_an_older_generation_leaves_a_prepare_alone(place: Path) -> None:
    async with direct(place) as one:
        await one.command(start=wire.start(wire.slot(), "tiny", 0, free_port(), generation=1))
        await one.state("ready")
        await one.command(prepare=wire.prepare(wire.slot(), "tiny", free_port(), generation=2, devices=[]))
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
        answer = await one.answer("prepare_report")
        assert answer.generation == 2
        await one.state("stopped")


async def test_left_overs_are_found_by_their_marks(place: Path) -> None:
    async with direct(place) as one:
        marks = {**one.manager.owner.marks(), "MOTOR_SLOT": "prefill-0/0/0", "MOTOR_GENERATION": "1"}

        async def sleeper(**env: str) -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec("/bin/sleep", "600", env={**marks, **env}, cwd=place)

        ours, other_slot = await sleeper(), await sleeper(MOTOR_SLOT="prefill-0/0/1")
        other_manager = await sleeper(MOTOR_STATE_DIR="/elsewhere")
        answer = await report(one)
        assert answer.ok and item(answer, "left_overs").detail == "ended 1 process(es) of an earlier start"
        assert await asyncio.wait_for(ours.wait(), 5) == -9
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(1), generation=1, mode="failure"))
        await one.state("stopped")
        assert await asyncio.wait_for(other_slot.wait(), 5) == -9
        assert other_manager.returncode is None
        other_manager.kill()
        await other_manager.wait()


async def test_model_digest_is_of_its_content(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors.index.json").write_text("{}" if name != "c" else '{"x": 1}')
        (folder / f"weights-{name}.bin").write_text(name)
    digests = [(await model_check.check_model(n, [tmp_path / "no", tmp_path], False)).digest for n in "abc"]
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "empty").mkdir()
    found = await model_check.check_model("empty", [tmp_path], False)
    assert not found.ok and "holds no config.json" in found.detail
    hub = await model_check.check_model("org/model", [tmp_path], True)
    assert hub.ok and hub.digest == "" and "hub" in hub.detail


async def test_a_hung_mount_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_check, "_LOOK", "import time; time.sleep(600)")
    found = await model_check.check_model("/mnt/model", [], False, seconds=0.3)
    assert not found.ok and "hung mount" in found.detail


async def test_versions_are_read_without_importing(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    info = packages / "vllm-0.32.0+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    (packages / "vllm.py").write_text("raise SystemExit('imported')")
    engine = Engine(python=sys.executable, env={"PYTHONPATH": str(packages)})
    versions = Versions(ScriptCache())
    assert (await versions.of("vllm", engine)).version == "0.32.0+cpu"
    info.rename(packages / "vllm-0.33.0.dist-info")
    (packages / "vllm-0.33.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    os.utime(packages, (1, 1))
    assert (await versions.of("vllm", engine)).version == "0.33.0"
    missing = await versions.of("atom", Engine(python=sys.executable))
    assert missing.version == "" and "no package atom" in missing.error
    broken = await versions.of("x", Engine(python="/nowhere/python"))
    assert "/nowhere/python is not there" in broken.error
    assert "set `version`" in (await versions.of("y", Engine(command=["sh"]))).error
    assert "is not there" in (await versions.of("z", Engine(command=["nowhere"], version="1"))).error


def packages_with(folder: Path, **versions: str) -> Engine:
    """An engine's Python that finds these distributions, and no code of theirs."""
    packages = folder / "site-packages"
    for name, version in versions.items():
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata)
    return Engine(python=sys.executable, env={"PYTHONPATH": str(packages)})


@pytest.mark.parametrize(
    ("name", "installed", "version", "profile", "shown"),
    [
        ("vllm", {"vllm": "0.32.0+cpu"}, "0.32.0+cpu", "vllm@0.32.0+cpu", "0.32.0+cpu"),
        ("vllm", {"vllm": "0.23.0", "vllm_ascend": "0.23.0rc1"}, "0.23.0", "vllm_ascend@0.23.0rc1",
         "0.23.0 (vllm_ascend@0.23.0rc1)"),
        ("vllm_ascend", {"vllm": "0.23.0", "vllm_ascend": "0.23.0rc1"}, "0.23.0rc1", "vllm_ascend@0.23.0rc1",
         "0.23.0rc1"),
        ("vllm_ascend", {"vllm": "0.32.0"}, "0.32.0", "vllm@0.32.0", "0.32.0"),
        ("atom", {"atom": "0.1.6rc1.dev323", "vllm_ascend": "0.23.0"}, "0.1.6rc1.dev323", "atom@0.1.6rc1.dev323",
         "0.1.6rc1.dev323"),
    ],
)  # fmt: skip
async def test_the_profile_is_that_of_the_plug_in_where_there_is_one(
    tmp_path: Path, name: str, installed: dict[str, str], version: str, profile: str, shown: str
) -> None:
    found = await Versions(ScriptCache()).of(name, packages_with(tmp_path, **installed))
    assert (found.error, found.version, found.profile, str(found)) == ("", version, profile, shown)


@pytest.mark.parametrize(
    ("name", "settings", "profile"),
    [
        ("vllm", {}, "vllm@0.23.0"),
        ("vllm", {"distribution": "vllm-ascend"}, "vllm_ascend@0.23.0"),
        ("vllm-new", {}, "vllm@0.23.0"),
        ("vllm_ascend", {}, "vllm_ascend@0.23.0"),
        ("of-our-own", {}, ""),
    ],
)
async def test_the_profile_of_a_version_that_the_node_file_says(name: str, settings: Any, profile: str) -> None:
    engine = Engine(command=["sh"], version="0.23.0", **settings)
    assert (await Versions(ScriptCache()).of(name, engine)).profile == profile


async def test_an_engine_upgraded_under_the_manager_is_not_started(place: Path) -> None:
    engine = packages_with(place, vllm="0.32.0")
    settings = {"engines": {"vllm": {"python": sys.executable, "env": engine.env}}}
    async with direct(place, **settings) as one:
        registered = await one.manager.register()
        assert registered.engines[0].profile == "vllm@0.32.0"
        packages = place / "site-packages"
        (packages / "vllm-0.32.0.dist-info").rename(packages / "vllm-0.33.0.dist-info")
        (packages / "vllm-0.33.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n"
        )
        os.utime(packages, (1, 1))
        answer = await report(one)
        assert not answer.ok
        assert "vllm was 0.32.0 when this node registered, and is 0.33.0 now" in item(answer, "engine").detail
        assert (await one.manager.register()).engines[0].profile == "vllm@0.33.0"
        answer = await report(one, generation=2, engine_version="")
        assert answer.ok, answer


def test_final_argv_of_an_engine_that_is_a_module() -> None:
    argv = ["python", "-m", "atom.entrypoints.openai_server", "--model", "m"]
    assert final_argv(Engine(python="/p"), argv) == ["/p", *argv[1:]]
    assert final_argv(Engine(command=["numactl", "atom"]), argv) == ["numactl", "atom", "--model", "m"]


def test_final_argv() -> None:
    argv = ["vllm", "serve", "m"]
    assert final_argv(Engine(python="/p"), argv) == ["/p", "-m", "vllm.entrypoints.cli.main", "serve", "m"]
    assert final_argv(Engine(command=["numactl", "vllm"]), argv) == ["numactl", "vllm", "serve", "m"]
    with pytest.raises(EngineError, match="atom"):
        final_argv(Engine(python="/p"), ["atom"])
