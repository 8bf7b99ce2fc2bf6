"""Context parallelism of vLLM and vLLM-Ascend: prefill (PCP), decode (DCP), and how they share the KV cache.

Sources: paths without a package are below vLLM 0.32's `vllm`; "Ascend" ones are below vLLM-Ascend's `vllm_ascend`.
"""

from __future__ import annotations

from engine_launch.model import Role
from engine_launch.profile import DcpRule, PcpLimit, PcpSupport
from engine_launch.rule import Breach, Rule, RuleSeverity
from engine_launch.vllm_input import V2_RUNNER_ENV, VllmEngine

ERROR, OVERRIDABLE, WARNING = RuleSeverity.ERROR, RuleSeverity.OVERRIDABLE, RuleSeverity.WARNING

TP = "tensor-parallel-size"
PP = "pipeline-parallel-size"
PCP = "prefill-context-parallel-size"
DCP = "decode-context-parallel-size"
STRIPE = "cp-kv-cache-interleave-size"
BLOCK = "block-size"
KV = "kv-transfer-config"
NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")  # forms of one class, v1/nixl/connector.py

# Ascend platform.py: the block size of attention kernels there, and so what to write for both.
USUAL_BLOCK = 128


def _pcp_missing(engine: VllmEngine) -> Breach | None:
    if not engine.pcp or engine.profile.pcp is not PcpSupport.NO:
        return None
    return Breach(
        PCP,
        f"{engine.profile.name} has no prefill context parallelism",
        expected="1",
        fix="on Ascend vllm_ascend@0.13 to 0.24 have it, and 0.26 on the V2 runner; upstream has it from vllm@0.26",
    )


def _pcp_v1_runner(engine: VllmEngine) -> Breach | None:
    if not engine.pcp or engine.profile.pcp is not PcpSupport.V2_RUNNER or engine.v2_runner:
        return None
    return Breach(
        PCP,
        f"{engine.profile.name} refuses PCP on the V1 model runner",
        expected="1",
        fix=f'set "{V2_RUNNER_ENV}": "1" in env, or use vllm_ascend@0.24 or older',
    )


def _pcp_pp(engine: VllmEngine) -> Breach | None:
    if not engine.limited(PcpLimit.NO_PP) or engine.shape.pp == 1:
        return None
    return Breach(PP, f"{engine.profile.name} refuses this together with PCP", expected="1")


def _pcp_dcp(engine: VllmEngine) -> Breach | None:
    if not engine.limited(PcpLimit.NO_DCP) or engine.shape.dcp == 1:
        return None
    return Breach(DCP, f"{engine.profile.name} refuses this together with PCP", expected="1")


def _pcp_lora(engine: VllmEngine) -> Breach | None:
    if not engine.limited(PcpLimit.NO_LORA) or engine.options.get("enable-lora") is not True:
        return None
    return Breach("enable-lora", f"{engine.profile.name} refuses it together with PCP", fix=f"remove it, or {PCP}")


def _pcp_speculation(engine: VllmEngine) -> Breach | None:
    method = engine.speculative_method
    if method is None:
        return None
    if engine.limited(PcpLimit.NO_SPECULATION):
        what = f"{engine.profile.name} refuses speculation together with PCP"
    elif engine.limited(PcpLimit.MTP_OR_DSPARK) and method and not ("mtp" in method or method == "dspark"):
        what = f"{engine.profile.name} has no other speculation with PCP than MTP and DSpark"
    else:
        return None
    return Breach("speculative-config", what, got=f'method "{method}"' if method else "", fix=f"remove it, or {PCP}")


def _pcp_model(engine: VllmEngine) -> Breach | None:
    if not engine.limited(PcpLimit.MLA_ONLY) or engine.model is None or engine.model.mla:
        return None
    return Breach(
        PCP,
        f"{engine.profile.name} has PCP for models with multi-head latent attention (MLA) only",
        got=f"{engine.model.name} in config.json",
        fix=f"leave {PCP} out",
    )


def _pcp_dcp_model(engine: VllmEngine) -> Breach | None:
    if not engine.limited(PcpLimit.DCP_SPARSE_ONLY) or engine.shape.dcp == 1:
        return None
    if engine.model is None or engine.model.sparse:
        return None
    return Breach(DCP, "together with PCP it is for sparse MLA models only", expected="1")


