"""What npu-smi prints -> values. Pure; the recorded outputs stand in tests/fixtures/telemetry.

Formats differ between cards and versions of the tool: columns are found by their headers, a field that is missing or
is no number is unknown, and whatever looks otherwise is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nodemanager.telemetry.source import number, percent

MIB = 1 << 20

_MAPPING_COLUMNS = ("NPU ID", "Slot ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name")
_WATCH_COLUMN = re.compile(r"[A-Za-z][A-Za-z ]*\([^)]*\)")
# Cards measure different parts of themselves, and an idle part says nothing of the others: the busiest one counts.
_WATCH_COMPUTE = ("AI Core(%)", "AI Cube(%)", "NPU Util(%)")
_USAGE_COMPUTE = (
    "Aicore Usage Rate(%)", "Aicube Usage Rate(%)", "Aivector Usage Rate(%)", "Vectorcore Usage Rate(%)",
    "NPU Utilization(%)",
)  # fmt: skip
_USAGE_BANDWIDTH = ("HBM Bandwidth Usage Rate(%)", "Memory Bandwidth Usage Rate(%)")


@dataclass(frozen=True, order=True)
class Chip:
    """Where a chip is: the tool's own two numbers. A card of the A3 series has two chips."""

    npu: int
    chip: int


@dataclass(frozen=True)
class Usage:
    """One reading of one chip, None = not known. Percent, bytes, watts."""

    compute: float | None = None
    bandwidth: float | None = None
    memory: int | None = None
    power: float | None = None


def parse_mapping(text: str) -> dict[str, Chip]:
    """`npu-smi info -m`: logic id, which torch and ASCEND_RT_VISIBLE_DEVICES count by -> chip."""
    return {row.name: row.chip for row in parse_mapping_rows(text)}


@dataclass(frozen=True)
class MappedChip:
    """One chip of `npu-smi info -m`."""

    name: str  # logic id
    chip: Chip
    physical: int | None  # the number in /dev/davinciN; None where the tool does not print it


def parse_mapping_rows(text: str) -> list[MappedChip]:
    """Rows of management controllers (Mcu) hold `-` for the logic id, and are left out. 950PR prints no logic id; its
    physical id stands for it.
    """
    columns: list[str] = []
    found: dict[str, MappedChip] = {}
    for line in text.splitlines():
        if "NPU ID" in line and "Chip ID" in line:
            columns = sorted((name for name in _MAPPING_COLUMNS if name in line), key=lambda name: line.index(name))
            continue
        row = dict(zip(columns, line.split(), strict=False))
        name = row.get("Chip Logic ID", row.get("Chip Phy-ID", ""))
        npu, chip = row.get("NPU ID", ""), row.get("Chip ID", "")
        if name.isdigit() and npu.isdigit() and chip.isdigit():
            physical = row.get("Chip Phy-ID", "")
            found[name] = MappedChip(name, Chip(int(npu), int(chip)), int(physical) if physical.isdigit() else None)
    return list(found.values())


class WatchParser:
    """`npu-smi info watch`: a header, then one line for each chip and period."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def feed(self, line: str) -> tuple[Chip, Usage] | None:
        """The reading of this line; None for headers and everything else."""
        if "NpuID" in line:
            self._columns = _WATCH_COLUMN.findall(line)
            return None
        words = line.split()
        if not self._columns or len(words) != len(self._columns):
            return None
        row = dict(zip(self._columns, words, strict=True))
        npu, chip = row.get("NpuID(Idx)", ""), row.get("ChipId(Idx)", "0")
        if not npu.isdigit() or not chip.isdigit():
            return None
        usage = Usage(
            compute=_highest(percent(row.get(name, "")) for name in _WATCH_COMPUTE),
            bandwidth=percent(row.get("Memory BW(%)", "")),
            power=number(row.get("Pwr(W)", "")),
        )
        return Chip(int(npu), int(chip)), usage


def parse_usages(text: str, npu: int) -> dict[Chip, Usage]:
    """`npu-smi info -t usages -i NPU`: `name : value` lines, and several chips one after the other.

    "Chip ID" comes before the fields of its chip on some cards and after them on others: the first name tells which.
    Without any, all fields are of chip 0.
    """
    lines = [[part.strip() for part in line.partition(":")] for line in text.splitlines()]
    pairs = [(name, value) for name, colon, value in lines if colon and name not in ("NPU ID", "Chip Count")]
    leads = bool(pairs) and pairs[0][0] == "Chip ID"
    found: dict[Chip, Usage] = {}
    record: dict[str, str] = {}
    chip = "0"
    for name, value in [*pairs, ("Chip ID", "")]:
        if name != "Chip ID":
            if name.endswith(")"):  # a value with its unit; error messages have colons too
                record[name] = value
            continue
        of = chip if leads else value or chip
        if record and of.isdigit():
            found[Chip(npu, int(of))] = _usage_of(record)
        chip, record = value, {}
    return found


def _usage_of(record: dict[str, str]) -> Usage:
    capacity, rate = number(record.get("HBM Capacity(MB)", "")), percent(record.get("HBM Usage Rate(%)", ""))
    memory = int(capacity * MIB * rate / 100) if capacity and rate is not None else None
    return Usage(
        compute=_highest(percent(record.get(name, "")) for name in _USAGE_COMPUTE),
        bandwidth=_highest(percent(record.get(name, "")) for name in _USAGE_BANDWIDTH),
        memory=memory,
    )


@dataclass(frozen=True)
class ChipState:
    """One chip in the table of `npu-smi info`."""

    health: str
    usage: Usage
    pids: tuple[int, ...] | None


_CELL = re.compile(r"\s{2,}|\s*/\s*|\s+")
_SECOND_ROW = re.compile(r"^(?:[0-9A-Fa-f]{4}:)?[0-9A-Fa-fx]{2}:[0-9A-Fa-f]{2}\.\d$|^NA$")


def parse_info(text: str) -> dict[Chip, ChipState]:
    """`npu-smi info`: two rows for each chip, then a table of processes.

    First row: NPU, name | health | power, temperature, hugepages; second: chip [physical id] | bus | AI core,
    memory used / total, HBM used / total. Processes: NPU, chip | pid | name | MB.
    """
    chips: dict[Chip, tuple[str, Usage]] = {}
    pids: dict[Chip, list[int]] = {}
    npu, health, power, processes = -1, "", None, False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "Process id" in line:
            processes = True
        elif processes:
            words = cells[0].split()
            if len(cells) >= 3 and len(words) == 2 and all(word.isdigit() for word in (*words, cells[1])):
                pids.setdefault(Chip(int(words[0]), int(words[1])), []).append(int(cells[1]))
        elif len(cells) == 3 and (words := cells[0].split()) and words[0].isdigit():
            values = [word for word in _CELL.split(cells[2]) if word]
            if _SECOND_ROW.match(cells[1]) and npu >= 0:
                usage = Usage(percent(values[0]) if values else None, None, _last_used(cells[2]), power)
                chips[Chip(npu, int(words[0]))] = (health, usage)
            elif len(words) > 1 and values:
                npu, health, power = int(words[0]), cells[1], number(values[0])
    return {
        chip: ChipState(health, usage, tuple(pids.get(chip, ())) if processes else None)
        for chip, (health, usage) in chips.items()
    }


def _last_used(cell: str) -> int | None:
    """Bytes used of the last `used / total` pair in MB: HBM where there is such a column, else the memory."""
    pairs = re.findall(r"(\d+)\s*/\s*(\d+)", cell)
    return int(pairs[-1][0]) * MIB if pairs and int(pairs[-1][1]) > 0 else None


def _highest(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
