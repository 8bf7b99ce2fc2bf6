"""https to a controller: what motorctl trusts, and what it says when it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.deployment import Deployment, engine_section, free_port
from tests.security.pki import Pki, SecureDeployment


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureDeployment]:
    pki = Pki(tmp_path_factory.mktemp("pki") / "ours")
    running = SecureDeployment(tmp_path_factory.mktemp("controller"), pki)
    running.start_controller()
    yield running
    running.close()


def status(url: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "motorctl.main", "status", "--controller", url, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_status_over_https(controller: SecureDeployment) -> None:
    answer = status(controller.url, "--ca", controller.pki.ca, "-o", "json")
    assert answer.returncode == 1, answer.stderr  # it answers; no node is there yet
    assert json.loads(answer.stdout)["ready"] is False


def test_ca_that_the_machine_does_not_know(controller: SecureDeployment) -> None:
    answer = status(controller.url)
    assert answer.returncode == 3
    assert (
        f"127.0.0.1:{controller.rest_port} is not trusted: its certificate ('controller' of 'ours CA" in answer.stderr
    )
    assert "is of a CA that this machine does not know; give its ca.pem (--ca, MOTOR_CA)" in answer.stderr


def test_wrong_ca(controller: SecureDeployment, tmp_path: Path) -> None:
    other = Pki(tmp_path / "theirs")
    answer = status(controller.url, "--ca", other.ca)
    assert answer.returncode == 3 and f"is not signed by the CA in {other.ca} ('theirs CA" in answer.stderr


def test_name_that_the_certificate_has_not(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "ours")
    port = free_port()
    d = SecureDeployment(tmp_path, pki, rest={"host": "127.0.0.2", "port": port})
    d.start_process()
    try:
        d.wait_said("nodes dial")
        answer = status(f"https://127.0.0.2:{port}", "--ca", pki.ca)
    finally:
        d.close()
    assert answer.returncode == 3
    assert "expected a certificate for 127.0.0.2, its certificate is for 127.0.0.1, ::1, localhost" in answer.stderr
    assert "motorctl certs controller DIR --controller 127.0.0.2 --force" in answer.stderr
    assert "REST: peers dial 127.0.0.2, and the certificate" in d.said(), (
        "the controller's operator is told at the start"
    )


def test_ca_file_that_is_none(controller: SecureDeployment, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no PEM")
    answer = status(controller.url, "--ca", tmp_path / "ca.pem")
    assert answer.returncode == 1 and "expected the PEM certificate of a CA" in answer.stderr
    assert "see --ca" in status(controller.url, "--ca", tmp_path / "none.pem").stderr


def test_http_to_https_and_the_reverse(controller: SecureDeployment, tmp_path: Path) -> None:
    place = f"127.0.0.1:{controller.rest_port}"
    answer = status(f"http://{place}")
    assert answer.returncode == 3 and f"speaks TLS: use https://{place}, and --ca or MOTOR_CA" in answer.stderr
    plain = Deployment(tmp_path, {"motor_engine_union_config": engine_section()})
    try:
        plain.start_controller()
        answer = status(plain.url.replace("http", "https"), "--ca", controller.pki.ca)
    finally:
        plain.close()
    assert answer.returncode == 3 and f"does not speak TLS: use {plain.url}" in answer.stderr


def test_metrics_say_when_the_certificate_ends(controller: SecureDeployment) -> None:
    lines = controller.get("/metrics").splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith("motor_certificate_not_after_seconds "))
    shown = float(value)
    assert 824 * 86400 < shown - controller.file.stat().st_mtime < 826 * 86400
