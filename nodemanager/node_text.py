"""The text of the node file: read with a bound on its size, and errors that quote nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LARGEST = 1 << 20  # bytes
MOST = 100_000  # values; an alias counts as often as it is used, and nine lines make billions of them


class NodeTextError(ValueError):
    """The file is no YAML, or nothing a node file can be; the text says where."""


def read_yaml(path: Path) -> Any:
    """Plain data. OSError if the file cannot be read, NodeTextError if its content cannot be used."""
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise NodeTextError(f"more than {LARGEST} bytes: is this the node file?")
    try:
        data = yaml.safe_load(content.decode("utf-8-sig"))
        _count(data, {})
        return data
    except UnicodeDecodeError as error:
        raise NodeTextError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        # Not str(error): it quotes the line, which may hold a secret.
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise NodeTextError(f"not YAML: {error.problem or error.context}{where}") from error
    except yaml.YAMLError as error:
        raise NodeTextError(f"not YAML: {error}") from error
    except RecursionError as error:
        raise NodeTextError("nested too deeply, or an alias of itself") from error
    except NodeTextError:
        raise
    except (ValueError, OverflowError) as error:
        raise NodeTextError("not usable: a date that is none, a number of 5,000 digits, or half a character") from error


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values `value` is made of, each alias counted as what it stands for. NodeTextError if they are too many,
    RecursionError for one inside itself."""
    if isinstance(value, str):
        if "\0" in value:
            raise NodeTextError("a NUL character (\\0) ends every path and argument")
        value.encode()  # half a surrogate pair is no character: UnicodeEncodeError
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        items = value if isinstance(value, list) else [*value, *value.values()]
        known[id(value)] = 1 + sum(_count(item, known) for item in items)
    if known[id(value)] > MOST:
        raise NodeTextError(f"more than {MOST} values; are there aliases of aliases?")
    return known[id(value)]
