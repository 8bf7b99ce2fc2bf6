"""YAML with line numbers and YAML 1.2's plain scalars: `no` and `on` are text, and `1:30` is no number."""

from __future__ import annotations

import re
from typing import Any

import yaml

from controller.config.errors import Path
from controller.config.text import DEEPEST, Parsed, TextError, WrittenFloat, unusable

_INT = re.compile(r"^[-+]?[0-9]+$")
_HEX = re.compile(r"^0x[0-9a-fA-F]+$")
_FLOAT = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_MOST = 100_000  # values; an alias counts as often as it is used, and nine lines make billions of them
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def parse(text: str) -> Parsed:
    """TextError with line and column for anything that is not YAML, or more than one document."""
    try:
        return _parse(text)
    except RecursionError as error:
        raise TextError("not usable: nested too deeply, or an alias of itself", 1, 1) from error


def _parse(text: str) -> Parsed:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise TextError(f"not valid YAML: {error.problem or error.context}", line, column) from error
    except yaml.YAMLError as error:
        raise TextError(f"not valid YAML: {error}", 1, 1) from error
    reader = _Reader()
    data = reader.value(node, ()) if node is not None else None
    return Parsed(data, reader.lines, tuple(reader.duplicates))


class _Reader:
    """Turns composed nodes into data and notes lines and duplicates."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.duplicates: list[tuple[Path, int, int]] = []
        self.values = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        mark = node.start_mark
        self.values += 1
        if self.values > _MOST:
            what = f"not usable: more than {_MOST} values; are there aliases of aliases?"
            raise TextError(what, mark.line + 1, mark.column + 1)
        if len(path) > DEEPEST:
            raise TextError("not usable: nested too deeply, or an alias of itself", mark.line + 1, mark.column + 1)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._mapping(node, path)

    def _item(self, node: yaml.Node, path: Path) -> Any:
        self.lines[path] = node.start_mark.line + 1
        return self.value(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        own: set[str] = set()
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise TextError("not usable: a key has to be plain text", line, key_node.start_mark.column + 1)
            if problem := unusable(key):
                raise TextError(problem, line, key_node.start_mark.column + 1)
            if key == "<<" and key_node.style is None:
                for inherited in self._merged(value_node, path):
                    result = {**inherited, **result}
                continue
            here = (*path, key)
            if key in own:
                self.duplicates.append((here, self.lines[here], line))
            own.add(key)
            self.lines[here] = line
            result[key] = self.value(value_node, here)
        return result

    def _merged(self, node: yaml.Node, path: Path) -> list[dict[str, Any]]:
        values = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(value, yaml.MappingNode) for value in values):
            raise TextError("not usable: << wants a mapping", node.start_mark.line + 1, node.start_mark.column + 1)
        return [self._mapping(value, path) for value in values]


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if problem := unusable(text):
        raise TextError(problem, node.start_mark.line + 1, node.start_mark.column + 1)
    if node.style in ("'", '"', "|", ">"):
        return text
    if node.tag == "tag:yaml.org,2002:str" and node.start_mark.buffer and _tagged(node):
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.match(text):
        try:
            return int(text)
        except ValueError as error:  # Python turns no more than 4,300 digits into an integer
            what = "not usable: a number has too many digits"
            raise TextError(what, node.start_mark.line + 1, node.start_mark.column + 1) from error
    if _HEX.match(text):
        return int(text, 16)
    if _FLOAT.match(text):
        return WrittenFloat(text)
    return text


def _tagged(node: yaml.ScalarNode) -> bool:
    """True where the text says `!!str` itself."""
    return node.start_mark.buffer[node.start_mark.pointer :].startswith("!") if node.start_mark.buffer else False
