"""JSON with line numbers: the standard parser gives the data, a second pass over the tokens the lines."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from controller.config.errors import Path
from controller.config.text import DEEPEST, Parsed, TextError, WrittenFloat, unusable

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')

_SUSPECT = re.compile(r"\\u(?:[dD][89a-fA-F]|0000)")


def parse(text: str) -> Parsed:
    """TextError with line and column for anything that is not JSON, NaN and Infinity included."""
    try:
        data = json.loads(text, parse_float=WrittenFloat, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise TextError("not usable: nested too deeply", 1, 1) from error
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        fix = "the file ends too early: was it cut off?" if at_end else ""
        raise TextError(f"not valid JSON: {error.msg}", error.lineno, error.colno, fix) from error
    except TextError:
        raise
    except ValueError as error:  # Python turns no more than 4,300 digits into an integer
        raise TextError("not usable: a number has too many digits", 1, 1) from error
    lines, duplicates = _scan(text)
    return Parsed(data, lines, duplicates)


def _refuse_constant(name: str) -> NoReturn:
    raise TextError(f"not valid JSON: {name} is not a number", 1, 1, "write a finite number")


def _scan(text: str) -> tuple[dict[Path, int], tuple[tuple[Path, int, int], ...]]:
    """Lines of all keys and items of a text that is known to be valid."""
    lines: dict[Path, int] = {}
    duplicates: list[tuple[Path, int, int]] = []
    path: list[Any] = []  # one entry for each open container: the current key, or the current position
    expect_key = False
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        token = match.group()
        if len(path) > DEEPEST:
            raise TextError("not usable: nested too deeply", line, 1)
        if _SUSPECT.search(token) and (problem := unusable(json.loads(token))):
            raise TextError(problem, line, 1)
        if token in "]}":
            path.pop()
            expect_key = False
            continue
        if token == ",":
            expect_key = isinstance(path[-1], str) or path[-1] is None
            if not expect_key:
                path[-1] += 1
            continue
        if token == ":":
            continue
        if expect_key and token[0] == '"':
            path[-1] = json.loads(token)
            expect_key = False
            key = tuple(path)
            if key in lines:
                duplicates.append((key, lines[key], line))
            lines[key] = line
            continue
        if path and isinstance(path[-1], int):
            lines[tuple(path)] = line
        if token == "{":
            path.append(None)
            expect_key = True
        elif token == "[":
            path.append(0)
    return lines, tuple(duplicates)
