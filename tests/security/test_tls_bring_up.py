"""Everything at once over mutual TLS and https: real daemons, real certificates, the scripted engine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from motor_rpc import control_pb2 as pb

from controller.api.log_streams import LogStreams
from tests.nodemanager.places import describe_left, kill_all, until
from tests.security.pki import Pki, SecureDeployment


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[SecureDeployment]:
    d = SecureDeployment(tmp_path, Pki(tmp_path / "pki"))
    yield d
    d.close()
    left = describe_left(tmp_path)
    kill_all(tmp_path)
    assert not left, f"left behind: {left}"


def test_two_nodes_come_up_over_mutual_tls(deployment: SecureDeployment) -> None:
    d = deployment
    d.start_controller()
    d.start_nodes(2)
    d.wait_ready()
    (endpoint,) = d.get("/v1/instances")
    assert endpoint["node_id"] == "n1"
    command = [sys.executable, "-m", "motorctl.main", "status", "-o", "json", "--controller", d.url]
    answer = subprocess.run([*command, "--ca", str(d.pki.ca)], capture_output=True, text=True, timeout=30)
    assert answer.returncode == 0 and json.loads(answer.stdout)["ready"], answer.stderr
    before = {slot: member["pid"] for slot, member in d.members().items()}
    # A node that has taken another's certificate from a shared folder, as it happens with copied set-ups.
    taken = d.pki.node("n2")
    tls = {"ca": str(taken.ca), "cert": str(taken.cert), "key": str(taken.key)}
    d.add_node(3, tls=tls).start()
    d.wait_said("the node registers as 'n3', its certificate is of node n2")
    d.wait(lambda: "refused (identity)" in d.nodes["n3"].output(), "the node to say why", 20.0)
    assert set(d.node_states()) == {"n1", "n2"}
    assert {slot: member["pid"] for slot, member in d.members().items()} == before


async def test_log_lines_of_a_node_that_was_not_asked_are_dropped() -> None:
    asked: list[pb.LogRequest] = []

    class Service:
        def send_to_node(self, node_id: str, log_request: pb.LogRequest | None = None, **_: object) -> bool:
            if log_request is not None:
                asked.append(log_request)
            return True

    logs = LogStreams(Service())  # type: ignore[arg-type]
    chunks = logs.read("n1", None, 10, False)
    first = asyncio.ensure_future(anext(chunks))
    await until(lambda: asked)
    request_id = asked[0].request_id
    logs.take("n2", pb.LogChunk(request_id=request_id, data=b"of n2"))
    logs.take("n1", pb.LogChunk(request_id=request_id, data=b"of n1", end=True))
    assert await first == b"of n1"
    await chunks.aclose()
