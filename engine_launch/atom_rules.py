"""What an ATOM engine refuses, and what Motor refuses for it. Advice is in atom_advice.py.

Sources: paths are below ATOM's package folder, commit ffdf3bb5d; "guide" is ATOM's guide to prefill context parallelism
(docs/context_parallel_guide.md there).
"""

from __future__ import annotations

from engine_launch.atom import PCP_MODELS
from engine_launch.atom_input import DEFAULT_BLOCK_SIZE, AtomEngine
from engine_launch.model_facts import DEEPSEEK_V4
from engine_launch.rule import Breach, Rule, RuleSeverity

PCP = "prefill-context-parallel-size"
TP = "tensor-parallel-size"
PP = "pipeline-parallel-size"
TBO = "enable-tbo"
DP_ATTENTION = "enable-dp-attention"

# Guide: "tp x pcp <= 8". The engine's assert is for tp alone.
MOST_RANKS = 8


def _one_node(engine: AtomEngine) -> Breach | None:
    if engine.shape.nnodes == 1:
        return None
    return Breach(
        "nnodes",
        "ATOM takes all devices of an engine from one node: it has no node rank",
        expected="1",
        fix="remove it; more engines are more instances (*_instances_num)",
    )


def _tp_limit(engine: AtomEngine) -> Breach | None:
    if engine.shape.tp <= MOST_RANKS:
        return None
    return Breach(TP, "ATOM asserts that tensor parallelism is at most 8", expected=f"1 to {MOST_RANKS}")


def _pcp_world(engine: AtomEngine) -> Breach | None:
    world = engine.shape.tp * engine.shape.pcp
    if not engine.pcp or world <= MOST_RANKS:
        return None
    return Breach(
        PCP,
        f"tp {engine.shape.tp} x pcp {engine.shape.pcp} is {world} ranks, and ATOM's guide ends at {MOST_RANKS}",
        expected=f"tp x pcp of at most {MOST_RANKS}",
        fix="lower one of them",
    )


def _pcp_model(engine: AtomEngine) -> Breach | None:
    if not engine.pcp or engine.model is None or engine.model.is_a(DEEPSEEK_V4):
        return None
    return Breach(
        "model",
        "PCP is for DeepSeek-V4 only",
        got=f"{engine.model.name} in its config.json",
        fix=f"leave {PCP} out",
    )


def _pcp_model_unread(engine: AtomEngine) -> Breach | None:
    if not engine.pcp or engine.model is not None:
        return None
    return Breach("model", f"PCP is for DeepSeek-V4 only, and this was not checked: {engine.model_unread}")


def _pcp_dp_attention(engine: AtomEngine) -> Breach | None:
    if not (engine.pcp and engine.dp_attention):
        return None
    return Breach(
        DP_ATTENTION,
        "ATOM refuses it together with PCP: one gathers the ids of all tokens, the other splits them",
        fix=f"remove it, or {PCP}",
    )


def _pp_dp_attention(engine: AtomEngine) -> Breach | None:
    if not (engine.shape.pp > 1 and engine.dp_attention):
        return None
    return Breach(DP_ATTENTION, "ATOM refuses it together with pipeline parallelism", fix=f"remove it, or {PP}")


def _pp_dp(engine: AtomEngine) -> Breach | None:
    if not (engine.shape.pp > 1 and engine.data_parallel):
        return None
    return Breach(
        PP,
        f"ATOM refuses it together with the data parallelism of one process, here {engine.shape.dp_local}",
        expected="1",
        fix='set "dp_translation": "replica": each rank is then an engine of its own',
    )


def _pp_layers(engine: AtomEngine) -> Breach | None:
    layers = engine.model.layers if engine.model else None
    if layers is None or layers >= engine.shape.pp:
        return None
    return Breach(PP, f"the model has {layers} layers, fewer than stages", expected=f"at most {layers}")


def _tbo_value(engine: AtomEngine) -> Breach | None:
    if engine.options.get(TBO) in (None, True, False, "prefill", "all"):
        return None
    return Breach(TBO, "is no mode of it", expected='true, "prefill" or "all"')


def _pcp_tbo_all(engine: AtomEngine) -> Breach | None:
    if not (engine.pcp and engine.tbo == "all"):
        return None
    return Breach(TBO, "ATOM overlaps only prefill with PCP, not decode", expected='true or "prefill"')


