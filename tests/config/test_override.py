"""The override block: what Motor keeps for itself and refuses, the operator may insist on, and the plan says so."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from controller.config.errors import ConfigError
from controller.config.render import render_plan
from controller.config.render_text import plan_data, plan_text
from engine_launch.command import build_command
from engine_launch.override import Override, without
from engine_launch.reserved import RESERVED
from tests.config.files import engine, file_with, load, texts

MOE = {"enable_expert_parallel": True, "data_parallel_size": 2}
PATH = "motor_engine_prefill_config.override"


def with_override(more: dict[str, Any] | None = None, **block: Any) -> dict[str, Any]:
    section = engine(section={"override": {"reason": "case 7", **block}}, **(more or {}))
    return file_with(prefill=section)


def argvs(content: dict[str, Any]) -> list[tuple[str, ...]]:
    (instance,) = render_plan(load(content)).instances
    return [slot.command.argv for slot in instance.slots]


@pytest.mark.parametrize("name", RESERVED)
def test_every_reserved_option_is_refused_without_it_and_taken_with_it(name: str) -> None:
    with pytest.raises(ConfigError, match='insist on it in an "override" block'):
        load(file_with(prefill=engine(**{name: "x"})))
    assert all(f"--{name} x" in " ".join(argv) for argv in argvs(with_override(options={name: "x"})))


def test_it_takes_the_place_of_what_motor_computed_and_stands_last() -> None:
    for argv in argvs(with_override(options={"node_rank": 7, "master-addr": "10.0.0.9"})):
        assert argv[-4:] == ("--node-rank", "7", "--master-addr", "10.0.0.9")
        assert argv.count("--node-rank") == argv.count("--master-addr") == 1


@pytest.mark.parametrize("value", [False, None])
def test_false_and_null_only_take_the_computed_option_away(value: Any) -> None:
    assert "--headless" in argvs(file_with(prefill=engine()))[1]
    assert "--headless" not in argvs(with_override(options={"headless": value}))[1]


def test_it_does_not_reach_what_it_does_not_name() -> None:
    plain, other = argvs(file_with(prefill=engine(**MOE))), argvs(with_override(MOE, options={"ssl-cert-reqs": 2}))
    assert [(*argv, "--ssl-cert-reqs", "2") for argv in plain] == other


def test_the_digests_hold_it() -> None:
    plain, other = load(file_with(prefill=engine())), load(with_override(options={"uds": "/run/x"}))
    assert plain.plan.instances[0].config_digest != other.plan.instances[0].config_digest
    slots = [render_plan(loaded).instances[0].slots[0].command for loaded in (plain, other)]
    assert slots[0].argv_digest != slots[1].argv_digest


def test_the_spec_carries_it_to_the_command() -> None:
    spec = load(file_with(prefill=engine())).engines["prefill-0"]
    assignment = render_plan(load(file_with(prefill=engine()))).instances[0].slots[0].assignment
    spec = dataclasses.replace(spec, override=Override("r", {"grpc": True}))
    assert build_command(spec, assignment).argv[-1] == "--grpc"


def test_the_plan_and_validate_mark_each_part() -> None:
    loaded = load(with_override(options={"uds": "/run/x", "headless": False}))
    plan = render_plan(loaded)
    marks = [line.strip() for line in plan_text(plan).splitlines() if line.startswith("  override")]
    assert marks == [
        'override     --uds "/run/x" in the place of Motor\'s own (case 7)',
        "override     --headless false in the place of Motor's own (case 7)",
    ]
    assert plan_data(plan)["instances"][0]["override"]["options"] == {"uds": "/run/x", "headless": False}
    assert len([w for w in loaded.warnings if "overridden (case 7)" in str(w)]) == 2
    assert plan_data(render_plan(load(file_with(prefill=engine()))))["instances"][0]["override"] is None


def test_switched_off_it_is_as_if_it_were_not_there() -> None:
    off = with_override(override=False, options={"uds": "/run/x"})
    assert argvs(off) == argvs(file_with(prefill=engine()))
    assert not load(off).warnings


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"options": {"seed": 1}}, f"{PATH}.options.seed (line 7): is no option that Motor keeps for itself"),
        ({"options": {"seed": 1}}, "write it into engine_config"),
        ({"options": {"node-rnk": 1}}, 'did you mean "node-rank"?'),
        ({"options": {"node-rank": 1, "node_rank": 2}}, 'means the same flag as "node-rank"'),
        ({"options": {"uds": ["a", "-b"]}}, "cannot be written on a command line"),
        ({"rules": ["atom-pcp-wold"]}, 'there is no such rule; got "atom-pcp-wold" (a string); did you mean'),
        ({"rules": ["no-such-thing"]}, "docs/configuration.md lists them"),
        ({"reason": ""}, f"{PATH}.reason (line 5): has a wrong value"),
        ({"option": {}}, 'did you mean "options"?'),
        ({"override": "yes"}, "expected true or false"),
    ],
)
def test_refused(block: dict[str, Any], message: str) -> None:
    found = texts(with_override(**block))
    assert [text for text in found if text.startswith("error:") and message in text], found


def test_a_reason_is_obligatory() -> None:
    content = file_with(prefill=engine(section={"override": {"options": {"uds": "x"}}}))
    assert [text for text in texts(content) if "override.reason" in text and "is missing" in text]


def test_an_empty_block_has_no_effect_and_that_is_said() -> None:
    assert [text for text in texts(with_override()) if text.startswith("warning") and "no effect" in text]


# --- rules --------------------------------------------------------------------------------------------------

# tp x pcp above ATOM's guide is overridable, tp alone above 8 is the engine's own assert.
WIDE = {"tensor-parallel-size": 8, "prefill-context-parallel-size": 2, "model": "/m"}


def atom(config: dict[str, Any], **block: Any) -> dict[str, Any]:
    section: dict[str, Any] = {"engine_type": "atom", "engine_config": config}
    if block:
        section["override"] = {"reason": "case 7", **block}
    return file_with(prefill=section)


def test_an_overridable_rule_that_is_named_only_warns() -> None:
    (refused,) = [text for text in texts(atom(WIDE)) if text.startswith("error")]
    assert refused.endswith("[atom-pcp-world]")
    loaded = load(atom(WIDE, rules=["atom-pcp-world"]))
    assert [w for w in loaded.warnings if w.rule == "atom-pcp-world" and "overridden (case 7)" in w.what]
    assert "override     rule atom-pcp-world only warns (case 7)" in plan_text(render_plan(loaded))


def test_a_rule_that_cannot_be_overridden_stays_an_error_and_says_so() -> None:
    config = {"tensor-parallel-size": 16, "model": "/m"}
    found = texts(atom(config, rules=["atom-tp-limit"]))
    assert [text for text in found if text.startswith("error") and "this rule cannot be overridden" in text], found


def test_a_rule_that_nothing_breaks_is_a_left_over() -> None:
    found = texts(atom({"model": "/m"}, rules=["atom-pcp-world"]))
    assert [text for text in found if "nothing breaks this rule" in text]


def test_another_sections_override_does_not_count() -> None:
    content = atom(WIDE, rules=["atom-pcp-world"])
    content["motor_engine_decode_config"] = atom(WIDE)["motor_engine_prefill_config"]
    assert [text for text in texts(content) if text.startswith("error") and "decode" in text]


@pytest.mark.parametrize(
    ("words", "names", "left"),
    [
        (["--a", "1", "--b", "--c", "2"], ["a"], ["--b", "--c", "2"]),
        (["--a", "1", "--b", "--c", "2"], ["b"], ["--a", "1", "--c", "2"]),
        (["--a=1", "--ab", "1"], ["a"], ["--ab", "1"]),
        (["--a", "1"], [], ["--a", "1"]),
    ],
)
def test_words_without_some_options(words: list[str], names: list[str], left: list[str]) -> None:
    assert without(words, names) == left
