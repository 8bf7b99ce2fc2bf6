"""Why a TLS handshake failed, in words that say what to do.

gRPC's server hangs up without a word on a certificate that it refuses, and its client says "Socket closed"; nor does it
name what the peer's certificate is for. A second handshake with the standard library tells both apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

from motor_rpc.certificate import Certificate, CertificateError, parse, read_file
from motor_rpc.deadline import within
from motor_rpc.tls import TlsMaterial, ends

PROBE_SECONDS = 3.0

# OpenSSL's X509_V_ERR_*
_NOT_YET_VALID, _EXPIRED, _UNKNOWN_ISSUER, _WRONG_PURPOSE, _WRONG_NAME = 9, 10, (2, 18, 19, 20, 21), 26, (62, 64)
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")  # reasons of an answer that is no TLS record


def verification(error: ssl.SSLCertVerificationError, host: str, peer: Certificate | None, ca: Path | None) -> str:
    """Why the certificate of the server at `host` is not accepted. `ca`: the file trusted; None: the machine's own."""
    code = error.verify_code
    if code in _WRONG_NAME:
        has = f"its certificate is for {peer.names()}" if peer else "its certificate is for other names"
        return (
            f"expected a certificate for {host}, {has}; use one of those names, or make another certificate: "
            f"motorctl certs controller DIR --controller {host} --force"
        )
    if code in _UNKNOWN_ISSUER:
        of = f" ('{peer.common_name}' of '{peer.issuer}')" if peer else ""
        if ca is None:
            return f"its certificate{of} is of a CA that this machine does not know; give its ca.pem (--ca, MOTOR_CA)"
        return (
            f"its certificate{of} is not signed by the CA in {ca} ({_authorities(ca)}); copy the ca.pem that belongs "
            "to the controller, or find out who answers there"
        )
    if code == _EXPIRED:
        return f"{ends(peer) if peer else 'its certificate has expired'}; motorctl certs controller makes another"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; are the clocks of both machines right?"
    if code == _WRONG_PURPOSE:
        return "its certificate is not for a server: a node's own does not make a controller"
    return f"its certificate is not accepted: {error.verify_message}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def no_tls(error: BaseException) -> bool:
    """True if what answered does not speak TLS."""
    return isinstance(error, ssl.SSLError) and error.reason in _NO_TLS


async def why_refused(host: str, port: int, material: TlsMaterial) -> str:
    """Shake hands with a controller's node port once more and say what is wrong; empty if nothing is found.

    Takes up to twice PROBE_SECONDS."""
    where = f"the controller at {bracketed(host)}:{port}"
    material.context.set_alpn_protocols(["h2"])  # gRPC answers to nothing else
    try:
        reader, writer = await within(
            PROBE_SECONDS, asyncio.open_connection(host, port, ssl=material.context, server_hostname=host)
        )
    except ssl.SSLCertVerificationError as error:
        return f"{where}: {verification(error, host, await _certificate_at(host, port), material.files.ca)}"
    except ssl.SSLError as error:
        if no_tls(error):
            return f"{where} does not speak TLS: set motor_controller_config.tls there, or correct the port here"
        return f"{where}: {error.reason or error}"
    except (OSError, asyncio.TimeoutError):
        return ""
    try:
        # A TLS 1.3 client has finished before the server has judged its certificate. Accepted, gRPC speaks first.
        silent = not await within(PROBE_SECONDS, reader.read(1))
    except (ssl.SSLError, ConnectionError):
        silent = True
    except (OSError, asyncio.TimeoutError):
        silent = False
    finally:
        await _close(writer)
    if not silent:
        return ""
    own, theirs = material.certificate, await _certificate_at(host, port)
    return (
        f"{where} hung up when it saw this node's certificate, '{own.common_name}' of '{own.issuer}'"
        + (f" (its own is of '{theirs.issuer}')" if theirs else "")
        + ": it is not signed by the CA in motor_controller_config.tls.ca there, or has ended by the clock there; the "
        "controller's log says which. motorctl certs node makes another"
    )


async def speaks_tls(host: str, port: int) -> bool:
    """True if a TLS server answers there."""
    return await _certificate_at(host, port) is not None


async def _certificate_at(host: str, port: int) -> Certificate | None:
    """The certificate that a server shows, verified by nobody; None if there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await within(PROBE_SECONDS, asyncio.open_connection(host, port, ssl=context))
    except (OSError, asyncio.TimeoutError):
        return None
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return parse(der) if der else None
    except CertificateError:
        return None
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()  # a shutdown in order would wait for the peer's
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _authorities(path: Path) -> str:
    try:
        return ", ".join(f"'{authority.common_name}'" for authority in read_file(path))
    except (OSError, CertificateError) as error:
        return f"which {error}"
