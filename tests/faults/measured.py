"""What the tests measured, for the table at the end of a run and for docs/faults.md."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    fault: str
    seen: float | None  # from the fault to the controller's word about it
    told: float | None  # from that word to the last member's SIGTERM
    repaired: float | None  # from the fault until everything was ready again


LINES: list[Line] = []

#: the failure stop reaches all members; the aim is 1 s, the bound leaves room for a busy machine
TOLD_BOUND = 5.0


def note(fault: str, seen: float | None, told: float | None, repaired: float | None) -> None:
    """Keep a line, and fail the test whose failure stop did not reach everybody in time."""
    LINES.append(Line(fault, seen, told, repaired))
    if told is not None:
        assert told < TOLD_BOUND, f"some member was not told to stop within {TOLD_BOUND:g} s"


def table() -> list[str]:
    rows = [f"{'fault':<58}{'seen':>9}{'all told':>10}{'repaired':>10}   seconds"]
    for line in LINES:
        cells = [_cell(line.seen, 9), _cell(line.told, 10), _cell(line.repaired, 10)]
        rows.append(f"{line.fault:<58}{''.join(cells)}")
    return rows


def _cell(value: float | None, width: int) -> str:
    if value is None or math.isnan(value):
        return f"{'-':>{width}}"
    return f"{value:>{width}.2f}"
