"""A real motor-controller as a process of its own, and what it costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from bench.validate import deployment
from tests.cluster.deployment import free_port

GROUP = 8


class ControllerProcess:
    """`instances` instances of `groups` groups of `nnodes` nodes; everything lies below `folder`."""

    def __init__(
        self, folder: Path, instances: int, groups: int, nnodes: int = GROUP, timers: dict[str, float] | None = None
    ) -> None:
        self.grpc_port, self.rest_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.rest_port}"
        self.nodes = instances * groups * nnodes
        self.file = folder / "deploy.json"
        self.log = folder / "controller.out"
        self._process: subprocess.Popen[bytes] | None = None
        settings: dict[str, Any] = {
            "rest": {"port": self.rest_port},
            "grpc": {"port": self.grpc_port},
            "store": {"kind": "sqlite", "path": str(folder / "controller.sqlite3")},
            "timers": timers or {},
        }
        # no profile in the file: that of the nodes is looked at, as where users do not pin one
        content = deployment(instances, groups, nnodes)
        content["motor_engine_prefill_config"].pop("engine_profile", None)
        self.file.write_text(json.dumps({"motor_controller_config": settings, **content}))

    def start(self) -> float:
        """Until REST answers; seconds."""
        began = time.perf_counter()
        command = [sys.executable, "-m", "controller.main", "--config", str(self.file)]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            assert time.perf_counter() - began < 60.0, "no answer within 60 s"
            time.sleep(0.01)
        return time.perf_counter() - began

    def _answers(self) -> bool:
        try:
            return self.get("/readyz") is not None
        except (OSError, ValueError):
            return False

    def get(self, path: str) -> Any:
        return json.loads(self.get_text(path))

    def get_text(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            body: bytes = answer.read()
            return body

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def rss(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
