"""The cache below the home folder: where it is, who may write, and what counts as complete.

Layout of the root, for an entry called NAME:

    NAME          the complete entry (an environment also needs its own marker, see engine_environment.py)
    NAME.lock     held with flock by the one process that makes NAME; never deleted
    NAME~XXXXXXXX work folder of a process that makes NAME; without a holder of the lock it is a leftover

flock and not a file with a process id in it: the kernel gives the lock back however its holder ended.
Standard library only: this runs before any environment exists.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from demo.stopping import check_stop

Log = Callable[[str], None]

PROGRESS_SECONDS = 8.0
"""Longest silence of a step that takes long, in seconds."""

SEPARATOR = "~"


class SetupFailed(Exception):
    """Something could not be made; the text says what was run, what came back and what to do."""


def print_progress(line: str) -> None:
    """One line on standard error; standard output is for the result."""
    print(line, file=sys.stderr, flush=True)


def cache_root() -> Path:
    """Absolute path of Motor's folder in the user's cache; not created here.

    A relative XDG_CACHE_HOME is ignored, as the XDG specification asks.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "motor"


def entry(name: str) -> Path:
    """Final place of an entry. Raises ValueError for a name that could be taken for something else's."""
    if not name or name.startswith(".") or name.endswith(".lock") or {"/", SEPARATOR} & set(name):
        raise ValueError(f"{name!r} can't be the name of a cache entry")
    return cache_root() / name


@contextlib.contextmanager
def exclusive(name: str, log: Log) -> Iterator[int]:
    """Hold the lock of an entry; yields its file descriptor, for children that write the entry to inherit.

    A child that outlives a killed parent then keeps the lock for as long as it may still write.
    Waits without a limit, saying so; raises StopRequested when asked to stop meanwhile.
    """
    path = entry(name).with_name(f"{name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _locked(path, log)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(path: Path, log: Log) -> int:
    started = time.monotonic()
    said = started - PROGRESS_SECONDS
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            now = time.monotonic()
            if now - said >= PROGRESS_SECONDS:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                log(f"{path.stem}: waiting for process {holder}, which is making it ({now - started:.0f} s)")
                said = now
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        check_stop()
        time.sleep(0.1)


def _is_file_at(descriptor: int, path: Path) -> bool:
    """False where the cache was deleted between open and lock: an unlinked file excludes nobody."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


@contextlib.contextmanager
def workspace(name: str) -> Iterator[Path]:
    """An empty folder next to the entry, gone at the end. Call it with the entry's lock held.

    Leftovers of killed processes go first: with the lock held, nobody can be using them.
    """
    for leftover in sorted(cache_root().glob(f"{name}{SEPARATOR}*")):
        remove_tree(leftover)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}{SEPARATOR}", dir=cache_root()))
    try:
        yield folder
    finally:
        remove_tree(folder)


def publish(folder: Path, name: str) -> Path:
    """Move a finished folder out of a work folder to its final place, in one step; returns that place."""
    final = entry(name)
    # Without this a power cut after the rename could leave an entry with its name but without its content.
    os.sync()
    if final.exists():
        final.rename(folder.with_name("replaced"))
    folder.rename(final)
    sync_folder(final.parent)
    return final


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path, seconds: float = 5.0) -> None:
    """Delete a folder, again and again while a dying child still writes into it, for at most `seconds`.

    What is left then is a leftover for the next start; no error.
    """
    deadline = time.monotonic() + seconds
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() or time.monotonic() > deadline:
            return
        time.sleep(0.1)
