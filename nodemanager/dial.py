"""Opening the channel to a controller, and saying why it did not open."""

from __future__ import annotations

import asyncio
import logging

import grpc
from motor_rpc.deadline import within
from motor_rpc.tls import TlsError, TlsFiles, TlsMaterial, ends, load
from motor_rpc.tls_words import speaks_tls, why_refused

log = logging.getLogger(__name__)

READ_SECONDS = 10.0  # for the TLS files: a hung file system must not look like a controller that does not answer
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # a new dial is a new connection, not a shared broken one
    ("grpc.enable_http_proxy", 0),  # http_proxy of the machine is not meant for this
    # The link dials anew by itself. A closed channel would go on connecting until the garbage collector finds its call.
    ("grpc.initial_reconnect_backoff_ms", 3_600_000),
    ("grpc.max_reconnect_backoff_ms", 3_600_000),
]
# What gRPC says when a peer hangs up in the middle of a handshake, or is not what was expected.
_MAY_BE_TLS = ("Socket closed", "handshake", "Verification", "peer certificate", "SSL", "reset by peer", "Broken pipe")


def split_endpoint(target: str) -> tuple[str, int]:
    """`host:port` or `[IPv6]:port` -> (host without brackets, port)."""
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


class Dialer:
    """Channels to controllers, with the node's certificate if it has one. Its files are read at each dial."""

    def __init__(self, files: TlsFiles | None) -> None:
        self._files = files
        self._material: TlsMaterial | None = None

    async def channel(self, target: str) -> grpc.aio.Channel:
        """A channel to `host:port`, not connected yet. TlsError if the files cannot be used and never could.

        A pair that is half written just now does not replace the last good one."""
        if self._files is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        material = await self._read(self._files)
        credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.cert)
        return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)

    async def explain(self, target: str, said: str) -> str:
        """Why there is no session with `target`, in words; `said`, gRPC's own, if nothing is found.

        Costs another connection, and only where TLS can be the reason."""
        host, port = split_endpoint(target)
        if not any(mark in said for mark in _MAY_BE_TLS):
            return said
        if self._material is not None:
            why = await why_refused(host, port, self._material)
            return why or said
        if self._files is None and await speaks_tls(host, port):
            return (
                f"the controller at {target} speaks TLS, and this node file has no `tls`; make a certificate with "
                "motorctl certs node, and set tls: {ca, cert, key}"
            )
        return said

    async def _read(self, files: TlsFiles) -> TlsMaterial:
        try:
            material = await within(READ_SECONDS, asyncio.to_thread(load, files, "client"))
        except asyncio.TimeoutError:
            error = TlsError(f"tls: {files.cert}: its file system has not answered within {READ_SECONDS:g} s")
            if self._material is None:
                raise error from None
            log.error("%s; the certificate of before stays in use", error)
            return self._material
        except TlsError as error:
            if self._material is None:
                raise
            log.error("%s; the certificate of before stays in use", error)
            return self._material
        if self._material is None or material.cert != self._material.cert:
            log.info("TLS: %s: %s", files.cert, ends(material.certificate))
        for sentence in material.ending():
            log.warning("%s; motorctl certs node makes another", sentence)
        self._material = material
        return material
