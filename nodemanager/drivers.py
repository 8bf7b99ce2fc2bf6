"""Which driver of the accelerator is loaded, and on Ascend which CANN is there: one group needs the same versions."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from nodemanager.aside import ChildIsLateError, run_child
from nodemanager.file_child import FileError, read_text

TOOL_SECONDS = 10.0
NVIDIA = "/proc/driver/nvidia/version"
ASCEND = "/usr/local/Ascend/driver/version.info"
AMD = "/sys/module/amdgpu/version"
ASCEND_TOOL = ("npu-smi", "info", "-t", "board", "-i", "0")
# CANN's set_env.sh names its folder in these variables; without it, its default places. The file is the one that
# vLLM-Ascend's collect_env.py (get_cann_info) reads.
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
CANN_PLACES = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")
CANN_FILE = "{home}/{machine}-linux/ascend_toolkit_install.info"


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


async def cann_version(env: Mapping[str, str], seconds: float = TOOL_SECONDS) -> Driver:
    """Of the CANN that an engine with this environment uses. Never raises: not knowing refuses nothing."""
    named = [env[name] for name in CANN_VARIABLES if env.get(name)]
    found = Driver("", "unknown: no place to look in")
    for home in dict.fromkeys(named or CANN_PLACES):  # another CANN than the one named says nothing
        path = CANN_FILE.format(home=home, machine=platform.machine())
        found = await _from_file(path, r"(?im)^version\s*=\s*(\S+)", seconds)
        if found.version:
            return found
    return found


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
