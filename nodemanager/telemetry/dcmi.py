"""The DCMI library of the Ascend driver through ctypes, where npu-smi is missing: containers often have only this.

A call takes about a millisecond. It runs inside the manager, so a driver that blocks costs the thread of one look,
and the collector begins no other before that one is over.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

from nodemanager.telemetry.source import DeviceSample, TelemetryError

LIBRARY = Path("/usr/local/dcmi/libdcmi.so")

# Types of dcmi_get_device_utilization_rate; the value is a percentage.
AI_CORE, HBM_BANDWIDTH, VECTOR_CORE, OVERALL = 2, 10, 12, 13
MOST_DEVICES = 64
_HEALTH = {0: "OK", 1: "Warning", 2: "Alarm", 3: "Critical"}
MIB = 1 << 20


class _HbmInfo(ctypes.Structure):
    """struct dcmi_hbm_info; sizes in MB."""

    _fields_ = (
        ("memory_size", ctypes.c_ulonglong),
        ("freq", ctypes.c_uint),
        ("memory_usage", ctypes.c_ulonglong),
        ("temp", ctypes.c_int),
        ("bandwith_util_rate", ctypes.c_uint),
    )


def load(path: Path | None = None) -> Any:
    """The library, initialised. TelemetryError if it is not there or has no driver."""
    path = path or LIBRARY
    if not path.exists():
        raise TelemetryError(f"{path} is not there")
    try:
        library = ctypes.CDLL(str(path))
        code = int(library.dcmi_init())
    except (OSError, AttributeError) as error:
        raise TelemetryError(f"{path}: {error}") from None
    if code != 0:
        raise TelemetryError(f"{path}: dcmi_init returned {code}: no driver, or no permission")
    return library


class Dcmi:
    """Devices by logic id, as torch counts them."""

    name = "DCMI"

    def __init__(self, library: Any) -> None:
        self._library = library

    def sample(self) -> list[DeviceSample]:
        samples = []
        for logic_id in range(MOST_DEVICES):
            card, device = ctypes.c_int(), ctypes.c_int()
            find = self._library.dcmi_get_card_id_device_id_from_logicid
            if find(ctypes.byref(card), ctypes.byref(device), ctypes.c_uint(logic_id)) != 0:
                break
            samples.append(self._one(str(logic_id), card.value, device.value))
        if not samples:
            raise TelemetryError("DCMI knows no device")
        return samples

    def _one(self, name: str, card: int, device: int) -> DeviceSample:
        parts = [self._rate(card, device, kind) for kind in (AI_CORE, VECTOR_CORE, OVERALL)]
        known = [part for part in parts if part is not None]
        power = self._integer("dcmi_get_device_power_info", card, device, ctypes.c_int())
        health = self._integer("dcmi_get_device_health", card, device, ctypes.c_uint())
        memory = _HbmInfo()
        has_memory = self._call("dcmi_get_device_hbm_info", card, device, ctypes.byref(memory))
        return DeviceSample(
            name=name,
            at=time.monotonic(),
            compute_pct=max(known) if known else None,
            membw_pct=self._rate(card, device, HBM_BANDWIDTH),
            mem_used_bytes=memory.memory_usage * MIB if has_memory and memory.memory_size else None,
            power_w=power / 10 if power is not None and power >= 0 else None,
            health=_HEALTH.get(health) if health is not None else None,
        )

    def _rate(self, card: int, device: int, kind: int) -> float | None:
        value = ctypes.c_uint()
        done = self._call("dcmi_get_device_utilization_rate", card, device, ctypes.c_int(kind), ctypes.byref(value))
        return float(value.value) if done and value.value <= 100 else None

    def _integer(self, function: str, card: int, device: int, into: Any) -> int | None:
        return int(into.value) if self._call(function, card, device, ctypes.byref(into)) else None

    def _call(self, function: str, card: int, device: int, *arguments: Any) -> bool:
        """True if it worked; older libraries lack some functions, and cards some values."""
        try:
            return int(getattr(self._library, function)(ctypes.c_int(card), ctypes.c_int(device), *arguments)) == 0
        except AttributeError:
            return False

    def close(self) -> None:
        pass
