"""A file as a document: data, and the line of every key, so that errors can point at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from controller.config import json_text, yaml_text
from controller.config.errors import ConfigError, Findings, Path, Problem, Shown
from controller.config.text import Parsed, TextError

LARGEST = 4 << 20  # bytes; a device or a log that was named by mistake is not read to its end
_READERS = {".json": json_text.parse, ".yaml": yaml_text.parse, ".yml": yaml_text.parse}


@dataclass(frozen=True)
class Document:
    """One file's content. `file` is the name as the operator gave it."""

    file: str
    data: Mapping[str, Any]
    lines: Mapping[Path, int]

    def findings(self) -> Findings:
        return Findings(self.file, self.lines, self.data)


def read_document(path: FilePath | str) -> Document:
    """Read JSON or YAML, by suffix. ConfigError if it cannot be read, is not valid, or holds no object."""
    path = FilePath(path)
    file = str(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise _refuse(file, "the suffix does not say what this is", f'"{path.suffix}"', ".json, .yaml or .yml")
    try:
        with path.open("rb") as content:
            read = content.read(LARGEST + 1)
        if len(read) > LARGEST:
            raise _refuse(file, "is too large for a deployment", f"more than {LARGEST} bytes", "the deployment file")
        text = read.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise _refuse(file, "cannot be read", error.strerror or str(error), "a readable file") from error
    except UnicodeDecodeError as error:
        raise _refuse(file, "is not UTF-8 text", str(error), "UTF-8") from error
    return parse_document(file, text, reader)


def parse_document(file: str, text: str, reader: Any = json_text.parse) -> Document:
    """The document in `text`; `file` is only for messages."""
    try:
        parsed: Parsed = reader(text)
    except TextError as error:
        problem = Problem((), error.what, file=file, line=error.line, column=error.column, fix=error.fix)
        raise ConfigError([problem]) from error
    findings = Findings(file, parsed.lines)
    for path, first, second in parsed.duplicates:
        findings.error(
            path,
            "the key stands twice",
            got=Shown(f"lines {first} and {second}"),
            expected="one",
            fix="remove one of them",
            rule="key-once",
        )
    findings.raise_errors()
    if not isinstance(parsed.data, dict):
        findings.error(
            (),
            "the top of the file is wrong",
            got=parsed.data,
            expected="an object with motor_* keys",
            rule="file-object",
        )
        findings.raise_errors()
    return Document(file, parsed.data, parsed.lines)


def _refuse(file: str, what: str, got: str, expected: str) -> ConfigError:
    return ConfigError([Problem((), what, got, expected, file=file)])
