"""What Motor refuses, the real vLLM 0.32 refuses too; or it is known why Motor is stricter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.config.rules import RULES, SHARED
from engine_launch.rule import RuleSeverity
from tests.vllm.refusals import BY_RULE, OTHERS, Read, Shown, Taken, ask

ALL = {**BY_RULE, **OTHERS}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    return ask()


@pytest.mark.vllm
@pytest.mark.parametrize("name", [name for name, each in ALL.items() if isinstance(each, Shown)])
def test_vllm_refuses_what_motor_refuses(name: str, answers: dict[str, dict[str, Any]]) -> None:
    expected = ALL[name]
    assert isinstance(expected, Shown)
    assert expected.says in " ".join(answers[name].get("error", f"taken: {answers[name]}").split())


@pytest.mark.vllm
@pytest.mark.parametrize("name", [name for name, each in ALL.items() if isinstance(each, Taken)])
def test_vllm_takes_what_motor_is_stricter_about(name: str, answers: dict[str, dict[str, Any]]) -> None:
    expected = ALL[name]
    assert isinstance(expected, Taken)
    assert answers[name].get(expected.fact) == expected.value, answers[name]


def test_every_refusal_is_shown_or_says_why_not() -> None:
    refusals = {rule.id for rule in (*SHARED, *RULES) if rule.severity is not RuleSeverity.WARNING}
    assert set(BY_RULE) == refusals


def test_a_rule_that_is_stricter_says_so() -> None:
    stricter = {rule.id for rule in (*SHARED, *RULES) if rule.stricter}
    assert stricter == {name for name, each in BY_RULE.items() if isinstance(each, Taken)}
    assert all(each.why for each in BY_RULE.values() if not isinstance(each, Shown | Read))


def test_the_record_has_every_refusal() -> None:
    text = (Path(__file__).parents[2] / "docs" / "oracle.md").read_text(encoding="utf-8")
    assert [name for name in ALL if f"\n| {name} | " not in text] == []
