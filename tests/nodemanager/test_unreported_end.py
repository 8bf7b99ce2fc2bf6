"""An engine's end that its shim does not tell, with real processes: running, zombie, reaped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nodemanager.shim import process_stat
from nodemanager.unreported_end import UnreportedEnd, exit_of


@contextmanager
def engine(code: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A child that nobody reaps before the end, and its shim's last word on it."""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        stat = process_stat(process.pid)
        assert stat is not None
        try:
            yield process, {"state": "running", "engine_pid": process.pid, "engine_start": stat[1]}
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end and leave the zombie."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise SystemExit(7)", {"exit_code": 7}),
        ("import os; os.kill(os.getpid(), 9)", {"exit_signal": signal.SIGKILL}),
    ],
)
def test_a_zombie_tells_how_it_ended(code: str, found: dict[str, int]) -> None:
    with engine(code) as (process, status):
        ended(process)
        assert exit_of(status) == found
        assert exit_of({**status, "engine_start": 1}) == {}, "another process with this pid"
        process.wait()
        assert exit_of(status) == {}, "somebody has reaped it"


def test_silence_counts_from_the_first_look_that_found_it_over() -> None:
    with engine("input()") as (process, status):
        watched = UnreportedEnd()
        assert watched.silent_for(status, 100.0) == 0.0, "it runs"
        process.kill()
        ended(process)
        assert [watched.silent_for(status, now) for now in (110.0, 112.0, 115.0)] == [0.0, 2.0, 5.0]
        assert watched.silent_for({**status, "state": "exited"}, 116.0) == 0.0, "the shim has said so"


def test_a_reused_pid_is_not_the_engine() -> None:
    with engine("input()") as (_, status):
        watched, other = UnreportedEnd(), {**status, "engine_start": 1}
        watched.silent_for(other, 10.0)
        assert watched.silent_for(other, 13.0) == 3.0
