"""The demonstration for real: a true answer from three ranks, and nothing left however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.cache import cache_root, print_progress
from demo.engine_environment import ensure_engine_environment
from demo.model import ensure_model
from demo.namespaces import NETNS_FOLDER
from demo.run_folder import BASE, ROOT, processes_of

pytestmark = pytest.mark.vllm

READY_SECONDS = 600.0
STOP_SECONDS = 90.0
STATES = ("registered", "prepared", "started", "loading", "ready")


@pytest.fixture(scope="module")
def made() -> None:
    """The engine and the model, made with the real HOME, where pip's settings are."""
    ensure_model(print_progress, ensure_engine_environment(print_progress))


@dataclass
class Run:
    """A running demonstration with a HOME and a folder for temporary files of its own."""

    process: subprocess.Popen[bytes]
    place: Path

    @property
    def output(self) -> str:
        return (self.place / "output").read_text(errors="replace")

    def wait_for(self, text: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)

    def what_is_left(self) -> dict[str, object]:
        """Processes, network names and files of the run; what a finished one may not have."""
        pid = self.process.pid
        folder = BASE / f"run-{pid}"
        found = {
            "processes": processes_of(folder),
            "namespaces": [path.name for path in NETNS_FOLDER.glob(f"motor-demo-{pid}-*")],
            "interfaces": [name for _, name in socket.if_nameindex() if name.startswith(f"mot{pid}-")],
            "folders": [path for path in (folder, BASE / "last-logs", cache_root() / folder.name) if path.exists()],
            "home": sorted((self.place / "home").rglob("*")),
            "temporary": sorted((self.place / "tmp").rglob("*")),
        }
        return {what: names for what, names in found.items() if names}


@pytest.fixture
def run(made: None, tmp_path: Path) -> Iterator[Run]:
    for folder in ("home", "tmp"):
        (tmp_path / folder).mkdir()
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "XDG_CACHE_HOME": str(cache_root().parent),
    }
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo.run"], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    started = Run(process, tmp_path)
    try:
        yield started
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_SECONDS)


def test_it_prints_a_true_answer_of_three_ranks_and_leaves_nothing(run: Run) -> None:
    assert run.process.wait(READY_SECONDS + STOP_SECONDS) == 0, run.output
    assert "A: The capital of France is Paris." in run.output
    for text in ("rank 0, master", "rank 1, headless", "rank 2, headless", "1 of 1 instances ready"):
        assert text in run.output
    for node in ("node-1", "node-2", "node-3"):
        states = [line.split() for line in run.output.splitlines() if f" s  {node} " in line]
        seen = [
            word for word in ("registered", "prepared", "started", "loading", "ready") if any(word in s for s in states)
        ]
        assert seen == ["registered", "prepared", "started", "loading", "ready"], run.output
    assert run.what_is_left() == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_the_engine_loads_it_leaves_nothing(run: Run, number: signal.Signals) -> None:
    run.wait_for("waiting for rendezvous", READY_SECONDS)
    run.process.send_signal(number)
    run.wait_for("stopping the engines", STOP_SECONDS)
    run.process.send_signal(number)  # an impatient user's second Ctrl-C changes nothing
    assert run.process.wait(STOP_SECONDS) == 128 + number, run.output
    assert run.what_is_left() == {}
