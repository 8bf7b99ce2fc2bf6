"""Three classes of keys: ours, the field's without effect (one warning each), unknown (errors with a suggestion)."""

from __future__ import annotations

from typing import Any

import pytest

from controller.config.schema import DeployFile
from controller.config.vocabulary import COORDINATOR_GROUPS, ENGINE_SECTIONS, REFUSED, WITHOUT_EFFECT
from tests.config.files import engine, file_with, load, problems_of, texts

FOREIGN = [(section, key) for section, keys in WITHOUT_EFFECT.items() for key in keys]


def with_key(section: str, key: str, value: Any) -> dict[str, Any]:
    content = file_with(prefill=engine(), decode=engine(), union=engine())
    target = content.setdefault(section, {}) if section else content
    target[key] = value
    return content


def errors_of(content: dict[str, Any]) -> list[str]:
    return [text for text in texts(content) if text.startswith("error")]


@pytest.mark.parametrize(("section", "key"), FOREIGN, ids=lambda part: part)
def test_a_key_of_the_field_is_one_warning_that_names_it(section: str, key: str) -> None:
    content = with_key(section, key, {})
    before = file_with(prefill=engine(), decode=engine(), union=engine())
    added = [problem for problem in load(content).warnings if problem not in load(before).warnings]
    mine = [problem for problem in added if problem.path == ((section, key) if section else (key,))]
    assert len(mine) == 1 and "known from the field's files, without effect here" in str(mine[0])
    assert mine[0].line


@pytest.mark.parametrize(("section", "key"), REFUSED, ids=str)
def test_what_would_change_the_deployment_is_refused(section: str, key: str) -> None:
    assert [text for text in errors_of(with_key(section, key, {})) if "not supported" in text]


def test_our_keys_and_the_fields_do_not_overlap() -> None:
    models = {"": DeployFile, **{name: field.annotation for name, field in DeployFile.model_fields.items()}}
    for section, keys in WITHOUT_EFFECT.items():
        model = models[section]
        model = next((m for m in (model, *getattr(model, "__args__", ())) if hasattr(m, "model_fields")), None)
        assert model is not None
        assert not set(keys) & set(model.model_fields), section


@pytest.mark.parametrize(
    ("content", "path", "fix"),
    [
        (with_key("", "motor_deploy_confg", {}), "motor_deploy_confg", 'did you mean "motor_deploy_config"?'),
        (with_key("", "motor_Controller_config", {}), "motor_Controller_config", '"motor_controller_config"'),
        (with_key("motor_deploy_config", "p_instance_num", 1), "p_instance_num", '"p_instances_num"'),
        (with_key("motor_deploy_config", "image_nam", "x"), "image_nam", '"image_name"'),
        (with_key("motor_controller_config", "timer", {}), "timer", '"timers"'),
        (with_key("motor_engine_decode_config", "enviroment", {}), "enviroment", "one of engine_type"),
        (with_key("", "motor_coordinator_config", {"schedular_config": {}}), "schedular_config", "scheduler_config"),
        (
            with_key("", "motor_coordinator_config", {"scheduler_config": {"deploy_mod": "x"}}),
            "motor_coordinator_config.scheduler_config.deploy_mod",
            'did you mean "deploy_mode"?',
        ),
    ],
)
def test_an_unknown_key_is_an_error_with_a_suggestion(content: dict[str, Any], path: str, fix: str) -> None:
    found = errors_of(content)
    assert [text for text in found if path in text and "unknown key" in text and fix in text], found


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (
            with_key("motor_controller_config", "instance_config", {"instance_assemble_timeout": 60, "x": 1}),
            "use instead of instance_assemble_timeout: motor_controller_config.timers.assemble_timeout",
        ),
        (
            with_key("motor_controller_config", "api_config", {"controller_api_port": 1}),
            "controller_api_port: motor_controller_config.rest.port",
        ),
        (with_key("motor_deploy_config", "job_id", "x"), "use motor_deploy_config.deployment_id"),
        (with_key("motor_deploy_config", "env_path", "env.json"), "use env of each engine section"),
        (
            with_key("", "motor_nodemanager_config", {"basic_config": {"heartbeat_interval_seconds": 3}}),
            "heartbeat_interval_seconds: motor_controller_config.timers.heartbeat_interval",
        ),
        (
            with_key("motor_engine_prefill_config", "motor_nodemanger_config", {"endpoint_config": {"base_port": 1}}),
            "base_port: engine_config.port",
        ),
        (with_key("", "motor_nodemanager_config", {"unheard_of": 1}), "move them there"),
    ],
)
def test_the_warning_says_what_to_use_instead(content: dict[str, Any], advice: str) -> None:
    assert len([warning for warning in load(content).warnings if advice in str(warning)]) == 1


def test_the_misspelt_section_is_read_and_both_names_are_said() -> None:
    (warning,) = [w for w in load(with_key("", "motor_nodemanger_config", {})).warnings if "misspelt" in str(w)]
    assert "motor_nodemanger_config" in str(warning) and 'read as "motor_nodemanager_config"' in str(warning)


def test_the_coordinators_section_is_kept_with_one_warning_whatever_is_in_it() -> None:
    section = {name: {} for name in COORDINATOR_GROUPS}
    loaded = load(with_key("", "motor_coordinator_config", section))
    assert loaded.coordinator == section
    assert len([w for w in loaded.warnings if w.path[0] == "motor_coordinator_config" and "known from" in w.what]) == 1


@pytest.mark.parametrize("value", [[], "x", {"scheduler_config": []}])
def test_a_coordinator_of_the_wrong_type_is_an_error(value: Any) -> None:
    assert [text for text in errors_of(with_key("", "motor_coordinator_config", value)) if "expected an object" in text]


def test_an_editors_key_is_no_news() -> None:
    content = file_with(prefill=engine())
    assert load({"$schema": "x", **content}).warnings == load(content).warnings


def test_an_engine_that_is_not_supported_is_one_error() -> None:
    section = engine(profile=None, section={"engine_type": "sglang"}, mem_fraction_static=0.8)
    (error,) = [p for p in problems_of(file_with(prefill=section)) if p.severity.value == "error"]
    assert error.path == ("motor_engine_prefill_config", "engine_type")


def test_every_engine_section_has_the_same_words() -> None:
    assert len({tuple(WITHOUT_EFFECT[section]) for section in ENGINE_SECTIONS}) == 1
