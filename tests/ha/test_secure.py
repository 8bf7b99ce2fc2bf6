"""The same with everything locked: etcd with TLS and a user, mutual TLS for nodes, https and tokens for operators."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.tokens import Role, Token, digest_of, new_token
from tests.cluster.deployment import Deployment, engine_section, free_port
from tests.nodemanager.places import Node, describe_left, kill_all
from tests.security.pki import Pki
from tests.store.etcd_server import MOTOR_PASSWORD, EtcdCluster, make_tls

HANG = 40.0


class Secure:
    """Two controllers, one node, everything below `root`. Asked with motorctl alone, as an operator would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pki = Pki(root / "pki")
        files = make_tls(root / "etcd-tls")
        self.etcd = EtcdCluster(root / "etcd", size=1, tls=files, auth=True)
        self.etcd.start()
        (root / "password").write_text(f"{MOTOR_PASSWORD}\n")
        (root / "password").chmod(0o600)
        secret = new_token()
        (root / "token").write_text(secret)
        (root / "tokens").write_text(Token("alice", Role.OPERATE, digest_of(secret)).line() + "\n")
        (root / "tokens").chmod(0o600)
        store = {
            "kind": "etcd", "endpoints": self.etcd.endpoints, "user": "motor", "password_file": "password",
            "ca": str(files.ca), "cert": str(files.cert), "key": str(files.key),
        }  # fmt: skip
        base = Deployment(root, {"motor_engine_union_config": engine_section(nnodes=1)}).file
        self.ports: dict[str, tuple[int, int]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("c1", "c2"):
            text = json.loads(base.read_text())
            self.ports[name] = rest, grpc = free_port(), free_port()
            text["motor_controller_config"] |= {
                "rest": {"port": rest}, "grpc": {"port": grpc}, "store": store, "tls": self.pki.controller(),
                "access": {"tokens_file": "tokens"},
            }  # fmt: skip
            (root / f"{name}.json").write_text(json.dumps(text))
        held = self.pki.node("n1")
        self.node = Node(
            root / "n1",
            self.ports["c1"][1],
            {
                "address": "127.0.1.1",
                # it knows c1 only: c2's address comes from c1, and has to show a certificate of the same CA
                "controllers": [f"127.0.0.1:{self.ports['c1'][1]}"],
                "tls": {"ca": str(held.ca), "cert": str(held.cert), "key": str(held.key)},
            },
        )

    def start(self, name: str) -> None:
        with (self.root / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "controller.main", "--config", str(self.root / f"{name}.json")],
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def motorctl(self, *words: str, ask: str = "c1,c2") -> subprocess.CompletedProcess[str]:
        addresses = ",".join(f"https://127.0.0.1:{self.ports[name][0]}" for name in ask.split(","))
        trust = ("--ca", str(self.pki.ca), "--token-file", str(self.root / "token"))
        command = [sys.executable, "-m", "motorctl.main", *words, "--controller", addresses, *trust]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    def wait_ready(self, epoch: int, ask: str = "c1,c2") -> dict[str, Any]:
        deadline = time.monotonic() + HANG
        while True:
            said = self.motorctl("status", "-o", "json", ask=ask)
            if said.returncode == 0 and (found := json.loads(said.stdout))["epoch"] == epoch:
                return dict(found)
            if time.monotonic() > deadline:
                logs = "".join(path.read_text()[-3000:] for path in sorted(self.root.glob("c?.out")))
                raise AssertionError(f"{said.stderr}\n{said.stdout[-500:]}\n{logs}\n{self.node.output()[-3000:]}")

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait(15)
        if self.node.process is not None:
            self.node.end()
        stop = [sys.executable, "-m", "nodemanager.main", "--config", str(self.node.file), "stop", "--engines"]
        subprocess.run([*stop, "--grace", "3"], capture_output=True, timeout=30)
        self.etcd.stop()


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Secure]:
    made = Secure(tmp_path)
    try:
        yield made
    finally:
        made.close()
        left = describe_left(tmp_path)
        kill_all(tmp_path)
    assert not left, f"left behind: {left}"


def pid(status: dict[str, Any]) -> int:
    return int(status["instances"][0]["groups"][0]["members"][0]["pid"])


def test_the_lead_moves_over_tls_and_with_tokens(secure: Secure) -> None:
    secure.start("c1")
    secure.node.start()
    before = pid(secure.wait_ready(1))
    secure.start("c2")
    said = secure.motorctl("step-down", ask="c2")
    deadline = time.monotonic() + HANG
    while said.returncode and time.monotonic() < deadline:  # until c2 is there and knows c1
        said = secure.motorctl("step-down", ask="c2")
    assert "a standby takes over" in said.stdout, said.stderr
    status = secure.wait_ready(2, ask="c1,c2")
    assert pid(status) == before
    assert f"names 127.0.0.1:{secure.ports['c2'][1]} as the leader" in secure.node.output()
    secure.processes["c2"].send_signal(signal.SIGKILL)
    status = secure.wait_ready(3, ask="c2,c1")
    assert pid(status) == before, "nobody touched the engine"
