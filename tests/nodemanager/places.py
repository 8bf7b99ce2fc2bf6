"""Folders, ports and node files for tests, and the proof that a test left nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

ENGINE = Path(__file__).parent.parent / "scripted_engine.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str) -> tuple[int, bytes]:
    """(status, body) of a GET."""
    answer = httpx.get(url, timeout=5.0, trust_env=False)
    return answer.status_code, answer.content


def marked(folder: Path) -> list[psutil.Process]:
    """Living processes that a test's node started: by their working folder, command line or environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            mark = str(folder)
            words = [*process.cmdline(), *process.environ().values()]
            if any(mark in word for word in words) or process.cwd().startswith(mark):
                found.append(process)
    return found


def describe_left(folder: Path, seconds: float = 5.0) -> list[str]:
    """What of this test still runs after `seconds`; killed engines and ended managers need a moment."""
    deadline = time.monotonic() + seconds
    while (left := marked(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    said = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            said.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())}")
    return said


def kill_all(folder: Path) -> None:
    for _ in range(20):
        left = marked(folder)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not left:
            return
        time.sleep(0.02)


async def until(condition: Callable[[], Any], seconds: float = 5.0, what: str = "") -> Any:
    """Wait until `condition` holds and return what it returned."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if found := condition():
                return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        await asyncio.sleep(0.01)


@dataclass
class Node:
    """One machine of a test: folders below `root`, a node file, and the manager as a process."""

    root: Path
    controller_port: int
    settings: dict[str, Any] = field(default_factory=dict)
    behaviour: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    prefix: list[str] = field(default_factory=list)  # in front of the manager's command

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.model = self.root / "models" / "tiny"
        self.model.mkdir(parents=True, exist_ok=True)
        (self.model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        self.file = self.root / "nodemanager.yaml"
        self.write()

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    def write(self) -> None:
        values: dict[str, Any] = {
            "controllers": [f"127.0.0.1:{self.controller_port}"],
            "node_id": self.root.name,
            "address": "127.0.0.1",
            "allow_loopback": True,
            "devices": {"kind": "cpu", "count": 2},
            "engines": {
                "vllm": {
                    "command": [sys.executable, str(ENGINE)],
                    "version": "0.32.0",
                    "env": {"SCRIPTED_ENGINE": json.dumps(self.behaviour)},
                }
            },
            "model_roots": [str(self.root / "models")],
            "state_dir": str(self.state_dir),
            "log_dir": str(self.root / "log"),
            "status_port": 0,
            **self.settings,
        }
        self.file.write_text(yaml.safe_dump(values))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the manager; it dials the controller of the node file."""
        with (self.root / "manager.out").open("ab") as output:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "nodemanager.main", "--config", str(self.file), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process

    def end(self, number: int = signal.SIGTERM, seconds: float = 8.0) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        self.process = None
        return code

    def output(self) -> str:
        return (self.root / "manager.out").read_text()

    def folder(self, rank: int = 0, generation: int = 1) -> Path:
        return self.state_dir / "slots" / f"prefill-0_0_{rank}" / str(generation)

    def status(self, rank: int = 0, generation: int = 1) -> dict[str, Any]:
        """What the shim recorded."""
        return json.loads((self.folder(rank, generation) / "status.json").read_text())

    def local_status(self) -> dict[str, Any]:
        """/status of the manager."""
        port = json.loads((self.state_dir / "nodemanager.json").read_text())["status_port"]
        return json.loads(get(f"http://127.0.0.1:{port}/status")[1])
