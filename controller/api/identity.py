"""Who a node stream is from: over TLS, a node is what its certificate says, never what it says itself."""

from __future__ import annotations

import hashlib
import logging
import ssl
from typing import Any

import grpc
from motor_rpc.certificate import ENDS_SOON, NODE_PREFIX, CertificateError, node_ids_of, read_certificates
from motor_rpc.tls import ends

log = logging.getLogger(__name__)


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
    _warn_of_end(peer, node_id)
    return ""


def _warn_of_end(peer: dict[str, list[bytes]], node_id: str) -> None:
    for pem in _texts(peer, "x509_pem_cert"):
        try:
            certificate = read_certificates(pem)[0]
        except CertificateError as error:
            log.warning("node %s: when its certificate ends is not known: it %s", node_id, error)
            return
        if certificate.left() < ENDS_SOON:
            log.warning("node %s: %s; motorctl certs node DIR %s --force", node_id, ends(certificate), node_id)


def _texts(peer: dict[str, list[bytes]], key: str) -> tuple[str, ...]:
    return tuple(value.decode("utf-8", "replace") for value in peer.get(key, []))
