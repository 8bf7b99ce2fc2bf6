"""motor_controller_config.store -> what the store is told, and the rules over etcd's keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from controller.config.errors import Findings, Shown
from controller.config.listen_rules import plain_etcd
from controller.config.schema import Controller
from controller.config.schema_controller import Store
from controller.store.etcd_settings import EtcdSettings, shortest_lease

_STORE = ("motor_controller_config", "store")
_ENDPOINT = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_ONLY_SQLITE = ("path", "allow_network_fs")
_FILES = ("password_file", "ca", "cert", "key")


@dataclass(frozen=True)
class StoreSettings:
    kind: str  # sqlite | etcd | memory
    path: Path  # of the sqlite file
    allow_network_fs: bool = False
    etcd: EtcdSettings | None = None  # where kind is etcd


def read_store(controller: Controller, folder: Path, findings: Findings) -> StoreSettings:
    """`folder` is deploy.json's own: relative paths lie below it."""
    store = controller.store
    _check_kind(store, findings)
    etcd = None
    if store.kind == "etcd":
        etcd = _settings(store, folder)
        _check_endpoints(controller, findings)
        _check_pairs(store, findings)
        _check_files(etcd, findings)
        _check_times(store, etcd, findings)
    return StoreSettings(store.kind, folder / store.path, store.allow_network_fs, etcd)


def _settings(store: Store, folder: Path) -> EtcdSettings:
    files = {name: folder / given for name in _FILES if (given := getattr(store, name))}
    tries = store.request_seconds if store.request_seconds is not None else min(1.0, store.lease_seconds / 4)
    return EtcdSettings(
        endpoints=tuple(store.endpoints),
        prefix=store.prefix,
        user=store.user,
        lease_seconds=store.lease_seconds,
        request_seconds=tries,
        **files,
    )


def _check_kind(store: Store, findings: Findings) -> None:
    """A key of another kind means that the kind was forgotten, or the key left over."""
    of_sqlite = store.model_fields_set.intersection(_ONLY_SQLITE)
    of_etcd = store.model_fields_set.difference(_ONLY_SQLITE, ("kind",))
    for name in sorted((of_sqlite if store.kind == "etcd" else of_etcd) if store.kind != "memory" else ()):
        other = "sqlite" if name in of_sqlite else "etcd"
        findings.error(
            (*_STORE, name),
            f"is a key of kind {other}, and the kind is {store.kind}",
            fix=f'set "kind": "{other}", or remove it',
            rule="store-kind",
        )


def _check_endpoints(controller: Controller, findings: Findings) -> None:
    path = (*_STORE, "endpoints")
    endpoints = controller.store.endpoints
    if not endpoints:
        findings.error(
            path,
            "etcd is nowhere",
            got=Shown("nothing"),
            expected='the URLs of its members: ["https://10.0.0.1:2379", ...]',
            rule="store-endpoints",
        )
    for index, endpoint in enumerate(endpoints):
        if _ENDPOINT.fullmatch(endpoint) is None:
            findings.error(
                (*path, index), "is no member's URL", got=endpoint, expected="https://host:port", rule="store-endpoints"
            )
        elif endpoint in endpoints[:index]:
            findings.error((*path, index), "stands twice", got=endpoint, rule="store-endpoints")
    if not controller.insecure:
        for endpoint in plain_etcd(controller):
            findings.error(
                (*path, endpoints.index(endpoint)),
                "is asked in plain text: anyone on the network may read the state, or become leader",
                got=endpoint,
                expected="https://",
                fix='give etcd a certificate; or "motor_controller_config.insecure": true on a trusted network',
                rule="store-plain",
            )


def _check_pairs(store: Store, findings: Findings) -> None:
    """What has no effect without something else."""
    encrypted = any(endpoint.startswith("https://") for endpoint in store.endpoints)
    for name, needed, there in (
        ("user", "password_file", store.password_file),
        ("password_file", "user", store.user),
        ("cert", "key", store.key),
        ("key", "cert", store.cert),
        ("ca", "an https:// endpoint", encrypted),
        ("cert", "an https:// endpoint", encrypted),
    ):
        if getattr(store, name) and not there:
            findings.error((*_STORE, name), f"has no effect without {needed}", rule="store-pairs")


def _check_files(etcd: EtcdSettings, findings: Findings) -> None:
    # a warning: the file may be checked on another machine
    for name in _FILES:
        path: Path | None = getattr(etcd, name)
        if path is not None and not path.is_file():
            findings.warning(
                (*_STORE, name), "is not there on this machine", got=Shown(str(path)), expected="a file",
                rule="store-files",
            )  # fmt: skip


def _check_times(store: Store, etcd: EtcdSettings, findings: Findings) -> None:
    shortest, tries = shortest_lease(etcd.request_seconds), f"{etcd.request_seconds:g} s"
    if etcd.lease_seconds < shortest:
        findings.error(
            (*_STORE, "lease_seconds"),
            f"is too short for a renewal that fails twice: each try may take request_seconds, {tries}",
            got=store.lease_seconds,
            expected=f"at least {shortest:.1f}",
            fix="raise it, or lower request_seconds",
            rule="store-lease",
        )
