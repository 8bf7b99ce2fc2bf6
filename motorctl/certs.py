"""`motorctl certs`: a CA, the controllers' certificates and the nodes', for those who have none of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import click
from motor_rpc.certificate import ENDS_SOON, Certificate, CertificateError, days, read_file
from motor_rpc.tls import ends

if TYPE_CHECKING:
    from motorctl.certs_make import Authority

EXIT_REFUSED = 2
_DIR = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_FORCE = click.option("--force", is_flag=True, help="Replace certificates that are there. The CA is never replaced.")
_HOSTS = click.option(
    "--controller", "hosts", required=True, multiple=True, metavar="HOST[,HOST...]",
    help="Names and addresses that nodes and operators dial; this machine's loopback is always added.",
)  # fmt: skip


@click.group()
def certs() -> None:
    """Make and look at certificates: who may speak to whom (docs/tls.md).

    init makes a CA in DIR and a certificate for the controllers, node one for each node. ca.key signs them all: it
    belongs on no controller and on no node.
    """


@certs.command()
@_DIR
@_HOSTS
@click.option("--name", default="motor", show_default=True, help="Shown in the CA's name.")
def init(folder: Path, hosts: tuple[str, ...], name: str) -> None:
    """Make a CA in DIR, and a certificate for the controllers."""
    authority = _make().new_authority(folder, name)
    click.echo(f"{folder / 'ca.pem'}: the CA, for every controller and node; ends {authority.certificate_ends()}")
    click.echo(f"{folder / 'ca.key'}: signs for it; keep it away from controllers and nodes")
    _controller(authority, folder, hosts, "controller", force=False)
    click.echo(f"Next: motorctl certs node {folder} NODE_ID...")


@certs.command()
@_DIR
@_HOSTS
@click.option("--name", default="controller", show_default=True, help="Of the files, and in the certificate.")
@_FORCE
def controller(folder: Path, hosts: tuple[str, ...], name: str, force: bool) -> None:
    """Make a certificate for a controller, of the CA in DIR: another one, other names, or a successor."""
    _controller(_make().open_authority(folder), folder, hosts, name, force)


@certs.command()
@_DIR
@click.argument("node_ids", metavar="NODE_ID...", nargs=-1, required=True)
@_FORCE
def node(folder: Path, node_ids: tuple[str, ...], force: bool) -> None:
    """Make a certificate for each NODE_ID, of the CA in DIR: the node may register by that name and no other."""
    authority = _make().open_authority(folder)
    for node_id in node_ids:
        cert = authority.node(folder / "nodes", node_id, force)
        click.echo(f"{cert}, {cert.with_suffix('.key').name}: for node {node_id}; ends {_end_of(cert)}")


@certs.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
def show(files: tuple[Path, ...]) -> None:
    """Subject, names, end and days left of the certificates in each FILE.

    Exit code: 0 all valid for 30 days and more, 1 one ends sooner or has ended, 2 one cannot be read.
    """
    worst = 0
    for file in files:
        try:
            found = read_file(file)
        except (OSError, CertificateError) as error:
            click.echo(f"error: {file}: {error.strerror if isinstance(error, OSError) else error}", err=True)
            worst = EXIT_REFUSED
            continue
        for certificate in found:
            click.echo("\n".join(_lines(file, certificate)))
            if certificate.left() < ENDS_SOON:
                worst = max(worst, 1)
    sys.exit(worst)


@certs.command()
@click.argument("revoked", metavar="LIST", type=click.Path(path_type=Path))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
def revoke(revoked: Path, files: tuple[Path, ...]) -> None:
    """Add the node certificates in each FILE to LIST, which `tls.revoked_file` of deploy.json names.

    Every controller needs its copy. It refuses the certificate from then on, and ends a stream that is open with it
    within the node timeout. Exit code 2: nothing was added.
    """
    known = {line.split()[0].lower() for line in _text(revoked).splitlines() if line.strip()}
    added = []
    for file in files:
        try:
            certificate = read_file(file)[0]
        except (OSError, CertificateError) as error:
            _refuse(f"{file}: {error.strerror if isinstance(error, OSError) else error}")
        if certificate.is_ca:
            _refuse(f"{file}: is a CA; take it out of every ca.pem instead: no node's certificate of it counts then")
        if certificate.fingerprint not in known:
            known.add(certificate.fingerprint)
            added.append(f"{certificate.fingerprint}  {certificate.common_name}, ends {certificate.not_after:%Y-%m-%d}")
    _append(revoked, added)
    for line in added:
        click.echo(f"{revoked}: {line}")
    click.echo(f"{len(added)} added, {len(files) - len(added)} were there")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        _refuse(f"{path}: cannot be read: {error}")


def _append(path: Path, lines: list[str]) -> None:
    """Whole or not at all: a controller may be reading it."""
    before = _text(path)
    text = before + ("\n" if before and not before.endswith("\n") else "") + "".join(f"{line}\n" for line in lines)
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text)
        new.replace(path)
    except OSError as error:
        _refuse(f"{path}: cannot be written: {error.strerror}")


def _refuse(why: str) -> NoReturn:
    click.echo(f"error: {why}", err=True)
    sys.exit(EXIT_REFUSED)


def _lines(file: Path, certificate: Certificate) -> list[str]:
    names = [*certificate.dns_names, *certificate.addresses, *certificate.uris]
    kind = "CA" if certificate.is_ca else " and ".join(certificate.purposes) or "any purpose"
    left = certificate.left()
    warning = "" if left >= ENDS_SOON else f"  ({ends(certificate)})"
    return [
        f"{file}",
        f"  subject    {certificate.common_name or '(no common name)'}  ({kind})",
        f"  issuer     {certificate.issuer or '(no common name)'}",
        f"  names      {', '.join(names) or '(none)'}",
        f"  not after  {certificate.not_after:%Y-%m-%d %H:%M} UTC",
        f"  days left  {days(left)}{warning}",
        f"  sha256     {certificate.fingerprint}",
    ]


def _controller(authority: Authority, folder: Path, hosts: tuple[str, ...], name: str, force: bool) -> None:
    names = tuple(host.strip() for text in hosts for host in text.split(",") if host.strip())
    cert = authority.controller(folder, names, name, force)
    click.echo(f"{cert}, {cert.with_suffix('.key').name}: for the controller {', '.join(names)}; ends {_end_of(cert)}")


def _end_of(cert: Path) -> str:
    return f"{read_file(cert)[0].not_after:%Y-%m-%d}"


def _make() -> ModuleType:
    """The module that signs: the only one that needs the package `cryptography`."""
    try:
        from motorctl import certs_make
    except ModuleNotFoundError as error:
        click.echo(
            f"error: making certificates needs the package {error.name}: pip install 'motor-pcp[certs]' here; "
            "controllers and nodes do without it",
            err=True,
        )
        sys.exit(EXIT_REFUSED)
    return certs_make
