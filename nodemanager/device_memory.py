"""How much memory is in use on devices, and by whom. What cannot be known is None: unknown never blocks anything.

Telemetry reads the same tools for something else: how busy devices are, all the time, memory now and then. Here it is
memory, at this moment, of a few devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from motor_rpc.deadline import within

from nodemanager.aside import in_thread
from nodemanager.limits import MIB
from nodemanager.telemetry import amd, ascend, nvidia
from nodemanager.telemetry.ascend_text import Chip, parse_info, parse_mapping, parse_usages
from nodemanager.telemetry.source import DeviceSample, TelemetryError
from nodemanager.telemetry.tool import run_tool

TOOL_SECONDS = 10.0  # `npu-smi info` takes seconds
LOOK_SECONDS = 30.0  # for everything: a library in a driver in trouble cannot be ended, only left alone

# In use on an idle device: drivers and firmware keep something for themselves. On a 910B `npu-smi` shows 3 to 5 %
# of 64 GiB; an NVIDIA device with a display has some hundred MiB.
IDLE_BYTES = {"nvidia": 1024 * MIB, "amd": 1024 * MIB, "ascend": 4096 * MIB}


@dataclass(frozen=True)
class Occupied:
    """A device that is not free."""

    device: str
    used: int  # bytes
    pids: tuple[int, ...]

    def __str__(self) -> str:
        by = f" by pid {', '.join(map(str, self.pids))}" if self.pids else ""
        return f"device {self.device}: {self.used // MIB} MB in use{by}"


def idle_bytes(kind: str, configured_mb: float | None) -> int:
    """Up to this much in use, a device counts as free."""
    return IDLE_BYTES.get(kind, 0) if configured_mb is None else int(configured_mb * MIB)


async def device_memory_in_use(kind: str, devices: Sequence[str]) -> dict[str, int | None]:
    """Bytes in use on each of `devices`; None where that is not known. Devices of the kind cpu have no memory."""
    if kind == "cpu":
        return dict.fromkeys(devices, 0)
    return {device: used for device, (used, _) in (await _look(kind, devices)).items()}


async def occupied(kind: str, devices: Sequence[str], idle_bytes: int) -> list[Occupied]:
    """Those of `devices` that are known to have more than `idle_bytes` in use."""
    if kind == "cpu" or not devices:
        return []
    found = (await _look(kind, devices)).items()
    return [Occupied(name, used, pids) for name, (used, pids) in found if used is not None and used > idle_bytes]


async def _look(kind: str, devices: Sequence[str]) -> dict[str, tuple[int | None, tuple[int, ...]]]:
    """Bytes in use and pids, of every one of `devices`."""
    try:
        samples = await within(LOOK_SECONDS, in_thread(_samples, kind))
    except (TelemetryError, asyncio.TimeoutError):
        samples = []
    by_name = {name: sample for sample in samples for name in (sample.name, *sample.aliases)}
    return {
        device: (by_name[device].mem_used_bytes, by_name[device].pids or ()) if device in by_name else (None, ())
        for device in devices
    }


def _samples(kind: str) -> list[DeviceSample]:
    if kind == "ascend":
        return _ascend()
    if kind not in ("nvidia", "amd"):
        return []
    source = nvidia.find(TOOL_SECONDS) if kind == "nvidia" else amd.find(TOOL_SECONDS)
    try:
        samples = source.sample()
    finally:
        source.close()
    return _with_pids(samples) if source.name == nvidia.TOOL else samples


def _with_pids(samples: list[DeviceSample]) -> list[DeviceSample]:
    """The tool has another question for them; without an answer there is only the amount."""
    users: dict[str, list[int]] = {}
    try:
        text = run_tool(
            [nvidia.TOOL, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits"], TOOL_SECONDS
        )
    except TelemetryError:
        return samples
    for line in text.splitlines():
        uuid, _, pid = (part.strip() for part in line.partition(","))
        if pid.isdigit():
            users.setdefault(uuid, []).append(int(pid))
    return [replace(one, pids=tuple(pid for uuid in one.aliases for pid in users.get(uuid, ()))) for one in samples]


def _ascend() -> list[DeviceSample]:
    """The table of `npu-smi info` has megabytes and processes; `-t usages` has full percents of a chip's memory."""
    chips = parse_mapping(run_tool([ascend.TOOL, "info", "-m"], TOOL_SECONDS))
    try:
        states = parse_info(run_tool([ascend.TOOL, "info"], TOOL_SECONDS))
    except TelemetryError:
        states = {}
    samples = []
    for name, chip in chips.items():
        used, pids = (states[chip].usage.memory, states[chip].pids) if chip in states else (None, None)
        if used is None:
            used = _ascend_usage(chip)
        samples.append(DeviceSample(name=name, at=0.0, mem_used_bytes=used, pids=pids))
    return samples


def _ascend_usage(chip: Chip) -> int | None:
    try:
        text = run_tool([ascend.TOOL, "info", "-t", "usages", "-i", str(chip.npu)], TOOL_SECONDS)
    except TelemetryError:
        return None
    usage = parse_usages(text, chip.npu).get(chip)
    return usage.memory if usage else None
