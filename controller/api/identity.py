"""Who a node stream is from: over TLS, a node is what its certificate says, never what it says itself."""

from __future__ import annotations

import hashlib
import logging
import ssl
from datetime import datetime, timezone
from typing import Any

import grpc
from motor_rpc.certificate import (
    ENDS_SOON,
    NODE_PREFIX,
    Certificate,
    CertificateError,
    node_ids_of,
    read_certificates,
    until,
)
from motor_rpc.tls import ends

log = logging.getLogger(__name__)

TOLD = 8  # nodes whose certificates end soon; the others are counted
_REMEDY = "motorctl certs node DIR %s --force"


def fingerprint(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Of the certificate that the peer has shown: SHA-256, in hex. Empty without TLS."""
    peer: dict[str, list[bytes]] = context.auth_context() or {}
    pem = next(iter(_texts(peer, "x509_pem_cert")), "")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest() if pem else ""


def mismatch(context: grpc.aio.ServicerContext[Any, Any], node_id: str) -> str:
    """Why the peer may not register as `node_id`; empty if it may. Without TLS nothing is known, and all may.

    gRPC has verified the certificate against the CA before any handler is called.
    """
    peer: dict[str, list[bytes]] = context.auth_context() or {}
    if b"ssl" not in peer.get("transport_security_type", []):
        return ""
    common_name = next(iter(_texts(peer, "x509_common_name")), "")
    allowed = node_ids_of(common_name, _texts(peer, "x509_subject_alternative_name"))
    if node_id not in allowed:
        of = f"node {', '.join(allowed)}" if allowed else "no node"
        return (
            f"the node registers as '{node_id}', its certificate is of {of} (common name '{common_name}', or a URI "
            f"{NODE_PREFIX}ID); correct `node_id` in its nodemanager.yaml, or give it a certificate of its own: "
            f"motorctl certs node DIR {node_id}"
        )
    return ""


def certificate(context: grpc.aio.ServicerContext[Any, Any]) -> Certificate | None:
    """The one that the peer has shown; None without TLS, or where it cannot be read (OpenSSL reads more)."""
    peer: dict[str, list[bytes]] = context.auth_context() or {}
    pem = next(iter(_texts(peer, "x509_pem_cert")), "")
    try:
        return read_certificates(pem)[0] if pem else None
    except CertificateError as error:
        log.warning("stream from %s: when its certificate ends is not known: it %s", context.peer(), error)
        return None


class NodeCertificates:
    """When the certificates of the nodes end that have a stream. A node may keep one stream for years and learn only
    when it dials again that nobody lets it in: told here while there is time."""

    def __init__(self) -> None:
        self._ends: dict[str, datetime] = {}

    def add(self, node_id: str, shown: Certificate | None) -> None:
        self.remove(node_id)
        if shown is not None:
            self._ends[node_id] = shown.not_after
            if shown.left() < ENDS_SOON:
                log.warning("node %s: %s; %s", node_id, ends(shown), _REMEDY % node_id)

    def remove(self, node_id: str) -> None:
        self._ends.pop(node_id, None)

    def first_end(self) -> float | None:
        """Of the one that ends first, in Unix time; None without any."""
        return min(self._ends.values()).timestamp() if self._ends else None

    def problems(self) -> list[str]:
        """A sentence for each of the first few that end within 30 days, or have ended."""
        now = datetime.now(timezone.utc)
        soon = sorted((end, node_id) for node_id, end in self._ends.items() if end - now < ENDS_SOON)
        found = [
            f"node {node_id}: its certificate {until(end, now)}; {_REMEDY % node_id}" for end, node_id in soon[:TOLD]
        ]
        return [*found, f"certificates of {len(soon) - TOLD} more nodes end soon"] if len(soon) > TOLD else found


def _texts(peer: dict[str, list[bytes]], key: str) -> tuple[str, ...]:
    return tuple(value.decode("utf-8", "replace") for value in peer.get(key, []))
