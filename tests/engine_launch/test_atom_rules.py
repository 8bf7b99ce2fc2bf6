"""ATOM's rules and advice: which configuration breaks which, and which breaks none."""

from __future__ import annotations

from typing import Any

import pytest

from engine_launch.atom_advice import ADVICE
from engine_launch.atom_input import AtomEngine
from engine_launch.atom_rules import RULES
from engine_launch.flag_list import load_flag_list
from engine_launch.model import ParallelShape, Role
from engine_launch.model_facts import ModelFacts
from engine_launch.rule import RuleSeverity, breaches

V4 = ModelFacts("deepseek_v4", ("DeepseekV4ForCausalLM",), 61)
GLM = ModelFacts("glm_moe_dsa", ("GlmMoeDsaForCausalLM",), 78)
TUNED: dict[str, Any] = {
    "enable-chunked-prefill": False,
    "max-num-batched-tokens": 131072,
    "max-model-len": 65536,
}
TBO = {"enable-tbo": True}


def atom(
    shape: dict[str, int | bool] | None = None,
    options: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    role: Role = Role.UNION,
    model: ModelFacts | None = V4,
) -> AtomEngine:
    """A tuned DeepSeek-V4 engine; `options` are added."""
    sizes: dict[str, Any] = dict(shape or {})
    return AtomEngine(ParallelShape(**sizes), role, {**TUNED, **(options or {})}, env or {}, model, "not there")


PCP: dict[str, int | bool] = {"tp": 4, "pcp": 2}
PCP_ONLY: dict[str, int | bool] = {"tp": 1, "pcp": 8}

# name -> (engine, the ids of every rule that it breaks)
CASES: dict[str, tuple[AtomEngine, set[str]]] = {
    "the guide's tp 4 x pcp 2": (atom(PCP), set()),
    "the guide's baseline": (atom({"tp": 8}), set()),
    "pcp only": (atom(PCP_ONLY), set()),
    "two nodes": (atom({"tp": 8, "nnodes": 2}), {"atom-one-node"}),
    "tp 16": (atom({"tp": 16}), {"atom-tp-limit"}),
    "tp 8 x pcp 2": (atom({"tp": 8, "pcp": 2}), {"atom-pcp-world"}),
    "tp 1 x pcp 16": (atom({"tp": 1, "pcp": 16}), {"atom-pcp-world"}),
    "another model with pcp": (atom(PCP, model=GLM), {"atom-pcp-model"}),
    "another model without pcp": (atom({"tp": 8}, model=GLM), set()),
    "a v4 by its architecture": (
        atom(PCP, model=ModelFacts("deepseek_v3", ("DeepseekV4ForCausalLMNextN",))),
        set(),
    ),
    "a model that cannot be read": (atom(PCP, model=None), {"atom-pcp-model-unread"}),
    "a model that need not be read": (atom({"tp": 8}, model=None), set()),
    "pcp with dp-attention": (atom(PCP, {"enable-dp-attention": True}), {"atom-pcp-dp-attention"}),
    "dp-attention alone": (atom({"tp": 8}, {"enable-dp-attention": True}), set()),
    "pp with dp-attention": (atom({"pp": 2}, {"enable-dp-attention": True}), {"atom-pp-dp-attention"}),
    "pp with ranks in one process": (atom({"pp": 2, "dp_local": 2}), {"atom-pp-dp"}),
    "pp with groups": (atom({"pp": 2, "dp": 2}), set()),
    "more stages than layers": (atom({"pp": 62}), {"atom-pp-layers"}),
    "tbo": (atom(PCP_ONLY, TBO), {"atom-tbo-hardware"}),
    "tbo by name": (atom(PCP_ONLY, {"enable-tbo": "prefill"}), {"atom-tbo-hardware"}),
    "tbo off": (atom(PCP_ONLY, {"enable-tbo": False}), set()),
    "tbo without pcp": (atom({"tp": 8}, {"enable-tbo": "all"}), set()),
    "tbo of a kind that is not": (atom(PCP_ONLY, {"enable-tbo": "decode"}), {"atom-tbo-value"}),
    "tbo for decode": (atom(PCP_ONLY, {"enable-tbo": "all"}), {"atom-pcp-tbo-all"}),
    "tbo with tp": (atom(PCP, TBO), {"atom-pcp-tbo-tp"}),
    "tbo for decode with tp": (atom(PCP, {"enable-tbo": "all"}), {"atom-pcp-tbo-all", "atom-pcp-tbo-tp"}),
    "tbo without the merge": (atom(PCP_ONLY, TBO, {"ATOM_PCP_MOE_MERGE": "0"}), {"atom-pcp-tbo-merge"}),
    # The engine asks for the merge first, and turns TBO off before it would look at tp (llm_engine.py:82-116).
    "tbo with tp without the merge": (atom(PCP, TBO, {"ATOM_PCP_MOE_MERGE": "0"}), {"atom-pcp-tbo-merge"}),
    "tbo with the merge": (atom(PCP_ONLY, TBO, {"ATOM_PCP_MOE_MERGE": "1"}), {"atom-tbo-hardware"}),
    "a token split": (
        atom(PCP_ONLY, TBO, {"ATOM_TBO_PREFILL_TOKEN_SPLIT": "0"}),
        {"atom-pcp-tbo-token-split", "atom-tbo-hardware"},
    ),
    "a token split without pcp": (atom({"tp": 8}, TBO, {"ATOM_TBO_PREFILL_TOKEN_SPLIT": "0"}), set()),
    "the merge in words": (atom(PCP, env={"ATOM_PCP_MOE_MERGE": "true"}), {"atom-moe-merge-value"}),
    "the merge without pcp": (atom({"tp": 8}, env={"ATOM_PCP_MOE_MERGE": "1"}), {"atom-moe-merge-alone"}),
    "the size of another server": (atom({"tp": 8}, env={"ATOM_SGLANG_PCP_SIZE": "2"}), {"atom-sglang-pcp"}),
    "dcp with speculation": (atom({"tp": 8, "dcp": 2}, {"method": "mtp"}), {"atom-dcp-speculation"}),
    "interleave of a block": (atom({"tp": 8, "dcp": 2}, {"dcp-config": {"interleave_size": 16}}), set()),
    "interleave beyond a block": (
        atom({"tp": 8, "dcp": 2}, {"dcp-config": {"interleave_size": 32}}),
        {"atom-dcp-interleave"},
    ),
    "interleave that leaves a rest": (
        atom({"tp": 8, "dcp": 2}, {"dcp-config": {"interleave_size": 3}}),
        {"atom-dcp-interleave"},
    ),
    "interleave without dcp": (atom({"tp": 8}, {"dcp-config": {"interleave_size": 2}}), {"atom-dcp-interleave"}),
    "interleave with speculation": (
        atom({"tp": 8, "dcp": 2}, {"dcp-config": {"interleave_size": 2}, "method": "mtp"}),
        {"atom-dcp-interleave", "atom-dcp-speculation"},
    ),
    "mega without experts": (atom({"tp": 8}, {"moe-backend": "mega"}), {"atom-mega-experts"}),
    "mega with experts": (atom({"tp": 8, "expert_parallel": True}, {"moe-backend": "mega"}), set()),
    "pcp with kv transfer": (
        atom(PCP, {"kv-transfer-config": {"kv_connector": "mooncake"}}),
        {"atom-pcp-kv-transfer"},
    ),
    "pcp with chunks": (atom(PCP, {"enable-chunked-prefill": True}), {"atom-pcp-chunked-prefill"}),
    "pcp with chunks by default": (atom(PCP, {"enable-chunked-prefill": None}), {"atom-pcp-chunked-prefill"}),
    "pcp with large chunks": (
        atom(PCP, {"enable-chunked-prefill": True, "attn-prefill-chunk-size": 131072}),
        set(),
    ),
    "a budget below the longest prompt": (atom(PCP, {"max-model-len": 262144}), {"atom-pcp-batched-tokens"}),
    "a budget of one prompt": (atom(PCP, {"max-model-len": 131072}), set()),
    "a budget of one prompt for tbo": (
        atom(PCP_ONLY, {**TBO, "max-model-len": 131072}),
        {"atom-pcp-batched-tokens", "atom-tbo-hardware"},
    ),
    "no budget and no length": (
        atom(PCP, {"max-num-batched-tokens": None, "max-model-len": None}),
        {"atom-pcp-batched-tokens"},
    ),
    "a chosen budget and no length": (atom(PCP, {"max-num-batched-tokens": 65536, "max-model-len": None}), set()),
    "a decode role": (atom(PCP, role=Role.DECODE), {"atom-pcp-decode"}),
    "a prefill role": (atom(PCP, role=Role.PREFILL), set()),
    "a decode role without pcp": (atom({"tp": 8}, role=Role.DECODE), set()),
    "load balance of one rank": (atom({"tp": 8}, {"dp-load-balance": "round_robin"}), {"atom-dp-load-balance"}),
    "load balance of two ranks": (atom({"tp": 4, "dp_local": 2}, {"dp-load-balance": "round_robin"}), set()),
}


