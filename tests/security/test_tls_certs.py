"""`motorctl certs`, and what Motor reads of a certificate and refuses of a file."""

from __future__ import annotations

import dataclasses
import ipaddress
import random
import stat
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from motor_rpc.certificate import Certificate, CertificateError, parse, read_certificates, read_file
from motor_rpc.file_stamp import stamp
from motor_rpc.tls import TlsError, TlsFiles, load

from controller.api.identity import NodeCertificates
from tests.security.pki import Pki, certs, ended, made


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    one = Pki(tmp_path_factory.mktemp("pki") / "ours")
    one.node("n1")
    return one


def server(pki: Pki, **files: Path) -> TlsFiles:
    given = {"cert": pki.folder / "controller.pem", "key": pki.folder / "controller.key", "ca": pki.ca, **files}
    return TlsFiles(**given)


def test_what_init_and_node_make(pki: Pki) -> None:
    (authority,) = read_file(pki.ca)
    assert authority.is_ca and 3648 < authority.left().days < 3650
    (controller,) = read_file(pki.folder / "controller.pem")
    assert controller.purposes == ("server",) and controller.fits("127.0.0.1") and controller.fits("localhost")
    assert controller.left().days == 824 and controller.issuer == authority.common_name
    (node,) = read_file(pki.folder / "nodes" / "n1.pem")
    assert node.purposes == ("client",) and node.node_ids() == ("n1",) and not node.dns_names
    for key in pki.folder.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    verified = subprocess.run(
        f"openssl verify -x509_strict -purpose sslclient -CAfile {pki.ca} {pki.folder}/nodes/n1.pem".split(),
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stderr


def test_nothing_is_overwritten(pki: Pki) -> None:
    before = {path: path.read_bytes() for path in pki.folder.rglob("*") if path.is_file()}
    again = certs("init", pki.folder, "--controller", "127.0.0.1")
    assert again.exit_code == 2 and "a CA is there already and is never overwritten" in again.output
    for arguments in (("controller", pki.folder, "--controller", "x"), ("node", pki.folder, "n1")):
        refused = certs(*arguments)
        assert refused.exit_code == 2 and "--force replaces it" in refused.output
    assert {path: path.read_bytes() for path in before} == before
    made("node", pki.folder, "n1", "--force")
    after = {path: path.read_bytes() for path in before}
    assert {path.name for path in before if before[path] != after[path]} == {"n1.pem", "n1.key"}
    assert not list(pki.folder.rglob(".*")), "nothing half written is left"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("node", "../evil"), "cannot be the name of a file"),
        (("node", "a b"), "expected letters, digits"),
        (("node", "knoten-ä"), "expected letters, digits"),
        (("controller", "--controller", "10.0.0.1:1028", "--name", "c2"), "without ports, got '10.0.0.1:1028'"),
        (("controller", "--controller", " ,", "--name", "c2"), "got none"),
        (("controller", "--controller", "x", "--name", "ca"), "cannot be the name of a file"),
    ],
)
def test_what_certs_refuses(pki: Pki, arguments: tuple[str, ...], said: str) -> None:
    result = certs(arguments[0], pki.folder, *arguments[1:])
    assert result.exit_code == 2 and said in result.output


def test_folder_without_a_ca(tmp_path: Path) -> None:
    result = certs("node", tmp_path, "n1")
    assert result.exit_code == 2 and f"`motorctl certs init {tmp_path}` makes a CA" in result.output


def test_several_names(tmp_path: Path, pki: Pki) -> None:
    made("controller", pki.folder, "--controller", "10.0.0.1,ctl.example", "--controller", "fd00::1", "--name", "many")
    (found,) = read_file(pki.folder / "many.pem")
    for name in ("10.0.0.1", "ctl.example", "CTL.EXAMPLE.", "fd00::1", "[fd00:0::1]", "::1"):
        assert found.fits(name), name
    assert not found.fits("10.0.0.2") and not found.fits("x.ctl.example")


