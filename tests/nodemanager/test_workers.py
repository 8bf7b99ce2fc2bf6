"""Which workers are there, from tables of process titles and from processes."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from nodemanager.workers import Presence, Tree, Worker, look_at_tree

TITLE = "VLLM::Worker_TP0"
# Prints a line when it has a child of its own title, as between fork and exec, and ends with its input.
FORKED = """
import os, sys
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
os.waitpid(child, 0)
"""


def tree(*titles: str) -> Tree:
    return Tree(tuple(Worker(title, 100 + number) for number, title in enumerate(titles)))


@pytest.mark.parametrize(
    ("first", "then", "lost"),
    [
        (("W_TP0", "W_TP1"), ("W_TP0",), ("W_TP1",)),
        (("W_TP0", "W_TP1"), ("W_TP1", "W_TP0"), ()),
        (("W", "W"), ("W",), ("W",)),  # two ranks of a dense engine in one process tree
        (("W", "W"), ("W_TP0", "W_TP1"), ()),  # they have taken their names meanwhile
        ((), ("W",), ()),
        (("W_TP0", "W_TP1"), (), ("W_TP0", "W_TP1")),
    ],
)
def test_a_worker_that_was_there_and_is_gone_has_a_name(
    first: tuple[str, ...], then: tuple[str, ...], lost: tuple[str, ...]
) -> None:
    presence = Presence(2)
    presence.take(tree(*first))
    presence.take(tree(*then))
    assert presence.lost == lost


def test_a_child_that_a_worker_forks_is_no_second_worker() -> None:
    with subprocess.Popen(
        [TITLE, "-c", FORKED], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        child = psutil.Process(int(worker.stdout.readline()))
        assert child.ppid() == worker.pid and child.cmdline()[0] == TITLE
        found = look_at_tree(os.getpid())
        assert found is not None and [one.pid for one in found.workers] == [worker.pid]