def _pcp_tbo_tp(engine: AtomEngine) -> Breach | None:
    if not (engine.pcp and engine.tbo and engine.moe_merge and engine.shape.tp > 1):
        return None
    world = engine.shape.tp * engine.shape.pcp
    return Breach(
        TBO,
        f"TBO with PCP and {TP} {engine.shape.tp} may hang: collectives of both groups run at once, in no common order",
        fix=f"set {TP} 1 and {PCP} {world}, or remove {TBO}",
    )


def _pcp_tbo_merge(engine: AtomEngine) -> Breach | None:
    if not (engine.pcp and engine.tbo) or engine.moe_merge:
        return None
    return Breach(
        "ATOM_PCP_MOE_MERGE",
        "ATOM turns TBO off: without the merge there is no communication of experts to overlap",
        expected="1",
        fix=f"remove it, or {TBO}",
        in_env=True,
    )


def _pcp_tbo_token_split(engine: AtomEngine) -> Breach | None:
    if not (engine.pcp and engine.tbo) or "ATOM_TBO_PREFILL_TOKEN_SPLIT" not in engine.env:
        return None
    return Breach(
        "ATOM_TBO_PREFILL_TOKEN_SPLIT",
        "has no effect with PCP: a batch is split between requests there, never within one",
        fix="remove it",
        in_env=True,
    )


def _moe_merge_value(engine: AtomEngine) -> Breach | None:
    value = engine.env.get("ATOM_PCP_MOE_MERGE")
    if value is None or value in ("0", "1"):
        return None
    return Breach("ATOM_PCP_MOE_MERGE", "only 1 switches it on: this switches it off", expected="0 or 1", in_env=True)


def _moe_merge_alone(engine: AtomEngine) -> Breach | None:
    if engine.pcp or "ATOM_PCP_MOE_MERGE" not in engine.env:
        return None
    return Breach("ATOM_PCP_MOE_MERGE", "has no effect without PCP", fix="remove it", in_env=True)


def _sglang_pcp(engine: AtomEngine) -> Breach | None:
    if "ATOM_SGLANG_PCP_SIZE" not in engine.env:
        return None
    return Breach(
        "ATOM_SGLANG_PCP_SIZE",
        "has no effect: only ATOM's plug-in for SGLang reads it",
        fix=f"use {PCP}",
        in_env=True,
    )


def _dcp_speculation(engine: AtomEngine) -> Breach | None:
    if not (engine.shape.dcp > 1 and engine.speculative):
        return None
    return Breach("method", "together with decode context parallelism ATOM speculates on gfx950 (MI350, MI355) only")


def _dcp_interleave(engine: AtomEngine) -> Breach | None:
    size = engine.dcp_interleave
    block = engine.integer("block-size") or DEFAULT_BLOCK_SIZE
    about = "dcp-config"
    if not 1 <= size <= block:
        return Breach(about, "interleave_size lies outside a KV block", got=str(size), expected=f"1 to {block}")
    if size == 1:
        return None
    if block % size:
        return Breach(about, f"interleave_size does not divide block-size {block}", got=str(size))
    if engine.shape.dcp == 1:
        return Breach(about, "an interleave_size above 1 needs decode-context-parallel-size above 1", got=str(size))
    if engine.speculative:
        return Breach(about, "an interleave_size above 1 excludes speculation (method)", got=str(size), expected="1")
    return None


def _mega_experts(engine: AtomEngine) -> Breach | None:
    if engine.options.get("moe-backend") != "mega" or engine.shape.expert_parallel:
        return None
    return Breach("moe-backend", "mega needs expert parallelism", fix='add "enable-expert-parallel": true')


def _pcp_kv_transfer(engine: AtomEngine) -> Breach | None:
    if not engine.pcp or not engine.options.get("kv-transfer-config"):
        return None
    return Breach(
        "kv-transfer-config",
        "PCP with KV transfer was never shown to work: ATOM counts its transfers, and numbers their ports, by tensor "
        "parallel ranks alone",
    )


_E, _O, _W = RuleSeverity.ERROR, RuleSeverity.OVERRIDABLE, RuleSeverity.WARNING

