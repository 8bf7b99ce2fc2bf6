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

# "7f.. rw-s 00000000 00:1a 2062 /dev/shm/sem.xyz (deleted)": the number before the path is the inode's.
_MAPPED = re.compile(rb" (\d+) +/dev/shm/", re.MULTILINE)


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
    """Names in /dev/shm of what these processes have mapped."""
    # Not by the names of the mappings: a semaphore is mapped under another name before it gets its own.
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            inodes |= {int(number) for number in _MAPPED.findall(Path(f"/proc/{pid}/maps").read_bytes())}
    if not inodes:
        return set()
    with os.scandir(FOLDER) as entries:
        return {entry.name for entry in entries if entry.inode() in inodes}


def remove_noted(note: Path) -> None:
    """Delete what `note` names; call it when the processes that had it are gone."""
    with contextlib.suppress(OSError):
        for name in note.read_text().splitlines():
            with contextlib.suppress(OSError):
                (FOLDER / Path(name).name).unlink()
