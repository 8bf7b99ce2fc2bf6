"""Signing certificates: P-256 keys, a CA for ten years, everything else for 825 days."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import urllib.parse
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from motor_rpc.certificate import NODE_PREFIX

CA_DAYS, LEAF_DAYS = 3650, 825
CLOCK_RESERVE = timedelta(hours=1)  # a certificate made a moment ago holds on a machine whose clock is behind
LONGEST_COMMON_NAME = 64  # X.520
_LOOPBACK = ("localhost", "127.0.0.1", "::1")  # `motorctl` on the controller's own machine
_DNS = re.compile(
    r"(?=.{1,253}$)(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.I
)


class CertsError(click.ClickException):
    """Nothing was made; the message says what was expected and what to do."""

    exit_code = 2

    def show(self, file: object = None) -> None:
        click.echo(f"error: {self.message}", err=True)


@dataclass(frozen=True)
class Authority:
    """A CA with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certificate_ends(self) -> str:
        return f"{self.certificate.not_valid_after_utc:%Y-%m-%d}"

    def controller(self, folder: Path, hosts: tuple[str, ...], name: str, force: bool) -> Path:
        """For a server that is dialled as one of `hosts`. Its purpose is to serve: it opens no door as a client."""
        if not hosts:
            raise CertsError("--controller: expected the names or addresses that nodes dial, got none")
        names = list(dict.fromkeys(_name(host) for host in (*hosts, *_LOOPBACK)))
        return self._leaf(folder, _file_name(name), name, names, ExtendedKeyUsageOID.SERVER_AUTH, force)

    def node(self, folder: Path, node_id: str, force: bool) -> Path:
        """For a client that may register as `node_id`. It cannot serve: no node can pass itself off as a controller."""
        # A URI is ASCII; what Motor makes and recommends stays as it is.
        uri = NODE_PREFIX + node_id
        if not node_id or not uri.isascii() or urllib.parse.quote(node_id, safe="!$&'()*+,;=:@/?-._~") != node_id:
            raise CertsError(f"node_id '{node_id}': expected letters, digits and - . _ as in a host name")
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
        return self._leaf(folder, _file_name(node_id), node_id, names, ExtendedKeyUsageOID.CLIENT_AUTH, force)

    def _leaf(
        self,
        folder: Path,
        stem: str,
        subject: str,
        names: list[x509.GeneralName],
        purpose: ObjectIdentifier,
        force: bool,
    ) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(subject, self.certificate.subject, key, LEAF_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return _write(folder, stem, key, certificate, force)


def new_authority(folder: Path, name: str) -> Authority:
    """A CA in `folder`, which must not have one: another would make every certificate of the first worthless."""
    for file in ("ca.pem", "ca.key"):
        if (folder / file).exists():
            raise CertsError(
                f"{folder / file}: a CA is there already and is never overwritten; `motorctl certs controller` and "
                "`motorctl certs node` use it, for a new one name another folder"
            )
    key = ec.generate_private_key(ec.SECP256R1())
    # The time makes two CAs of one name distinguishable in messages and in a bundle of both.
    subject = f"{name} CA {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}"
    certificate = (
        _builder(subject, None, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder, "ca", key, certificate, force=False)
    return Authority(certificate, key)


def open_authority(folder: Path) -> Authority:
    """The CA that `new_authority` left in `folder`. CertsError."""
    cert, key_file = folder / "ca.pem", folder / "ca.key"
    try:
        certificate = x509.load_pem_x509_certificate(cert.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except OSError as error:
        raise CertsError(f"{error.filename}: {error.strerror}; `motorctl certs init {folder}` makes a CA") from error
    except (ValueError, TypeError) as error:
        raise CertsError(f"{cert}, {key_file}: expected the CA that `motorctl certs init` made: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise CertsError(f"{key_file}: is not the key of {cert}")
    if certificate.not_valid_after_utc <= datetime.now(timezone.utc):
        raise CertsError(
            f"{cert}: ended on {certificate.not_valid_after_utc:%Y-%m-%d}; make another CA in a new folder"
        )
    return Authority(certificate, key)


def _builder(
    subject: str, issuer: x509.Name | None, key: ec.EllipticCurvePrivateKey, valid_days: int
) -> x509.CertificateBuilder:
    # A longer name stands in full in the alternative names, which are what counts.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:LONGEST_COMMON_NAME])])
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_RESERVE)
        .not_valid_after(now + timedelta(days=valid_days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    if not _DNS.fullmatch(host):
        raise CertsError(f"--controller: expected host names and IP addresses without ports, got '{host}'")
    return x509.DNSName(host)


def _file_name(name: str) -> str:
    if not name or "/" in name or name.startswith(".") or name == "ca":
        raise CertsError(f"'{name}': cannot be the name of a file here; expected a host name or the like")
    return name


def _write(
    folder: Path, stem: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, force: bool
) -> Path:
    """STEM.key and STEM.pem in `folder`. Each takes its place whole; who reads between the two finds a pair that does
    not fit, and keeps the old one."""
    cert_file, key_file = folder / f"{stem}.pem", folder / f"{stem}.key"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (key_file, cert_file):
            if path.exists() and not force:
                raise CertsError(f"{path}: is there already and is not overwritten; --force replaces it")
        _put(key_file, secret, 0o600)
        _put(cert_file, public, 0o644)
    except OSError as error:
        raise CertsError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    return cert_file


def _put(path: Path, content: bytes, mode: int) -> None:
    """Never readable with other rights than `mode`, and never half written."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask is
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