def test_show(pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = certs("show", pki.ca, pki.folder / "nodes" / "n1.pem")
    assert shown.exit_code == 0
    for part in ("n1  (client)", "motor:node:n1", "(CA)", "days left  824", "issuer     ours CA"):
        assert part in shown.output
    with ended(monkeypatch):
        made("node", pki.folder, "gone")
    shown = certs("show", pki.folder / "nodes" / "gone.pem")
    assert shown.exit_code == 1 and "ended 0 days ago" in shown.output
    shown = certs("show", pki.folder / "ca.key")
    assert shown.exit_code == 2 and "holds no PEM certificate" in shown.output


def test_without_the_package_the_way_out_is_said(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        f"from motorctl.main import main; main(['certs', 'init', {str(tmp_path)!r}, '--controller', 'x'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert result.returncode == 2 and "pip install 'motor-pcp[certs]'" in result.stderr


# -- files that are not loaded


def refusal(files: TlsFiles, purpose: str = "server") -> str:
    with pytest.raises(TlsError) as caught:
        load(files, purpose)  # type: ignore[arg-type]
    return str(caught.value)


def test_files_that_are_refused(pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = pki.folder / "controller.pem"
    assert "is not the key of" in refusal(server(pki, key=pki.folder / "nodes" / "n1.key"))
    assert "'controller' is no certificate of a CA; give ca.pem" in refusal(server(pki, ca=controller))
    assert "holds no PEM certificate" in refusal(server(pki, cert=pki.folder / "controller.key"))
    assert "tls.key" in refusal(server(pki, key=controller)) and "private key" in refusal(server(pki, key=controller))
    cut = tmp_path / "cut.pem"
    cut.write_text(pki.ca.read_text() + pki.ca.read_text()[:200])
    assert "ends in the middle of a certificate" in refusal(server(pki, ca=cut))
    with ended(monkeypatch):
        made("controller", pki.folder, "--controller", "x", "--name", "late")
    late = server(pki, cert=pki.folder / "late.pem", key=pki.folder / "late.key")
    assert "the certificate of 'late' ended 0 days ago" in refusal(late)


def test_key_with_a_password_is_not_asked_for(pki: Pki, tmp_path: Path) -> None:
    """OpenSSL would wait for it at the terminal of whoever started the daemon."""
    key = serialization.load_pem_private_key((pki.folder / "controller.key").read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert "expected a PEM private key without a password" in refusal(server(pki, key=locked))


def test_certificate_of_tomorrow(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    from motorctl import certs_make

    monkeypatch.setattr(certs_make, "CLOCK_RESERVE", timedelta(days=-1))
    made("controller", pki.folder, "--controller", "x", "--name", "tomorrow")
    files = server(pki, cert=pki.folder / "tomorrow.pem", key=pki.folder / "tomorrow.key")
    assert "is this machine's clock right?" in refusal(files)


# -- reading certificates: the package `cryptography` is the judge


def signed(chance: random.Random) -> tuple[bytes, Certificate]:
    """A certificate with whatever a CA may put in, and what is to be read of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    common_name = "".join(chance.choice("aé中-.0") for _ in range(chance.randint(1, 40)))
    begin = datetime(chance.choice((1999, 2026, 2049, 2051, 2200)), 3, 4, 5, 6, 7, tzinfo=timezone.utc)
    end = begin + timedelta(days=chance.randint(1, 9000))
    dns = [f"h{n}.example" for n in range(chance.choice((0, 1, 200)))]
    addresses = [chance.choice(("10.0.0.1", "fd00::7"))] * chance.randint(0, 1)
    uris = [f"motor:node:n{n}" for n in range(chance.randint(0, 2))]
    names: list[x509.GeneralName] = [
        *map(x509.DNSName, dns),
        *(x509.IPAddress(ipaddress.ip_address(a)) for a in addresses),
        *map(x509.UniformResourceIdentifier, uris),
        x509.RFC822Name("a@b.example"),
    ]
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Über GmbH"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name),
        ]
    )
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), chance.getrandbits(150) + 1, begin, end)
        .add_extension(x509.SubjectAlternativeName(names), critical=chance.random() < 0.5)
        .add_extension(x509.BasicConstraints(ca := chance.random() < 0.5, None), critical=True)
    )
    purposes = chance.sample(("server", "client", "any", "other"), chance.randint(0, 4))
    known = {
        "server": x509.ExtendedKeyUsageOID.SERVER_AUTH,
        "client": x509.ExtendedKeyUsageOID.CLIENT_AUTH,
        "any": x509.ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
        "other": x509.ExtendedKeyUsageOID.CODE_SIGNING,
    }
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage([known[p] for p in purposes]), critical=False)
    made_one = builder.sign(key, hashes.SHA256())
    expected = Certificate(
        common_name, common_name, tuple(dns), tuple(addresses), tuple(uris), tuple(purposes), ca, begin, end,
        made_one.fingerprint(hashes.SHA256()).hex(),
    )  # fmt: skip
    return made_one.public_bytes(serialization.Encoding.DER), expected


def test_every_field_is_read_as_it_was_written() -> None:
    chance = random.Random(5)
    for _ in range(60):
        der, expected = signed(chance)
        assert parse(der) == expected


def test_garbage_is_an_error_and_nothing_else() -> None:
    chance = random.Random(6)
    der, _ = signed(chance)
    for _ in range(3000):
        broken = bytearray(der[: chance.randint(0, len(der))] if chance.random() < 0.5 else der)
        for _ in range(chance.randint(0, 4)):
            if broken:
                broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            parse(bytes(broken))
        except CertificateError:
            pass
    for inside in ("!!!", "QUJ", "QUJD", ""):
        with pytest.raises(CertificateError):
            read_certificates(f"-----BEGIN CERTIFICATE-----\n{inside}\n-----END CERTIFICATE-----")


def test_a_file_that_is_made_readable_is_read_again(tmp_path: Path) -> None:
    """Its error says to mend the file's owner or mode: that has to be enough."""
    file = tmp_path / "key"
    file.write_text("x")
    file.chmod(0o000)
    before = stamp(file)
    assert stamp(file) == before
    time.sleep(0.02)  # the clock of a file's times goes in steps
    file.chmod(0o600)
    assert stamp(file) != before
    file.unlink()
    assert stamp(file) not in (before, None)


def test_certificates_that_end_soon_are_told_the_first_ones_first(pki: Pki) -> None:
    own = read_file(pki.node("n1").cert)[0]
    held = NodeCertificates()
    assert held.problems() == [] and held.first_end() is None
    now = datetime.now(timezone.utc)
    for days in range(1, 13):
        held.add(f"n{days}", dataclasses.replace(own, not_after=now + timedelta(days=days, hours=1)))
    held.add("later", own)
    told = held.problems()
    assert told[0].startswith("node n1: its certificate ends in 1 days") and "certs node DIR n1 --force" in told[0]
    assert len(told) == 9 and told[8] == "certificates of 4 more nodes end soon"
    assert held.first_end() == (now + timedelta(days=1, hours=1)).timestamp()
    for days in range(1, 13):
        held.remove(f"n{days}")
    assert held.problems() == [] and held.first_end() == own.not_after.timestamp()
