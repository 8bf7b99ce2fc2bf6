"""Sources over scripted tools and libraries: good ones, and all the ways in which they go wrong."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodemanager.telemetry import amd, ascend, dcmi, nvidia
from nodemanager.telemetry.choose import choose
from nodemanager.telemetry.process_cpu import ProcessCpu, WorkerProcess
from nodemanager.telemetry.source import DeviceSample, TelemetryError, Unavailable
from nodemanager.telemetry.tool import run_tool
from tests.nodemanager.fake_tools import FakeTools, cat, running, stream

LIMIT = 0.8


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTools:
    monkeypatch.setattr(dcmi, "LIBRARY", tmp_path / "none.so")
    return FakeTools(tmp_path / "bin", monkeypatch)


A3 = {
    "info -m": cat("mapping_a3.txt"),
    "info": cat("info_a3.txt"),
    "info -t usages -i 0": cat("usages_a3.txt"),
    "info -t usages -i 1": cat("usages_a3.txt"),
}
A2 = {"info -m": cat("mapping_910b3.txt"), "info": cat("info_910b3.txt")}


def by_name(samples: list[DeviceSample]) -> dict[str, DeviceSample]:
    return {sample.name: sample for sample in samples}


# --- Ascend


def test_watch_is_one_child_for_many_looks(tools: FakeTools) -> None:
    tools.tool("npu-smi", {**A2, "info watch -d 2": stream("watch_910b.txt")})
    source = ascend.find(LIMIT)
    try:
        assert source.name == "npu-smi watch"
        for _ in range(3):
            found = by_name(source.sample())
            assert (found["1"].compute_pct, found["1"].membw_pct, found["1"].power_w) == (36.0, 14.0, 153.8)
            time.sleep(0.3)
        assert found["0"].health == "OK" and found["0"].pids == ()
        assert set(found) == {"0", "1"}, "chips without a logic id of this node are nobody's"
        assert [call for call in tools.calls("npu-smi") if "watch" in call] == ["info watch -d 2"]
        assert [call for call in tools.calls("npu-smi") if call == "info"] == ["info"], "the slow facts, once"
    finally:
        source.close()
    gone(tools)


def gone(tools: FakeTools) -> None:
    deadline = time.monotonic() + 3.0
    while running(tools.folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = running(tools.folder)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_watch_keeps_the_peak_between_two_looks() -> None:
    rows = ("0 0 0 0", "1 0 0 0", "0 0 80 9", "0 0 0 0", "1 0 0 0")
    watch = ascend.NpuWatch({"0": ascend.Chip(0, 0), "1": ascend.Chip(1, 0)}, LIMIT)
    for line in ("NpuID(Idx) ChipId(Idx) AI Core(%) Memory BW(%)", *rows):
        watch._line(line)
    assert {chip.npu: peak[0].compute for chip, peak in watch._take().items()} == {0: 80.0, 1: 0.0}
    assert watch._take() == {}


def test_a_stream_that_dies_is_begun_again(tools: FakeTools) -> None:
    tools.tool("npu-smi", {**A2, "info watch -d 2": f"{cat('watch_910b.txt')}; sleep 0.1; exit 3"})
    source = ascend.find(LIMIT)
    source.sample()
    time.sleep(0.5)
    with_gap = []
    for _ in range(4):
        try:
            with_gap.append(len(source.sample()))
        except TelemetryError:
            with_gap.append(0)
        time.sleep(0.2)
    source.close()
    assert max(with_gap) == 2 and source.name == "npu-smi watch"
    assert len([call for call in tools.calls("npu-smi") if "watch" in call]) >= 2


def test_a_stream_that_falls_silent_is_unknown_and_begun_again(tools: FakeTools) -> None:
    tools.tool("npu-smi", {**A2, "info watch -d 2": f"{cat('watch_910b.txt')}; sleep 60"})
    source = ascend.find(LIMIT)
    assert len(source.sample()) == 2
    with pytest.raises(TelemetryError, match="says nothing any more"):
        source.sample()
    assert len(source.sample()) == 2
    source.close()
    gone(tools)


def test_a_tool_without_watch_is_asked_each_time(tools: FakeTools) -> None:
    tools.tool("npu-smi", {**A3, "info watch -d 2": "echo 'This device does not support watch'; exit 255"})
    source = ascend.find(LIMIT)
    source.sample()
    time.sleep(0.3)  # the slow facts come aside
    found = by_name(source.sample())
    assert set(found) == {"0", "1", "2", "3"}
    assert (found["0"].compute_pct, found["0"].membw_pct) == (57.0, 31.0)
    assert (found["1"].compute_pct, found["1"].membw_pct) == (0.0, 0.0)
    assert found["0"].pids == (632268,)
    assert "does not support watch" in source.name
    source.close()


def test_without_stdbuf_single_calls_are_used(tools: FakeTools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.tool("npu-smi", A3)
    monkeypatch.setattr(ascend.shutil, "which", lambda name: None if name == "stdbuf" else f"/{name}")
    assert ascend.find(LIMIT).name == "npu-smi"


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ("sleep 60", "not done after 0.8 s"),
        ("echo 'dcmi model initialized failed, because the device is used. ret is -8020'; exit 1", "-8020"),
        ("head -c 300000 /dev/urandom", "names no chip"),
        ("true", "names no chip"),
        ("head -c 60 " + cat("mapping_910b3.txt").removeprefix("cat "), "names no chip"),
        ("kill -9 $$", "ended with -9"),
    ],
)
def test_broken_tools_are_unknown_with_the_reason(tools: FakeTools, commands: str, reason: str) -> None:
    tools.tool("npu-smi", {"info -m": commands})
    began = time.monotonic()
    source = ascend.find(LIMIT)
    assert time.monotonic() - began < LIMIT + 1.0
    assert isinstance(source, Unavailable) and reason in source.reason
    with pytest.raises(TelemetryError):
        source.sample()
    gone(tools)


def test_poll_with_one_broken_card(tools: FakeTools) -> None:
    tools.tool("npu-smi", {**A3, "info -t usages -i 1": "exit 1"})
    source = ascend.NpuPoll({"0": ascend.Chip(0, 0), "2": ascend.Chip(1, 0)}, LIMIT)
    assert set(by_name(source.sample())) == {"0"}
    tools.tool("npu-smi", {"info": cat("info_a3.txt")})
    with pytest.raises(TelemetryError, match="ended with 9"):
        source.sample()


def test_nothing_there_says_what_was_looked_for(tools: FakeTools) -> None:
    source = choose("ascend", LIMIT, list)
    assert isinstance(source, Unavailable)
    assert "npu-smi is not on the PATH" in source.reason and "none.so is not there" in source.reason


class FakeDcmi:
    """Two chips; the second gives no bandwidth, and there is no function for health."""

    def dcmi_get_card_id_device_id_from_logicid(self, card: Any, device: Any, logic_id: Any) -> int:
        if logic_id.value > 1:
            return -8005
        card._obj.value, device._obj.value = 0, logic_id.value
        return 0

    def dcmi_get_device_utilization_rate(self, card: Any, device: Any, kind: Any, value: Any) -> int:
        if kind.value == dcmi.HBM_BANDWIDTH and device.value == 1:
            return -8255
        value._obj.value = {dcmi.AI_CORE: 41, dcmi.VECTOR_CORE: 3, dcmi.OVERALL: 2**32 - 1}.get(kind.value, 12)
        return 0

    def dcmi_get_device_power_info(self, card: Any, device: Any, power: Any) -> int:
        power._obj.value = 1039
        return 0

    def dcmi_get_device_hbm_info(self, card: Any, device: Any, info: Any) -> int:
        info._obj.memory_size, info._obj.memory_usage = 65536, 6553
        return 0


def test_dcmi() -> None:
    first, second = dcmi.Dcmi(FakeDcmi()).sample()
    assert (first.name, first.compute_pct, first.membw_pct, first.power_w) == ("0", 41.0, 12.0, 103.9)
    assert first.mem_used_bytes == 6553 << 20 and first.health is None
    assert (second.name, second.membw_pct) == ("1", None)


def test_dcmi_that_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "libdcmi.so"
    file.write_text("not a library")
    with pytest.raises(TelemetryError, match=r"libdcmi\.so"):
        dcmi.load(file)
    assert ctypes.sizeof(dcmi._HbmInfo) == 32


# --- NVIDIA


class NVMLError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """Device 1 has MIG, device 2 has fallen off the bus."""

    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 1:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=96, memory=0)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=5 << 30)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 68200

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return [SimpleNamespace(pid=77)]

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return b"GPU-%d" % handle


def test_nvml() -> None:
    first, mig = nvidia.Nvml(FakeNvml()).sample()
    assert (first.compute_pct, first.membw_pct, first.power_w, first.pids) == (96.0, 0.0, 68.2, (77,))
    assert first.aliases == ("GPU-0",)
    assert (mig.name, mig.compute_pct, mig.membw_pct, mig.mem_used_bytes) == ("1", None, None, 5 << 30)


def test_nvml_without_a_driver_gives_way_to_the_tool(tools: FakeTools, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", Broken())  # type: ignore[arg-type]
    source = choose("nvidia", LIMIT, list)
    assert isinstance(source, Unavailable) and "Driver Not Loaded" in source.reason
    tools.tool("nvidia-smi", {"--query-gpu*": cat("nvidia_mig.csv")})
    assert choose("nvidia", LIMIT, list).name == "nvidia-smi"


def test_nvidia_smi(tools: FakeTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    query = "--query-gpu=index,uuid,utilization.gpu,utilization.memory,memory.used,power.draw"
    tools.tool("nvidia-smi", {f"{query} --format=csv,noheader,nounits": cat("nvidia.csv")})
    assert [sample.compute_pct for sample in nvidia.find(LIMIT).sample()] == [97.0, 0.0]
    tools.tool("nvidia-smi", {}, otherwise='echo "NVIDIA-SMI has failed because it couldn\'t communicate"; exit 9')
    with pytest.raises(TelemetryError, match="couldn't communicate"):
        nvidia.find(LIMIT).sample()
    tools.tool("nvidia-smi", {}, otherwise="echo 'No devices were found'")
    with pytest.raises(TelemetryError, match="lists no device"):
        nvidia.find(LIMIT).sample()


# --- AMD


def card(root: Path, name: str, address: str, **files: str) -> None:
    device = root / "pci" / address
    device.mkdir(parents=True)
    for file, content in {"vendor": "0x1002", **files}.items():
        (device / file).write_text(content + "\n")
    (root / name).mkdir()
    (root / name / "device").symlink_to(device)


def test_amd_files_in_the_order_of_the_bus(tmp_path: Path) -> None:
    card(tmp_path, "card1", "0000:83:00.0", gpu_busy_percent="97", mem_busy_percent="12", mem_info_vram_used="17453056")
    card(tmp_path, "card2", "0000:03:00.0", gpu_busy_percent="0", mem_info_vram_used="")
    card(tmp_path, "card0", "0000:01:00.0", vendor="0x1a03", gpu_busy_percent="5")  # another vendor's
    (tmp_path / "card1-HDMI-A-1").mkdir()
    first, second = amd.Sysfs(tmp_path).sample()
    assert (first.name, first.compute_pct, first.membw_pct, first.mem_used_bytes) == ("0", 0.0, None, None)
    assert (second.name, second.compute_pct, second.membw_pct, second.mem_used_bytes) == ("1", 97.0, 12.0, 17453056)


def test_no_amd_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd, "DRM", tmp_path)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    source = choose("amd", LIMIT, list)
    assert isinstance(source, Unavailable) and "no AMD device" in source.reason
    with pytest.raises(TelemetryError):
        amd.Sysfs(tmp_path).sample()


class AmdSmiException(Exception):
    pass


def test_amdsmi() -> None:
    def refuses(handle: str) -> Any:
        raise AmdSmiException("not supported")

    library = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["a"],
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 88, "umc_activity": "N/A", "mm_activity": "N/A"},
        amdsmi_get_power_info=lambda handle: {"current_socket_power": "N/A", "average_socket_power": 301},
        amdsmi_get_gpu_vram_usage=lambda handle: {"vram_total": 196288, "vram_used": 283},
        amdsmi_get_gpu_process_list=lambda handle: [{"name": "x", "pid": 5}],
        amdsmi_get_gpu_device_uuid=refuses,
    )
    (sample,) = amd.AmdSmi(library).sample()
    assert (sample.compute_pct, sample.membw_pct, sample.power_w) == (88.0, None, 301.0)
    assert (sample.mem_used_bytes, sample.pids, sample.aliases) == (283 << 20, (5,), ())


# --- CPU


def test_process_cpu_of_a_busy_a_frozen_and_a_dead_worker() -> None:
    busy = os.fork()
    if busy == 0:
        while True:
            pass
    frozen = os.fork()
    if frozen == 0:
        time.sleep(60)
        os._exit(0)
    try:
        os.kill(frozen, signal.SIGSTOP)
        workers = [
            WorkerProcess("s/0/0", "W0", busy),
            WorkerProcess("s/0/0", "W1", frozen),
            WorkerProcess("s", "W2", 0),
        ]
        source = ProcessCpu(lambda: workers)
        assert [sample.compute_pct for sample in source.sample()] == [None, None], "nothing to compare with yet"
        time.sleep(0.5)
        first, second = source.sample()
        assert first.compute_pct is not None and first.compute_pct > 15
        assert (second.compute_pct, second.health) == (0.0, "stopped by a signal")
        assert (first.owner, first.name, first.membw_pct) == ("s/0/0", f"W0 (pid {busy})", None)
    finally:
        for pid in (busy, frozen):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert source.sample() == [], "unknown, and no problem"


def test_choose_for_cpu_and_for_what_nobody_knows() -> None:
    assert choose("cpu", LIMIT, list).name == "process CPU"
    assert isinstance(choose("tpu", LIMIT, list), Unavailable)


def test_a_tool_that_is_not_executable() -> None:
    with pytest.raises(TelemetryError, match="cannot be run: No such file"):
        run_tool(["/nowhere/tool"], LIMIT)
