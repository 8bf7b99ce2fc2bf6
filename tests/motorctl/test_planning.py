"""`motorctl plan` and `motorctl validate`, as an operator runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def validated(path: Path) -> tuple[int, dict[str, Any]]:
    result = motorctl("validate", path, "-o", "json")
    assert result.stderr == "", "a program reads one stream"
    answer: dict[str, Any] = json.loads(result.stdout)
    assert set(answer) == {"file", "valid", "problems"} and answer["file"] == str(path)
    return result.exit_code, answer


def test_validate_as_json(tmp_path: Path) -> None:
    assert validated(SEED) == (0, {"file": str(SEED), "valid": True, "problems": []})
    path = tmp_path / "deploy.json"
    path.write_text(SEED.read_text().replace('"motor_engine', '"motor_coordinator_config": {},\n"motor_engine'))
    code, answer = validated(path)
    assert code == 0 and answer["valid"] is True
    (warning,) = answer["problems"]
    assert (warning["severity"], warning["path"], warning["line"]) == ("warning", "motor_coordinator_config", 2)


def test_validate_as_json_says_of_each_error_where_what_and_how(tmp_path: Path) -> None:
    path = tmp_path / "deploy.json"
    content = SEED.read_text().replace("engine_type", "engine_typ")
    path.write_text(content.replace('"motor_engine', '"motor_coordinator_config": {},\n"motor_engine'))
    code, answer = validated(path)
    assert code == 2 and answer["valid"] is False
    assert [problem["severity"] for problem in answer["problems"]].count("warning") == 1
    typo = next(p for p in answer["problems"] if p["path"].endswith("engine_typ"))
    assert typo == {
        "severity": "error", "file": str(path), "line": 4, "column": None,
        "path": "motor_engine_prefill_config.engine_typ", "what": "unknown key", "value": '"vllm" (a string)',
        "expected": "", "fix": 'did you mean "engine_type"?', "rule": typo["rule"], "overridable": False,
    }  # fmt: skip


def test_validate_as_json_names_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "deploy.json"
    path.write_text(SEED.read_text().replace('"nnodes": 2', '"nnodes": 2, "decode-context-parallel-size": 7'))
    code, answer = validated(path)
    assert code == 2
    found = {problem["rule"]: problem for problem in answer["problems"]}
    assert found["dcp-tp"]["path"] == "motor_engine_prefill_config.engine_config.decode-context-parallel-size"
    assert (found["dcp-tp"]["value"], found["dcp-tp"]["expected"]) == ("7 (an integer)", "a divisor of it")


@pytest.mark.parametrize("content", [None, '{"a": 1'])
def test_validate_as_json_of_what_is_no_document(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "deploy.json"
    if content is not None:
        path.write_text(content)
    code, answer = validated(path)
    assert code == 2 and answer["valid"] is False and len(answer["problems"]) == 1


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
