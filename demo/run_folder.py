"""The folder of one run of the demonstration, `.demo/run-PID` in the repository, and what belongs to it.

    .demo/run-PID/lock      held with flock by the run; without a holder the folder is a left-over
                  deploy.json, node-N.yaml, models/, node-N/ (state and logs), log/
                  home/     HOME of the engines, for the caches they keep below it
                  scratch   names the folder for temporary files, TMPDIR of the engines
                  shared-memory     names of what the engines have in this machine's /dev/shm
    .demo/last-logs/        logs of the last run that failed

Every process of a run has a path below the folder in its command line, its environment or as its working
folder. That is how those are found that outlived their parents.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo import shared_memory
from demo.cache import Log, cache_root, remove_tree

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / ".demo"
LAST_LOGS = BASE / "last-logs"
SHARED_MEMORY = "shared-memory"

LONGEST_SCRATCH = 64
"""Characters of TMPDIR: engines put sockets into it, whose paths may have 107, with names of up to 37."""

KILL_SECONDS = 10.0


@dataclass(frozen=True)
class RunFolder:
    """The folders of one run; all absolute."""

    root: Path
    scratch: Path

    @property
    def logs(self) -> Path:
        """What the daemons print."""
        return self.root / "log"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def note_shared_memory(self) -> contextlib.AbstractContextManager[None]:
        """While inside, note what this run's processes have in /dev/shm; it goes with the folder."""
        return shared_memory.noted(lambda: processes_of(self.root, self.scratch), self.root / SHARED_MEMORY)


@contextlib.contextmanager
def run_folder(log: Log) -> Iterator[RunFolder]:
    """Make the folder; at the end everything of the run goes: processes that still live, then all files."""
    remove_left_overs(log)
    shutil.rmtree(LAST_LOGS, ignore_errors=True)
    root = BASE / f"run-{os.getpid()}"
    root.mkdir(parents=True)
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch = _scratch(root)
        (root / "scratch").write_text(str(scratch))
        folder = RunFolder(root, scratch / "t")
        for path in (folder.scratch, folder.logs, folder.home):
            path.mkdir(parents=True)
        yield folder
    finally:
        _remove(root)
        os.close(lock)
        with contextlib.suppress(OSError):
            BASE.rmdir()


def _scratch(root: Path) -> Path:
    """The first of three places whose path is short enough: the run's folder, the cache, /tmp."""
    name = f"run-{os.getpid()}"
    places = [root / "scratch.d", cache_root() / name, Path("/tmp") / f"motor-demo-{name}"]
    return next((place for place in places if len(str(place / "t")) <= LONGEST_SCRATCH), places[-1])


def remove_left_overs(log: Log) -> None:
    """Remove the folders and processes of runs that were killed."""
    for root in sorted(BASE.glob("run-*")):
        if not _held(root / "lock"):
            log(f"removing what an earlier run left behind: {root.name}")
            _remove(root)


def _held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove(root: Path) -> None:
    try:
        scratch = Path((root / "scratch").read_text())
    except OSError:
        scratch = root
    end_processes(root, scratch)
    shared_memory.remove_noted(root / SHARED_MEMORY)
    remove_tree(scratch)
    remove_tree(root)


def end_processes(*folders: Path) -> list[int]:
    """SIGKILL every process of a run until none is left; the pids that are left after KILL_SECONDS."""
    import psutil

    deadline = time.monotonic() + KILL_SECONDS
    while (left := processes_of(*folders)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).kill()
        time.sleep(0.02)
    return left


def processes_of(*folders: Path) -> list[int]:
    """Pids of the processes that have a path below one of the folders about them; not this one."""
    import psutil

    marks = [f"{folder}/" for folder in folders]
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values(), f"{process.cwd()}/"]
            if any(mark in word for word in words for mark in marks):
                found.append(process.pid)
    return found


def keep_logs(folder: RunFolder) -> Path:
    """Copy the logs of a failed run to where they stay; returns that place."""
    shutil.rmtree(LAST_LOGS, ignore_errors=True)
    shutil.copytree(folder.logs, LAST_LOGS)
    for path in sorted(folder.root.glob("node-*/log/*")):
        shutil.copy(path, LAST_LOGS / f"{path.parent.parent.name}-{path.name}")
    return LAST_LOGS
