"""What both readers (JSON, YAML) hand back; their numbers remember how they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.config.errors import Path
from engine_launch.written_number import WrittenFloat

__all__ = ["DEEPEST", "Parsed", "TextError", "WrittenFloat", "unusable"]

DEEPEST = 64  # levels of nesting; deeper than any option of an engine, and far from Python's limit of recursion


def unusable(value: str) -> str:
    """Why no path, command line or variable can hold this text, which JSON and YAML can write; empty if one can."""
    if "\0" in value:
        return "not usable: a NUL character (\\0) ends every path and argument"
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return "not usable: half of a surrogate pair is no character"
    return ""


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
