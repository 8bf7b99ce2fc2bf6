"""engine_config from the file's text to argv: the whole table of values, and spellings that collide."""

from __future__ import annotations

import json

import pytest

from controller.config.errors import ConfigError
from controller.config.load import parse_document
from controller.config.plan import deployment_from
from controller.config.render import render_plan
from controller.config.rule_list import RULES
from controller.config.yaml_text import parse as parse_yaml
from engine_launch.rule import RuleSeverity
from tests.config.files import engine, file_with, texts
from tests.config.test_rules import REFUSED


def json_file(entry: str, extra: str = "[]") -> str:
    """A deployment whose engine_config ends with `entry` as it stands."""
    return (
        '{"motor_engine_union_config": {"engine_type": "vllm", "engine_profile": "vllm@0.32", '
        f'"extra_args": {extra}, "engine_config": {{"model": "/m", {entry}}}}}}}'
    )


def words(text: str, yaml: bool = False) -> list[str]:
    """What stands between the model and Motor's own options."""
    document = parse_document("deploy.yaml", text, parse_yaml) if yaml else parse_document("deploy.json", text)
    (instance,) = render_plan(deployment_from(document)).instances
    argv = instance.slots[0].command.argv
    return list(argv[argv.index("/m") + 1 : argv.index("--host")])


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('"enforce-eager": true', ["--enforce-eager"]),
        ('"enforce_eager": false', ["--no-enforce-eager"]),
        ('"aggregate-engine-logging": false', []),  # the engine has no --no- form of it
        ('"seed": null', []),
        ('"gpu-memory-utilization": 0.90', ["--gpu-memory-utilization", "0.90"]),
        ('"gpu_memory_utilization": 9.0e-1', ["--gpu-memory-utilization", "9.0e-1"]),
        ('"npu_mem_utils": 0.9', ["--gpu-memory-utilization", "0.9"]),
        ('"max-model-len": 136000', ["--max-model-len", "136000"]),
        ('"seed": -1', ["--seed=-1"]),
        ('"chat-template": "-x y"', ["--chat-template=-x y"]),
        ('"served_model_name": ["a", "b"]', ["--served-model-name", "a", "b"]),
        ('"served-model-name": ["-a"]', ["--served-model-name=-a"]),
        ('"lora-modules": [{"name": "a", "path": "/p"}]', ["--lora-modules", '[{"name":"a","path":"/p"}]']),
        ('"allowed-origins": ["*"]', ["--allowed-origins", '["*"]']),
        (
            '"hf-overrides": {"rope-scaling": {"a-b": 1.50, "c_d": [true, null]}}',
            ["--hf-overrides", '{"rope-scaling":{"a-b":1.50,"c_d":[true,null]}}'],
        ),
        ('"compilation_config.max-capture_size": 4', ["--compilation-config.max-capture_size", "4"]),
        ('"speculative-config": {"text": "a\\"b é"}', ["--speculative-config", '{"text":"a\\"b é"}']),
    ],
)
def test_a_value_and_its_words(entry: str, expected: list[str]) -> None:
    assert words(json_file(entry)) == expected
    assert words(json_file(entry), yaml=True) == expected, "JSON is YAML"


def test_numbers_of_yaml_keep_their_form_too() -> None:
    text = "motor_engine_union_config:\n  engine_type: vllm\n  engine_profile: vllm@0.32\n  engine_config:\n"
    assert words(text + "    model: /m\n    gpu-memory-utilization: 0.90\n", yaml=True)[1] == "0.90"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('"served-model-name": []', "an empty list has no form on a command line"),
        ('"served-model-name": ["a", "-b"]', "begins with a dash and is one of several values"),
        ('"dtype": true', "takes a value"),
        ('"enforce-eager": "true"', "is a switch"),
        ('"dtype": ["a", "b"]', "takes one value"),
    ],
)
def test_what_no_command_line_carries(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        words(json_file(entry))


@pytest.mark.parametrize(
    ("entry", "extra", "first", "second"),
    [
        ('"tp_size": 2, "tensor-parallel-size": 2', "[]", "tp_size", "tensor-parallel-size"),
        ('"tensor_parallel_size": 2, "tensor-parallel-size": 2', "[]", "tensor_parallel_size", "tensor-parallel-size"),
        ('"tensor_parallel_size": 2, "tp-size": 2', "[]", "tensor_parallel_size", "tp-size"),
        ('"tensor-parallel-size": 2, "tp": 2', "[]", "tensor-parallel-size", "tp"),
        ('"enforce-eager": true, "no_enforce_eager": true', "[]", "enforce-eager", "no_enforce_eager"),
        ('"model_path": "/n"', "[]", "model", "model_path"),
        ('"seed": 1', '["--seed", "2"]', "seed", "--seed"),
        ('"quantization": "x"', '["-q", "y"]', "quantization", "-q"),
        ('"quantization": "x"', '["-q=y"]', "quantization", "-q"),
        ('"no-enforce-eager": true', '["--enforce-eager"]', "no-enforce-eager", "--enforce-eager"),
        ('"enforce_eager": true', '["--no-enforce-eager"]', "enforce_eager", "--no-enforce-eager"),
        ('"max_model_len": 1', '["--max_model_len=2"]', "max_model_len", "--max_model_len"),
    ],
)
def test_two_spellings_of_one_flag_are_an_error_that_names_both(
    entry: str, extra: str, first: str, second: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        words(json_file(entry, extra))
    assert [e for e in caught.value.errors if first in str(e) and second in str(e)], str(caught.value)


@pytest.mark.parametrize("extra", [["-tp", "4"], ["-tp=4"], ["--tp-size", "4"], ["--tensor_parallel_size=4"]])
def test_what_motor_computes_from_may_not_hide_in_extra_args(extra: list[str]) -> None:
    found = texts(json_file('"seed": 1', json.dumps(extra)))
    assert [text for text in found if f"{extra[0].split('=')[0]} is --tensor-parallel-size" in text], found


def test_extra_args_are_passed_on_as_written() -> None:
    extra = '["--flag-of-tomorrow", "1.50", "--middleware=a", "--middleware=b"]'
    assert words(json_file('"seed": 1', extra)) == ["--seed", "1", *json.loads(extra)]


def test_every_error_carries_file_line_path_value_rule_and_fix() -> None:
    content = file_with(
        prefill=engine(nnodes="2", max_modl_len=1, dtype=True, section={"dp_translation": "x"}, env={"RANK": 1}),
        deploy={"p_instances_num": "2", "image_nam": "x", "d_instances_num": 2},
        controller={"grpc": {"host": "0.0.0.0"}, "timers": {"stop_grace": -1}},
    )
    with pytest.raises(ConfigError) as caught:
        deployment_from(parse_document("deploy.json", json.dumps(content, indent=1)))
    assert len(caught.value.errors) >= 9
    for problem in caught.value.errors:
        assert problem.file == "deploy.json" and problem.line and problem.path and problem.what and problem.got
        assert problem.rule in RULES and str(problem).endswith(f"[{problem.rule}]")
        assert problem.expected or problem.fix, str(problem)


@pytest.mark.parametrize("name", REFUSED)
def test_every_refusal_names_its_place_and_its_rule_and_a_way_out(name: str) -> None:
    section, _, _ = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        deployment_from(parse_document("deploy.json", json.dumps(file_with(prefill=section), indent=1)))
    for problem in caught.value.errors:
        assert problem.file and problem.line and problem.path and problem.what
        assert problem.rule in RULES and (problem.expected or problem.fix), str(problem)
        assert RULES[problem.rule].severity is not RuleSeverity.WARNING, str(problem)
