"""The token that motorctl shows a controller: from a file or the environment, never from the command line, which every
user of the machine can read in `ps`.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

VARIABLE = "MOTOR_TOKEN"
_META = "motorctl.token_file"

F = TypeVar("F", bound=Callable[..., Any])


def token_option(command: F) -> F:
    """`--token-file FILE`; the command itself does not see it."""

    def keep(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        context.meta[_META] = value

    return click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        envvar="MOTOR_TOKEN_FILE",
        expose_value=False,
        callback=keep,
        help=f"File that holds the token; without it {VARIABLE}.",
    )(command)


def authorization(url: str) -> dict[str, str]:
    """The header for a request to `url`; empty without a token. ClickException if the file cannot be read."""
    token = _token()
    if not token:
        return {}
    address = urllib.parse.urlsplit(url)
    if address.scheme == "http" and address.hostname not in ("localhost", "127.0.0.1", "::1"):
        click.echo(f"warning: the token goes to {address.netloc} without encryption", err=True)
    return {"Authorization": f"Bearer {token}"}


def _token() -> str:
    context = click.get_current_context(silent=True)
    path: Path | None = context.meta.get(_META) if context else None
    if path is None:
        return os.environ.get(VARIABLE, "").strip()
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: the token cannot be read: {error}; see --token-file") from error
    if len(token.split()) != 1:
        raise click.ClickException(f"{path}: expected one token and nothing else")
    return token
