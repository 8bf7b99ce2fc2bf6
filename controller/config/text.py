"""What both readers (JSON, YAML) hand back; their numbers remember how they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.config.errors import Path
from engine_launch.written_number import WrittenFloat

__all__ = ["DEEPEST", "Parsed", "TextError", "WrittenFloat", "is_text"]

DEEPEST = 64  # levels of nesting; deeper than any option of an engine, and far from Python's limit of recursion


def is_text(value: str) -> bool:
    """False for text that no file can hold: JSON and YAML can write half a surrogate pair."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


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
