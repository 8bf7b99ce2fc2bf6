"""Tokens of REST: who gets what, and what is written down about it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.api.guard import open_tokens
from controller.api.tokens import TokenFileError, new_token
from tests.cluster.deployment import Deployment
from tests.config.files import engine, file_with, load
from tests.security.conftest import SECTIONS, Guarded

PAUSE = {"order": "pause", "target": "", "reason": "test"}


def ask(one: Guarded, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers.update(more.pop("headers", {}))
    return httpx.request(method, one.url + path, headers=headers, timeout=10.0, trust_env=False, **more)


READS = [
    "/v1/status",
    "/v1/nodes",
    "/v1/instances",
    "/v1/events",
    "/metrics",
    "/openapi.json",
    "/v1/logs/x",
    "/nowhere",
]


@pytest.mark.parametrize("path", READS)
def test_reading_needs_a_token_of_either_role(guarded: Guarded, path: str) -> None:
    for refused in (ask(guarded, "GET", path), ask(guarded, "GET", path, new_token()), ask(guarded, "HEAD", path)):
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
    assert set(ask(guarded, "GET", path).json()) == {"error", "fix"}
    expected = 404 if path in ("/v1/logs/x", "/nowhere") else 200
    for token in (guarded.read, guarded.operate):
        assert ask(guarded, "GET", path, token).status_code == expected


def test_orders_need_the_role_operate(guarded: Guarded) -> None:
    assert ask(guarded, "POST", "/v1/orders", json=PAUSE).status_code == 401
    refused = ask(guarded, "POST", "/v1/orders", guarded.read, json=PAUSE)
    assert refused.status_code == 403
    assert "prom may only read" in refused.json()["error"]
    assert ask(guarded, "GET", "/v1/status", guarded.read).json()["paused"] == ""
    assert ask(guarded, "POST", "/v1/orders", guarded.operate, json=PAUSE).status_code == 200
    assert ask(guarded, "POST", "/v1/orders", guarded.operate, json={**PAUSE, "order": "resume"}).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "BREW"])
def test_an_unknown_method_is_no_reading(guarded: Guarded, method: str) -> None:
    assert ask(guarded, method, "/v1/status", guarded.read).status_code == 403
    assert ask(guarded, method, "/readyz").status_code == 401


def test_probes_and_the_page_for_people_are_open(guarded: Guarded) -> None:
    assert ask(guarded, "GET", "/readyz").status_code == 200
    assert ask(guarded, "GET", "/healthz").status_code == 200
    page = ask(guarded, "GET", "/docs")
    assert page.status_code == 200
    assert guarded.deployment.file.name not in page.text and "prefill" not in page.text


@pytest.mark.parametrize(
    "given",
    [
        "Basic {0}", "{0}", "Bearer", "Bearer {0}x", "Bearer {0} x", "Token {0}",
        "Bearer " + "x" * 4000, "Bearer ü", "bearer\t{0}",
    ],
)  # fmt: skip
def test_what_is_no_token(guarded: Guarded, given: str) -> None:
    header = given.format(guarded.operate).encode()
    refused = ask(guarded, "GET", "/v1/status", headers={"Authorization": header})
    assert refused.status_code == 401
    assert guarded.operate not in refused.text


def test_two_tokens_are_none(guarded: Guarded) -> None:
    headers = [("Authorization", f"Bearer {guarded.read}"), ("Authorization", f"Bearer {guarded.operate}")]
    assert httpx.get(guarded.url + "/v1/status", headers=headers, trust_env=False).status_code == 401


@pytest.mark.parametrize(
    "path", ["//v1/status", "/readyz/../v1/status", "/readyz%2f..%2fv1/status", "/docs/../metrics"]
)
def test_no_spelling_of_a_path_is_open(guarded: Guarded, path: str) -> None:
    """httpx would tidy them up, so these go over the socket as they are."""
    with socket.create_connection(("127.0.0.1", guarded.deployment.rest_port), 5) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        head = connection.makefile("rb").readline()
    assert b" 401 " in head


def test_an_order_is_logged_with_who_gave_it(guarded: Guarded) -> None:
    reason = "first\nERROR controller: second\x1b[2J"
    order = {"order": "cordon", "target": "n7", "reason": reason}
    ask(guarded, "POST", "/v1/orders", guarded.operate, json=order)
    ask(
        guarded,
        "POST",
        "/v1/orders",
        guarded.operate,
        content=b"\xff\n\x1b[2J",
        headers={"Content-Type": "application/json"},
    )
    lines = [line for line in guarded.log().splitlines() if "controller.audit" in line]
    assert any("alice from 127.0.0.1: POST /v1/orders" in line and "n7" in line and "-> 409" in line for line in lines)
    assert not any(line.startswith("ERROR controller: second") for line in guarded.log().splitlines())
    assert "\x1b" not in guarded.log()


def test_no_token_and_no_hash_is_ever_logged(guarded: Guarded) -> None:
    wrong = new_token()
    ask(guarded, "GET", "/v1/status", wrong)
    ask(guarded, "GET", f"/v1/logs/{wrong}", guarded.operate)
    for secret in (guarded.read, guarded.operate, wrong):
        assert secret not in guarded.log()
    assert "sha256" not in guarded.log()


def motorctl(one: Guarded, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "motorctl.main", *words], capture_output=True, text=True, timeout=30,
        env={**os.environ, "MOTOR_CONTROLLER": one.url, **env},
    )  # fmt: skip


def test_motorctl_takes_its_token_from_the_environment_or_a_file(guarded: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(guarded.operate + "\n")
    assert "no token" in motorctl(guarded, "status").stderr
    assert motorctl(guarded, "status", MOTOR_TOKEN=guarded.read).stdout
    assert motorctl(guarded, "status", "--token-file", str(file)).stdout
    assert motorctl(guarded, "status", MOTOR_TOKEN_FILE=str(file)).returncode in (0, 1)
    refused = motorctl(guarded, "pause", MOTOR_TOKEN=guarded.read)
    assert refused.returncode == 1 and "may only read" in refused.stderr
    assert motorctl(guarded, "pause", "--token-file", str(file)).returncode == 0
    assert motorctl(guarded, "resume", "--token-file", str(file)).returncode == 0
    file.write_text("two words")
    assert "one token" in motorctl(guarded, "status", "--token-file", str(file)).stderr
    assert "cannot be read" in motorctl(guarded, "status", "--token-file", str(tmp_path)).stderr


def test_a_token_works_from_when_it_is_made_until_it_is_removed(tmp_path: Path) -> None:
    one = Guarded(tmp_path)
    try:
        one.deployment.start_controller()
        made = motorctl(one, "token", "add", "bob", "--role", "read", "--file", str(one.tokens))
        token = made.stdout.strip()
        assert token not in one.tokens.read_text() and token not in made.stderr
        assert ask(one, "GET", "/v1/status", token).status_code == 200
        assert (
            "has a token for bob"
            in motorctl(one, "token", "add", "bob", "--role", "read", "--file", str(one.tokens)).stderr
        )
        assert motorctl(one, "token", "list", "--file", str(one.tokens)).stdout.split() == [
            "prom", "read", "alice", "operate", "bob", "read",
        ]  # fmt: skip
        assert one.tokens.stat().st_mode & 0o777 == 0o600
        assert motorctl(one, "token", "remove", "bob", "--file", str(one.tokens)).returncode == 0
        assert ask(one, "GET", "/v1/status", token).status_code == 401
        assert one.tokens.read_text().startswith("# tokens\n"), "comments stay"

        # A broken line counts for nothing, is called out, and leaves the others as they are.
        one.tokens.write_text(one.tokens.read_text() + f"carol operate {one.read}\n")
        assert ask(one, "GET", "/v1/status", one.read).status_code == 200
        assert "tokens:4: expected `name role sha256" in one.log() and one.read not in one.log()

        one.tokens.chmod(0o666)
        assert ask(one, "GET", "/v1/status", one.operate).status_code == 401
        one.tokens.chmod(0o600)
        assert ask(one, "GET", "/v1/status", one.operate).status_code == 200
        one.tokens.unlink()
        assert ask(one, "GET", "/v1/status", one.operate).status_code == 401
        assert "no token is valid" in one.log()
    finally:
        one.close()


def test_reading_from_this_machine_without_a_token(tmp_path: Path) -> None:
    one = Guarded(tmp_path, loopback_read=True)
    try:
        one.deployment.start_controller()
        assert ask(one, "GET", "/v1/status").status_code == 200
        assert ask(one, "POST", "/v1/orders", json=PAUSE).status_code == 401
        assert ask(one, "GET", "/v1/status", new_token()).status_code == 401, "a wrong token is worse than none"
        for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"):
            assert ask(one, "GET", "/v1/status", headers={header: "127.0.0.1"}).status_code == 401, header
        assert ask(one, "GET", "/v1/status", headers={"Host": "evil.example:1026"}).status_code == 401
    finally:
        one.close()


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("alice operate sha256:abc\n", 0o600, "tokens:1: expected"),
        (f"alice root sha256:{'a' * 64}\n", 0o600, "tokens:1: role: expected read or operate"),
        (f"a read sha256:{'a' * 64}\na read sha256:{'b' * 64}\n", 0o600, "stands twice"),
        ("", 0o622, "chmod 600"),
        ("#" * (2 << 20), 0o600, "is larger than"),
    ],
)
def test_a_tokens_file_that_cannot_be_used(tmp_path: Path, content: str, mode: int, said: str) -> None:
    (tmp_path / "tokens").write_text(content)
    (tmp_path / "tokens").chmod(mode)
    settings = load(
        file_with(prefill=engine(), controller={"access": {"tokens_file": str(tmp_path / "tokens")}})
    ).settings
    with pytest.raises(TokenFileError, match=said):
        open_tokens(settings)


def test_the_controller_does_not_start_without_its_tokens_file(tmp_path: Path) -> None:
    one = Guarded(tmp_path)
    one.tokens.unlink()
    ended = subprocess.run(
        [sys.executable, "-m", "controller.main", "--config", str(one.deployment.file)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "tokens: cannot be read" in ended.stderr and "Traceback" not in ended.stderr


def test_without_tokens_everything_is_as_ever_but_for_web_pages(deploy: Callable[..., Deployment]) -> None:
    """A page of evil.example that points its own name to 127.0.0.1 would be of one origin with the controller."""
    deployment = deploy(SECTIONS)
    deployment.start_controller()

    def order(**headers: str) -> int:
        return httpx.post(deployment.url + "/v1/orders", json=PAUSE, headers=headers, trust_env=False).status_code

    assert order() == 200
    assert order(Host="localhost:1026") == 200
    assert order(Host="[::1]:1026") == 200
    assert order(Host="evil.example:1026") == 403
    assert deployment.status()["paused"]
    # A form of another site cannot say that it sends JSON without asking first.
    plain = httpx.post(
        deployment.url + "/v1/orders",
        content='{"order": "resume"}',
        headers={"Content-Type": "text/plain"},
        trust_env=False,
    )
    assert plain.status_code == 422
    assert deployment.status()["paused"]
