"""Certificate, key and CA from files, for both ends of the node stream and for REST.

The files are looked at whenever somebody asks, which every handshake does: no timer, no restart. A pair that no peer
would accept, because it is half written for instance, never takes the place of one that works.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeAlias

from motor_rpc.certificate import DAY, ENDS_SOON, Certificate, CertificateError, read_certificates, until
from motor_rpc.file_stamp import stamp

log = logging.getLogger(__name__)

Purpose: TypeAlias = Literal["server", "client"]
_WARN_AGAIN_SECONDS = DAY.total_seconds()
_REMEDY = {
    "server": "`motorctl certs controller` makes the controller's",
    "client": "`motorctl certs node` makes a node's",
}


class TlsError(Exception):
    """The files cannot be used; the message says which, what was expected and what to do."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. `cert`: one's own certificate, then those between it and the CA; `ca`: who may sign the peer's."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True)
class TlsMaterial:
    """What the files held at one moment. `context` is of the same content, for sockets of the standard library."""

    files: TlsFiles
    cert: bytes
    key: bytes
    ca: bytes
    certificate: Certificate
    authorities: tuple[Certificate, ...]
    context: ssl.SSLContext

    def ending(self) -> list[str]:
        """A sentence for each certificate that ends within 30 days."""
        found = []
        for path, certificate in ((self.files.cert, self.certificate), *((self.files.ca, a) for a in self.authorities)):
            if certificate.left() < ENDS_SOON:
                found.append(f"{path}: {ends(certificate)}")
        return found


def ends(certificate: Certificate) -> str:
    """`the certificate of CN ends in 12 days (2027-01-01)`."""
    return f"the certificate of '{certificate.common_name}' {until(certificate.not_after, datetime.now(timezone.utc))}"


def load(files: TlsFiles, purpose: Purpose) -> TlsMaterial:
    """Read and check the three files. TlsError if a peer would not accept them, or if they are changing right now."""
    before = _signature(files)
    content = {name: _read(name, path) for name, path in (("cert", files.cert), ("key", files.key), ("ca", files.ca))}
    certificate = _certificates(files.cert, "cert", content["cert"])[0]
    authorities = tuple(_certificates(files.ca, "ca", content["ca"]))
    _check_own(files.cert, certificate, purpose)
    _check_authorities(files.ca, authorities)
    context = _context(files, purpose)
    if _signature(files) != before:
        raise TlsError(f"tls: {files.cert}, {files.key} and {files.ca} were changed while they were read")
    return TlsMaterial(files, content["cert"], content["key"], content["ca"], certificate, authorities, context)


class LiveTls:
    """The newest good content of the files. Safe in several threads: gRPC asks from its own."""

    def __init__(self, files: TlsFiles, purpose: Purpose) -> None:
        """TlsError if there is nothing good to begin with."""
        self.files, self.purpose = files, purpose
        self.problem = ""  # why the files' present content is not in use; empty when it is
        self._lock = threading.Lock()
        self._seen = _signature(files)
        self._material = load(files, purpose)
        self._warned_at = 0.0
        self._say_endings()

    def current(self) -> TlsMaterial:
        """What the files hold now; what they held before where that cannot be used, which is logged once."""
        with self._lock:
            seen = _signature(self.files)
            if seen != self._seen:
                self._seen = seen
                try:
                    self._material = load(self.files, self.purpose)
                except TlsError as error:
                    self.problem = str(error)
                    log.error("%s; the certificate of before stays in use", error)
                else:
                    self.problem, self._warned_at = "", 0.0
                    log.info("TLS: %s loaded: %s", self.files.cert, ends(self._material.certificate))
            self._say_endings()
            return self._material

    def _say_endings(self) -> None:
        if self._warned_at and time.monotonic() - self._warned_at < _WARN_AGAIN_SECONDS:
            return
        self._warned_at = time.monotonic()
        for sentence in self._material.ending():
            log.warning("%s; %s", sentence, _REMEDY[self.purpose])


def _signature(files: TlsFiles) -> tuple[object, ...]:
    return tuple(stamp(path) for path in (files.cert, files.key, files.ca))


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        hint = "run `motorctl certs init` if there is none yet, or mend the path or the file's owner"
        raise TlsError(f"tls.{name}: {path}: cannot be read: {error.strerror}; {hint}") from error


def _certificates(path: Path, name: str, content: bytes) -> list[Certificate]:
    try:
        return read_certificates(content.decode("utf-8", "replace"))
    except CertificateError as error:
        raise TlsError(f"tls.{name}: {path}: {error}") from error


def _check_own(path: Path, certificate: Certificate, purpose: Purpose) -> None:
    if not certificate.may(purpose):
        raise TlsError(
            f"tls.cert: {path}: expected a certificate for a {purpose}, '{certificate.common_name}' is for a "
            f"{' and '.join(certificate.purposes)}; {_REMEDY[purpose]}"
        )
    _check_dates("cert", path, certificate, _REMEDY[purpose])


def _check_authorities(path: Path, authorities: tuple[Certificate, ...]) -> None:
    for authority in authorities:
        if not authority.is_ca:
            raise TlsError(f"tls.ca: {path}: '{authority.common_name}' is no certificate of a CA; give ca.pem")
    last = max(authorities, key=lambda authority: authority.not_after)  # an old one may stand beside its successor
    _check_dates("ca", path, last, "add the new CA's certificate to the file")


def _check_dates(name: str, path: Path, certificate: Certificate, remedy: str) -> None:
    if certificate.left().total_seconds() <= 0:
        raise TlsError(f"tls.{name}: {path}: {ends(certificate)}; {remedy}")
    if certificate.left() > certificate.not_after - certificate.not_before:
        begin = certificate.not_before.isoformat(sep=" ", timespec="seconds")
        raise TlsError(f"tls.{name}: {path}: is valid from {begin} only; is this machine's clock right?")


def _context(files: TlsFiles, purpose: Purpose) -> ssl.SSLContext:
    """Proves that key and certificate belong together. The client's asks for a server of the CA, by name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if purpose == "server" else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(files.cert, files.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            said = f"is not the key of {files.cert}; they are made, and have to be replaced, as a pair"
        else:
            said = f"expected a PEM private key without a password ({error.reason or error})"
        raise TlsError(f"tls.key: {files.key}: {said}") from error
    except OSError as error:
        raise TlsError(f"tls.key: {files.key}: cannot be read: {error.strerror}") from error
    if purpose == "client":
        try:
            context.load_verify_locations(files.ca)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(f"tls.ca: {files.ca}: cannot be used: {error}") from error
    return context
