"""Ascend devices where the node file names none: those whose files are here, by the ids that engines count by.

Two numberings meet. `/dev/davinciN` counts chips of the machine by their physical id; a container has the files that
were given to it. `ASCEND_RT_VISIBLE_DEVICES` and torch count by logic id, which only the driver knows: `npu-smi info
-m` prints both. A card of the A3 series has two chips, so two files and two logic ids.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from nodemanager.config import Devices, NodeConfig
from nodemanager.telemetry.ascend import TOOL
from nodemanager.telemetry.ascend_text import MappedChip, parse_mapping_rows
from nodemanager.telemetry.source import TelemetryError
from nodemanager.telemetry.tool import run_tool

log = logging.getLogger(__name__)

TOOL_SECONDS = 10.0
DEV = Path("/dev")


class FoundDevices(Devices):
    """Devices that were looked for: each has a file of its own number."""

    files: dict[str, str] = Field(default_factory=dict)

    def file_of(self, name: str) -> str | None:
        return self.files.get(name) or super().file_of(name)


def with_found_devices(config: NodeConfig, dev: Path = DEV) -> NodeConfig:
    """The node's configuration with the devices that are here, where its file leaves that open: no `devices` at all,
    or `kind: ascend` alone. Names that the file does give stay; what is added is where their files are.
    """
    devices = config.devices
    says_nothing = "devices" not in config.model_fields_set
    numbers = mounted(dev)
    if devices.kind != "ascend" and not (says_nothing and numbers):
        return config
    to_find = says_nothing or (not devices.names and devices.count is None)
    chips, problem = _chips()
    names = match(chips, numbers)
    if to_find and not names and _counts_from_zero(numbers) and not chips:
        # Without the tool: on a whole machine both numberings are the same.
        names = {str(number): number for number in numbers}
    files = {name: str(dev / f"davinci{number}") for name, number in names.items()}
    if not to_find:
        return config.model_copy(update={"devices": _keep(devices, files)})
    if names:
        log.info(
            "devices: ascend %s, of %s%s", " ".join(names), _show(numbers, dev), f" ({problem})" if problem else ""
        )
    else:
        log.error(
            "devices: expected Ascend devices, got none that can be used: %s; %s. Give `devices: {kind: ascend, names: "
            "[...]}` with logic ids in the node file, or put it right and start the manager again",
            _show(numbers, dev), problem or f"{TOOL} info -m names other chips",
        )  # fmt: skip
    found = FoundDevices(kind="ascend", names=list(names), files=files)
    return config.model_copy(update={"devices": found})


def mounted(dev: Path = DEV) -> list[int]:
    """Physical ids of the chips whose files are here, in order. `davinci_manager` and the like are none."""
    try:
        found = [re.fullmatch(r"davinci(\d+)", path.name) for path in dev.iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for match in found if match)


def match(chips: Sequence[MappedChip], numbers: Sequence[int]) -> dict[str, int]:
    """Logic id -> physical id of the chips that are mounted, in the order of the logic ids.

    A tool that prints no physical ids: in a container the driver numbers what is mounted from 0, in order; on a
    machine, where everything is mounted, that is the same.
    """
    ordered = sorted(chips, key=lambda chip: int(chip.name))
    physical = {chip.name: chip.physical for chip in ordered if chip.physical is not None}
    if ordered and len(physical) == len(ordered):
        return {name: number for name, number in physical.items() if number in numbers}
    if len(ordered) == len(numbers):
        return {chip.name: number for chip, number in zip(ordered, numbers, strict=True)}
    return {chip.name: int(chip.name) for chip in ordered if int(chip.name) in numbers}


def _chips() -> tuple[list[MappedChip], str]:
    """What the tool maps, or why it does not."""
    try:
        chips = parse_mapping_rows(run_tool([TOOL, "info", "-m"], TOOL_SECONDS))
    except TelemetryError as error:
        return [], str(error)
    return chips, "" if chips else f"{TOOL} info -m names no chip with a logic id"


def _counts_from_zero(numbers: Sequence[int]) -> bool:
    return bool(numbers) and list(numbers) == list(range(len(numbers)))


def _keep(devices: Devices, files: dict[str, str]) -> FoundDevices:
    return FoundDevices(kind=devices.kind, names=devices.names, count=devices.count, files=files)


def _show(numbers: Sequence[int], dev: Path) -> str:
    return " ".join(str(dev / f"davinci{number}") for number in numbers) or f"no {dev}/davinci*"
