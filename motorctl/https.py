"""https to a controller: which CA is trusted, and what is wrong when there is no connection."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

VARIABLE = "MOTOR_CA"
_META = "motorctl.ca"
_PROBE_SECONDS = 3.0

F = TypeVar("F", bound=Callable[..., Any])


def ca_option(command: F) -> F:
    """`--ca FILE`; the command itself does not see it."""

    def keep(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        context.meta[_META] = value

    return click.option(
        "--ca",
        type=click.Path(path_type=Path),
        envvar=VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=keep,
        help="ca.pem of the controller's CA, for https; without it the machine's own.",
    )(command)


def handlers(url: str) -> list[urllib.request.BaseHandler]:
    """What urllib needs to open `url`, or what it may redirect to. ClickException if the CA cannot be used."""
    ca = _ca()
    if ca is None and not url.startswith("https:"):
        return []  # the machine's own CAs take a while to load
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(f"{ca}: expected the PEM certificate of a CA: {error}; see --ca") from error
    return [urllib.request.HTTPSHandler(context=context)]


def explain(url: str, reason: object) -> str:
    """What `reason`, met on the way to `url`, means where TLS is the cause; empty where it is not."""
    import ssl

    from motor_rpc.tls_words import no_tls, verification

    address = urllib.parse.urlsplit(url)
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    if address.scheme == "https":
        if isinstance(reason, ssl.SSLCertVerificationError):
            return f"{address.netloc} is not trusted: {verification(reason, host, _shown_by(host, port), _ca())}"
        if isinstance(reason, BaseException) and no_tls(reason):
            return f"what answers at {address.netloc} does not speak TLS: use http://{address.netloc}"
    elif (
        isinstance(reason, ConnectionError) and not isinstance(reason, ConnectionRefusedError) and _shown_by(host, port)
    ):
        return f"what answers at {address.netloc} speaks TLS: use https://{address.netloc}, and --ca or {VARIABLE}"
    return ""


def _ca() -> Path | None:
    context = click.get_current_context(silent=True)
    given: Path | None = context.meta.get(_META) if context else None
    return given


def _shown_by(host: str, port: int) -> Any:
    """The certificate that a server shows, verified by nobody; None if it shows none."""
    import ssl

    from motor_rpc.certificate import CertificateError, read_certificates

    try:
        return read_certificates(ssl.get_server_certificate((host, port), timeout=_PROBE_SECONDS))[0]
    except (OSError, ValueError, CertificateError):
        return None
