"""How each side of a pair spreads its KV cache over workers, by heads and by context parallelism: do the parts fit?

Sources: vLLM-Ascend v0.23.0 below vllm_ascend/distributed/kv_transfer; vLLM 0.32 below
vllm/distributed/kv_transfer/kv_connector.
"""

from __future__ import annotations

from controller.config.errors import Findings, Shown
from controller.config.kv_sections import KvSection
from controller.config.model_files import read_model
from controller.config.rule_report import StatedRule, report
from engine_launch.kv_connectors import Connector
from engine_launch.model_facts import ModelFacts
from engine_launch.rule import RuleSeverity

HEADS = StatedRule(
    "kv-pair-heads",
    RuleSeverity.ERROR,
    "With context parallelism a decode worker has a multiple of a prefill worker's KV heads, models with MLA apart.",
    "kv_p2p/mooncake_connector.py:2724-2727, since v0.18.0 at the latest",
)
HEADS_UNREAD = StatedRule(
    "kv-pair-heads-unread",
    RuleSeverity.WARNING,
    "The model's config.json is readable where its KV heads decide whether two tp sizes fit.",
    "as kv-pair-heads",
)
DIVIDES = StatedRule(
    "kv-pair-tp-divides",
    RuleSeverity.ERROR,
    "Decode's tp divides prefill's, models with MLA apart.",
    "vLLM-Ascend v0.12.0rc1 ascend_config.py:125, v0.23.0 :220, and on to v0.26.0rc1",
)
SHARDS = StatedRule(
    "kv-pair-dcp",
    RuleSeverity.ERROR,
    "With NixlConnector one side's dcp divides the other's, and a prefill side with PCP and no DCP has a decode side "
    "without DCP.",
    "v1/nixl/base_worker.py:937-944, 2427-2434",
)

RULES = (HEADS, HEADS_UNREAD, DIVIDES, SHARDS)


def check_shards(prefill: KvSection, decode: KvSection, connector: Connector, findings: Findings) -> None:
    """Both sides have this connector."""
    _check_divides(prefill, decode, connector, findings)
    _check_heads(prefill, decode, connector, findings)
    _check_dcp(prefill, decode, connector, findings)


def _check_divides(prefill: KvSection, decode: KvSection, connector: Connector, findings: Findings) -> None:
    """The plug-in's configuration compares the sizes that Motor fills in; it does not look into a MultiConnector."""
    p, d = prefill.engine.shape, decode.engine.shape
    inside = any(side.transfer is not None and side.transfer.at for side in (prefill, decode))
    if connector.engine != "vllm_ascend" or not connector.reads_sizes or inside or p.tp % d.tp == 0:
        return
    if p.tp < d.tp and connector.prefill_tp_not_below:  # kv-pair-tp says so for every model
        return
    where = decode.engine.path("tensor-parallel-size")
    model, unread = _model(prefill, decode)
    if model is None:
        if p.pcp * p.dcp * d.pcp * d.dcp == 1:  # else _check_heads says it
            what = f"not checked whether the model may have another tp than a divisor of prefill's {p.tp}: {unread}"
            report(findings, HEADS_UNREAD, where, what, got=d.tp, fix=f"a divisor of {p.tp} fits every model")
    elif not model.mla:
        what = (
            f"does not divide prefill's {p.tp}, and {model.name} has no MLA: both engines end with `Prefill TP size "
            "must be divisible by Decode TP size` (vLLM-Ascend v0.23.0 ascend_config.py:220)"
        )
        report(findings, DIVIDES, where, what, got=d.tp, expected=f"a divisor of {p.tp}")


def _check_heads(prefill: KvSection, decode: KvSection, connector: Connector, findings: Findings) -> None:
    p, d = prefill.engine.shape, decode.engine.shape
    if not connector.kv_heads_fit or p.pcp * p.dcp * d.pcp * d.dcp == 1:
        return
    # A model that runs with both sizes has them divide its heads, or its heads divide them: then a decode worker's
    # heads are a multiple wherever decode's tp divides prefill's.
    if p.tp < d.tp or p.tp % d.tp == 0:
        return
    where = decode.engine.path("tensor-parallel-size")
    model, unread = _model(prefill, decode)
    if model is None:
        what = f"not checked whether its KV heads fit those of prefill tp {p.tp}: {unread}"
        report(findings, HEADS_UNREAD, where, what, got=d.tp, fix=f"a divisor of {p.tp} fits every model")
        return
    if model.mla or model.kv_heads is None:
        return
    p_heads, d_heads = -(-model.kv_heads // p.tp), -(-model.kv_heads // d.tp)
    if d_heads % p_heads:
        what = (
            f"{model.name} has {model.kv_heads} KV heads: {d_heads} for a worker here, {p_heads} for one of prefill "
            f"(tp {p.tp}), and with context parallelism the first has to be a multiple: {connector.kv_heads_fit}"
        )
        report(findings, HEADS, where, what, got=d.tp, expected=f"a divisor of prefill's {p.tp}")


def _model(prefill: KvSection, decode: KvSection) -> tuple[ModelFacts | None, str]:
    """What config.json of either side says: it is one model."""
    model, unread = read_model(str(decode.engine.value("model") or ""))
    if model is None:
        model, _ = read_model(str(prefill.engine.value("model") or ""))
    return model, unread


def _check_dcp(prefill: KvSection, decode: KvSection, connector: Connector, findings: Findings) -> None:
    p, d = prefill.engine.shape, decode.engine.shape
    if not connector.dcp_fit:
        return
    where = decode.engine.path("decode-context-parallel-size")
    if p.pcp > 1 and p.dcp == 1 and d.dcp > 1:
        what = f"prefill's pcp {p.pcp} without dcp holds whole KV caches, decode's are spread: {connector.dcp_fit}"
        fix = f'"decode-context-parallel-size": {p.pcp} for prefill, or none here'
        report(findings, SHARDS, where, what, got=d.dcp, expected="1", fix=fix)
    elif p.dcp % d.dcp and d.dcp % p.dcp:
        what = f"neither dcp divides the other: {connector.dcp_fit}"
        got = Shown(f"prefill {p.dcp}, decode {d.dcp}")
        report(findings, SHARDS, where, what, got=got, expected=f"1, or a divisor or a multiple of {p.dcp}")
