"""Both daemons tell a service manager when they are ready, and keep its watchdog fed. A socket stands in for
systemd's: the protocol is datagrams (sd_notify(3))."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.deployment import Deployment, engine_section

WATCHDOG_SECONDS = 0.6


class ServiceManager:
    """Listens where NOTIFY_SOCKET points to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(20.0)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))}
        return subprocess.Popen([sys.executable, "-m", *command], env=env, stderr=subprocess.DEVNULL)

    def wait_for(self, word: str, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        heard = []
        while time.monotonic() < deadline:
            heard.append(self.socket.recv(4096).decode())
            if word in heard[-1]:
                return
        raise AssertionError(f"expected {word}, heard {heard}")


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[ServiceManager]:
    manager = ServiceManager(tmp_path)
    yield manager
    manager.socket.close()


def life(systemd: ServiceManager, process: subprocess.Popen[bytes]) -> None:
    try:
        systemd.wait_for("READY=1")
        for _ in range(3):
            systemd.wait_for("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        systemd.wait_for("STOPPING=1")
        assert process.wait(15) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_controller_says_ready_feeds_the_watchdog_and_says_stopping(
    systemd: ServiceManager, deploy: Callable[..., Deployment]
) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    life(systemd, systemd.start("controller.main", "--config", str(d.file)))


def test_node_manager_says_ready_feeds_the_watchdog_and_says_stopping(
    systemd: ServiceManager, deploy: Callable[..., Deployment]
) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    node = d.add_node(1)
    life(systemd, systemd.start("nodemanager.main", "--config", str(node.file)))
