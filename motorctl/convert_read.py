"""Shell scripts and command lines -> the engine processes that they start, and what was found on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine_launch.engine_line import EngineLine, engine_line, mentions_engine
from engine_launch.shell_text import ShellCommand, ShellError, read_script

# They change nothing that an engine sees.
_WITHOUT_EFFECT = frozenset({":", "true", "set", "echo", "wait", "sleep", "[", "[[", "test"})


@dataclass(frozen=True)
class Trouble:
    """A finding, shown as `file:line: what; got; expected; how to fix`. Empty parts are left out."""

    file: str
    line: int
    what: str
    got: str = ""
    expected: str = ""
    fix: str = ""

    def __str__(self) -> str:
        got = f"got {self.got}" if self.got else ""
        expected = f"expected {self.expected}" if self.expected else ""
        return f"{self.file}:{self.line}: {'; '.join(filter(None, (self.what, got, expected, self.fix)))}"


@dataclass
class Report:
    """All that an operator has to know: errors make the input unusable, notes say what became of it."""

    errors: list[Trouble] = field(default_factory=list)
    notes: list[Trouble] = field(default_factory=list)

    def error(self, file: str, line: int, what: str, *, got: str = "", expected: str = "", fix: str = "") -> None:
        self.errors.append(Trouble(file, line, what, _short(got), _short(expected), fix))

    def note(self, file: str, line: int, text: str) -> None:
        trouble = Trouble(file, line, text)
        if trouble not in self.notes:
            self.notes.append(trouble)


@dataclass(frozen=True)
class Launch:
    """One engine process, and the file that starts it."""

    file: str
    line: EngineLine


def read_launches(files: Iterable[tuple[str, str]], variables: Mapping[str, str], report: Report) -> list[Launch]:
    """The engine processes in (name, text) of each file, in order. Each file begins without what another one set."""
    launches: list[Launch] = []
    for file, text in files:
        try:
            script = read_script(text, variables)
        except ShellError as error:
            report.error(file, error.line, error.what, got=error.got, expected=error.expected, fix=error.fix)
            continue
        for line, remark in script.remarks:
            report.note(file, line, remark)
        starts = [engine_line(command) for command in script.commands]
        found = [Launch(file, start) for start in starts if start is not None]
        _report_others(file, script.commands, report)
        for launch in found:
            if launch.line.before:
                report.note(file, launch.line.line, f"left out in front of the engine: {' '.join(launch.line.before)}")
        if not found:
            expected = "vllm serve MODEL ..., or python -m with the module of vLLM's or ATOM's server"
            report.error(file, 1, "no command here starts an engine", expected=expected)
        launches += found
    return launches


def _report_others(file: str, commands: Iterable[ShellCommand], report: Report) -> None:
    others: dict[str, int] = {}
    for command in commands:
        name = command.words[0].text
        if engine_line(command) is not None or name in _WITHOUT_EFFECT:
            continue
        if name.startswith("-"):
            fix = "end the line before it with a backslash, and keep comments out of the command"
            what = "a command begins with a flag: the command before it has ended"
            report.error(file, command.line, what, got=name, fix=fix)
        elif any(mentions_engine(word.text) for word in command.words):
            report.note(file, command.line, f"the command inside a text of {name} is not read: put it in a file")
        elif name in ("source", "."):
            sourced = " ".join(word.text for word in command.words[1:])
            text = f"not read: {sourced}; name it under env_scripts of the engine in each node's nodemanager.yaml"
            report.note(file, command.line, text)
        else:
            others.setdefault(name, command.line)
    if others:
        names = ", ".join(f"{name} (line {line})" for name, line in others.items())
        report.note(file, next(iter(others.values())), f"other commands are not in the result: {names}")


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."
