"""What both readers (JSON, YAML) hand back, and numbers that remember how they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.config.errors import Path


@dataclass(frozen=True)
class Parsed:
    """Data of a text; the line (from 1) of every key and list item; keys that stand twice with both lines."""

    data: Any
    lines: Mapping[Path, int]
    duplicates: tuple[tuple[Path, int, int], ...] = ()


class TextError(ValueError):
    """The text is not valid JSON or YAML; line and column count from 1."""

    def __init__(self, what: str, line: int, column: int, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.line = line
        self.column = column
        self.fix = fix


class WrittenFloat(float):
    """A number that prints as it was written: 0.90 stays 0.90 on an engine's command line."""

    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)  # copies and pickles keep the form
