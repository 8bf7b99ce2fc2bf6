"""Who may reach a server: what listens beyond loopback has TLS and asks who is there, or `insecure` is written."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from motor_rpc.tls import TlsFiles

from controller.config.errors import Findings, Shown
from controller.config.schema import Controller

_SECTION = "motor_controller_config"


@dataclass(frozen=True)
class Lack:
    """A protection that a server does not have, and what to write to have it."""

    what: str
    fix: str


_NO_TLS = Lack("TLS", f'set "{_SECTION}.tls" (motorctl certs init makes the files)')
_NO_TOKENS = Lack("tokens", f'set "{_SECTION}.access.tokens_file" (motorctl token add makes the file)')


def missing_for(server: str, host: str, *, tls: bool, tokens: bool) -> tuple[Lack, ...]:
    """What `server` (rest or grpc) needs to listen on `host` and does not have. Nodes are known by their certificate,
    which TLS brings; operators by a token, which only TLS keeps secret."""
    if is_loopback(host):
        return ()
    wanted = ((_NO_TLS, tls),) if server == "grpc" else ((_NO_TLS, tls), (_NO_TOKENS, tokens))
    return tuple(lack for lack, there in wanted if not there)


def open_doors(controller: Controller) -> Iterator[tuple[str, str, tuple[Lack, ...]]]:
    """(server, host, what it lacks) for each server that anyone on the network may use or listen to."""
    tls, tokens = controller.tls is not None, controller.access.tokens_file is not None
    for server, host in (("rest", controller.rest.host), ("grpc", controller.grpc.host)):
        lacks = missing_for(server, host, tls=tls, tokens=tokens)
        if lacks:
            yield server, host, lacks


def check_listening(controller: Controller, findings: Findings) -> str:
    """One sentence that names every open door, for the log of each start; empty where there is none."""
    doors = list(open_doors(controller))
    needless = not doors and not plain_etcd(controller)
    if controller.insecure and needless and controller.tls is not None and controller.access.tokens_file is not None:
        findings.warning(
            (_SECTION, "insecure"),
            "has no effect beside TLS and tokens",
            got=True,
            fix="remove it, so that it cannot hide what is taken away later",
            rule="controller-insecure",
        )
    if not controller.insecure:
        for server, host, lacks in doors:
            findings.error(
                (_SECTION, server, "host"),
                f"listens beyond loopback without {_and(lacks)}: anyone on the network may read and give orders",
                got=host,
                expected="a loopback address, or protection",
                fix=f'{"; ".join(lack.fix for lack in lacks)}; or "{_SECTION}.insecure": true on a trusted network',
                rule="controller-loopback",
            )
    return ", ".join(f"{server} on {host} without {_and(lacks)}" for server, host, lacks in doors)


def plain_etcd(controller: Controller) -> list[str]:
    """Members of the store that are asked in plain text where others may listen."""
    endpoints = controller.store.endpoints if controller.store.kind == "etcd" else []
    parts = ((each, each.partition("://")) for each in endpoints)
    return [each for each, (scheme, _, place) in parts if scheme == "http" and not is_loopback(_host(place))]


def _host(place: str) -> str:
    """Of `host:port`."""
    return place.rpartition(":")[0] or place


def read_tls(controller: Controller, folder: Path, findings: Findings) -> TlsFiles | None:
    """The files of `tls`, relative ones below `folder`. Whether they are there is seen when the controller starts:
    the file may be checked on another machine."""
    if controller.tls is None:
        return None
    given = {name: getattr(controller.tls, name) for name in ("cert", "key", "ca")}
    for name, path in given.items():
        if not path:
            findings.error((_SECTION, "tls", name), "is empty", got=Shown('""'), expected="a PEM file", rule="tls-file")
    return TlsFiles(**{name: folder / path for name, path in given.items()})


def read_revoked_file(controller: Controller, folder: Path, findings: Findings) -> Path | None:
    """As `read_tls`."""
    given = controller.tls.revoked_file if controller.tls is not None else None
    if given == "":
        findings.error(
            (_SECTION, "tls", "revoked_file"), "is empty", got=Shown('""'), expected="a file", rule="tls-file"
        )
    return folder / given if given else None


def is_loopback(host: str) -> bool:
    """True for localhost and loopback literals; other names may point anywhere."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _and(lacks: tuple[Lack, ...]) -> str:
    return " and ".join(lack.what for lack in lacks)
