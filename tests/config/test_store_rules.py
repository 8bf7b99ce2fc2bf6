"""motor_controller_config.store: what etcd needs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.config.plan import load_deployment
from controller.store.etcd_settings import EtcdSettings, margin_seconds, renew_seconds, shortest_lease
from tests.config.files import engine, file_with, load, problems_of

MEMBERS = ["https://10.0.0.1:2379", "https://10.0.0.2:2379", "https://etcd-3.example:2379"]


def with_store(**store: Any) -> dict[str, Any]:
    # several controllers need to be told apart, whatever they listen on
    return file_with(prefill=engine(), controller={"store": {"kind": "etcd", **store}})


def rules_of(**store: Any) -> list[str]:
    return [problem.rule for problem in problems_of(with_store(**store)) if problem.rule.startswith("store-")]


def test_what_is_left_out_has_a_default() -> None:
    found = load(with_store(endpoints=MEMBERS)).settings.store
    assert found.kind == "etcd" and found.etcd == EtcdSettings(tuple(MEMBERS))
    assert load(file_with(prefill=engine())).settings.store.etcd is None


def test_relative_files_lie_beside_deploy_json(tmp_path: Path) -> None:
    files = {"ca": "tls/ca.crt", "cert": "tls/c.crt", "key": "tls/c.key", "password_file": "/run/secret"}
    path = tmp_path / "deploy.json"
    path.write_text(json.dumps(with_store(endpoints=MEMBERS, user="motor", **files)))
    etcd = load_deployment(path).settings.store.etcd
    assert etcd is not None and etcd.user == "motor"
    assert (etcd.ca, etcd.cert, etcd.key) == tuple(tmp_path / "tls" / name for name in ("ca.crt", "c.crt", "c.key"))
    assert etcd.password_file == Path("/run/secret")


@pytest.mark.parametrize(
    ("store", "rule"),
    [
        ({}, "store-endpoints"),
        ({"endpoints": []}, "store-endpoints"),
        ({"endpoints": ["10.0.0.1:2379"]}, "store-endpoints"),
        ({"endpoints": ["https://10.0.0.1"]}, "store-endpoints"),
        ({"endpoints": ["https://10.0.0.1:2379/x"]}, "store-endpoints"),
        ({"endpoints": ["https://me:secret@10.0.0.1:2379"]}, "store-endpoints"),
        ({"endpoints": [MEMBERS[0], MEMBERS[0]]}, "store-endpoints"),
        ({"endpoints": ["http://10.0.0.1:2379"]}, "store-plain"),
        ({"endpoints": ["http://[fd00::1]:2379"]}, "store-plain"),
        ({"endpoints": MEMBERS, "user": "motor"}, "store-pairs"),
        ({"endpoints": MEMBERS, "password_file": "/etc/hostname"}, "store-pairs"),
        ({"endpoints": MEMBERS, "cert": "/etc/hostname"}, "store-pairs"),
        ({"endpoints": MEMBERS, "key": "/etc/hostname"}, "store-pairs"),
        ({"endpoints": ["http://127.0.0.1:2379"], "ca": "/etc/hostname"}, "store-pairs"),
        ({"endpoints": MEMBERS, "ca": "/nowhere/ca.crt"}, "store-files"),
        ({"endpoints": MEMBERS, "lease_seconds": 2, "request_seconds": 1.0}, "store-lease"),
        ({"endpoints": MEMBERS, "path": "x.sqlite3"}, "store-kind"),
        ({"kind": "sqlite", "endpoints": MEMBERS}, "store-kind"),
        ({"kind": "sqlite", "lease_seconds": 5}, "store-kind"),
    ],
)
def test_each_rule_is_named(store: dict[str, Any], rule: str) -> None:
    assert rules_of(**store) == [rule]


@pytest.mark.parametrize(
    "store",
    [
        {"endpoints": ["http://127.0.0.1:2379", "http://[::1]:2379", "http://localhost:2379"]},
        {"endpoints": ["https://[fd00::1]:2379"]},
        {"endpoints": MEMBERS, "lease_seconds": 2},
        {"endpoints": MEMBERS, "lease_seconds": 10, "request_seconds": 3.0},
        {"kind": "memory"},
        {"kind": "sqlite", "path": "x.sqlite3", "allow_network_fs": True},
    ],
)
def test_what_is_right_is_not_refused(store: dict[str, Any]) -> None:
    assert rules_of(**store) == []


@pytest.mark.parametrize("prefix", ["motor", "/", "/motor/", "/a//b", "/mo tor"])
def test_a_prefix_is_a_path(prefix: str) -> None:
    assert any(problem.path[-1] == "prefix" for problem in problems_of(with_store(endpoints=MEMBERS, prefix=prefix)))


def test_plain_text_needs_insecure_and_insecure_is_not_called_idle_then() -> None:
    content = with_store(endpoints=["http://10.0.0.1:2379"])
    content["motor_controller_config"]["insecure"] = True
    assert not [problem for problem in problems_of(content) if problem.rule in ("store-plain", "controller-insecure")]


def test_the_nesting_rule_leaves_room_for_two_failed_tries() -> None:
    for tries in (0.3, 1.0, 4.0):
        lease = shortest_lease(tries)
        assert renew_seconds(lease) + 2 * tries + margin_seconds(lease) == pytest.approx(lease)
