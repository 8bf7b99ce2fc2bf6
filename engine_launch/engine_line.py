"""Which of a script's commands start an engine, and with what words and environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine_launch.shell_text import ShellCommand, ShellWord

_PYTHON = re.compile(r"python(?:[0-9]+(?:\.[0-9]+)?)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")

# Python module -> engine.
_MODULES: Mapping[str, str] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "atom.entrypoints.openai_server": "atom",
    "atom.entrypoints.openai.api_server": "atom",
}

# They start the command behind them and change nothing that Motor does not do itself. `$` is a prompt that was
# copied along.
_STARTERS = frozenset({"nohup", "exec", "env", "time", "setsid", "command", "$"})


@dataclass(frozen=True)
class EngineLine:
    """One engine process as a script starts it."""

    engine: str  # vllm | atom
    line: int
    words: tuple[ShellWord, ...]  # behind `vllm serve`, or behind the module
    env: Mapping[str, ShellWord]
    before: tuple[str, ...]  # words in front of the engine's own that a start by Motor does without: numactl ...


def engine_line(command: ShellCommand) -> EngineLine | None:
    """None for a command that starts no engine."""
    texts = [word.text for word in command.words]
    for at, text in enumerate(texts):
        if _base_name(text) == "vllm" and texts[at + 1 : at + 2] == ["serve"]:
            return _line("vllm", command, at, at + 2)
        if _PYTHON.fullmatch(_base_name(text)) and (found := _module(texts, at + 1)) is not None:
            return _line(_MODULES[texts[found]], command, at, found + 1)
    return None


def mentions_engine(word: str) -> bool:
    """True for a text with a whole engine command in it: ssh node2 "vllm serve ..."."""
    return bool(re.search(r"\bvllm\s+serve\s|" + "|".join(map(re.escape, _MODULES)), word)) and " " in word


def _module(texts: list[str], start: int) -> int | None:
    """The position of the engine's module behind `python -u -m`."""
    for at in range(start, len(texts) - 1):
        if texts[at] == "-m":
            return at + 1 if texts[at + 1] in _MODULES else None
        if not texts[at].startswith("-"):
            return None
    return None


def _line(engine: str, command: ShellCommand, begin: int, behind: int) -> EngineLine:
    env = dict(command.exports)
    before = []
    for word in command.words[:begin]:
        if match := _ASSIGNMENT.match(word.text):
            env[match[1]] = ShellWord(word.text[match.end() :], word.line, word.unknown)
        elif word.text not in _STARTERS:
            before.append(word.text)
    return EngineLine(engine, command.line, command.words[behind:], env, tuple(before))


def _base_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
