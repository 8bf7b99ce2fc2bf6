"""Which version of the accelerator's driver is loaded: nodes of one group should have the same."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from nodemanager.aside import ChildIsLateError, run_child
from nodemanager.file_child import FileError, read_text

TOOL_SECONDS = 10.0
NVIDIA = "/proc/driver/nvidia/version"
ASCEND = "/usr/local/Ascend/driver/version.info"
AMD = "/sys/module/amdgpu/version"
ASCEND_TOOL = ("npu-smi", "info", "-t", "board", "-i", "0")


@dataclass(frozen=True)
class Driver:
    """`version` is empty where it is not known; then `detail` says why."""

    version: str
    detail: str


async def driver_version(kind: str, seconds: float = TOOL_SECONDS) -> Driver:
    """Of the devices of this kind (cpu, nvidia, ascend, amd). Never raises: not knowing refuses nothing."""
    if kind == "nvidia":
        return await _from_file(NVIDIA, r"\b(\d+\.\d+(?:\.\d+)*)\b", seconds)
    if kind == "ascend":
        found = await _from_file(ASCEND, r"(?im)^version\s*=\s*(\S+)", seconds)
        return found if found.version else await _from_tool(found.detail)
    if kind == "amd":
        found = await _from_file(AMD, r"(\S+)", seconds)
        # Only the packaged driver has a version of its own; the kernel's is as old as the kernel.
        return found if found.version else Driver(f"kernel {platform.release()}", "the kernel's own amdgpu")
    return Driver("", "none needed")


async def _from_file(path: str, pattern: str, seconds: float) -> Driver:
    try:
        text = await read_text(path, seconds)
    except FileError as error:
        return Driver("", f"unknown: {error}")
    match = re.search(pattern, text)
    return Driver(match[1], path) if match else Driver("", f"unknown: {path} names no version: {text[:80]!r}")


async def _from_tool(so_far: str) -> Driver:
    try:
        ended = await run_child(ASCEND_TOOL, None, TOOL_SECONDS)
    except (OSError, ChildIsLateError) as error:
        return Driver("", f"{so_far}; {ASCEND_TOOL[0]}: {error}")
    match = re.search(r"(?im)^\s*(?:software|driver) version\s*:\s*(\S+)", ended.output.decode(errors="replace"))
    return Driver(match[1], " ".join(ASCEND_TOOL)) if match else Driver("", f"{so_far}; {ASCEND_TOOL[0]} names none")
