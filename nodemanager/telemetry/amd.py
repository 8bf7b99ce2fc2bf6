"""AMD devices: the library amdsmi, else the files the kernel's driver shows.

Devices are counted in the order of their PCI addresses, as ROCm does on machines with equal devices. On some hardware
`gpu_busy_percent` stays high while a context is open and nothing runs: busy devices only ever hold a verdict back.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodemanager.telemetry.source import DeviceSample, Source, TelemetryError, Unavailable, number, percent

DRM = Path("/sys/class/drm")
MIB = 1 << 20


def find(limit: float) -> Source:
    """The best source that is there. `limit` is not used: neither needs a tool."""
    try:
        return AmdSmi(importlib.import_module("amdsmi"))
    except ImportError:
        reason = "no module amdsmi (install motor-pcp[amd])"
    except (TelemetryError, OSError, KeyError) as error:  # the module looks for its library while it is imported
        reason = f"amdsmi: {error}"
    if cards(DRM):
        return Sysfs(DRM)
    return Unavailable(f"{reason}; no AMD device below {DRM}")


class AmdSmi:
    """`library` is the module amdsmi."""

    name = "amdsmi"

    def __init__(self, library: Any) -> None:
        self._smi = library
        self._error: type[Exception] = library.AmdSmiException
        try:
            library.amdsmi_init()
        except self._error as error:
            raise TelemetryError(f"amdsmi: {error}") from None

    def sample(self) -> list[DeviceSample]:
        try:
            handles = list(self._smi.amdsmi_get_processor_handles())
        except self._error as error:
            raise TelemetryError(f"amdsmi: {error}") from None
        if not handles:
            raise TelemetryError("amdsmi sees no device")
        return [self._one(str(index), handle) for index, handle in enumerate(handles)]

    def _one(self, name: str, handle: Any) -> DeviceSample:
        smi = self._smi
        activity = self._try(lambda: smi.amdsmi_get_gpu_activity(handle)) or {}
        power = self._try(lambda: smi.amdsmi_get_power_info(handle)) or {}
        memory = self._try(lambda: smi.amdsmi_get_gpu_vram_usage(handle)) or {}
        processes = self._try(lambda: smi.amdsmi_get_gpu_process_list(handle))
        uuid = self._try(lambda: smi.amdsmi_get_gpu_device_uuid(handle))
        used = number(str(memory.get("vram_used", "")))
        socket = [number(str(power.get(key, ""))) for key in ("current_socket_power", "average_socket_power")]
        return DeviceSample(
            name=name,
            at=time.monotonic(),
            compute_pct=percent(str(activity.get("gfx_activity", ""))),
            membw_pct=percent(str(activity.get("umc_activity", ""))),
            mem_used_bytes=int(used * MIB) if used is not None else None,
            power_w=next((watts for watts in socket if watts is not None), None),
            pids=tuple(p["pid"] for p in processes if isinstance(p, dict) and "pid" in p) if processes else None,
            aliases=(str(uuid),) if uuid else (),
        )

    def _try(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except self._error:
            return None

    def close(self) -> None:
        self._try(self._smi.amdsmi_shut_down)


def cards(root: Path) -> list[Path]:
    """Device folders of AMD cards (vendor 0x1002) in the order of their PCI addresses."""
    found = {}
    for card in root.glob("card*"):
        device = card / "device"
        known = (device / "gpu_busy_percent").exists() or (device / "mem_info_vram_used").exists()
        if known and re.fullmatch(r"card\d+", card.name) and _read(device / "vendor") in ("0x1002", ""):
            found[device.resolve().name] = device
    return [found[address] for address in sorted(found)]


class Sysfs:
    """Files of amdgpu below /sys/class/drm."""

    name = "sysfs"

    def __init__(self, root: Path) -> None:
        self._root = root

    def sample(self) -> list[DeviceSample]:
        found = cards(self._root)
        if not found:
            raise TelemetryError(f"no AMD device below {self._root}")
        return [_sample(str(index), device) for index, device in enumerate(found)]

    def close(self) -> None:
        pass


def _sample(name: str, device: Path) -> DeviceSample:
    used = number(_read(device / "mem_info_vram_used"))
    power = None
    for file in (*device.glob("hwmon/hwmon*/power1_average"), *device.glob("hwmon/hwmon*/power1_input")):
        if (microwatts := number(_read(file))) is not None:
            power = microwatts / 1e6
            break
    return DeviceSample(
        name=name,
        at=time.monotonic(),
        compute_pct=percent(_read(device / "gpu_busy_percent")),
        membw_pct=percent(_read(device / "mem_busy_percent")),
        mem_used_bytes=int(used) if used is not None else None,
        power_w=power,
    )


def _read(file: Path) -> str:
    """Empty where there is no such file, or the driver refuses (a device that sleeps does)."""
    with contextlib.suppress(OSError, ValueError):
        return file.read_text().strip()
    return ""
