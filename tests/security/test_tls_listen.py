"""What listens or dials beyond this machine is protected, or somebody has written that it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.config.errors import ConfigError
from controller.config.listen_rules import missing_for
from controller.config.plan import LoadedDeployment, load_deployment
from nodemanager import config as node_config
from tests.cluster.deployment import engine_section

TLS = {"cert": "tls/a.pem", "key": "tls/a.key", "ca": "/etc/ca.pem"}
ACCESS = {"tokens_file": "tokens"}


def load(folder: Path, **controller: Any) -> LoadedDeployment:
    sections = {"motor_engine_union_config": engine_section(nnodes=1)}
    file = folder / "deploy.json"
    file.write_text(json.dumps({"motor_controller_config": controller, **sections}))
    return load_deployment(file)


def refusal(folder: Path, **controller: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, **controller)
    return str(caught.value)


@pytest.mark.parametrize(
    ("server", "host", "tls", "tokens", "lacks"),
    [
        ("grpc", "127.0.0.1", False, False, []),
        ("rest", "::1", False, False, []),
        ("grpc", "0.0.0.0", False, True, ["TLS"]),
        ("grpc", "10.0.0.1", True, False, []),
        ("rest", "10.0.0.1", False, False, ["TLS", "tokens"]),
        ("rest", "controller.example", True, False, ["tokens"]),
        ("rest", "::", False, True, ["TLS"]),
        ("rest", "0.0.0.0", True, True, []),
    ],
)
def test_what_a_server_lacks(server: str, host: str, tls: bool, tokens: bool, lacks: list[str]) -> None:
    assert [lack.what for lack in missing_for(server, host, tls=tls, tokens=tokens)] == lacks


def test_each_missing_piece_is_named_with_its_remedy(tmp_path: Path) -> None:
    said = refusal(tmp_path, rest={"host": "0.0.0.0"}, grpc={"host": "0.0.0.0"})
    rest, grpc = sorted(said.splitlines(), key=lambda line: ".grpc." in line)
    assert "listens beyond loopback without TLS and tokens" in rest
    assert 'set "motor_controller_config.tls" (motorctl certs init' in rest and "motorctl token add" in rest
    assert "without TLS:" in grpc and "tokens" not in grpc and '"motor_controller_config.insecure": true' in grpc
    said = refusal(tmp_path, rest={"host": "0.0.0.0"}, tls=TLS)
    assert "without tokens:" in said and "certs init" not in said


def test_protected_servers_may_listen(tmp_path: Path) -> None:
    settings = load(tmp_path, rest={"host": "::"}, grpc={"host": "0.0.0.0"}, tls=TLS, access=ACCESS).settings
    assert settings.open_doors == "" and settings.tls is not None
    assert (settings.tls.cert, settings.tls.ca) == (tmp_path / "tls/a.pem", Path("/etc/ca.pem"))


def test_insecure_is_said_in_full_and_is_of_no_use_beside_protection(tmp_path: Path) -> None:
    loaded = load(tmp_path, rest={"host": "0.0.0.0"}, grpc={"host": "10.0.0.1"}, insecure=True)
    assert loaded.settings.open_doors == "rest on 0.0.0.0 without TLS and tokens, grpc on 10.0.0.1 without TLS"
    loaded = load(tmp_path, rest={"host": "0.0.0.0"}, insecure=True, tls=TLS, access=ACCESS)
    assert [w.what for w in loaded.warnings if w.rule == "controller-insecure"] == [
        "has no effect beside TLS and tokens"
    ]


def test_incomplete_tls_section(tmp_path: Path) -> None:
    assert 'add "ca" to motor_controller_config.tls' in refusal(tmp_path, tls={"cert": "a", "key": "b"})
    assert "motor_controller_config.tls.key" in refusal(tmp_path, tls={**TLS, "key": ""})


def node_file(folder: Path, **values: Any) -> Path:
    file = folder / "node.yaml"
    least = {"controllers": ["10.0.0.1"], "engines": {"vllm": {"python": "/usr/bin/python3"}}}
    file.write_text(yaml.safe_dump({**least, **values}))
    return file


def test_node_dials_beyond_its_machine_with_tls_or_by_word(tmp_path: Path) -> None:
    with pytest.raises(node_config.ConfigError, match="motorctl certs node makes the files"):
        node_config.load(node_file(tmp_path))
    files = node_config.load(node_file(tmp_path, tls=TLS)).tls_files()
    assert files is not None and files.cert == tmp_path / "tls/a.pem" and files.ca == Path("/etc/ca.pem")
    assert node_config.load(node_file(tmp_path, insecure=True)).tls_files() is None
    with pytest.raises(node_config.ConfigError, match=r"tls\.ca: missing"):
        node_config.load(node_file(tmp_path, tls={"cert": "a", "key": "b"}))
    with pytest.raises(node_config.ConfigError, match=r'tls\.kee: unknown key; did you mean "key"'):
        node_config.load(node_file(tmp_path, tls={**TLS, "kee": "b"}))
