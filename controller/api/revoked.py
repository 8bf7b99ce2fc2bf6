"""Certificates that are not accepted any more: a file of fingerprints, read again when it changes.

    3f9c...  node-a, ends 2029-03-04

gRPC's Python knows no revocation lists of a CA, so the certificate that a peer has shown is looked up here.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from motor_rpc.file_stamp import stamp
from motor_rpc.tls import TlsError

log = logging.getLogger(__name__)

# As `motorctl certs revoke` writes it, or as `openssl x509 -fingerprint -sha256` prints it.
_LINE = re.compile(r"(?:[\w ]*fingerprint\s*=\s*)?(?P<digest>(?:[0-9a-f]{2}:?){31}[0-9a-f]{2})(?:\s.*)?", re.IGNORECASE)


def parse(text: str, file: str) -> frozenset[str]:
    """Fingerprints in lower case without colons; a line with `#` is a comment. TlsError for a line that is neither:
    who revoked a certificate is not to believe that it is."""
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise TlsError(
                f"tls.revoked_file: {file}:{number}: expected a SHA-256 fingerprint (64 hex digits), got "
                f"{line[:80]!r}; `motorctl certs revoke {file} CERTIFICATE.pem` writes it"
            )
        found.add(match["digest"].replace(":", "").lower())
    return frozenset(found)


class RevokedFile:
    """The fingerprints of one file, as it is now. One that cannot be read any more changes nothing."""

    def __init__(self, path: Path) -> None:
        """TlsError if it cannot be read to begin with."""
        self.path = path
        self.problem = ""  # why the file's present content is not in use; empty when it is
        self._stamp = stamp(self.path)
        self._found = self._read()

    def holds(self, fingerprint: str) -> bool:
        now = stamp(self.path)
        if now != self._stamp:
            self._stamp = now
            try:
                self._found, self.problem = self._read(), ""
            except TlsError as error:
                self.problem = str(error)
                log.error("%s; what was revoked before stays so", error)
        return fingerprint in self._found

    def _read(self) -> frozenset[str]:
        try:
            text = self.path.read_text(errors="replace")
        except OSError as error:
            raise TlsError(
                f"tls.revoked_file: {self.path}: cannot be read: {error.strerror}; an empty file revokes nothing"
            ) from error
        found = parse(text, str(self.path))
        log.info("%s: %d certificate(s) revoked", self.path, len(found))
        return found
