"""Figures as lines that can be pasted: min / median / max, how many runs, and the aim."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

NAME_WIDTH = 62


@dataclass(frozen=True)
class Figure:
    """One thing measured several times."""

    name: str
    values: list[float]
    unit: str
    aim: str = ""
    digits: int = 1

    def line(self) -> str:
        low, middle, high = min(self.values), statistics.median(self.values), max(self.values)
        figures = " / ".join(f"{value:9.{self.digits}f}" for value in (low, middle, high))
        late = f", p99 {percentile(self.values, 99):.{self.digits}f}" if len(self.values) >= 100 else ""
        aim = f"; aim {self.aim}" if self.aim else ""
        return f"{self.name:<{NAME_WIDTH}} {figures} {self.unit}  ({len(self.values)} runs{late}{aim})"


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]


def show(*figures: Figure) -> None:
    for figure in figures:
        print(figure.line(), flush=True)
