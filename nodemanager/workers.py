"""Which worker processes of an engine are there, by their titles, and what its process tree has used."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from engine_launch.profiles import PROFILES
from nodemanager.idleness import Usage

# Engines name their processes with setproctitle, such as VLLM::Worker[_DPd][_PPp][_PCPc][_TPt][_DCPd][_EPe].
WORKER_TITLE = re.compile("|".join(sorted({profile.worker_title for profile in PROFILES.values()})))
# With one worker in all it has no process of its own: it lives in this one.
CORE_TITLE = re.compile("|".join(sorted({profile.core_title for profile in PROFILES.values()})))


@dataclass(frozen=True, order=True)
class Worker:
    title: str
    pid: int


@dataclass(frozen=True)
class Tree:
    """One look at the processes below an engine's main process."""

    workers: tuple[Worker, ...]  # sorted by title
    cores: tuple[Worker, ...] = ()
    usage: Mapping[int, Usage] = field(default_factory=dict)  # of every process by pid; empty unless asked for

    @property
    def computing(self) -> tuple[Worker, ...]:
        """The processes that do the model's work."""
        return self.workers or self.cores


def look_at_tree(engine_pid: int, pattern: re.Pattern[str] = WORKER_TITLE, with_usage: bool = False) -> Tree | None:
    """The living processes of an engine; None if it cannot be looked at.

    One pass over the process table; with many processes tens of milliseconds, so run it in a thread.
    """
    try:
        engine = psutil.Process(engine_pid)
        children = engine.children(recursive=True)
    except psutil.Error:
        return None
    workers: dict[Worker, int] = {}  # with their parents
    cores: list[Worker] = []
    for child in children:
        with contextlib.suppress(psutil.Error):
            title = (" ".join(child.cmdline()) or child.name()).strip()
            if not pattern.match(title) and not CORE_TITLE.match(title):
                continue
            if child.status() == psutil.STATUS_ZOMBIE:
                continue
            if pattern.match(title):
                workers[Worker(title, child.pid)] = child.ppid()
            else:
                cores.append(Worker(title, child.pid))
    # A worker that runs a tool (torch's compiler calls g++) is seen twice between fork and exec: its child still has
    # its title. Taken for a worker, the child would be missed for ever, and the engine never be ready.
    pids = {worker.pid for worker in workers}
    real = sorted(worker for worker, parent in workers.items() if parent not in pids)
    usage = _usage([engine, *children]) if with_usage else {}
    return Tree(tuple(real), tuple(sorted(cores)), usage)


def _usage(processes: Sequence[psutil.Process]) -> dict[int, Usage]:
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            moved = process.io_counters()
            # *_chars count what came from the page cache too, *_bytes only what reached a device.
            read = max(moved.read_chars, moved.read_bytes)
            found[process.pid] = Usage(times.user + times.system, read + max(moved.write_chars, moved.write_bytes))
    return found


class Presence:
    """Which of the expected workers are there. A worker that was once seen and is gone has a name."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        # Titles of the fullest look. Counted: ranks of a dense engine that share one process tree have one title.
        self._known: Counter[str] = Counter()
        self.workers: tuple[Worker, ...] = ()
        self.computing: tuple[Worker, ...] = ()

    def take(self, tree: Tree) -> None:
        self.workers, self.computing = tree.workers, tree.computing
        titles = self._titles()
        if titles.total() >= self._known.total():
            self._known = titles

    def _titles(self) -> Counter[str]:
        return Counter(worker.title for worker in self.workers)

    def clear(self) -> None:
        """The engine has ended."""
        self.workers = self.computing = ()

    @property
    def seen(self) -> int:
        return len(self.workers)

    @property
    def complete(self) -> bool:
        return self.seen >= self.expected

    @property
    def lost(self) -> tuple[str, ...]:
        """Titles of workers that were there and are not; empty where none was ever seen (one worker in the core)."""
        return tuple(sorted((self._known - self._titles()).elements()))
