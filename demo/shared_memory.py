"""Shared memory that killed engines leave in /dev/shm, where they have none of their own.

Processes that end in order delete what they made; a killed one cannot. Its names are random, so they are noted
while it lives, in a file: a run that is killed itself then leaves the note to the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")
LOOK_SECONDS = 0.3

_MAPPED = re.compile(rb" /dev/shm/([^/\n]+?)(?: \(deleted\))?$", re.MULTILINE)


@contextlib.contextmanager
def noted(processes: Callable[[], list[int]], note: Path) -> Iterator[None]:
    """While inside, add to the file `note` every name in /dev/shm that one of `processes` has mapped."""
    over = threading.Event()

    def look_until_over() -> None:
        known: set[str] = set()
        while True:
            last = over.wait(LOOK_SECONDS)
            fresh = mapped_by(processes()) - known
            if fresh:
                known |= fresh
                with contextlib.suppress(OSError), note.open("a") as file:
                    file.write("".join(f"{name}\n" for name in sorted(fresh)))
            if last:
                return

    thread = threading.Thread(target=look_until_over, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def mapped_by(pids: list[int]) -> set[str]:
    """Names in /dev/shm that these processes have mapped."""
    names: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            names |= {os.fsdecode(name) for name in _MAPPED.findall(Path(f"/proc/{pid}/maps").read_bytes())}
    return names


def remove_noted(note: Path) -> None:
    """Delete what `note` names; call it when the processes that had it are gone."""
    with contextlib.suppress(OSError):
        for name in note.read_text().splitlines():
            with contextlib.suppress(OSError):
                (FOLDER / Path(name).name).unlink()