RULES: tuple[Rule[AtomEngine], ...] = (
    Rule(
        "atom-one-node",
        _E,
        "An ATOM engine lies on one node.",
        "model_engine/model_runner.py:905-916; guide: multi-node not yet validated",
        _one_node,
    ),
    Rule("atom-tp-limit", _E, "Tensor parallelism is at most 8.", "config.py:1644", _tp_limit),
    Rule(
        "atom-pcp-world",
        _O,
        "tp x pcp is at most 8.",
        "guide",
        _pcp_world,
        stricter="the engine only asks whether the node has so many devices (model_runner.py:905-916)",
    ),
    Rule(
        PCP_MODELS.rule,
        _O,
        "PCP is for DeepSeek-V4 only.",
        "guide",
        _pcp_model,
        stricter="the engine does not look: other models have PCP code (PR #1514) that the guide does not vouch for, "
        "and models without any would start and compute nonsense",
    ),
    Rule(
        "atom-pcp-model-unread",
        _W,
        "PCP is for DeepSeek-V4 only, and config.json must be readable to tell.",
        "guide",
        _pcp_model_unread,
    ),
    Rule(
        "atom-pcp-dp-attention",
        _E,
        "PCP and DP-attention exclude each other.",
        "model_engine/llm_engine.py:69-78",
        _pcp_dp_attention,
    ),
    Rule(
        "atom-pp-dp-attention",
        _E,
        "Pipeline parallelism and DP-attention exclude each other.",
        "model_engine/llm_engine.py:64-68, engine_core_mgr.py:155",
        _pp_dp_attention,
    ),
    Rule(
        "atom-pp-dp",
        _E,
        "Pipeline and data parallelism exclude each other in one process.",
        "model_engine/engine_core_mgr.py:165-168",
        _pp_dp,
    ),
    Rule(
        "atom-pp-layers",
        _E,
        "A pipeline has no more stages than the model has layers.",
        "config.py:1689-1695",
        _pp_layers,
    ),
    Rule("atom-tbo-value", _E, "enable-tbo is prefill or all.", "model_engine/arg_utils.py:258-267", _tbo_value),
    Rule(
        "atom-pcp-tbo-all",
        _E,
        "With PCP only prefill can be overlapped.",
        "model_engine/llm_engine.py:117-122; guide",
        _pcp_tbo_all,
        stricter="with ATOM_PCP_MOE_MERGE=0 or tp > 1 the engine turns TBO off instead, and all of it",
    ),
    Rule(
        "atom-pcp-tbo-tp",
        _O,
        "TBO with PCP needs tensor parallelism 1.",
        "guide; model_engine/llm_engine.py:97-116",
        _pcp_tbo_tp,
        stricter="the engine of commit ffdf3bb5d turns TBO off with a warning; the guide says that it may hang",
    ),
    Rule(
        "atom-pcp-tbo-merge",
        _W,
        "TBO with PCP needs ATOM_PCP_MOE_MERGE=1.",
        "model_engine/llm_engine.py:82-96; guide",
        _pcp_tbo_merge,
    ),
    Rule(
        "atom-pcp-tbo-token-split",
        _W,
        "ATOM_TBO_PREFILL_TOKEN_SPLIT has no effect with PCP.",
        "model_engine/llm_engine.py:126-130; guide",
        _pcp_tbo_token_split,
    ),
    Rule("atom-moe-merge-value", _W, "ATOM_PCP_MOE_MERGE is 0 or 1.", "utils/envs.py:493", _moe_merge_value),
    Rule("atom-moe-merge-alone", _W, "ATOM_PCP_MOE_MERGE has no effect without PCP.", "guide", _moe_merge_alone),
    Rule("atom-sglang-pcp", _W, "ATOM_SGLANG_PCP_SIZE is for another server.", "utils/envs.py:47", _sglang_pcp),
    Rule(
        "atom-dcp-speculation",
        _W,
        "Speculation with decode context parallelism needs gfx950.",
        "config.py:1655-1663",
        _dcp_speculation,
    ),
    Rule(
        "atom-dcp-interleave",
        _E,
        "The decode-context interleave divides a KV block, and above 1 needs decode context "
        "parallelism without speculation.",
        "config.py:1669-1688",
        _dcp_interleave,
    ),
    Rule("atom-mega-experts", _E, "moe-backend mega needs expert parallelism.", "config.py:1578-1587", _mega_experts),
    Rule(
        "atom-pcp-kv-transfer",
        _W,
        "PCP with KV transfer is unverified.",
        "model_engine/engine_core.py:162, async_proc.py:425, kv_transfer/disaggregation/port_offset.py",
        _pcp_kv_transfer,
    ),
)
