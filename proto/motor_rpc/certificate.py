"""What Motor reads of a certificate: whose it is, which names it is for, until when.

The standard library tells this only of a peer that it has verified, so the few fields are read here from the DER
encoding (X.690, RFC 5280). Nothing is verified: that is TLS's work.
"""

from __future__ import annotations

import binascii
import hashlib
import ipaddress
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

NODE_PREFIX = "motor:node:"  # of the URI name that says which node a certificate is of
DAY = timedelta(days=1)
ENDS_SOON = 30 * DAY

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[\s\S]+?-----END CERTIFICATE-----")
_BEGIN = "-----BEGIN CERTIFICATE-----"
# DER tags, and the object identifiers that are looked for, without their own tag and length
_VERSION, _EXTENSIONS, _BOOLEAN, _BMP_STRING, _UTC_TIME = 0xA0, 0xA3, 0x01, 0x1E, 0x17
_DNS_NAME, _URI, _ADDRESS = 0x82, 0x86, 0x87
_COMMON_NAME, _ALTERNATIVE_NAMES, _BASIC, _PURPOSES = b"\x55\x04\x03", b"\x55\x1d\x11", b"\x55\x1d\x13", b"\x55\x1d\x25"
_PURPOSE_WORDS = {
    b"\x2b\x06\x01\x05\x05\x07\x03\x01": "server",
    b"\x2b\x06\x01\x05\x05\x07\x03\x02": "client",
    b"\x55\x1d\x25\x00": "any",
}


class CertificateError(ValueError):
    """The text or bytes hold no certificate; the message says what is wrong."""


@dataclass(frozen=True)
class Certificate:
    """One X.509 certificate."""

    common_name: str
    issuer: str  # its common name
    dns_names: tuple[str, ...]
    addresses: tuple[str, ...]  # IP literals
    uris: tuple[str, ...]
    purposes: tuple[str, ...]  # server, client, any, other; empty: not limited
    is_ca: bool
    not_before: datetime
    not_after: datetime
    fingerprint: str  # SHA-256 of the whole certificate, in hex

    def names(self) -> str:
        """The names that a peer may dial, for people."""
        return ", ".join((*self.addresses, *self.dns_names)) or "no name at all"

    def fits(self, host: str) -> bool:
        """True if a peer that dials `host` accepts this certificate's names. `*.` stands for one label."""
        try:
            return str(ipaddress.ip_address(host.strip("[]"))) in self.addresses
        except ValueError:
            name = host.lower().rstrip(".")
            above = "*." + name.partition(".")[2]
            return any(given.lower() in (name, above) for given in self.dns_names)

    def may(self, purpose: str) -> bool:
        """True if it is for `purpose`: server or client."""
        return not self.purposes or purpose in self.purposes or "any" in self.purposes

    def node_ids(self) -> tuple[str, ...]:
        """The nodes it may speak for (see `node_ids_of`)."""
        return node_ids_of(self.common_name, self.uris)

    def left(self, now: datetime | None = None) -> timedelta:
        """Time until it ends; negative when it has."""
        return self.not_after - (now or datetime.now(timezone.utc))


def node_ids_of(common_name: str, alternative_names: tuple[str, ...]) -> tuple[str, ...]:
    """Names `motor:node:ID` win; a certificate without any is of the node that its common name says."""
    named = tuple(name[len(NODE_PREFIX) :] for name in alternative_names if name.startswith(NODE_PREFIX))
    return named or ((common_name,) if common_name else ())


def until(end: datetime, now: datetime) -> str:
    """`ends in 12 days (2027-01-01)`, `ended 3 days ago (...)`."""
    left = end - now
    when = f"ended {-days(left)} days ago" if left.total_seconds() <= 0 else f"ends in {days(left)} days"
    return f"{when} ({end:%Y-%m-%d})"


def days(span: timedelta) -> int:
    """Whole days, towards zero."""
    return int(span / DAY)


def read_certificates(pem: str) -> list[Certificate]:
    """All certificates of a PEM text, in order; the first is the holder's own. CertificateError if there is none."""
    try:
        found = [parse(ssl.PEM_cert_to_DER_cert(block)) for block in _PEM.findall(pem)]
    except binascii.Error as error:
        raise CertificateError(f"holds no base64 where a certificate should be: {error}") from error
    if not found:
        raise CertificateError(f"holds no PEM certificate ({_BEGIN})")
    if pem.count(_BEGIN) != len(found):
        raise CertificateError("ends in the middle of a certificate")
    return found


def read_file(path: Path) -> list[Certificate]:
    """As `read_certificates`, from a file. CertificateError and OSError."""
    try:
        return read_certificates(path.read_text())
    except UnicodeDecodeError as error:
        raise CertificateError("is no text: expected PEM") from error


def parse(der: bytes) -> Certificate:
    """One certificate from its DER encoding. CertificateError."""
    try:
        return _parse(der)
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        raise CertificateError(f"is no readable X.509 certificate: {error}") from error


def _parse(der: bytes) -> Certificate:
    (_, whole), *_ = _items(der)
    (_, signed), *_ = _items(whole)
    fields = list(_items(signed))
    if fields[0][0] == _VERSION:
        del fields[0]
    _serial, _algorithm, (_, issuer), (_, validity), (_, subject), _key = fields[:6]
    extensions = dict(_extensions(next((content for tag, content in fields[6:] if tag == _EXTENSIONS), b"")))
    names = list(_items(_inner(extensions.get(_ALTERNATIVE_NAMES, b""))))
    not_before, not_after = (_time(tag, content) for tag, content in _items(validity))
    return Certificate(
        common_name=_common_name(subject),
        issuer=_common_name(issuer),
        dns_names=tuple(content.decode("ascii") for tag, content in names if tag == _DNS_NAME),
        addresses=tuple(str(ipaddress.ip_address(content)) for tag, content in names if tag == _ADDRESS),
        uris=tuple(content.decode("ascii") for tag, content in names if tag == _URI),
        purposes=tuple(
            _PURPOSE_WORDS.get(content, "other") for _, content in _items(_inner(extensions.get(_PURPOSES, b"")))
        ),
        is_ca=(_BOOLEAN, b"\xff") in _items(_inner(extensions.get(_BASIC, b""))),
        not_before=not_before,
        not_after=not_after,
        fingerprint=hashlib.sha256(der).hexdigest(),
    )


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each element that follows another in `data`."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            if not 0 < size <= 4:
                raise ValueError("a length that DER does not have")
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        if at + length > len(data):
            raise ValueError("it ends early")
        yield tag, data[at : at + length]
        at += length


def _inner(data: bytes) -> bytes:
    """The content of the one element that `data` is; empty for nothing."""
    return next((content for _, content in _items(data)), b"")


def _extensions(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(object identifier, value); the value is the content of the octet string, which is last."""
    for _, extension in _items(_inner(data)):
        parts = list(_items(extension))
        yield parts[0][1], parts[-1][1]


def _common_name(name: bytes) -> str:
    """The last common name in a distinguished name; empty if there is none."""
    found = ""
    for _, relative in _items(name):
        for _, pair in _items(relative):
            (_, kind), (tag, text) = _items(pair)
            if kind == _COMMON_NAME:
                found = text.decode("utf-16-be" if tag == _BMP_STRING else "utf-8")
    return found


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # two digits: 1950 to 2049
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
