"""The JSON Schema of deploy.json: what Motor takes passes, what is broken does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from controller.config.schema import DeployFile
from controller.config.schema_json import deploy_schema
from controller.config.vocabulary import WITHOUT_EFFECT
from tests.config.files import engine, file_with
from tests.golden_shapes import ROOT

SCHEMA = deploy_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
DEPLOYMENTS = [
    path
    for path in sorted([*(ROOT / "configs").glob("*.json"), *(ROOT / "tests/golden/inputs").glob("*.json")])
    if "motor_" in path.read_text(encoding="utf-8")
]

Change = Callable[[dict[str, Any]], Any]


def test_the_schema_itself_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("2020-12/schema")


@pytest.mark.parametrize("path", DEPLOYMENTS, ids=lambda path: path.stem)
def test_every_deployment_of_the_repository_passes(path: Path) -> None:
    assert not [error.message for error in VALIDATOR.iter_errors(json.loads(path.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("path", DEPLOYMENTS, ids=lambda path: path.stem)
def test_every_deployment_fails_when_it_is_broken(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    section = next(name for name in content if name.startswith("motor_engine"))
    for broken in (
        {**content, "motor_engin_config": {}},
        {**content, section: {**content[section], "engine_config": []}},
        {**content, section: {k: v for k, v in content[section].items() if k != "engine_type"}},
        {k: v for k, v in content.items() if not k.startswith("motor_engine")},
    ):
        assert not VALIDATOR.is_valid(broken)


def set_in(*path: str, value: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        for part in path[:-1]:
            content = content.setdefault(part, {})
        content[path[-1]] = value

    return change


PREFILL = "motor_engine_prefill_config"


@pytest.mark.parametrize(
    "change",
    [
        set_in("motor_deploy_config", "p_instances_num", value="2"),
        set_in("motor_deploy_config", "p_instances_num", value=0),
        set_in("motor_deploy_config", "e_instances_num", value=1),
        set_in("motor_deploy_config", "deployment_id", value="a b"),
        set_in("motor_deploy_config", "port_ranges", value={"prefill": {"api": [1]}}),
        set_in("motor_controller_config", "timers", value={"stop_grace": 0}),
        set_in("motor_controller_config", "timers", value={"stop_gracee": 1}),
        set_in("motor_controller_config", "log_level", value="info"),
        set_in("motor_coordinator_config", value={"scheduler_config": {"deploy_mod": "x"}}),
        set_in("motor_engine_encode_config", value={}),
        set_in(PREFILL, value=None),
        set_in(PREFILL, "model_config", value={}),
        set_in(PREFILL, "engine_type", value="sglang"),
        set_in(PREFILL, "env", value={"X": True}),
        set_in(PREFILL, "extra_args", value="--x"),
        set_in(PREFILL, "engine_config", "nnodes", value="2"),
        set_in(PREFILL, "engine_config", "tensor_parallel_size", value=0),
        set_in(PREFILL, "override", value={"options": {}}),
        set_in(PREFILL, "health_check_config", value={"npu_usage_threshold": 101}),
    ],
)
def test_broken_values_and_keys_fail(change: Change) -> None:
    content = copy.deepcopy(file_with(prefill=engine()))
    assert VALIDATOR.is_valid(content)
    change(content)
    assert not VALIDATOR.is_valid(content)


def test_keys_of_the_field_pass_as_deprecated() -> None:
    content = file_with(
        prefill=engine(section={"dispatch_profile": "x", "motor_nodemanger_config": {}}),
        deploy=dict.fromkeys(WITHOUT_EFFECT["motor_deploy_config"], "x"),
        controller={key: {} for key in WITHOUT_EFFECT["motor_controller_config"]},
        motor_nodemanger_config={"basic_config": {}},
        **{key: {} for key in WITHOUT_EFFECT[""]},
    )
    assert not [error.message for error in VALIDATOR.iter_errors(content)]
    assert SCHEMA["$defs"]["Deploy"]["properties"]["image_name"]["deprecated"]


def test_an_editor_may_name_the_schema() -> None:
    assert VALIDATOR.is_valid({"$schema": "./deploy.schema.json", **file_with(prefill=engine())})


def models(model: Any, seen: dict[str, Any] | None = None) -> dict[str, Any]:
    """Every section class below `model`, by name."""
    seen = {} if seen is None else seen
    seen[model.__name__] = model
    for field in model.model_fields.values():
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(inner, "model_fields") and inner.__name__ not in seen:
                models(inner, seen)
    return seen


@pytest.mark.parametrize("model", models(DeployFile).values(), ids=lambda model: model.__name__)
def test_every_key_explains_itself(model: Any) -> None:
    for name, field in model.model_fields.items():
        assert field.description and field.description.endswith("."), f"{name} has no sentence about it"
        assert field.json_schema_extra["x-source"], name
        if field.default is None:
            assert field.json_schema_extra.get("x-unset"), f"{name}: what happens without it?"