def _pcp_dcp_backend(engine: VllmEngine) -> Breach | None:
    backend = engine.options.get("dcp-comm-backend")
    if not engine.limited(PcpLimit.DCP_AG_RS) or engine.shape.dcp == 1 or backend in (None, "ag_rs"):
        return None
    return Breach("dcp-comm-backend", "with PCP and DCP there is one", got=f'"{backend}"', expected='"ag_rs"')


def _pcp_graphs(engine: VllmEngine) -> Breach | None:
    if not engine.limited(PcpLimit.SPARSE_EAGER) or engine.shape.dcp > 1 or not engine.cuda_graphs:
        return None
    if engine.model is None or not engine.model.sparse:
        return None
    return Breach(
        PCP,
        f"{engine.profile.name} has no CUDA graphs with PCP for a sparse MLA model",
        fix='add "enforce-eager": true, or "compilation-config": {"cudagraph_mode": "NONE"}',
    )


def _pcp_decode(engine: VllmEngine) -> Breach | None:
    if not engine.pcp or engine.role is not Role.DECODE:
        return None
    return Breach(PCP, "PCP splits prefill work; a decode instance gains nothing from it", fix="leave it out")


def _dcp_tp(engine: VllmEngine) -> Breach | None:
    shape = engine.shape
    exact = shape.pcp > 1 and engine.profile.dcp_rule is DcpRule.WITH_PCP_EXACT
    if exact or shape.tp % shape.dcp == 0:
        return None
    return Breach(DCP, f"does not divide {TP} {shape.tp}", expected="a divisor of it")


def _dcp_pcp(engine: VllmEngine) -> Breach | None:
    shape = engine.shape
    if shape.pcp == 1 or engine.profile.dcp_rule is not DcpRule.WITH_PCP_EXACT:
        return None
    legal = sorted({1, shape.pcp, shape.tp * shape.pcp})
    if shape.dcp in legal:
        return None
    return Breach(
        DCP,
        f"{engine.profile.name} allows few sizes together with PCP {shape.pcp}",
        expected=f"one of {', '.join(map(str, legal))}",
    )


def _dcp_kv_heads(engine: VllmEngine) -> Breach | None:
    """One KV head has tp / kv_heads copies, and DCP spreads the cache over them instead."""
    shape, model = engine.shape, engine.model
    if shape.dcp == 1 or model is None or model.mla or not model.kv_heads:
        return None
    if shape.tp <= model.kv_heads:
        fix = f"raise {TP} above {model.kv_heads}, or leave {DCP} out"
        return Breach(
            DCP, f"{TP} {shape.tp} leaves no copy of the model's {model.kv_heads} KV heads to spread", fix=fix
        )
    copies = shape.tp // model.kv_heads
    if shape.dcp > copies:
        what = f"is more than the copies of a KV head: {TP} {shape.tp} over {model.kv_heads} KV heads"
        return Breach(DCP, what, expected=f"at most {copies}")
    queries = model.heads // model.kv_heads if model.heads else 0
    if queries % shape.dcp:
        return Breach(DCP, f"does not divide the model's {queries} query heads for each KV head", expected="a divisor")
    return None


def _model_unread(engine: VllmEngine) -> Breach | None:
    pcp = engine.limited(PcpLimit.MLA_ONLY)
    if engine.model is not None or not (pcp or engine.shape.dcp > 1):
        return None
    asked = "attention" if pcp else "KV heads"
    about = PCP if pcp else DCP
    return Breach(about, f"not checked against the model's {asked}: {engine.model_unread or 'it was not read'}")


def _stripe_size(engine: VllmEngine) -> Breach | None:
    stripe = engine.integer(STRIPE)
    if stripe is None or stripe >= 1:
        return None
    return Breach(STRIPE, "is no usable size", expected="an integer of at least 1")


def _stripe_block(engine: VllmEngine) -> Breach | None:
    block, stripe = engine.integer(BLOCK), engine.integer(STRIPE)
    if not block or not stripe or stripe < 1 or block % stripe == 0:
        return None
    return Breach(STRIPE, f"does not divide {BLOCK} {block}", expected=f"a divisor of {block}")


def _stripe_is_block(engine: VllmEngine) -> Breach | None:
    block, stripe = engine.integer(BLOCK), engine.integer(STRIPE)
    if not _whole_blocks(engine) or not block or (stripe or 1) == block or block % (stripe or 1):
        return None
    return Breach(
        STRIPE,
        f"{engine.profile.name} transfers KV with context parallelism only in whole blocks",
        got=str(stripe or "1 (the default)"),
        expected=f"{BLOCK}: {block}",
    )


