"""`motorctl init` and `motorctl schema`, and `motorctl validate` on what they give: as processes where it counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from controller.config.load import parse_document
from controller.config.plan import deployment_from
from controller.config.samples import SAMPLES, SHAPES, Sample, find
from controller.config.samples_text import sample_text
from controller.config.schema_json import deploy_schema
from controller.config.yaml_text import parse as parse_yaml
from engine_launch.profiles import ENGINE_TYPES
from motorctl.main import main


def motorctl(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def process(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "motorctl.main", *map(str, words)], capture_output=True, text=True, check=False
    )


def name(sample: Sample) -> str:
    return f"{sample.engine}-{sample.shape}"


@pytest.mark.parametrize("sample", SAMPLES, ids=name)
def test_every_sample_is_valid_and_is_what_it_says(sample: Sample) -> None:
    loaded = deployment_from(parse_document("deploy.yaml", sample_text(sample), parse_yaml))
    plan = loaded.plan
    assert sum(instance.dp_size * instance.nnodes for instance in plan.instances) == sample.nodes
    assert {instance.role for instance in plan.instances} == set(sample.roles)
    assert all(instance.devices_per_slot <= sample.devices for instance in plan.instances)
    assert all(spec.engine_type == sample.engine for spec in loaded.engines.values())


@pytest.mark.parametrize("sample", SAMPLES, ids=name)
def test_every_sample_fits_the_json_schema(sample: Sample) -> None:
    jsonschema.Draft202012Validator(deploy_schema()).validate(yaml.safe_load(sample_text(sample)))


@pytest.mark.parametrize("sample", SAMPLES, ids=name)
def test_the_defaults_in_comments_are_what_they_say(sample: Sample) -> None:
    """With the comment signs in front of keys taken away it is the same deployment."""
    lines = sample_text(sample).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("motor_"))
    shown = [
        line.replace("  # ", "  ", 1) if line.startswith("  # ") and ":" in line else line for line in lines[start:]
    ]
    shown = [line for line in shown if "max(" not in line and not line.startswith("  The engine")]
    one = deployment_from(parse_document("deploy.yaml", "\n".join(shown), parse_yaml))
    other = deployment_from(parse_document("deploy.yaml", sample_text(sample), parse_yaml))
    assert one.plan.timers == other.plan.timers
    assert [i.hang for i in one.plan.instances] == [i.hang for i in other.plan.instances]
    assert one.plan.instances[0].master_ports == other.plan.instances[0].master_ports


def test_there_is_a_sample_of_every_engine_and_every_shape() -> None:
    assert {sample.engine for sample in SAMPLES} == set(ENGINE_TYPES)
    assert {sample.shape for sample in SAMPLES} == set(SHAPES)
    assert all(find(engine, "pcp") for engine in ENGINE_TYPES)


def test_it_writes_a_file_that_validate_takes_and_never_overwrites_one(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    wrote = process("init", "--engine", "vllm_ascend", "--shape", "pcp", "-o", path)
    assert wrote.returncode == 0 and str(path) in wrote.stdout
    checked = process("validate", path)
    assert (checked.returncode, checked.stderr) == (0, "")
    before = path.read_text()
    again = process("init", "-o", path)
    assert again.returncode == 2 and "is there already" in again.stderr
    assert path.read_text() == before


def test_to_the_terminal() -> None:
    result = motorctl("init", "--engine", "atom", "--shape", "pcp")
    assert result.exit_code == 0 and result.stdout == sample_text(find("atom", "pcp"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "atom", "--shape", "prefill-decode"), "it has: single-node, pcp, data-parallel"),
        (("-o", "deploy.json"), "expected .yaml or .yml"),
        (("-o", "/no/such/folder/deploy.yaml"), "cannot be written: No such file"),
    ],
)
def test_refusals(words: tuple[str, ...], message: str) -> None:
    result = motorctl("init", *words)
    assert result.exit_code == 2 and message in result.stderr


def test_schema_prints_the_json_schema() -> None:
    result = motorctl("schema")
    assert result.exit_code == 0 and json.loads(result.stdout) == deploy_schema()


# --- validate as a process ----------------------------------------------------------------------------------


def test_all_errors_at_once_warnings_apart_and_code_2(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    text = sample_text(SAMPLES[1]).replace("nnodes: 2", "nnodes: 3").replace("hybrid_instances_num: 1", "image_name: x")
    path.write_text(text.replace("  engine_config:", "  enviroment: {}\n  engine_config:"))
    result = process("validate", path)
    assert (result.returncode, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    kinds = [line.split(":", 1)[0] for line in lines[:-1]]
    assert kinds == sorted(kinds, reverse=True), "warnings first, then errors"
    assert kinds.count("warning") >= 1 and kinds.count("error") >= 2
    for word in ("nnodes", "enviroment", "image_name"):
        assert [line for line in lines if word in line and f"{path}:" in line and "(line " in line], word


def test_a_valid_file_with_warnings_is_code_0(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(sample_text(SAMPLES[0]).replace("hybrid_instances_num: 1", "image_name: x"))
    result = process("validate", path)
    assert result.returncode == 0 and result.stderr.startswith("warning: ") and "valid" in result.stdout


def test_no_file_is_code_2(tmp_path: Path) -> None:
    assert process("validate", tmp_path / "none.json").returncode == 2
