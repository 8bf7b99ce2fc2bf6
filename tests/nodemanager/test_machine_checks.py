"""What a machine has to have: each check good and bad, with fake tools and limits, and a hung file system."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from motor_rpc import control_pb2 as pb

from nodemanager import device_memory, drivers, file_child, machine_checks
from nodemanager.config import load
from nodemanager.device_memory import device_memory_in_use, idle_bytes, occupied
from nodemanager.items import Item
from nodemanager.limits import MIB, Limits
from tests.nodemanager import wire
from tests.nodemanager.fake_tools import FakeTools, cat
from tests.nodemanager.manager import direct
from tests.nodemanager.places import Node


def test_memory_below_the_minimum_is_a_warning_only() -> None:
    assert machine_checks.memory(Limits(memory_per_worker_mb=1), 2).detail.endswith("MB available")
    low = machine_checks.memory(Limits(memory_per_worker_mb=1e9), 4)
    assert low.ok and low.detail.startswith("WARNING: ") and "each of 4 worker(s)" in low.detail


async def test_shared_memory_says_what_is_free_and_what_to_do() -> None:
    good = await machine_checks.shared_memory(Limits(shm_mb=1))
    assert good.ok and "free in /dev/shm" in good.detail
    bad = await machine_checks.shared_memory(Limits(shm_mb=1e9))
    assert not bad.ok and "expected 1e+09" in bad.detail and "--shm-size" in bad.detail


async def test_disk_names_the_folder_that_is_full_or_away(place: Path) -> None:
    node = Node(place / "n0", 1, settings={"limits": {"disk_mb": 1e9}})
    config = load(node.file)
    config.state_dir.mkdir()
    found = await machine_checks.disk(config)
    assert not found.ok and f"state_dir {config.state_dir}: " in found.detail and "expected 1e+09" in found.detail
    assert "log_dir: " in found.detail and "No such file" in found.detail and "make room" in found.detail


@pytest.mark.parametrize(
    ("hard", "ok", "words"),
    [(resource.RLIM_INFINITY, True, "unlimited"), (1 << 40, True, "MB"), (8 * MIB, False, "LimitMEMLOCK=infinity")],
)
def test_memlock_counts_for_accelerators_only(monkeypatch: pytest.MonkeyPatch, hard: int, ok: bool, words: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64 * 1024, hard))
    found = machine_checks.memlock("ascend", Limits())
    assert found.ok is ok and words in found.detail
    assert machine_checks.memlock("cpu", Limits()) == Item("memlock", True, "none needed")


def test_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2048))
    found = machine_checks.open_files(Limits())
    assert not found.ok and "expected at least 4096 open files, got 2048" in found.detail
    assert "LimitNOFILE" in found.detail


def test_an_engine_gets_the_hard_limits() -> None:
    program = (
        "import resource as r\n"
        "from nodemanager.shim import raise_limits\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, 8192))\n"
        "r.setrlimit(r.RLIMIT_MEMLOCK, (65536, 1 << 20))\n"
        "raise_limits()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_MEMLOCK))\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (7000, 8192))\n"
        "raise_limits()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["(8192, 8192) (1048576, 1048576)", "(8192, 8192)"], done.stderr


@pytest.mark.parametrize(
    ("skew", "ok", "words"),
    [
        (1.0, True, "1.0 s ahead of the controller's clock"),
        (-6.0, True, "WARNING: 6.0 s behind the controller's clock"),
        (121.0, False, "121.0 s ahead of the controller's clock, expected at most 120; let chrony"),
    ],
)
def test_clock_skew(skew: float, ok: bool, words: str) -> None:
    found = machine_checks.clock(1000.0, Limits(), 1000.0 + skew)
    assert found.ok is ok and found.detail.startswith(words)


def test_an_old_controller_says_no_time() -> None:
    assert machine_checks.clock(0.0, Limits()).ok


def test_interface_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_checks.interface("127.0.0.1") == Item("interface", True, "lo is up")
    monkeypatch.setattr(machine_checks, "interface_states", lambda: {"lo": False})
    found = machine_checks.interface("127.0.0.1")
    assert not found.ok and found.detail == "lo (127.0.0.1) is down; plug the cable in, or `ip link set lo up`"


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_a_real_interface_that_is_down() -> None:
    """In a network of its own, whose loopback interface starts down."""
    program = (
        "import subprocess\n"
        "from nodemanager import machine_checks\n"
        "subprocess.run(['ip', 'address', 'add', '10.98.7.6/24', 'dev', 'lo'], check=True)\n"
        "print(machine_checks.interface('10.98.7.6').detail)\n"
        "subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)\n"
        "print(machine_checks.interface('10.98.7.6').detail)\n"
    )
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert done.stdout.splitlines() == [
        "lo (10.98.7.6) is down; plug the cable in, or `ip link set lo up`", "lo is up",
    ], done.stderr  # fmt: skip


# --- hung file systems


async def test_a_look_at_a_hung_file_ends(tmp_path: Path) -> None:
    """Opening a FIFO that nobody writes to blocks as a file of a hung mount does."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(file_child.FileError, match=r"no answer from the file system within 0\.3 s \(a hung mount\?\)"):
        await file_child.read_text(str(fifo), 0.3)
    with pytest.raises(file_child.FileError, match="No such file"):
        await file_child.read_text(str(tmp_path / "none"), 5.0)
    (tmp_path / "text").write_text("word")
    assert await file_child.read_text(str(tmp_path / "text"), 5.0) == "word"
    assert await file_child.exists(str(tmp_path / "text"), 5.0) is True
    assert await file_child.exists(str(tmp_path / "none"), 5.0) is False


