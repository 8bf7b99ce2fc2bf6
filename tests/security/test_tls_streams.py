"""Who gets a node stream, and what both operators read when somebody does not. One real controller for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from motor_rpc import control_pb2 as pb
from motor_rpc import control_pb2_grpc, tls
from motor_rpc.tls import TlsFiles

from tests.cluster.deployment import Deployment, engine_section
from tests.nodemanager.places import free_port
from tests.security.pki import Pki, SecureDeployment, dialled, ended, linked, made

HERE = "127.0.0.2"  # an address of this machine that no certificate here is for


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki") / "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki") / "theirs")


@pytest.fixture(scope="module")
def controller(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureDeployment]:
    running = SecureDeployment(
        tmp_path_factory.mktemp("controller"), pki, grpc={"host": "0.0.0.0", "port": free_port()}, insecure=True
    )
    running.start_controller()
    yield running
    running.close()


async def test_node_with_its_certificate_is_let_in(controller: SecureDeployment, pki: Pki) -> None:
    assert (await dialled(controller.grpc_port, pki.node("n1"))).state == "connected"


async def test_common_name_is_enough_where_no_name_says_more(controller: SecureDeployment, pki: Pki) -> None:
    """Certificates of an operator's own CA need no name of Motor's kind."""
    long = "n" * 70
    state = await dialled(controller.grpc_port, pki.node(long), long)
    assert state.state == "connected", "the URI holds a node_id that no common name has room for"


async def test_node_certificate_of_another_ca(controller: SecureDeployment, pki: Pki, other: Pki) -> None:
    state = await dialled(controller.grpc_port, other.node("stranger", ca=pki.ca), "stranger")
    assert state.state == "connecting"
    assert "hung up when it saw this node's certificate, 'stranger' of 'theirs CA" in state.detail
    assert "(its own is of 'ours CA" in state.detail and "not signed by the CA" in state.detail
    controller.wait_said("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate")
    assert "stranger" not in controller.node_states()


async def test_link_that_is_told_to_end_while_it_looks_for_the_reason_ends(
    controller: SecureDeployment, pki: Pki, other: Pki
) -> None:
    """At any moment of it: asyncio's own time limit lost a cancellation that came together with a result."""
    files = other.node("stranger", ca=pki.ca)
    for moment in range(60):
        async with linked(controller.grpc_port, files, "stranger"):
            await asyncio.sleep(moment / 1000)


async def test_peer_without_a_certificate(controller: SecureDeployment, pki: Pki) -> None:
    """No node manager can be configured so; whoever it is gets no handler to talk to."""
    credentials = grpc.ssl_channel_credentials(pki.ca.read_bytes())
    async with grpc.aio.secure_channel(f"127.0.0.1:{controller.grpc_port}", credentials) as channel:
        call = control_pb2_grpc.ControlStub(channel).Session()
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await call.write(pb.NodeMessage(register=pb.RegisterMsg(protocol=1, node_id="n1", boot_id="b")))
            await call.read()
    controller.wait_said("PEER_DID_NOT_RETURN_A_CERTIFICATE")


async def test_plaintext_node_at_a_tls_controller(controller: SecureDeployment) -> None:
    state = await dialled(controller.grpc_port, None)
    assert "speaks TLS, and this node file has no `tls`" in state.detail
    controller.wait_said("WRONG_VERSION_NUMBER")


async def test_controller_of_an_unknown_ca(controller: SecureDeployment, pki: Pki, other: Pki) -> None:
    state = await dialled(controller.grpc_port, pki.node("n1", ca=other.ca))
    assert "its certificate ('controller' of 'ours CA" in state.detail
    assert f"is not signed by the CA in {other.ca} ('theirs CA" in state.detail
    # The controller hears no reason: gRPC hangs up on a certificate that it does not trust.


async def test_expired_node_certificate(
    controller: SecureDeployment, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ended(monkeypatch):
        files = pki.node("late")
    state = await dialled(controller.grpc_port, files, "late")
    assert "the certificate of 'late' ended 0 days ago" in state.detail and "motorctl certs node" in state.detail


async def test_node_certificate_that_ends_while_the_node_runs(
    controller: SecureDeployment, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with what it had when the new one cannot be used, and the controller refuses that by its own clock."""
    with monkeypatch.context() as behind, ended(monkeypatch):
        behind.setattr(tls, "_check_dates", lambda *_: None)  # a node whose clock is an hour behind
        files = pki.node("behind")
        state = await dialled(controller.grpc_port, files, "behind")
    assert "hung up when it saw this node's certificate, 'behind'" in state.detail
    assert "or has ended by the clock there" in state.detail
    controller.wait_said("CERTIFICATE_VERIFY_FAILED: certificate has expired")


async def test_controller_name_that_is_not_in_its_certificate(controller: SecureDeployment, pki: Pki) -> None:
    state = await dialled(controller.grpc_port, pki.node("n1"), host=HERE)
    assert f"expected a certificate for {HERE}, its certificate is for 127.0.0.1, ::1, localhost" in state.detail
    assert f"motorctl certs controller DIR --controller {HERE} --force" in state.detail


async def test_tls_node_at_a_plaintext_controller(pki: Pki, tmp_path: Path) -> None:
    plain = Deployment(tmp_path, {"motor_engine_union_config": engine_section()})
    try:
        plain.start_controller()
        state = await dialled(plain.grpc_port, pki.node("n1"))
    finally:
        plain.close()
    assert f"the controller at 127.0.0.1:{plain.grpc_port} does not speak TLS" in state.detail


async def test_registering_as_another_node(controller: SecureDeployment, pki: Pki) -> None:
    state = await dialled(controller.grpc_port, pki.node("n1"), "n2")
    assert state.state == "refused"
    said = "the node registers as 'n2', its certificate is of node n1 (common name 'n1', or a URI motor:node:ID)"
    assert state.detail.startswith(f"refused (identity): {said}")
    controller.wait_said(said)
    assert "n2" not in controller.node_states()


async def test_controllers_own_certificate_registers_no_node(controller: SecureDeployment, pki: Pki) -> None:
    own = TlsFiles(pki.folder / "controller.pem", pki.folder / "controller.key", pki.ca)
    state = await dialled(controller.grpc_port, own, "controller")
    assert "expected a certificate for a client, 'controller' is for a server" in state.detail


async def test_nobody_listens(pki: Pki) -> None:
    state = await dialled(free_port(), pki.node("n1"))
    assert "Connection refused" in state.detail


async def test_no_files(controller: SecureDeployment, tmp_path: Path) -> None:
    state = await dialled(controller.grpc_port, TlsFiles(tmp_path / "a", tmp_path / "b", tmp_path / "c"))
    assert f"tls.cert: {tmp_path / 'a'}: cannot be read: No such file" in state.detail
    assert "motorctl certs init" in state.detail


def test_a_node_certificate_makes_no_controller(tmp_path: Path, pki: Pki) -> None:
    """Whoever takes a node's key cannot pass himself off as a controller to the other nodes."""
    files = pki.node("n1")
    d = SecureDeployment(tmp_path, pki, tls=pki.controller(cert=files.cert, key=files.key))
    with pytest.raises(AssertionError, match="ended with 2"):
        d.start_controller()
    assert "expected a certificate for a server, 'n1' is for a client" in d.said()
    made("show", files.cert)
