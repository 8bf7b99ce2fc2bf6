"""The rules of vLLM and vLLM-Ascend: which configuration breaks which, and which breaks none."""

from __future__ import annotations

from typing import Any

import pytest

from engine_launch import vllm_ascend_rules, vllm_context_rules, vllm_rules
from engine_launch.flag_list import load_flag_list
from engine_launch.model import ParallelShape, Role
from engine_launch.model_facts import ModelFacts, model_facts
from engine_launch.profiles import resolve
from engine_launch.rule import RuleSeverity, breaches
from engine_launch.translation import choose_translation, engine_shape
from engine_launch.vllm_input import VllmEngine

RULES = (
    *vllm_rules.SHARED,
    *vllm_context_rules.SHARED,
    *vllm_rules.RULES,
    *vllm_context_rules.RULES,
    *vllm_ascend_rules.RULES,
)

# config.json as published, the keys that matter here.
DEEPSEEK_V3 = model_facts(
    {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "kv_lora_rank": 512,
    }
)
DEEPSEEK_V32 = model_facts(
    {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "n_routed_experts": 256,
        "kv_lora_rank": 512,
        "index_topk": 2048,
    }
)
QWEN3_235B = model_facts(
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "num_experts": 128,
    }
)
LLAMA_70B = model_facts(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    }
)
UNREAD = None

OLD, YOUNG, V31, V32, V33 = "vllm@0.23", "vllm@0.27", "vllm@0.31", "vllm@0.32", "vllm@0.33"
ASCEND, ASCEND_26 = "vllm_ascend@0.23", "vllm_ascend@0.26"
MOONCAKE = {"kv_connector": "MooncakeConnectorV1"}
NIXL = {"kv_connector": "NixlConnector"}
MULTI = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [NIXL]}}
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}


def vllm(
    profile: str = V32,
    shape: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    model: ModelFacts | None = DEEPSEEK_V3,
    env: dict[str, str] | None = None,
    role: Role = Role.UNION,
    wanted: str = "auto",
) -> VllmEngine:
    facts, sizes = resolve(profile), ParallelShape(**(shape or {}))
    options = {"master-port": 7001, **(options or {})}
    sizes = engine_shape(wanted, sizes, facts)
    translation = choose_translation(wanted, sizes, facts)
    return VllmEngine(facts, sizes, translation, wanted, role, options, env or {}, model, "not there")


def options(**names: Any) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in names.items()}


PCP2 = {"tp": 8, "pcp": 2, "nnodes": 2}
EAGER = options(enforce_eager=True)
STAGES = {"tp": 4, "pp": 2}
MTP = options(speculative_config={"method": "deepseek_mtp", "num_speculative_tokens": 1})
FLASHCOMM = {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}
BLOCKING = {"ASCEND_LAUNCH_BLOCKING": "1"}
EP = {"tp": 8, "dp": 2, "expert_parallel": True}

