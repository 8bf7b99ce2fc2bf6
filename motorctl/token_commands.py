"""motorctl token add, list, remove: the file that `motor_controller_config.access.tokens_file` names."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from controller.api.tokens import Role, Token, TokenFileError, digest_of, new_token, parse, read_tokens

_FILE = click.option(
    "--file", "path", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The tokens file."
)
_HEAD = "# Tokens of motor-controller's REST. Made by `motorctl token`; the tokens themselves stand nowhere.\n"


@click.group()
def token() -> None:
    """Tokens for the controller's REST. The controller reads the file again when it changes."""


@token.command()
@_FILE
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="operate includes read.")
@click.argument("name")
def add(path: Path, role: str, name: str) -> None:
    """Make a token for NAME and print it, this once: the file keeps only its hash."""
    made = new_token()
    line = Token(name, Role(role), digest_of(made)).line()
    if parse(line, str(path))[1]:
        raise click.ClickException(f"{name!r}: a name has letters, digits and . _ @ -, at most 63")
    with _locked(path):
        tokens = _read(path) if path.exists() else {}
        if name in tokens:
            raise click.ClickException(f"{path} has a token for {name}; `motorctl token remove {name}` first")
        text = path.read_text() if path.exists() else _HEAD
        _write(path, text + ("" if text.endswith("\n") else "\n") + line + "\n")
    click.echo(made)
    click.echo(
        f"this is the only time it is shown; use it as MOTOR_TOKEN or in a file for --token-file ({role})", err=True
    )


@token.command("list")
@_FILE
def list_(path: Path) -> None:
    """Names and roles."""
    for one in _read(path).values():
        click.echo(f"{one.name}  {one.role.value}")


@token.command()
@_FILE
@click.argument("name")
def remove(path: Path, name: str) -> None:
    """Remove NAME's token; it is refused from the next request on."""
    with _locked(path):
        tokens = _read(path)
        if name not in tokens:
            raise click.ClickException(f"{path} has no token for {name}; it has: {', '.join(tokens) or 'none'}")
        gone = tokens[name].line().split()
        _write(path, "".join(line for line in path.read_text().splitlines(keepends=True) if line.split() != gone))
    click.echo(f"removed {name}", err=True)


def _read(path: Path) -> dict[str, Token]:
    try:
        tokens, problems = read_tokens(path)
    except TokenFileError as error:
        raise click.ClickException(str(error)) from error
    if problems:
        raise click.ClickException("\n".join(problems))
    return tokens


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One change at a time: two would each write without the other's line."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise click.ClickException(f"{path.parent}: {error.strerror}; make that folder first") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    """Replace the file at once, readable by its owner only; an existing one keeps its owner."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                if path.exists():
                    status = path.stat()
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                    os.fchmod(descriptor, status.st_mode & 0o755)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from error