def _block_unsaid(engine: VllmEngine) -> Breach | None:
    if not _whole_blocks(engine) or engine.integer(BLOCK):
        return None
    size = engine.integer(STRIPE) or USUAL_BLOCK
    return Breach(
        STRIPE,
        f"{engine.profile.name} wants it equal to the block size, and {BLOCK} is not in the file",
        fix=f'add "{BLOCK}": {size} and the same {STRIPE}',
    )


def _whole_blocks(engine: VllmEngine) -> bool:
    return engine.profile.interleave_is_block_with_kv and engine.transfers_kv and engine.context_parallel


def _sparse_stripe(engine: VllmEngine) -> Breach | None:
    block, stripe = engine.integer(BLOCK), engine.integer(STRIPE)
    if not engine.ascend or not engine.context_parallel or _whole_blocks(engine):
        return None
    if engine.model is None or not engine.model.sparse or not block or not stripe or stripe == block:
        return None
    return Breach(STRIPE, f"the engine puts {BLOCK} {block} in its place for a sparse MLA model", fix="remove it")


def _sparse_dcp(engine: VllmEngine) -> Breach | None:
    shape = engine.shape
    if not engine.ascend or _version(engine) < (0, 23) or shape.dcp == 1 or shape.pcp > 1 or shape.dcp == shape.tp:
        return None
    if engine.model is None or not engine.model.sparse:
        return None
    return Breach(DCP, "a sparse MLA model wants it equal to tensor-parallel-size", expected=f"1 or {shape.tp}")


def _nixl_dcp(engine: VllmEngine) -> Breach | None:
    shape = engine.shape
    if engine.ascend or _version(engine) < (0, 30) or not engine.has_connector("NixlConnector"):
        return None
    legal = {1, max(shape.tp, shape.pcp)}
    if shape.pcp > 1 and shape.dcp > 1 and shape.tp > 1:
        return Breach(DCP, f"NixlConnector takes PCP and DCP together only with tp 1, here {shape.tp}", expected="1")
    if shape.dcp not in legal:
        expected = f"one of {', '.join(map(str, sorted(legal)))}"
        return Breach(DCP, "NixlConnector moves a KV cache that is whole or fully spread", expected=expected)
    if shape.dcp > 1 and engine.model is not None and not engine.model.mla:
        return Breach(DCP, "with NixlConnector it is for MLA models only", expected="1")
    return None


def _nixl_pcp(engine: VllmEngine) -> Breach | None:
    if engine.ascend or _version(engine) < (0, 29) or not engine.pcp or engine.role is Role.PREFILL:
        return None
    if not any(engine.has_connector(name) for name in NIXL):
        return None
    fix = "remove it here: a prefill side may have it"
    return Breach(PCP, "NixlConnector sends from an engine with PCP and receives into none", expected="1", fix=fix)


def _version(engine: VllmEngine) -> tuple[int, ...]:
    return tuple(int(part) for part in engine.profile.version.split("."))


_LIMITS = "v1/worker/gpu/pcp_manager.py:124-194 (0.26 and newer); Ascend worker/v2/pcp_manager.py:33-53"

# It holds for every engine.
SHARED: tuple[Rule[VllmEngine], ...] = (
    Rule(
        "dcp-tp",
        ERROR,
        "DCP divides tensor parallelism.",
        "config/parallel.py:590-595, an assertion up to 0.25; ATOM config.py:1645-1649",
        _dcp_tp,
    ),
)

