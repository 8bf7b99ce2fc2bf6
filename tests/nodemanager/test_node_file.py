"""The node file: everything wrong is said at once, with the way out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodemanager import config
from nodemanager.config import ConfigError, load, parse_endpoint

SAMPLE = Path(__file__).parent.parent.parent / "configs" / "nodemanager.yaml"
LEAST: dict[str, Any] = {"controllers": ["127.0.0.1:1028"], "engines": {"vllm": {"python": "/usr/bin/python3"}}}


def problems(tmp_path: Path, **values: Any) -> list[str]:
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump({**LEAST, **values}))
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [problem.replace(str(path), "F") for problem in caught.value.problems]


def test_sample_is_valid_and_says_every_key() -> None:
    text = SAMPLE.read_text()
    assert load(SAMPLE).deployment_id == "default"
    for name in config.NodeConfig.model_fields:
        assert f"{name}:" in text, f"the sample does not explain {name}"


def test_the_sample_for_ascend_is_valid_and_leaves_its_devices_to_be_found() -> None:
    node = load(SAMPLE.with_name("nodemanager.ascend.yaml"))
    assert "devices" not in node.model_fields_set
    scripts = node.engines["vllm"].env_scripts
    assert [script.rpartition("/")[2] for script in scripts] == ["set_env.sh", "set_env.sh"]


def test_defaults(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump({**LEAST, "orphan_grace": "never", "devices": {"kind": "ascend", "count": 3}}))
    node = load(path, {"controllers": ["localhost:9"]})
    assert node.orphan_grace is None and node.status_port == 1027 and node.endpoints() == [("localhost", 9)]
    assert node.devices.all() == ["0", "1", "2"] and node.run_folder == Path("/var/lib/motor")


def test_all_errors_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, adress="10.0.0.1", status_port=99999, role="both", devices={"kind": "tpu"})
    assert len(found) == 4
    assert 'F:adress: unknown key; did you mean "address"?' in found
    assert any(p.startswith("F:status_port: ") and "99999" in p for p in found)
    assert any(p.startswith("F:role: ") and "both" in p for p in found)
    assert any(p.startswith("F:devices.kind: ") and "tpu" in p for p in found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"engines": {"vllm": {"pyhton": "/x"}}}, 'F:engines.vllm.pyhton: unknown key; did you mean "python"?'),
        ({"engines": {"vllm": {}}}, "F:engines.vllm: give either `python` or `command`"),
        ({"engines": {}}, "F:engines"),
        ({"devices": {"names": ["0", "0"]}}, "F:devices: a name stands there twice"),
        ({"devices": {"names": ["0"], "count": 1}}, "F:devices: give either names or count, not both"),
        ({"controllers": []}, "F:controllers"),
        ({"controllers": ["a:b"]}, "F:controllers: expected host:port or [IPv6]:port, got 'a:b'"),
        ({"controllers": ["10.0.0.1:1028"]}, "or `insecure: true`"),
        ({"state_dir": "var/lib"}, "F:state_dir: expected an absolute path, got var/lib"),
        ({"orphan_grace": 0}, "F:orphan_grace"),
    ],
)
def test_one_error(tmp_path: Path, values: dict[str, Any], expected: str) -> None:
    found = problems(tmp_path, **values)
    assert len(found) == 1 and expected in found[0]


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config"):
        load(tmp_path / "none.yaml")
    path = tmp_path / "node.yaml"
    for text, expected in [("a: [", "not YAML"), ("- 1", "expected keys"), ("", "controllers: missing")]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=expected):
            load(path)


def test_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("controllers: [x:1]\nengine: {}\n")
    done = subprocess.run(
        [sys.executable, "-m", "nodemanager.main", "--config", str(path)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert 'did you mean "engines"?' in done.stderr and "engines: missing" in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [("h:1", ("h", 1)), ("10.0.0.1", ("10.0.0.1", 1028)), ("[::1]:5", ("::1", 5)), ("[fd00::1]", ("fd00::1", 1028))],
)
def test_endpoints(text: str, expected: tuple[str, int]) -> None:
    assert parse_endpoint(text) == expected
