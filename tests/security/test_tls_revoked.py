"""A certificate that is revoked lets nobody in any more, an open stream with it ends, and nobody else notices."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from motor_rpc.certificate import read_file
from motor_rpc.tls import TlsError

from controller.api.revoked import RevokedFile, parse
from tests.nodemanager.places import until
from tests.security.pki import Pki, SecureDeployment, certs, dialled, linked, made

ONE = "0f" * 32


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "ours")


@pytest.fixture
def d(tmp_path: Path, pki: Pki) -> Iterator[SecureDeployment]:
    (tmp_path / "revoked").write_text("# nobody yet\n")
    running = SecureDeployment(tmp_path, pki, tls={**pki.controller(), "revoked_file": "revoked"})
    running.start_controller()
    yield running
    running.close()


async def test_revoked_while_its_stream_is_open(d: SecureDeployment, pki: Pki) -> None:
    n1, n2 = pki.node("n1"), pki.node("n2")
    async with linked(d.grpc_port, n1) as link, linked(d.grpc_port, n2, "n2") as bystander:
        await until(lambda: link.state.state == bystander.state.state == "connected", 20.0)
        since = bystander.state.since
        made("revoke", d.root / "revoked", n1.cert)
        await until(lambda: "is revoked in" in link.state.detail, 60.0, "the stream to end and the next to be refused")
        assert "motorctl certs node DIR NODE_ID --force" in link.state.detail
        assert any("is revoked in" in event["sentence"] for event in d.events("node n1"))
        assert (bystander.state.state, bystander.state.since) == ("connected", since)
    made("node", pki.folder, "n1", "--force")
    assert (await dialled(d.grpc_port, pki.node("n1"))).state == "connected", "its successor is another certificate"


async def test_a_list_that_breaks_frees_nobody(d: SecureDeployment, pki: Pki) -> None:
    made("revoke", d.root / "revoked", pki.node("n1").cert)
    assert "is revoked in" in (await dialled(d.grpc_port, pki.node("n1"))).detail
    (d.root / "revoked").write_text("n1\n")
    assert "is revoked in" in (await dialled(d.grpc_port, pki.node("n1"))).detail
    assert (await dialled(d.grpc_port, pki.node("n2"), "n2")).state == "connected"
    said = f"{d.root}/revoked:1: expected a SHA-256 fingerprint (64 hex digits), got 'n1'"
    assert any(said in problem for problem in d.status()["problems"])
    (d.root / "revoked").unlink()
    assert "is revoked in" in (await dialled(d.grpc_port, pki.node("n1"))).detail
    (d.root / "revoked").write_text("")
    assert (await dialled(d.grpc_port, pki.node("n1"))).state == "connected"
    assert not any("revoked" in problem for problem in d.status()["problems"])


@pytest.mark.parametrize(("text", "said"), [(None, "cannot be read: No such file"), ("12:34\n", "revoked:1: expected")])
def test_no_start_with_a_list_that_cannot_be_used(tmp_path: Path, pki: Pki, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "revoked").write_text(text)
    broken = SecureDeployment(tmp_path, pki, tls={**pki.controller(), "revoked_file": "revoked"})
    broken.start_process()
    try:
        assert broken.controller is not None and broken.controller.wait(60) == 2
        assert f"motor_controller_config.tls.revoked_file: {tmp_path / 'revoked'}" in broken.said()
        assert said in broken.said()
    finally:
        broken.close()


def test_lines() -> None:
    colons = ":".join([ONE[:2].upper()] * 32)
    for line in (ONE, f"{ONE}  node-a, ends 2029-03-04", colons, f"sha256 Fingerprint={colons}", f"  {ONE}\t"):
        assert parse(f"# a comment\n\n{line}\n", "f") == {ONE}, line
    for line in (ONE[:-1], ONE + "0", f"x{ONE}", "node-a"):
        with pytest.raises(TlsError, match="f:1: expected a SHA-256 fingerprint"):
            parse(line, "f")


def test_what_openssl_prints_is_understood(tmp_path: Path, pki: Pki) -> None:
    cert = pki.node("n1").cert
    command = ["openssl", "x509", "-in", str(cert), "-noout", "-fingerprint", "-sha256"]
    (tmp_path / "list").write_text(subprocess.check_output(command, text=True))
    assert RevokedFile(tmp_path / "list").holds(read_file(cert)[0].fingerprint)


def test_what_revoke_writes_and_refuses(tmp_path: Path, pki: Pki) -> None:
    file, n1, n2 = tmp_path / "list", pki.node("n1").cert, pki.node("n2").cert
    made("revoke", file, n1)
    again = certs("revoke", file, n1, n2)
    assert "1 added, 1 were there" in again.output
    listed = file.read_text().splitlines()
    assert [line.split()[0] for line in listed] == [read_file(cert)[0].fingerprint for cert in (n1, n2)]
    assert "n1, ends 20" in listed[0]
    for given, said in ((pki.ca, "is a CA; take it out of every ca.pem"), (pki.ca.with_suffix(".key"), "holds no PEM")):
        refused = certs("revoke", file, n1, given)
        assert refused.exit_code == 2 and said in refused.output
    assert file.read_text().splitlines() == listed
    assert read_file(n1)[0].fingerprint in certs("show", n1).output