RULES: tuple[Rule[VllmEngine], ...] = (
    Rule(
        "vllm-pcp-missing",
        ERROR,
        "The engine has prefill context parallelism: vLLM-Ascend 0.13 to 0.24 and 0.26, or upstream from 0.26.",
        "vLLM up to 0.25 v1/worker/cp_utils.py: `assert layer_impl.supports_pcp`, which no CUDA attention sets; 0.12 "
        "config/parallel.py:315-319; Ascend v0.25.1rc1 platform.py:339-343 and vLLM 0.25 config/vllm.py",
        _pcp_missing,
    ),
    Rule(
        "ascend-pcp-runner",
        ERROR,
        "vLLM-Ascend from 0.26 has PCP on the V2 model runner only.",
        "Ascend v0.26.0rc1 platform.py:339-343",
        _pcp_v1_runner,
    ),
    Rule("vllm-pcp-pp", ERROR, "PCP without pipeline stages, where the engine says so.", _LIMITS, _pcp_pp),
    Rule("vllm-pcp-dcp", ERROR, "PCP without DCP, where the engine says so.", _LIMITS, _pcp_dcp),
    Rule("vllm-pcp-lora", ERROR, "PCP without LoRA, where the engine says so.", _LIMITS, _pcp_lora),
    Rule("vllm-pcp-speculation", ERROR, "PCP with the speculation that it can do.", _LIMITS, _pcp_speculation),
    Rule(
        "vllm-pcp-model", ERROR, "PCP upstream, and on vLLM-Ascend from 0.26, is for MLA models.", _LIMITS, _pcp_model
    ),
    Rule("vllm-pcp-dcp-model", ERROR, "Upstream PCP with DCP is for sparse MLA models.", _LIMITS, _pcp_dcp_model),
    Rule("vllm-pcp-dcp-backend", ERROR, "Upstream PCP with DCP has one backend, ag_rs.", _LIMITS, _pcp_dcp_backend),
    Rule("vllm-pcp-graphs", ERROR, "Upstream PCP of a sparse MLA model has no CUDA graphs.", _LIMITS, _pcp_graphs),
    Rule("vllm-pcp-decode", WARNING, "PCP is for prefill.", "orchestration paper", _pcp_decode),
    Rule(
        "vllm-dcp-pcp",
        ERROR,
        "With PCP, upstream from 0.26 takes a DCP of 1, pcp or tp x pcp.",
        "config/parallel.py:596-603; vLLM 0.26 :506-519",
        _dcp_pcp,
    ),
    Rule(
        "vllm-dcp-kv-heads",
        ERROR,
        "Without MLA, DCP spreads the copies of a KV head: tp > KV heads, dcp <= tp / KV heads, and dcp divides the "
        "query heads of a KV head.",
        "config/model.py:1565-1594; assertions up to 0.26",
        _dcp_kv_heads,
    ),
    Rule(
        "vllm-model-unread",
        WARNING,
        "What depends on the model is checked where its config.json can be read.",
        "Motor",
        _model_unread,
    ),
    Rule("vllm-interleave-size", ERROR, "The context-parallel stripe is at least one token.", "Motor", _stripe_size),
    Rule(
        "vllm-interleave-block",
        OVERRIDABLE,
        "The context-parallel stripe divides the block.",
        "config/vllm.py:3268-3276, with DCP > 1",
        _stripe_block,
        stricter="without DCP the engine does not look at it, and the file would break as soon as DCP is added",
    ),
    Rule(
        "ascend-interleave-is-block",
        ERROR,
        "vLLM-Ascend transfers KV with context parallelism in whole blocks: the stripe equals the block.",
        "Ascend v0.18.0 platform.py:483-493, v0.23.0 :743-752, and on to v0.25.1rc1; so since v0.12",
        _stripe_is_block,
    ),
    Rule(
        "ascend-block-unsaid",
        WARNING,
        "Where the stripe has to equal the block, the file says both.",
        "as ascend-interleave-is-block",
        _block_unsaid,
    ),
    Rule(
        "ascend-sparse-interleave",
        WARNING,
        "For sparse MLA models vLLM-Ascend sets the stripe to the block by itself.",
        "Ascend v0.23.0 platform.py:754-761",
        _sparse_stripe,
    ),
    Rule(
        "ascend-sparse-dcp",
        ERROR,
        "Without PCP, DCP of a sparse MLA model equals tensor parallelism on vLLM-Ascend from 0.23.",
        "Ascend v0.23.0 platform.py:729-735",
        _sparse_dcp,
    ),
    Rule(
        "vllm-nixl-dcp",
        ERROR,
        "NixlConnector takes a DCP of 1, or all of it: the larger of tp and pcp, with PCP only where tp is 1, and for "
        "MLA models only.",
        "config/vllm.py:1473-1491, v1/nixl/connector.py:114-122, from 0.30 on",
        _nixl_dcp,
    ),
    Rule(
        "vllm-nixl-pcp",
        ERROR,
        "With NixlConnector only a prefill side has PCP.",
        "v1/nixl/connector.py:105-112, from 0.29 on",
        _nixl_pcp,
    ),
)
