"""What is wrong with a file: one Problem for each finding, collected so that an operator sees all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from engine_launch.secrets import MASK, Mask, is_secret, secrets_in

Path = tuple[str | int, ...]  # keys from the top of the document; list positions are numbers


class Shown(str):
    """Text that says what was found, as opposed to a string that stands in the file."""


NOTHING = Shown("")


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Problem:
    """A finding, shown as `file:path.to.key: what, got, expected, how to fix [rule]`. Empty parts are left out."""

    path: Path
    what: str
    got: str = ""
    expected: str = ""
    fix: str = ""
    severity: Severity = Severity.ERROR
    file: str = ""
    line: int | None = None
    column: int | None = None
    rule: str = ""  # id of the rule in docs/configuration.md, where it has one
    overridable: bool = False  # an engine section's `override.rules` may turn this error into a warning

    def __str__(self) -> str:
        parts = [self.what]
        if self.got:
            parts.append(f"got {self.got}")
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.fix:
            parts.append(self.fix)
        rule = f" [{self.rule}]" if self.rule else ""
        return f"{self.where()}: {'; '.join(parts)}{rule}"

    def where(self) -> str:
        """`file:path`, with the line when it is known; `file:line:column` for text that is no document."""
        if self.column is not None:
            return f"{self.file}:{self.line}:{self.column}"
        line = f" (line {self.line})" if self.line is not None else ""
        return f"{self.file}:{dotted(self.path) or '.'}{line}"


_SHOWN = 100  # errors in the text of a ConfigError; `problems` has them all


class ConfigError(Exception):
    """A file that cannot be used. `problems` holds every error, and the warnings found on the way."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.errors[:_SHOWN]]
        more = len(self.errors) - len(lines)
        super().__init__("\n".join(lines + ([f"... and {more} more"] if more else [])))

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(p for p in self.problems if p.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(p for p in self.problems if p.severity is Severity.WARNING)


class Findings:
    """Collects problems of one document and adds to each the file, the line, and the value where none was given."""

    def __init__(self, file: str = "", lines: Mapping[Path, int] | None = None, data: Any = None) -> None:
        self.file = file
        self.lines = lines or {}
        self.data = data
        self.problems: list[Problem] = []
        self._mask = Mask(secrets_in(data))
        self._overridden: dict[tuple[str, str], str] = {}  # (engine section, rule) -> the operator's reason

    def error(
        self,
        path: Path,
        what: str,
        *,
        got: Any = NOTHING,
        expected: str = "",
        fix: str = "",
        rule: str = "",
        overridable: bool = False,
    ) -> None:
        """`got` is the value in the file; `Shown(text)` prints as it is. `rule` is the id of a listed rule."""
        found = _text(got, path) or self._value(path)
        self.add(Problem(path, what, found, expected, fix, rule=rule, overridable=overridable))

    def warning(
        self, path: Path, what: str, *, got: Any = NOTHING, expected: str = "", fix: str = "", rule: str = ""
    ) -> None:
        self.add(Problem(path, what, _text(got, path), expected, fix, Severity.WARNING, rule=rule))

    def override(self, section: str, rule: str, reason: str) -> None:
        """From now on a violation of `rule` in `section` is a warning, if the rule lets itself be overridden."""
        self._overridden[section, rule] = reason

    def is_overridden(self, section: str, rule: str) -> bool:
        """True after `override`."""
        return (section, rule) in self._overridden

    def add(self, problem: Problem) -> None:
        reason = self._overridden.get((str(problem.path[0]), problem.rule)) if problem.path else None
        if reason is not None and problem.severity is Severity.ERROR:
            if problem.overridable:
                what = f"overridden ({reason}): {problem.what}"
                problem = replace(problem, severity=Severity.WARNING, what=what)
            else:
                problem = replace(problem, fix=f"{problem.fix}; this rule cannot be overridden".removeprefix("; "))
        self.problems.append(
            replace(
                problem,
                what=self._mask.known(problem.what),
                got=self._mask.known(problem.got),
                expected=self._mask.known(problem.expected),
                fix=self._mask.known(problem.fix),
                file=self.file,
                line=self._line(problem.path),
            )
        )

    def has_errors(self) -> bool:
        return any(problem.severity is Severity.ERROR for problem in self.problems)

    def raise_errors(self) -> None:
        if self.has_errors():
            raise ConfigError(self.problems)

    def _line(self, path: Path) -> int | None:
        """The line of the key itself, else of the nearest part of the path that stands in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def _value(self, path: Path) -> str:
        """What stands at `path` in the file; empty for what is no plain value, or is not there."""
        value = self.data
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return ""
        return "" if isinstance(value, (Mapping, list)) else _text(value, path)


def dotted(path: Path) -> str:
    """`a.b[0].c`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def describe(value: Any) -> str:
    """A value with its kind, short enough for one line: `"two" (a string)`."""
    kinds: dict[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        dict: "an object",
        list: "a list",
    }
    if value is None:
        return "null"
    kind = next((name for cls, name in kinds.items() if isinstance(value, cls)), type(value).__name__)
    if isinstance(value, bool):
        return f"{str(value).lower()} ({kind})"
    if isinstance(value, (dict, list)):
        return f"{kind} of {len(value)}"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({kind})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean "x"?`, or nothing where no known name is close."""
    by_folded = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), by_folded, n=1, cutoff=0.7)
    return f'did you mean "{by_folded[close[0]]}"?' if close else ""


def _text(got: Any, path: Path) -> str:
    """What is told of a value: nothing but its kind where the path says that it is secret."""
    if isinstance(got, Shown):
        return str(got)
    if got is not None and any(isinstance(part, str) and is_secret(part) for part in path):
        return MASK if isinstance(got, (bool, int, float, str)) else describe(got)
    return describe(got)