@pytest.mark.parametrize("name", CASES)
def test_rules(name: str) -> None:
    engine, expected = CASES[name]
    assert {rule.id for rule, _ in breaches((*RULES, *ADVICE), engine)} == expected


def test_every_rule_is_broken_by_some_case() -> None:
    broken = set().union(*(expected for _, expected in CASES.values()))
    assert broken == {rule.id for rule in (*RULES, *ADVICE)}


def test_rules_say_what_they_are() -> None:
    rules = (*RULES, *ADVICE)
    assert len({rule.id for rule in rules}) == len(rules)
    assert all(rule.id.startswith("atom-") and rule.source and rule.says.endswith(".") for rule in rules)
    # An operator may only overrule what the engine itself would let pass, and has to know why it is refused.
    assert all(rule.stricter for rule in RULES if rule.severity is RuleSeverity.OVERRIDABLE)
    assert all(rule.severity is RuleSeverity.WARNING for rule in ADVICE)


def test_breaches_are_about_options_that_the_engine_has() -> None:
    flags = load_flag_list("atom-0.1.6.json")
    for engine, _ in CASES.values():
        for _, breach in breaches((*RULES, *ADVICE), engine):
            assert breach.in_env or breach.about == "nnodes" or flags.knows(breach.about)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (
            atom(PCP, {"max-model-len": 262144}),
            "without chunked prefill a prompt above 131072 tokens is rejected",
        ),
        (
            atom(PCP_ONLY, {**TBO, "max-model-len": 131072}),
            "a prompt above 131072 tokens is rejected, and TBO overlaps two prompts of up to 65536 only",
        ),
        (
            atom(PCP, {"enable-chunked-prefill": True, "max-num-batched-tokens": None, "max-model-len": None}),
            "prompts above 16384 tokens take several steps",
        ),
    ],
)
def test_the_budget_is_told_in_tokens_of_a_prompt(engine: AtomEngine, said: str) -> None:
    assert any(said in breach.what for _, breach in breaches(ADVICE, engine))
