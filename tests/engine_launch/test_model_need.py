"""Which engines ask for a kind of model."""

from __future__ import annotations

from typing import Any

import pytest

from engine_launch.atom_rules import RULES
from engine_launch.model import EngineSpec, ParallelShape, Translation
from engine_launch.model_facts import DEEPSEEK_V4
from engine_launch.model_need import model_need
from engine_launch.override import Override
from engine_launch.profiles import PROFILES
from engine_launch.rule import RuleSeverity


def spec(profile: str = "atom@0.1.6", pcp: int = 8, **more: Any) -> EngineSpec:
    engine = profile.partition("@")[0]
    shape = ParallelShape(pcp=pcp)
    return EngineSpec(engine, profile, engine, shape, Translation.REPLICA, "m", {}, **more)


def test_pcp_of_atom_asks_for_deepseek_v4() -> None:
    need = model_need(spec())
    assert need is not None and need.kind == DEEPSEEK_V4
    assert "PCP (8 here) is for DeepSeek-V4 only" in need.reason and '"atom-pcp-model" in override.rules' in need.reason


@pytest.mark.parametrize(
    "other",
    [
        spec(pcp=1),
        spec(override=Override("we know", {}, ("atom-pcp-model",))),
        spec("vllm_ascend@0.23"),
        spec("vllm@0.33"),
    ],
)
def test_others_take_any_model(other: EngineSpec) -> None:
    assert model_need(other) is None


def test_the_rule_that_asks_can_be_overridden() -> None:
    rules = {rule.id: rule for rule in RULES}
    for profile in PROFILES.values():
        if profile.pcp_models is not None:
            assert rules[profile.pcp_models.rule].severity is RuleSeverity.OVERRIDABLE
