"""NVIDIA devices: NVML through nvidia-ml-py, else nvidia-smi.

Utilisation is not supported under MIG, and a MIG device has a name of its own: both are unknown. NVML counts in PCI
order, and so does Motor: `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes CUDA agree on machines with different devices.
"""

from __future__ import annotations

import csv
import importlib
import shutil
import time
from collections.abc import Callable
from typing import Any

from nodemanager.telemetry.source import DeviceSample, Source, TelemetryError, Unavailable, number, percent
from nodemanager.telemetry.tool import run_tool

TOOL = "nvidia-smi"
FIELDS = ("index", "uuid", "utilization.gpu", "utilization.memory", "memory.used", "power.draw")
MIB = 1 << 20


def find(limit: float) -> Source:
    """The best source that is there."""
    try:
        return Nvml(importlib.import_module("pynvml"))
    except ImportError:
        reason = "no module pynvml (install motor-pcp[nvidia])"
    except TelemetryError as error:
        reason = str(error)
    if shutil.which(TOOL):
        return NvidiaSmi(limit)
    return Unavailable(f"{reason}; {TOOL} is not on the PATH of the node manager")


class Nvml:
    """`library` is the module pynvml."""

    name = "NVML"

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._error: type[Exception] = library.NVMLError
        try:
            library.nvmlInit()
        except self._error as error:
            raise TelemetryError(f"NVML: {error}") from None

    def sample(self) -> list[DeviceSample]:
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._error as error:
            raise TelemetryError(f"NVML: {error}") from None
        samples = [sample for index in range(count) if (sample := self._one(index)) is not None]
        if not samples:
            raise TelemetryError("NVML sees no device")
        return samples

    def _one(self, index: int) -> DeviceSample | None:
        nvml = self._nvml
        handle = self._try(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        if handle is None:  # fallen off the bus
            return None
        rates = self._try(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        power = self._try(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        processes = self._try(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        uuid = self._try(lambda: nvml.nvmlDeviceGetUUID(handle))
        return DeviceSample(
            name=str(index),
            at=time.monotonic(),
            compute_pct=float(rates.gpu) if rates is not None else None,
            membw_pct=float(rates.memory) if rates is not None else None,
            mem_used_bytes=int(memory.used) if memory is not None else None,
            power_w=power / 1000 if power is not None else None,
            pids=tuple(process.pid for process in processes) if processes is not None else None,
            aliases=(uuid.decode() if isinstance(uuid, bytes) else uuid,) if uuid else (),
        )

    def _try(self, read: Callable[[], Any]) -> Any:
        """None for what this device, this driver or this permission does not give."""
        try:
            return read()
        except self._error:
            return None

    def close(self) -> None:
        self._try(self._nvml.nvmlShutdown)


class NvidiaSmi:
    """One call for each look."""

    name = TOOL

    def __init__(self, limit: float) -> None:
        self._limit = limit

    def sample(self) -> list[DeviceSample]:
        query = f"--query-gpu={','.join(FIELDS)}"
        samples = parse_csv(run_tool([TOOL, query, "--format=csv,noheader,nounits"], self._limit), time.monotonic())
        if not samples:
            raise TelemetryError(f"{TOOL} lists no device")
        return samples

    def close(self) -> None:
        pass


def parse_csv(text: str, at: float) -> list[DeviceSample]:
    """Lines of FIELDS; `[N/A]`, `[Not Supported]` and the like are unknown."""
    samples = []
    for row in csv.reader(text.splitlines()):
        cells = [cell.strip() for cell in row]
        if len(cells) != len(FIELDS) or not cells[0].isdigit():
            continue
        used = number(cells[4])
        samples.append(
            DeviceSample(
                name=cells[0],
                at=at,
                compute_pct=percent(cells[2]),
                membw_pct=percent(cells[3]),
                mem_used_bytes=int(used * MIB) if used is not None else None,
                power_w=number(cells[5]),
                aliases=(cells[1],),
            )
        )
    return samples
