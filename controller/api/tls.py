"""TLS of the controller's two servers: mutual on the node stream, the server's own on REST, one certificate."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import grpc
from motor_rpc.certificate import ENDS_SOON
from motor_rpc.tls import LiveTls, TlsFiles, TlsMaterial, ends

from controller.api.revoked import RevokedFile

log = logging.getLogger(__name__)


class ServerTls:
    """Looks at the files at every handshake, so a new certificate is shown to the next peer without a restart.

    A connection that is open keeps what it was opened with."""

    def __init__(self, files: TlsFiles, revoked_file: Path | None = None) -> None:
        """TlsError if the files cannot be used: a controller that no node can trust does not start."""
        self._live = LiveTls(files, "server")
        self.revoked = RevokedFile(revoked_file) if revoked_file is not None else None

    def node_credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`: a peer without a certificate of the CA never reaches a handler."""
        used = self._live.current()

        def newest() -> grpc.ServerCertificateConfiguration | None:
            # gRPC calls this in a thread of its own, before each handshake; None: what there is.
            nonlocal used
            material = self._live.current()
            if material is used:
                return None
            used = material
            return _configuration(material)

        return grpc.dynamic_ssl_server_credentials(_configuration(used), newest, require_client_authentication=True)

    def rest_context(self) -> ssl.SSLContext:
        """For asyncio's servers; they keep one context, which hands each new connection to the newest."""
        first = self._live.current().context

        def take_newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._live.current().context

        # Called at every ClientHello, also without a server name.
        first.sni_callback = take_newest
        return first

    def check_name(self, what: str, host: str) -> None:
        """Log a warning if whoever dials `host` to reach `what` will not accept the certificate."""
        certificate = self._live.current().certificate
        if not certificate.fits(host):
            log.warning(
                "%s: peers dial %s, and the certificate %s is for %s: they will refuse it; "
                "motorctl certs controller DIR --controller %s --force",
                what, host, self._live.files.cert, certificate.names(), host,
            )  # fmt: skip

    def not_after(self) -> float:
        """When the certificate in use ends; Unix time in seconds."""
        return self._live.current().certificate.not_after.timestamp()

    def problems(self) -> list[str]:
        """What an operator should know: a certificate that ends soon, files that are not in use."""
        material = self._live.current()
        found = [f"{self._live.problem}; the certificate of before stays in use"] if self._live.problem else []
        if material.certificate.left() < ENDS_SOON:
            found.append(f"{material.files.cert}: {ends(material.certificate)}")
        if self.revoked is not None and self.revoked.problem:
            found.append(f"{self.revoked.problem}; what was revoked before stays so")
        return found


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.cert)], material.ca)


def open_tls(
    files: TlsFiles | None, grpc_address: str, rest_url: str, revoked_file: Path | None = None
) -> ServerTls | None:
    """TLS as configured; None without. TlsError. Warns where the certificate does not fit what peers are told to dial:
    `grpc_address` host:port, `rest_url` a URL; empty where that is not known."""
    if files is None:
        return None
    tls = ServerTls(files, revoked_file)
    for what, url in (("the nodes' streams", f"//{grpc_address}"), ("REST", rest_url)):
        if host := urlsplit(url).hostname:
            tls.check_name(what, host)
    return tls


def bind_streams(server: grpc.aio.Server, target: str, tls: ServerTls | None) -> int:
    """The port that node managers reach `server` on. RuntimeError if it cannot be bound."""
    if tls is None:
        return int(server.add_insecure_port(target))
    return int(server.add_secure_port(target, tls.node_credentials()))