async def test_a_hung_model_does_not_stop_the_heartbeats(place: Path) -> None:
    async with wire.serve(wire.Controller(interval=0.1)) as controller:
        node = Node(place / "n0", controller.port, settings={"limits": {"file_seconds": 1.5}})
        (node.model / "config.json").unlink()
        os.mkfifo(node.model / "config.json")
        node.start()
        session = await controller.session()
        beats = session.beats
        controller.send(session, prepare=wire.prepare(wire.slot(), "tiny", 0))
        began = time.monotonic()
        report = await session.prepared()
        took = time.monotonic() - began
        assert took > 1.4 and session.beats - beats >= 8, (took, session.beats - beats)
        (bad,) = [item for item in report.items if not item.ok]
        assert bad.name == "model" and "no answer from the file system within 1.5 s" in bad.detail
        node.end()


# --- drivers


@pytest.mark.parametrize(
    ("kind", "name", "text", "version"),
    [
        ("nvidia", "NVIDIA", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 9\n", "570.86.15"),
        ("ascend", "ASCEND", "Version=25.2.0\nascendhal_version=7.35.23\n", "25.2.0"),
        ("amd", "AMD", "6.12.12\n", "6.12.12"),
    ],
)
async def test_driver_version_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, text: str, version: str
) -> None:
    file = tmp_path / "version"
    file.write_text(text)
    monkeypatch.setattr(drivers, name, str(file))
    assert await drivers.driver_version(kind) == drivers.Driver(version, str(file))