# name -> (engine, the ids of every rule that it breaks)
CASES: dict[str, tuple[VllmEngine, set[str]]] = {
    # Nodes and worlds.
    "tp over nodes": (vllm(shape={"tp": 16, "nnodes": 2}), set()),
    "pp over nodes": (vllm(shape={"tp": 8, "pp": 2, "nnodes": 2}), set()),
    "tp 8 over 3 nodes": (vllm(shape={"tp": 8, "nnodes": 3}), {"vllm-nnodes"}),
    "more nodes than workers": (vllm(shape={"tp": 2, "nnodes": 4}), {"vllm-nnodes"}),
    # Over the whole world, 2 x 6 over 2 x 4 nodes, it would not divide either.
    "groups do not make it divide": (vllm(shape={"tp": 2, "dp": 2, "nnodes": 4}), {"vllm-nnodes"}),
    "pcp alone over nodes": (vllm(shape={"pcp": 2, "nnodes": 2}), set()),
    "pcp alone over nodes before 0.30": (
        vllm("vllm@0.29", {"pcp": 2, "nnodes": 2}),
        {"vllm-nnodes-without-pcp"},
    ),
    "pcp alone over nodes on ascend": (vllm(ASCEND, {"pcp": 2, "nnodes": 2}), {"vllm-nnodes-without-pcp"}),
    "no master port": (vllm(shape={"tp": 8, "nnodes": 2}, options=options(master_port=None)), {"vllm-master-port"}),
    "no master port on one node": (vllm(shape={"tp": 8}, options=options(master_port=None)), set()),
    "ray over nodes": (
        vllm(shape={"tp": 8, "nnodes": 2}, options=options(distributed_executor_backend="ray")),
        {"vllm-executor"},
    ),
    "ray on one node": (vllm(shape={"tp": 8}, options=options(distributed_executor_backend="ray")), set()),
    # Translation.
    "native": (vllm(shape=EP, wanted="native_internal"), set()),
    "native for a dense model": (
        vllm(shape={"tp": 8, "dp": 2}, model=LLAMA_70B, wanted="native_external"),
        {"dp-translation"},
    ),
    "native with pcp": (vllm(shape={**EP, "pcp": 2}, wanted="native_external"), set()),
    "native with pcp, 0.27": (vllm(YOUNG, {**EP, "pcp": 2}, wanted="native_external"), {"dp-translation"}),
    "native with pcp, ascend 0.21": (vllm("vllm_ascend@0.21", {**EP, "pcp": 2}, wanted="native_external"), set()),
    "native with pcp, ascend 0.22": (
        vllm("vllm_ascend@0.22", {**EP, "pcp": 2}, wanted="native_external"),
        {"dp-translation"},
    ),
    "replicas with pcp, ascend 0.23": (vllm(ASCEND, {**EP, "pcp": 2}), set()),
    "native with one group": (vllm(shape={"tp": 8}, wanted="native_external"), {"dp-translation-alone"}),
    "ray in one world": (vllm(shape=EP, options=options(data_parallel_backend="ray")), {"vllm-native-backend"}),
    "ray beside replicas": (
        vllm(shape=EP, options=options(data_parallel_backend="ray"), wanted="replica"),
        set(),
    ),
    "several ranks in one process": (
        vllm(shape={"dp": 16, "dp_local": 8}, options=options(data_parallel_size_local=8)),
        set(),
    ),
    "ranks that do not fill processes": (
        vllm(shape={"dp": 16, "dp_local": 3}, options=options(data_parallel_size_local=3)),
        {"vllm-ranks-in-process"},
    ),
    "several ranks over several nodes": (
        vllm(shape={**EP, "dp_local": 2, "nnodes": 2}, options=options(data_parallel_size_local=2)),
        {"vllm-ranks-in-process"},
    ),
    # The model.
    "experts of a dense model": (
        vllm(shape={"tp": 8, "expert_parallel": True}, model=LLAMA_70B),
        {"vllm-expert-model"},
    ),
    "experts of an unknown model": (vllm(shape={"tp": 8, "expert_parallel": True}, model=UNREAD), set()),
    "tp that does not divide heads": (vllm(shape={"tp": 6}, model=LLAMA_70B), {"vllm-heads"}),
    "more stages than layers": (vllm(shape={"pp": 81}, model=LLAMA_70B), {"vllm-pp-layers"}),
    "a key alone": (vllm(shape={"tp": 8}, options=options(ssl_keyfile="/k")), {"vllm-certificate"}),
    "eplb without ep": (vllm(shape={"tp": 8}, options=options(enable_eplb=True)), {"vllm-eplb"}),
    "eplb": (vllm(shape={"tp": 8, "expert_parallel": True}, options=options(enable_eplb=True)), set()),
    "fault tolerance alone": (
        vllm(shape={"tp": 8}, options=options(enable_fault_tolerance=True)),
        {"vllm-fault-tolerance"},
    ),
    "fault tolerance": (
        vllm(shape=EP, options=options(enable_fault_tolerance=True), wanted="native_external"),
        set(),
    ),
    # PCP by version.
    "pcp": (vllm(shape=PCP2), set()),
    "pcp, 0.23": (vllm(OLD, PCP2), {"vllm-pcp-missing"}),
    "pcp, 0.25": (vllm("vllm@0.25", PCP2), {"vllm-pcp-missing"}),
    "pcp, 0.26": (vllm("vllm@0.26", PCP2), set()),
    "pcp, ascend": (vllm(ASCEND, PCP2, model=QWEN3_235B), set()),
    "pcp, ascend 0.12": (vllm("vllm_ascend@0.12", PCP2), {"vllm-pcp-missing"}),
    "pcp, ascend 0.25": (vllm("vllm_ascend@0.25", PCP2), {"vllm-pcp-missing"}),
    "pcp, ascend 0.25, v2 runner": (vllm("vllm_ascend@0.25", PCP2, env=V2), {"vllm-pcp-missing"}),
    "pcp, ascend 0.13": (vllm("vllm_ascend@0.13", PCP2), set()),
    "pcp, ascend 0.24, v2 runner": (vllm("vllm_ascend@0.24", PCP2, env=V2), {"ascend-cp-runner"}),
    "dcp, ascend, v2 runner": (vllm(ASCEND, {"tp": 8, "dcp": 2}, env=V2), {"ascend-cp-runner"}),
    "pcp, ascend 0.26": (vllm(ASCEND_26, PCP2), {"ascend-pcp-runner"}),
    "pcp without mla, ascend 0.26, v2 runner": (
        vllm(ASCEND_26, PCP2, env=V2, model=QWEN3_235B),
        {"vllm-pcp-model"},
    ),
    "pcp, ascend 0.26, v2 runner": (vllm(ASCEND_26, PCP2, env=V2), set()),
    "pcp with stages, 0.31": (vllm(V31, {**PCP2, "pp": 2}), {"vllm-pcp-pp"}),
    "pcp with stages, 0.32": (vllm(V32, {**PCP2, "pp": 2}), set()),
    "pcp with stages and dcp, ascend 0.26": (
        vllm(ASCEND_26, {**PCP2, "pp": 2, "dcp": 2}, env=V2),
        {"vllm-pcp-pp", "vllm-pcp-dcp"},
    ),
    "pcp of a model without mla": (vllm(shape=PCP2, model=QWEN3_235B), {"vllm-pcp-model"}),
    "pcp of an unread model": (vllm(shape=PCP2, model=UNREAD), {"vllm-model-unread"}),
    "pcp with lora": (vllm(shape=PCP2, options=options(enable_lora=True)), {"vllm-pcp-lora"}),
    "lora": (vllm(shape={"tp": 8}, options=options(enable_lora=True)), set()),
    "pcp with lora, ascend": (vllm(ASCEND, PCP2, options=options(enable_lora=True)), set()),
    "pcp with ngram": (
        vllm(shape=PCP2, options=options(speculative_config={"method": "ngram"})),
        {"vllm-pcp-speculation"},
    ),
    "pcp with mtp": (vllm(shape=PCP2, options=options(speculative_config={"method": "deepseek_mtp"})), set()),
    "pcp with dspark": (vllm(shape=PCP2, options=options(speculative_config={"method": "dspark"})), set()),
    "pcp with mtp, 0.27": (
        vllm(YOUNG, PCP2, options=options(speculative_config={"method": "mtp"})),
        {"vllm-pcp-speculation"},
    ),
    "pcp of a sparse model": (vllm(shape=PCP2, model=DEEPSEEK_V32), {"vllm-pcp-graphs"}),
    "pcp of a sparse model, eager": (vllm(shape=PCP2, model=DEEPSEEK_V32, options=EAGER), set()),
    "pcp of a sparse model, no graphs": (
        vllm(shape=PCP2, model=DEEPSEEK_V32, options=options(compilation_config={"cudagraph_mode": "NONE"})),
        set(),
    ),
    "pcp of a sparse model, 0.33": (vllm(V33, PCP2, model=DEEPSEEK_V32), set()),
    "pcp in decode": (vllm(shape=PCP2, role=Role.DECODE), {"vllm-pcp-decode"}),
    # DCP.
    "dcp": (vllm(shape={"tp": 8, "dcp": 8}), set()),
    "dcp that does not divide tp": (vllm(shape={"tp": 8, "dcp": 3}), {"dcp-tp"}),
    "the guide's tp 16 pcp 2 dcp 8": (vllm(ASCEND, {"tp": 16, "pcp": 2, "dcp": 8, "nnodes": 2}), set()),
    "the same upstream": (
        vllm(shape={"tp": 16, "pcp": 2, "dcp": 8, "nnodes": 2}),
        {"vllm-dcp-pcp", "vllm-pcp-dcp-model"},
    ),
    "dcp over tp x pcp of a sparse model": (
        vllm(shape={"tp": 4, "pcp": 2, "dcp": 8}, model=DEEPSEEK_V32),
        set(),
    ),
    "the same with a backend": (
        vllm(shape={"tp": 4, "pcp": 2, "dcp": 8}, model=DEEPSEEK_V32, options=options(dcp_comm_backend="a2a")),
        {"vllm-pcp-dcp-backend"},
    ),
    "dcp over the copies of 4 KV heads": (vllm(shape={"tp": 16, "dcp": 4}, model=QWEN3_235B), set()),
    "dcp over more than the copies": (vllm(shape={"tp": 16, "dcp": 8}, model=QWEN3_235B), {"vllm-dcp-kv-heads"}),
    "dcp without copies": (vllm(shape={"tp": 8, "dcp": 2}, model=LLAMA_70B), {"vllm-dcp-kv-heads"}),
    "dcp that divides no query heads": (
        vllm(shape={"tp": 24, "dcp": 3}, model=ModelFacts("x", heads=48, kv_heads=6, experts=1)),
        {"vllm-dcp-kv-heads"},
    ),
    "dcp of ascend without copies": (vllm(ASCEND, {"tp": 8, "dcp": 2}, model=LLAMA_70B), {"vllm-dcp-kv-heads"}),
    "dcp of an unread model": (vllm(shape={"tp": 8, "dcp": 2}, model=UNREAD), {"vllm-model-unread"}),
    "dcp of a sparse model, ascend": (
        vllm(ASCEND, {"tp": 8, "dcp": 4}, model=DEEPSEEK_V32),
        {"ascend-sparse-dcp"},
    ),
    "all of it": (vllm(ASCEND, {"tp": 8, "dcp": 8}, model=DEEPSEEK_V32), set()),
    "nixl with some dcp": (
        vllm(shape={"tp": 8, "dcp": 4}, options=options(kv_transfer_config=NIXL)),
        {"vllm-nixl-dcp"},
    ),
    "nixl inside another": (
        vllm(shape={"tp": 8, "dcp": 4}, options=options(kv_transfer_config=MULTI)),
        {"vllm-nixl-dcp"},
    ),
    "nixl with all dcp": (vllm(shape={"tp": 8, "dcp": 8}, options=options(kv_transfer_config=NIXL)), set()),
    "nixl with pcp and all dcp over tp": (
        vllm(
            V32, {"tp": 2, "pcp": 8, "dcp": 8}, {**EAGER, "kv-transfer-config": NIXL}, DEEPSEEK_V32, role=Role.PREFILL
        ),
        {"vllm-nixl-dcp"},
    ),
    "nixl with pcp and all dcp in prefill": (
        vllm(V32, {"pcp": 8, "dcp": 8}, {**EAGER, "kv-transfer-config": NIXL}, DEEPSEEK_V32, role=Role.PREFILL),
        set(),
    ),
    "nixl with pcp in decode": (
        vllm(V32, {"pcp": 8}, {"kv-transfer-config": MULTI}, role=Role.DECODE),
        {"vllm-nixl-pcp", "vllm-pcp-decode"},
    ),
    "nixl with pcp in a union": (vllm(V32, {"pcp": 8}, {"kv-transfer-config": NIXL}), {"vllm-nixl-pcp"}),
    "nixl with pcp before 0.29": (vllm("vllm@0.28", {"pcp": 8}, {"kv-transfer-config": NIXL}), set()),
    "nixl with all dcp without mla": (
        vllm(
            shape={"tp": 8, "dcp": 8},
            model=ModelFacts("x", heads=64, kv_heads=1),
            options=options(kv_transfer_config=NIXL),
        ),
        {"vllm-nixl-dcp"},
    ),
    # The stripe.
    "stripe of a block": (vllm(shape={"tp": 8, "dcp": 8}, options=options(block_size=128)), set()),
    "stripe that does not divide": (
        vllm(shape={"tp": 8}, options=options(block_size=128, cp_kv_cache_interleave_size=48)),
        {"vllm-interleave-block"},
    ),
    "stripe of nothing": (
        vllm(shape={"tp": 8}, options=options(block_size=128, cp_kv_cache_interleave_size=0)),
        {"vllm-interleave-size"},
    ),
    "ascend, kv, half a block": (
        vllm(
            ASCEND,
            PCP2,
            options(block_size=128, cp_kv_cache_interleave_size=64, kv_transfer_config=MOONCAKE),
        ),
        {"ascend-interleave-is-block"},
    ),
    "ascend, kv, the default stripe": (
        vllm(ASCEND, PCP2, options(block_size=128, kv_transfer_config=MOONCAKE)),
        {"ascend-interleave-is-block"},
    ),
    "ascend, kv, whole blocks": (
        vllm(
            ASCEND,
            PCP2,
            options(block_size=128, cp_kv_cache_interleave_size=128, kv_transfer_config=MOONCAKE),
        ),
        set(),
    ),
    "ascend, kv, no context parallelism": (
        vllm(ASCEND, {"tp": 8}, options(block_size=128, kv_transfer_config=MOONCAKE)),
        set(),
    ),
    "ascend, kv, no block size": (
        vllm(ASCEND, PCP2, options(kv_transfer_config=MOONCAKE)),
        {"ascend-block-unsaid"},
    ),
    "ascend, no kv": (vllm(ASCEND, PCP2, options(block_size=128, cp_kv_cache_interleave_size=64)), set()),
    "ascend, sparse, no kv": (
        vllm(ASCEND, PCP2, options(block_size=128, cp_kv_cache_interleave_size=64), model=DEEPSEEK_V32),
        {"ascend-sparse-interleave"},
    ),
    # The plug-in's own.
    "ascend, mtp with stages": (vllm(ASCEND, STAGES, MTP), {"ascend-mtp-stages"}),
    "ascend 0.21, mtp with stages": (vllm("vllm_ascend@0.21", STAGES, MTP), {"ascend-mtp-stages"}),
    "ascend 0.21, mtp of another model with stages": (
        vllm("vllm_ascend@0.21", STAGES, options(speculative_config={"method": "mtp"}), model=QWEN3_235B),
        set(),
    ),
    "ascend 0.13, mtp with stages": (vllm("vllm_ascend@0.13", STAGES, MTP), set()),
    "ascend 0.24, mtp with stages": (vllm("vllm_ascend@0.24", STAGES, MTP), set()),
    "ascend, mtp with stages, a prefill side": (
        vllm(ASCEND, STAGES, {**MTP, **options(kv_transfer_config=MOONCAKE)}, role=Role.PREFILL),
        set(),
    ),
    "ascend, ngram with stages": (vllm(ASCEND, STAGES, options(speculative_config={"method": "ngram"})), set()),
    "ascend, flashcomm": (vllm(ASCEND, {"tp": 8, "expert_parallel": True}, env=FLASHCOMM), set()),
    "ascend, flashcomm without tp": (vllm(ASCEND, model=LLAMA_70B, env=FLASHCOMM), {"ascend-flashcomm-tp"}),
    "ascend 0.13, flashcomm without tp": (vllm("vllm_ascend@0.13", model=LLAMA_70B, env=FLASHCOMM), set()),
    "ascend, flashcomm without ep": (vllm(ASCEND, {"tp": 8}, env=FLASHCOMM), {"ascend-flashcomm-experts"}),
    "ascend, flashcomm without ep, by option": (
        vllm(ASCEND, {"tp": 8}, options(additional_config={"enable_flashcomm1": True})),
        {"ascend-flashcomm-experts"},
    ),
    "ascend, flashcomm off by option": (
        vllm(ASCEND, {"tp": 8}, options(additional_config={"enable_flashcomm1": False}), env=FLASHCOMM),
        set(),
    ),
    "ascend, flashcomm of a dense model": (vllm(ASCEND, {"tp": 8}, model=LLAMA_70B, env=FLASHCOMM), set()),
    "ascend, flashcomm off": (vllm(ASCEND, env={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "0"}), set()),
    "ascend, blocking with graphs": (vllm(ASCEND, env=BLOCKING), {"ascend-blocking-graphs"}),
    "ascend, blocking without graphs": (vllm(ASCEND, options=EAGER, env=BLOCKING), set()),
    "not ascend, blocking": (vllm(env=BLOCKING), set()),
}


@pytest.mark.parametrize("name", CASES)
def test_what_breaks_which_rule(name: str) -> None:
    engine, expected = CASES[name]
    assert {rule.id for rule, _ in breaches(RULES, engine)} == expected


def test_every_rule_is_broken_by_a_case() -> None:
    assert {rule for _, broken in CASES.values() for rule in broken} == {rule.id for rule in RULES}


def test_rules_have_ids_sources_and_one_sentence() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.source and rule.says.endswith(".") and rule.says.count(". ") == 0, rule.id
        assert not (rule.stricter and rule.severity is RuleSeverity.WARNING), rule.id


@pytest.mark.parametrize("name", CASES)
def test_a_breach_is_about_an_option_of_the_engine(name: str) -> None:
    flags = load_flag_list("vllm-0.32.json")
    for rule, breach in breaches(RULES, CASES[name][0]):
        assert breach.about == "dp_translation" or flags.knows(breach.about), (rule.id, breach.about)


def test_a_huge_world_is_refused_without_a_list_of_divisors() -> None:
    [(rule, breach)] = breaches(RULES, vllm(shape={"tp": 10**9, "nnodes": 3}, model=UNREAD))
    assert (rule.id, breach.expected) == ("vllm-nnodes", "a divisor of 1000000000")
