"""Looks at files and file systems in a child: a hung mount must not block the manager."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nodemanager.aside import ChildIsLateError, run_child

LONGEST_TEXT = 4096

# Run in a process of their own, so only the standard library. They print one JSON value, or exit with 1 and say why.
_START = "import json, os, sys\npath = sys.argv[1]\ntry:\n    "
_END = "\nexcept OSError as error:\n    sys.exit(error.strerror)\nprint(json.dumps(answer))\n"
_READ = f"{_START}answer = open(path, errors='replace').read({LONGEST_TEXT}){_END}"
_ROOM = f"{_START}s = os.statvfs(path); answer = [s.f_frsize * s.f_blocks, s.f_frsize * s.f_bavail]{_END}"
_EXISTS = f"{_START}answer = os.path.exists(path){_END}"
_REAL = f"{_START}answer = [os.path.realpath(one) for one in json.loads(path)]{_END}"


class FileError(Exception):
    """The path could not be looked at; the text says why."""


@dataclass(frozen=True)
class Room:
    """Of a file system, in bytes. `free` is what this user may still write."""

    size: int
    free: int


async def read_text(path: str, seconds: float) -> str:
    """The first LONGEST_TEXT characters of a file. FileError if it cannot be read in time."""
    return str(await _ask(_READ, path, seconds))


async def room(path: str, seconds: float) -> Room:
    """FileError if the file system does not answer in time."""
    size, free = await _ask(_ROOM, path, seconds)
    return Room(int(size), int(free))


async def exists(path: str, seconds: float) -> bool:
    """FileError if the file system does not answer in time."""
    return bool(await _ask(_EXISTS, path, seconds))


async def real_paths(paths: Sequence[str], seconds: float) -> list[str]:
    """Where each path leads, links and `..` followed. FileError if a file system does not answer in time."""
    return [str(path) for path in await _ask(_REAL, json.dumps(list(paths)), seconds)]


async def _ask(script: str, path: str, seconds: float) -> Any:
    try:
        ended = await run_child([sys.executable, "-I", "-S", "-c", script, path], None, seconds)
    except ChildIsLateError:
        raise FileError(f"{path}: no answer from the file system within {seconds:g} s (a hung mount?)") from None
    except OSError as error:
        raise FileError(f"{path}: no process to look at it: {error.strerror}") from error
    if ended.code != 0:
        raise FileError(f"{path}: {ended.errors or 'the look at it ended without an answer'}")
    try:
        return json.loads(ended.output)
    except ValueError:
        raise FileError(f"{path}: the look at it ended without an answer") from None
