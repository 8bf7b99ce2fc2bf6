"""What a controller is told at its start, and what it does not start with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.cluster.deployment import Deployment, engine_section, free_port

NOWHERE = "http://127.0.0.1:1"  # nobody listens there


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A deployment that listens everywhere and says nowhere where it is."""
    made = Deployment(tmp_path, {"motor_engine_union_config": engine_section()}).file
    text = json.loads(made.read_text())
    text["motor_controller_config"] |= {
        "insecure": True,
        "rest": {"host": "0.0.0.0", "port": free_port()},
        "grpc": {"host": "0.0.0.0", "port": free_port()},
        "store": {"kind": "etcd", "endpoints": [NOWHERE]},
    }
    made.write_text(json.dumps(text))
    return made


def controller(file: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "controller.main", "--config", str(file), *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})


def test_it_has_to_know_where_it_is(file: Path) -> None:
    started = controller(file)
    _, said = started.communicate(timeout=30)
    assert started.returncode == 2 and "--advertise-grpc" in said and "a standby could not say where it is" in said


def test_an_address_that_cannot_be_dialled_is_refused(file: Path) -> None:
    started = controller(file, "--advertise-grpc", "http://c1:1028")
    _, said = started.communicate(timeout=30)
    assert started.returncode == 2 and "--advertise-grpc: expected host:port, got http://c1:1028" in said


def test_told_at_the_start_it_answers_and_waits_for_its_store(file: Path) -> None:
    rest = json.loads(file.read_text())["motor_controller_config"]["rest"]["port"]
    started = controller(file, "--advertise-grpc", "c1:1028", MOTOR_ADVERTISE_REST="http://c1:1026")
    try:
        deadline = time.monotonic() + 30
        ready = None
        while ready is None or NOWHERE not in ready.text:
            assert started.poll() is None and time.monotonic() < deadline, ready and ready.text
            try:
                ready = httpx.get(f"http://127.0.0.1:{rest}/readyz", timeout=5.0, trust_env=False)
            except httpx.HTTPError:
                time.sleep(0.05)
        assert ready.status_code == 503 and "no controller leads since" in ready.json()["error"], "and it says why"
    finally:
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=15)
    assert started.returncode == 0
