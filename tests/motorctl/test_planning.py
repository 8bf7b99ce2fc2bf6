"""`motorctl plan` and `motorctl validate`, as an operator runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from motorctl.main import COMMANDS, main
from tests.golden_shapes import ROOT

SEED = ROOT / "configs" / "seed.json"


def motorctl(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_plan_prints_the_seed_on_two_nodes_of_sixteen_devices() -> None:
    result = motorctl("plan", SEED)
    assert result.exit_code == 0 and not result.stderr
    assert "1 group of 2 nodes, 16 devices each" in result.stdout
    assert "profile vllm_ascend@0.23 (assumed: " in result.stdout
    assert "prefill-0/0/1: prefill, instance prefill-0, dp_rank 0, node_rank 1, headless" in result.stdout


def test_plan_as_json() -> None:
    result = motorctl("plan", SEED, "-o", "json")
    (instance,) = json.loads(result.stdout)["instances"]
    assert instance["engine_profile_assumed"] is True
    master, follower = instance["slots"]
    assert (master["node_rank"], master["headless"], master["devices"]) == (0, False, 16)
    assert master["ports"] == {"7001": "master", "8000": "api"}
    assert follower["argv"][-1] == "--headless" and follower["env"]["HCCL_IF_IP"] == "<node>"
    assert follower["node_env"]["HCCL_IF_IP"] == "address"


def test_validate() -> None:
    result = motorctl("validate", SEED)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{SEED}: valid, 1 instance, 2 slots\n"


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_errors_go_to_stderr_with_code_2(command: str, tmp_path: Path) -> None:
    path = tmp_path / "deploy.json"
    path.write_text(SEED.read_text().replace('"nnodes": 2', '"nnodes": 3').replace("engine_type", "engine_typ"))
    result = motorctl(command, path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: {path}:motor_engine_prefill_config.engine_typ (line 3): unknown key" in result.stderr
    assert result.stderr.endswith("2 errors, 0 warnings\n")


def test_warnings_go_to_stderr_with_code_0(tmp_path: Path) -> None:
    path = tmp_path / "deploy.json"
    path.write_text(SEED.read_text().replace('"motor_engine', '"motor_coordinator_config": {},\n"motor_engine'))
    result = motorctl("plan", path, "-o", "json")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {path}:motor_coordinator_config (line 2): ")
    json.loads(result.stdout)


def test_a_missing_file_is_an_error_like_others(tmp_path: Path) -> None:
    result = motorctl("validate", tmp_path / "none.json")
    assert result.exit_code == 2
    assert "cannot be read; got No such file" in result.stderr


def test_every_registered_command_loads() -> None:
    for name in COMMANDS:
        result = motorctl(name, "--help")
        assert result.exit_code == 0, result.output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['motorctl', '--help']\n"
        "from motorctl.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('pydantic', 'fastapi', 'rich', 'grpc', 'yaml', 'controller') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "validate" in done.stdout