async def test_driver_version_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NVIDIA", "ASCEND", "AMD"):
        monkeypatch.setattr(drivers, name, str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    unknown = await drivers.driver_version("nvidia")
    assert unknown.version == "" and "No such file" in unknown.detail
    assert (await drivers.driver_version("ascend")).version == ""
    board = "printf 'NPU ID : 0\\n Software Version : 24.1.rc3\\n Firmware Version : 7.5.0.1.129\\n'"
    FakeTools(tmp_path / "bin", monkeypatch).tool("npu-smi", {"info -t board -i 0": board})
    assert (await drivers.driver_version("ascend")).version == "24.1.rc3"
    assert (await drivers.driver_version("amd")).version.startswith("kernel ")
    assert (await drivers.driver_version("cpu")).version == ""


@pytest.mark.parametrize("variable", drivers.CANN_VARIABLES)
async def test_the_version_of_cann_is_that_of_the_engines_environment(tmp_path: Path, variable: str) -> None:
    folder = tmp_path / f"{platform.machine()}-linux"
    folder.mkdir()
    file = folder / "ascend_toolkit_install.info"
    file.write_text("package_name=Ascend-cann-toolkit\nversion=8.3.RC1\ninnerversion=V100R001C23\narch=aarch64\n")
    assert await drivers.cann_version({variable: str(tmp_path)}) == drivers.Driver("8.3.RC1", str(file))
    elsewhere = await drivers.cann_version({variable: str(tmp_path / "none")})
    assert elsewhere.version == "" and "No such file" in elsewhere.detail


async def test_prepare_reports_cann(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "cann" / f"{platform.machine()}-linux"
    folder.mkdir(parents=True)
    (folder / "ascend_toolkit_install.info").write_text("version=8.3.RC1\n")
    script = place / "set_env.sh"
    script.write_text(f"export ASCEND_HOME_PATH={place / 'cann'}\n")
    FakeTools(place / "bin", monkeypatch)
    engine = {"command": ["sh"], "version": "0.23.0", "env_scripts": [str(script)]}
    settings = {"devices": {"kind": "ascend", "names": ["0"]}, "limits": {"memlock_mb": 0}, "engines": {"vllm": engine}}
    async with direct(place, **settings) as one:
        await one.command(prepare=wire.prepare(wire.slot(), "tiny", 0, engine_version=""))
        answer: pb.PrepareReport = await one.answer("prepare_report")
        assert answer.toolkit_version == "8.3.RC1"
        (item,) = [entry for entry in answer.items if entry.name == "toolkit"]
        assert item.detail.startswith("CANN 8.3.RC1 (")


async def test_prepare_reports_the_driver_and_refuses_occupied_devices(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place / "version"
    file.write_text("NVRM version: Kernel Module  570.86.15\n")
    monkeypatch.setattr(drivers, "NVIDIA", str(file))
    devices = "printf '0, GPU-aa, 0, 0, 71000, 80\\n1, GPU-bb, 0, 0, 4, 60\\n'"
    users = {"--query-compute-apps=gpu_uuid,pid --format=csv,noheader,nounits": "echo GPU-aa, 812"}
    FakeTools(place / "bin", monkeypatch).tool("nvidia-smi", users, devices)
    settings = {"devices": {"kind": "nvidia", "names": ["GPU-aa", "GPU-bb"]}, "limits": {"memlock_mb": 0}}
    async with direct(place, **settings) as one:

        async def report(devices: list[str], generation: int) -> pb.PrepareReport:
            message = wire.prepare(wire.slot(), "tiny", 0, devices=devices, generation=generation)
            await one.command(prepare=message)
            answer: pb.PrepareReport = await one.answer("prepare_report")
            return answer

        bad = await report(["GPU-aa"], 1)
        assert bad.driver_version == "570.86.15" and not bad.ok
        (item,) = [entry for entry in bad.items if not entry.ok]
        assert item.name == "device_memory"
        assert item.detail.startswith("device GPU-aa: 71000 MB in use by pid 812, expected at most 1024 MB; end what")
        assert (await report(["GPU-bb"], 2)).ok


# --- memory of devices


async def test_cpu_devices_are_always_free() -> None:
    assert await device_memory_in_use("cpu", ["0", "1"]) == {"0": 0, "1": 0}


async def test_unknown_is_neither_free_nor_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = FakeTools(tmp_path / "bin", monkeypatch)
    for kind in ("nvidia", "ascend", "amd"):
        assert await device_memory_in_use(kind, ["0"]) == {"0": None}
        assert await occupied(kind, ["0"], 0) == []
    tools.tool("nvidia-smi", {}, "echo 0, GPU-aa, 0, 0, [N/A], 80")
    assert await device_memory_in_use("nvidia", ["0", "GPU-aa", "7"]) == {"0": None, "GPU-aa": None, "7": None}


async def test_nvidia_devices_are_known_by_number_and_by_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTools(tmp_path / "bin", monkeypatch).tool("nvidia-smi", {}, "echo 0, GPU-aa, 0, 0, 17, 80")
    assert await device_memory_in_use("nvidia", ["0", "GPU-aa"]) == {"0": 17 * MIB, "GPU-aa": 17 * MIB}


@pytest.mark.parametrize("info", [True, False], ids=["table", "usages"])
async def test_ascend_devices_are_found_by_their_logic_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: bool
) -> None:
    """Recorded outputs; where the table cannot be read, the percentages of each card stand in."""
    mapping = "printf 'NPU ID  Chip ID  Chip Logic ID  Chip Name\\n0 0 0 910B3\\n0 1 - Mcu\\n5 0 1 910B3\\n'"
    cases = {"info -m": mapping, "info -t usages -i 0": cat("usages_910b.txt"), "info -t usages -i 5": "exit 1"}
    if info:
        cases["info"] = cat("info_910b3.txt")
    FakeTools(tmp_path / "bin", monkeypatch).tool("npu-smi", cases)
    used = await device_memory_in_use("ascend", ["0", "1", "2"])
    if info:
        assert used == {"0": 3445 * MIB, "1": 60156 * MIB, "2": None}
        idle = idle_bytes("ascend", None)
        assert [str(one) for one in await occupied("ascend", ["0", "1"], idle)] == [
            "device 1: 60156 MB in use by pid 2290156"
        ]
    else:
        assert used == {"0": 65536 * MIB * 3 // 100, "1": None, "2": None}


async def test_a_blocked_tool_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "TOOL_SECONDS", 0.3)
    FakeTools(tmp_path / "bin", monkeypatch).tool("nvidia-smi", {}, "exec sleep 600")
    assert await asyncio.wait_for(device_memory_in_use("nvidia", ["0"]), 5.0) == {"0": None}


async def test_a_blocked_library_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(device_memory, "_samples", lambda _: time.sleep(3))
    assert await asyncio.wait_for(device_memory_in_use("nvidia", ["0"]), 2.0) == {"0": None}
