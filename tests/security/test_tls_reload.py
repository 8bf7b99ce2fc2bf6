"""Certificates are replaced while everything runs: nothing restarts, and nothing that is half done gets in."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from motor_rpc.certificate import read_certificates
from motor_rpc.tls import TlsFiles

from tests.nodemanager.places import until
from tests.security.pki import Pki, SecureDeployment, dialled, linked, made


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[Pki], SecureDeployment]]:
    """Starts a controller whose files are copies, so that a test can write what it wants into them."""
    started: list[SecureDeployment] = []

    def start(pki: Pki) -> SecureDeployment:
        d = SecureDeployment(tmp_path, pki, tls={"cert": "now.pem", "key": "now.key", "ca": "now-ca.pem"})
        install(d, pki)
        d.start_controller()
        started.append(d)
        return d

    yield start
    for d in started:
        d.close()


def install(d: SecureDeployment, pki: Pki) -> None:
    for name, source in (("now.pem", "controller.pem"), ("now.key", "controller.key"), ("now-ca.pem", "ca.pem")):
        shutil.copyfile(pki.folder / source, d.root / name)


def shown(port: int) -> str:
    """The certificate that a server shows, as PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port))


async def test_both_servers_show_a_new_certificate_and_open_streams_stay(
    tmp_path: Path, running: Callable[[Pki], SecureDeployment]
) -> None:
    pki = Pki(tmp_path / "ours")
    d = running(pki)
    first = shown(d.grpc_port)
    assert first == shown(d.rest_port)
    async with linked(d.grpc_port, pki.node("n1")) as link:
        await until(lambda: link.state.state == "connected", 20.0)
        since = link.state.since
        made("controller", pki.folder, "--controller", "127.0.0.1", "--force")
        install(d, pki)
        assert shown(d.grpc_port) == shown(d.rest_port) == (pki.folder / "controller.pem").read_text()
        assert shown(d.grpc_port) != first
        d.wait_said("now.pem loaded: the certificate of 'controller' ends in 824 days")
        assert (await dialled(d.grpc_port, pki.node("n2"), "n2")).state == "connected", "a new stream gets in"
        before = link.state.last_ack
        await until(lambda: link.state.last_ack > before, 20.0, "the open stream is answered")
        assert link.state.since == since, "the open stream was never closed"
    assert d.said().count("now.pem loaded") == 1, "one change is loaded once, however many handshakes follow"


async def test_half_written_pair_is_not_used(tmp_path: Path, running: Callable[[Pki], SecureDeployment]) -> None:
    pki = Pki(tmp_path / "ours")
    d = running(pki)
    first = shown(d.rest_port)
    made("controller", pki.folder, "--controller", "127.0.0.1", "--force")
    fresh = (pki.folder / "controller.pem").read_text()
    (d.root / "now.pem").write_text(fresh)  # the key is still the old one
    for _ in range(3):
        assert shown(d.rest_port) == shown(d.grpc_port) == first
    said = f"{d.root}/now.key: is not the key of {d.root}/now.pem; they are made, and have to be replaced, as a pair"
    d.wait_said(said)
    assert d.said().count(said) == 1, "said once, not at each handshake"
    assert any("the certificate of before stays in use" in problem for problem in d.status()["problems"])
    (d.root / "now.pem").write_text(fresh[: len(fresh) // 2])
    assert shown(d.rest_port) == first
    (d.root / "now.pem").unlink()
    assert shown(d.grpc_port) == first
    d.wait_said("now.pem: cannot be read: No such file or directory")
    assert (await dialled(d.grpc_port, pki.node("n1"))).state == "connected"
    install(d, pki)
    assert shown(d.rest_port) == shown(d.grpc_port) == fresh
    assert not any("stays in use" in problem for problem in d.status()["problems"])


async def test_change_of_the_ca_node_by_node(tmp_path: Path, running: Callable[[Pki], SecureDeployment]) -> None:
    """Old and new CA stand in one file while the nodes change over; then the old one goes."""
    old, new = Pki(tmp_path / "old"), Pki(tmp_path / "new")
    d = running(old)
    files = TlsFiles(tmp_path / "n1.pem", tmp_path / "n1.key", tmp_path / "n1-ca.pem")

    def give(pki: Pki, authorities: str) -> None:
        given = pki.node("n1")
        shutil.copyfile(given.cert, files.cert)
        shutil.copyfile(given.key, files.key)
        files.ca.write_text(authorities)

    both = old.ca.read_text() + new.ca.read_text()
    give(old, both)
    (d.root / "now-ca.pem").write_text(both)
    async with linked(d.grpc_port, files) as link:
        await until(lambda: link.state.state == "connected", 20.0)
        give(new, both)  # read at the next dial
        first = len(d.events("node n1"))
        link.renew("changed")
        await until(
            lambda: len(d.events("node n1")) >= first + 2, 20.0, "the node to register with its new certificate"
        )
        await until(lambda: link.state.state == "connected", 20.0)
    install(d, new)
    assert (await dialled(d.grpc_port, files)).state == "connected"
    refused = await dialled(d.grpc_port, old.node("n2", ca=files.ca), "n2")
    assert "hung up when it saw this node's certificate, 'n2' of 'old CA" in refused.detail
    assert "(its own is of 'new CA" in refused.detail


async def test_node_keeps_its_last_good_pair(tmp_path: Path, running: Callable[[Pki], SecureDeployment]) -> None:
    pki = Pki(tmp_path / "ours")
    d = running(pki)
    files = pki.node("n1")
    async with linked(d.grpc_port, files) as link:
        await until(lambda: link.state.state == "connected", 20.0)
        made("node", pki.folder, "n2")
        shutil.copyfile(pki.folder / "nodes" / "n2.key", files.key)  # not its key
        first = len(d.events("node n1"))
        link.renew("changed")
        await until(lambda: len(d.events("node n1")) >= first + 2, 20.0, "the node to register again")
        await until(lambda: link.state.state == "connected", 20.0)
        made("node", pki.folder, "n1", "--force")
        fresh = read_certificates(files.cert.read_text())[0]
        link.renew("changed")
        await until(lambda: len(d.events("node n1")) >= first + 4, 20.0, "the node to register once more")
        await until(lambda: link.state.state == "connected", 20.0)
    assert fresh.node_ids() == ("n1",)


def test_certificate_that_ends_soon_is_said(
    tmp_path: Path, running: Callable[[Pki], SecureDeployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    from motorctl import certs_make

    monkeypatch.setattr(certs_make, "LEAF_DAYS", 12.5)
    d = running(Pki(tmp_path / "ours"))
    d.wait_said("now.pem: the certificate of 'controller' ends in 12 days")
    assert any("the certificate of 'controller' ends in 12 days" in problem for problem in d.status()["problems"])
    node = d.add_node(1)
    node.start()
    d.wait_said("node n1: the certificate of 'n1' ends in 12 days")
    assert "ends in 12 days" in node.output()
    told = "node n1: its certificate ends in 12 days"
    assert any(problem.startswith(told) and "certs node DIR n1" in problem for problem in d.status()["problems"])
    first = "motor_node_certificate_not_after_seconds "
    (value,) = (line.split()[1] for line in d.get("/metrics").splitlines() if line.startswith(first))
    assert 12 * 86400 < float(value) - d.file.stat().st_mtime < 13 * 86400
    node.end()
    d.wait(lambda: not any(told in problem for problem in d.status()["problems"]), "a node that is gone to go")
    assert first not in d.get("/metrics")
