"""Prefill and decode as a pair: connector x dispatch mode x context parallelism, sizes, ports, engine ids."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from controller.config.errors import ConfigError, Problem
from controller.config.pairing_rules import RULES as PAIR_RULES
from controller.config.rule_list import RULES
from engine_launch.kv_transfer import EXTRA, INNER
from engine_launch.model import KvSizes, Role
from tests.config.files import engine, file_with, load, problems_of
from tests.golden_shapes import ROOT

ASCEND = "vllm_ascend@0.23"
V1, LAYERWISE, HYBRID = "MooncakeConnectorV1", "MooncakeLayerwiseConnector", "MooncakeHybridConnector"
PREFILL, DECODE = "motor_engine_prefill_config", "motor_engine_decode_config"
MODE = "motor_coordinator_config.scheduler_config.deploy_mode"


def kv(connector: str | None = V1, **more: Any) -> dict[str, Any]:
    return {"kv_connector": connector, **more} if connector else dict(more)


def side(transfer: Any = None, profile: str | None = ASCEND, **more: Any) -> dict[str, Any]:
    """One node of 8 devices, unless `more` says otherwise."""
    defaults = {"nnodes": 1, "master_port": ..., "kv_transfer_config": kv() if transfer is None else transfer}
    return engine(profile, **{**defaults, **more})


def pair(
    prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, mode: Any = None, **more: Any
) -> dict[str, Any]:
    if mode is not None:
        more["motor_coordinator_config"] = {"scheduler_config": {"deploy_mode": mode}}
    return file_with(prefill or side(), decode or side(), **more)


def both(transfer: Any, mode: Any = None, **more: Any) -> dict[str, Any]:
    return pair(side(transfer, **more), side(transfer, **more), mode)


def found(content: dict[str, Any], rule: str) -> list[Problem]:
    return [problem for problem in problems_of(content) if problem.rule == rule]


def config(section: str, *keys: str) -> str:
    return ".".join((section, "engine_config", "kv-transfer-config", *keys))


MODELS = ROOT / "tests" / "fixtures" / "models"
GQA_12, GQA_2, MLA = (str(MODELS / name) for name in ("12-kv-heads", "2-kv-heads", "mla"))
NIXL = "NixlConnector"
SIZE = {"pp_size": 1, "pcp_size": 1, "dcp_size": 1}
WIDE: dict[str, Any] = {"prefill_context_parallel_size": 2, "block_size": 128, "cp_kv_cache_interleave_size": 128}
TWO_TRANSFERS = kv("MultiConnector", **{EXTRA: {INNER: [kv(), kv(HYBRID)]}})
NESTED = kv("MultiConnector", **{EXTRA: {INNER: [kv("MultiConnector", **{EXTRA: {INNER: [kv()]}})]}})
OWN_ID = kv("MultiConnector", **{EXTRA: {INNER: [kv(engine_id="x")]}})
STORE = "AscendStoreConnector"
# The plug-in's configuration does not look at sizes in there.
ONE_IN_MULTI = kv("MultiConnector", **{EXTRA: {INNER: [kv()]}})

# name -> (file, rule, severity, path, parts of the message)
BREACHES: dict[str, tuple[dict[str, Any], str, str, str, tuple[str, ...]]] = {
    # connector x dispatch mode
    "v1 with pd": (
        pair(mode="pd_separate"),
        "kv-dispatch-order",
        "error",
        MODE,
        ("decode asked first", "assert num_external_tokens == 0", "mooncake_connector.py:1849", '"cpcd_separate"'),
    ),
    "v1 with cdp": (pair(mode="cdp_separate"), "kv-dispatch-order", "error", MODE, ("num_external_tokens == 0",)),
    "v1 with pcp and pd": (
        pair(side(**WIDE), mode="pd_separate"),
        "kv-dispatch-order",
        "error",
        MODE,
        ("num_external_tokens",),
    ),
    "v1 as sglang": (pair(mode="pd_dual_dispatch"), "kv-dispatch-order", "error", MODE, ("both asked at once",)),
    "layerwise with cpcd": (
        both(kv(LAYERWISE), "cpcd_separate"),
        "kv-dispatch-order",
        "error",
        MODE,
        ("remote_cached_tokens", '"pd_separate" or "cdp_separate"'),
    ),
    "v1 alone with one engine": (pair(mode="single_node"), "kv-dispatch-single", "warning", MODE, ("carries nothing",)),
    "mode misspelt": (
        pair(mode="cpcd_seperate"),
        "kv-dispatch-mode",
        "error",
        MODE,
        ('did you mean "cpcd_separate"', "pd_separate"),
    ),
    "mode of another kind": (pair(mode=1), "kv-dispatch-mode", "error", MODE, ("got 1 (an integer)",)),
    # connector x context parallelism
    "layerwise with pcp": (
        pair(side(kv(LAYERWISE), **WIDE), side(kv(LAYERWISE))),
        "kv-context-parallel",
        "error",
        f"{PREFILL}.engine_config.prefill-context-parallel-size",
        ("len(selected_p_cp_groups) == len(selected_d_cp_groups)", "layerwise_connector.py:1496", "cpcd_separate"),
    ),
    "layerwise with dcp in decode": (
        pair(side(kv(LAYERWISE)), side(kv(LAYERWISE), decode_context_parallel_size=2)),
        "kv-context-parallel",
        "error",
        f"{DECODE}.engine_config.decode-context-parallel-size",
        ("pcp 1, dcp 2",),
    ),
    "hybrid with pcp": (
        pair(side(kv(HYBRID), **WIDE), side(kv(HYBRID))),
        "kv-context-parallel",
        "error",
        f"{PREFILL}.engine_config.prefill-context-parallel-size",
        ("pcp_size * self.dcp_size == 1",),
    ),
    "pcp with pp": (
        pair(side(**WIDE, tensor_parallel_size=2, pipeline_parallel_size=2), side(tensor_parallel_size=2)),
        "kv-pcp-with-pp",
        "error",
        f"{PREFILL}.engine_config.pipeline-parallel-size",
        ("pcp 2, pp 2", "mooncake_connector.py:2004"),
    ),
    # sizes of the pair
    "decode with stages": (
        pair(decode=side(tensor_parallel_size=4, pipeline_parallel_size=2)),
        "kv-decode-pp",
        "error",
        f"{DECODE}.engine_config.pipeline-parallel-size",
        ("_decode_pp_size == 1",),
    ),
    "layerwise decode, stages on one node": (
        pair(side(kv(LAYERWISE)), side(kv(LAYERWISE), tensor_parallel_size=4, pipeline_parallel_size=2)),
        "kv-decode-pp",
        "error",
        f"{DECODE}.engine_config.pipeline-parallel-size",
        ("listen at one port",),
    ),
    "decode wider than prefill": (
        pair(side(tensor_parallel_size=4)),
        "kv-pair-tp",
        "error",
        f"{DECODE}.engine_config.tensor-parallel-size",
        ("prefill tp 4 >= decode tp 8", "mooncake_connector.py:1982"),
    ),
    "context parallelism that does not divide": (
        pair(side(**WIDE), side(decode_context_parallel_size=4, block_size=128, cp_kv_cache_interleave_size=128)),
        "kv-pair-cp",
        "error",
        f"{DECODE}.engine_config.decode-context-parallel-size",
        ("pcp 2 x dcp 1 = 2", "pcp 1 x dcp 4 = 4", "2 % 4 = 2"),
    ),
    "blocks": (
        pair(side(block_size=128), side(block_size=96)),
        "kv-pair-block-size",
        "error",
        f"{DECODE}.engine_config.block-size",
        ("prefill 128, decode 96",),
    ),
    "blocks under decode's context parallelism": (
        pair(
            side(prefill_context_parallel_size=2, block_size=128, cp_kv_cache_interleave_size=128),
            side(decode_context_parallel_size=2, block_size=64, cp_kv_cache_interleave_size=64),
        ),
        "kv-pair-block-size",
        "error",
        f"{DECODE}.engine_config.block-size",
        ("prefill's block-size 128 has to divide decode's 64",),
    ),
    "blocks whose ratio the context parallelism does not hold": (
        pair(
            side(**WIDE),
            side(decode_context_parallel_size=2, block_size=256, cp_kv_cache_interleave_size=256),
        ),
        "kv-pair-block-size",
        "error",
        f"{DECODE}.engine_config.block-size",
        ("no multiple of the blocks' ratio 256 / 128",),
    ),
    # how the cache is spread
    "a decode tp that does not divide": (
        pair(side(model=GQA_12, tensor_parallel_size=6), side(model=GQA_12, tensor_parallel_size=4)),
        "kv-pair-tp-divides",
        "error",
        f"{DECODE}.engine_config.tensor-parallel-size",
        ("does not divide prefill's 6", "Prefill TP size must be divisible", "a divisor of 6"),
    ),
    "layers from fewer workers": (
        pair(
            side(kv(LAYERWISE), model=GQA_12, tensor_parallel_size=4),
            side(kv(LAYERWISE), model=GQA_12, tensor_parallel_size=6),
        ),
        "kv-pair-tp-divides",
        "error",
        f"{DECODE}.engine_config.tensor-parallel-size",
        ("does not divide prefill's 4",),
    ),
    "a decode tp of a model that cannot be read": (
        pair(side(tensor_parallel_size=6), side(tensor_parallel_size=4)),
        "kv-pair-heads-unread",
        "warning",
        f"{DECODE}.engine_config.tensor-parallel-size",
        ("a divisor of prefill's 6: /m/config.json cannot be read",),
    ),
    "heads that do not fit": (
        pair(side(**WIDE, model=GQA_12, tensor_parallel_size=6), side(model="/m", tensor_parallel_size=4)),
        "kv-pair-heads",
        "error",
        f"{DECODE}.engine_config.tensor-parallel-size",
        ("has 12 KV heads: 3 for a worker here, 2 for one of prefill (tp 6)", "mooncake_connector.py:2727"),
    ),
    "heads of a model that cannot be read": (
        pair(side(**WIDE, tensor_parallel_size=6), side(tensor_parallel_size=4)),
        "kv-pair-heads-unread",
        "warning",
        f"{DECODE}.engine_config.tensor-parallel-size",
        ("prefill tp 6: /m/config.json cannot be read", "a divisor of 6 fits every model"),
    ),
    "a whole cache and a spread one": (
        pair(side(kv(NIXL), "vllm@0.32", **WIDE), side(kv(NIXL), "vllm@0.32", decode_context_parallel_size=8)),
        "kv-pair-dcp",
        "error",
        f"{DECODE}.engine_config.decode-context-parallel-size",
        ("prefill's pcp 2 without dcp holds whole KV caches", "v1/nixl/base_worker.py:937-944"),
    ),
    "dcp that does not divide": (
        pair(
            side(kv(NIXL), "vllm@0.32", tensor_parallel_size=6, decode_context_parallel_size=6),
            side(kv(NIXL), "vllm@0.32", tensor_parallel_size=4, decode_context_parallel_size=4),
        ),
        "kv-pair-dcp",
        "error",
        f"{DECODE}.engine_config.decode-context-parallel-size",
        ("neither dcp divides the other", "prefill 6, decode 4"),
    ),
    # what is there, and what is not
    "one side only": (
        pair(decode=side(kv(), kv_transfer_config=...)),
        "kv-one-sided",
        "error",
        f"{DECODE}.engine_config",
        (f"and {PREFILL} has one",),
    ),
    "none on either side": (
        pair(side(kv_transfer_config=...), side(kv_transfer_config=...)),
        "kv-none",
        "warning",
        f"{DECODE}.engine_config",
        ("nothing carries KV",),
    ),
    "no decode section": (
        file_with(side()),
        "kv-peer-sizes",
        "error",
        config(PREFILL, EXTRA),
        ("no decode section", 'assert "tp_size" in', "expected dp_size and tp_size"),
    ),
    "no prefill section, sizes half written": (
        file_with(decode=side(kv(**{EXTRA: {"prefill": {"tp_size": 8}}}))),
        "kv-peer-sizes",
        "error",
        config(DECODE, EXTRA),
        ("expected dp_size",),
    ),
    "the peer is elsewhere": (
        file_with(side(kv(**{EXTRA: {"decode": {"dp_size": 1, "tp_size": 8}}}))),
        "kv-peer-elsewhere",
        "warning",
        config(PREFILL),
        ("peers of these engines have to run elsewhere",),
    ),
    "layerwise without a peer": (
        file_with(decode=side(kv(LAYERWISE))),
        "kv-peer-elsewhere",
        "warning",
        config(DECODE),
        ("no prefill section",),
    ),
    "different connectors": (
        pair(side(kv(V1)), side(kv(HYBRID))),
        "kv-pair-connector",
        "error",
        config(DECODE, "kv_connector"),
        (HYBRID, V1),
    ),
    "a transfer and a store": (
        pair(side(kv(V1)), side(kv(STORE))),
        "kv-pair-connector",
        "error",
        config(DECODE, "kv_connector"),
        ("no connector that transfers",),
    ),
    "union": (
        file_with(union=side()),
        "kv-union",
        "error",
        "motor_engine_union_config.engine_config.kv-transfer-config",
        ("between a prefill and a decode engine",),
    ),
    # names
    "misspelt": (
        both(kv("MooncakeConectorV1")),
        "kv-connector-misspelt",
        "error",
        config(PREFILL, "kv_connector"),
        (f'did you mean "{V1}"',),
    ),
    "unknown": (both(kv("Qx")), "kv-connector-unknown", "warning", config(PREFILL, "kv_connector"), ("does not know",)),
    "from a module of one's own": (
        both(kv("MooncakeConectorV1", kv_connector_module_path="mine")),
        "kv-connector-unknown",
        "warning",
        config(PREFILL, "kv_connector"),
        ("does not know",),
    ),
    "nameless": (both({"kv_port": 1}), "kv-connector-name", "error", config(PREFILL, "kv_connector"), ("no name", V1)),
    "of another engine": (
        both(kv(V1), profile="vllm@0.32"),
        "kv-connector-engine",
        "error",
        config(PREFILL, "kv_connector"),
        ("vllm@0.32 has no such connector", "NixlConnector"),
    ),
    "of an engine that was assumed": (
        both(kv(V1), profile=None),
        "kv-connector-assumed-engine",
        "warning",
        config(PREFILL, "kv_connector"),
        ("set engine_profile to a vllm_ascend version",),
    ),
    # roles and ids
    "consumer in prefill": (
        pair(side(kv(kv_role="kv_consumer"))),
        "kv-role",
        "error",
        config(PREFILL, "kv_role"),
        (f"contradicts {PREFILL}", '"kv_producer"'),
    ),
    "producer in decode": (
        pair(decode=side(kv(kv_role="kv_producer"))),
        "kv-role",
        "error",
        config(DECODE, "kv_role"),
        (f"contradicts {DECODE}",),
    ),
    "both, where the connector only receives then": (
        pair(side(kv(kv_role="kv_both"))),
        "kv-role",
        "error",
        config(PREFILL, "kv_role"),
        ("does not send with kv_both",),
    ),
    "role inside a multi connector": (
        pair(
            side(kv("MultiConnector", **{EXTRA: {INNER: [kv(kv_role="kv_consumer")]}})),
            side(kv("MultiConnector", **{EXTRA: {INNER: [kv()]}})),
        ),
        "kv-role",
        "error",
        config(PREFILL, EXTRA, f"{INNER}[0]", "kv_role"),
        ("contradicts",),
    ),
    "an id of one's own": (
        pair(side(kv(engine_id="0"))),
        "kv-engine-id-own",
        "warning",
        config(PREFILL, "engine_id"),
        ("is replaced", "memory addresses"),
    ),
    # sizes that are written
    "a size that contradicts": (
        pair(decode=side(kv(**{EXTRA: {"prefill": {"tp_size": 16}}}))),
        "kv-sizes",
        "error",
        config(DECODE, EXTRA, "prefill", "tp_size"),
        ("contradicts the prefill section", "got 16", "expected 8"),
    ),
    "dp_size of replicas": (
        pair(side(kv(**{EXTRA: {"prefill": {"dp_size": 4}}}), data_parallel_size=4)),
        "kv-sizes",
        "error",
        config(PREFILL, EXTRA, "prefill", "dp_size"),
        ("each prefill group is an engine of its own", "got 4", "expected 1"),
    ),
    "a size in quotes": (
        pair(side(kv(**{EXTRA: {"prefill": {"tp_size": "8"}}}))),
        "kv-sizes",
        "error",
        config(PREFILL, EXTRA, "prefill", "tp_size"),
        ('got "8" (a string)',),
    ),
    "a size inside a multi connector": (
        pair(
            side(kv("MultiConnector", **{EXTRA: {INNER: [kv(**{EXTRA: {"decode": {"pp_size": 2}}})]}})),
            side(kv("MultiConnector", **{EXTRA: {INNER: [kv()]}})),
        ),
        "kv-sizes",
        "error",
        config(PREFILL, EXTRA, f"{INNER}[0]", EXTRA, "decode", "pp_size"),
        ("got 2", "expected 1"),
    ),
    # multi connector
    "two transfers": (
        both(TWO_TRANSFERS),
        "kv-multi",
        "error",
        config(PREFILL, EXTRA, INNER),
        (f"{V1} and {HYBRID}", "only one connector"),
    ),
    "nested": (both(NESTED), "kv-multi", "error", config(PREFILL, EXTRA, f"{INNER}[0]"), ("inside a Multi",)),
    "empty": (
        both(kv("MultiConnector")),
        "kv-multi",
        "error",
        config(PREFILL, EXTRA, INNER),
        ("needs the connectors in it", "a list of objects"),
    ),
    "an id inside": (
        both(OWN_ID),
        "kv-engine-id",
        "error",
        config(PREFILL, EXTRA, f"{INNER}[0]", "engine_id"),
        ("TypeError",),
    ),
    # form
    "text": (both(json.dumps(kv())), "kv-object", "error", config(PREFILL), ("an object, without quotes",)),
    "extra config as text": (both(kv(**{EXTRA: "x"})), "kv-object", "error", config(PREFILL, EXTRA), ("an object",)),
    "a side as text": (
        both(kv(**{EXTRA: {"decode": 8}})),
        "kv-object",
        "error",
        config(PREFILL, EXTRA, "decode"),
        ("an object",),
    ),
    # ports
    "no port": (
        pair(side(kv(kv_port="auto"))),
        "kv-port",
        "error",
        config(PREFILL, "kv_port"),
        ("is no usable port",),
    ),
    "ports beyond the last": (
        pair(side(kv(kv_port=65530))),
        "kv-port",
        "error",
        config(PREFILL, "kv_port"),
        ("8 KV ports from 65530 on do not fit",),
    ),
    "ports of too many engines": (
        pair(side(kv(kv_port=15000), data_parallel_size=7000), deploy={"d_pod_npu_num": 8}),
        "kv-port",
        "error",
        config(PREFILL, "kv_port"),
        ("7000 engines x 8 KV ports", "motor_deploy_config.p_pod_npu_num"),
    ),
    "ascend-direct": (
        pair(side(kv(kv_port=27999)), deploy={"p_pod_npu_num": 8}),
        "kv-port-ascend-direct",
        "warning",
        config(PREFILL, "kv_port"),
        ("20000-27999", "8 devices", "begin at 28000 or later"),
    ),
    "hccl": (pair(side(kv(kv_port=59999))), "kv-port-hccl", "warning", config(PREFILL, "kv_port"), ("60000 and up",)),
    "hccl moved": (
        pair(side(kv(kv_port=17500), env={"HCCL_IF_BASE_PORT": 17500})),
        "kv-port-hccl",
        "warning",
        config(PREFILL, "kv_port"),
        ("17500 and up",),
    ),
    "decode's port inside prefill's": (
        pair(
            side(kv(kv_port=15000), nnodes=2, master_port=7001, **WIDE),
            side(kv(kv_port=15008)),
        ),
        "kv-pair-ports",
        "error",
        config(DECODE, "kv_port"),
        ("is 8 from prefill's 15000", "16 ports on 2 nodes", "15000, or at least 16 away", "stricter than the engine"),
    ),
    "decode's port just below prefill's": (
        pair(
            side(kv(kv_port=15000), nnodes=2, master_port=7001, **WIDE),
            side(kv(kv_port=14985)),
        ),
        "kv-pair-ports",
        "error",
        config(DECODE, "kv_port"),
        ("is 15 from prefill's 15000",),
    ),
    "prefill groups over nodes in one world, and other ports in decode": (
        pair(
            side(
                kv(kv_port=15000),
                nnodes=2,
                master_port=7001,
                tensor_parallel_size=16,
                data_parallel_size=2,
                enable_expert_parallel=True,
            ),
            side(kv(kv_port=16000)),
        ),
        "kv-pair-one-world",
        "error",
        config(DECODE, "kv_port"),
        ("2 prefill groups of 2 nodes", "nodes of the first group"),
    ),
    "nixl's host for all nodes": (
        both(kv("NixlConnector"), profile="vllm@0.32", env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1"}),
        "kv-host",
        "warning",
        f"{PREFILL}.env.VLLM_NIXL_SIDE_CHANNEL_HOST",
        ("each node fills in its address",),
    ),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_reported(name: str) -> None:
    content, rule, severity, path, parts = BREACHES[name]
    problems = found(content, rule)
    here = [problem for problem in problems if problem.where().split(":", 1)[1].split(" ")[0] == path]
    assert here, "\n".join(map(str, problems_of(content)))
    assert {problem.severity.value for problem in here} == {severity}
    assert all(problem.line for problem in here)
    for part in parts:
        assert any(part in str(problem) for problem in here), f"{part!r} is not in {here[0]}"


def test_every_listed_rule_has_a_breach_in_the_table() -> None:
    ours = {rule for rule in RULES if rule.startswith("kv-")}
    assert {rule for _, rule, _, _, _ in BREACHES.values()} == ours
    assert {rule.id for rule in PAIR_RULES} <= ours


QUIET: dict[str, dict[str, Any]] = {
    "the recommended pair": pair(side(**WIDE), mode="cpcd_separate"),
    "the recommended pair over nodes": pair(side(**WIDE, nnodes=2, master_port=7001), mode="cpcd_separate"),
    "layerwise, pd": both(kv(LAYERWISE), "pd_separate"),
    "layerwise, cdp": both(kv(LAYERWISE), "cdp_separate"),
    "layerwise, one container": both(kv(LAYERWISE), "pd_disaggregation_single_container"),
    "layerwise decode wider than prefill": pair(
        side(kv(LAYERWISE), model=MLA, tensor_parallel_size=4), side(kv(LAYERWISE), model=MLA)
    ),
    "layerwise, both roles": both(kv(LAYERWISE, kv_role="kv_both")),
    "hybrid": both(kv(HYBRID), "cpcd_separate"),
    "nixl": both(kv("NixlConnector", kv_role="kv_both"), "cpcd_separate", profile="vllm@0.32"),
    "nixl on a push": both(kv("NixlPushConnector"), "cdp_separate", profile="vllm@0.32"),
    "upstream's mooncake": both(kv("MooncakeConnector"), profile="vllm@0.32"),
    "a store on both sides": both(kv(STORE, kv_role="kv_both"), "cpcd_separate"),
    "a store in a union": file_with(union=side(kv(STORE))),
    "multi": both(kv("MultiConnector", **{EXTRA: {INNER: [kv(), kv(STORE)]}}), "cpcd_separate"),
    "sizes as they are": pair(
        side(kv(**{EXTRA: {"prefill": {"dp_size": 1, "tp_size": 8, **SIZE}, "decode": {"tp_size": 4}}})),
        side(tensor_parallel_size=4),
    ),
    "dp_size of one world": pair(
        side(),
        side(
            kv(**{EXTRA: {"decode": {"dp_size": 2}}}),
            data_parallel_size=2,
            enable_expert_parallel=True,
            section={"dp_translation": "native_external"},
        ),
    ),
    "context parallelism that divides": pair(
        side(**WIDE, decode_context_parallel_size=4),
        side(decode_context_parallel_size=4, block_size=128, cp_kv_cache_interleave_size=128),
    ),
    "heads that fit": pair(
        side(**WIDE, model=GQA_12, tensor_parallel_size=6),
        side(model=GQA_12, tensor_parallel_size=2),
    ),
    "more workers than heads": pair(
        side(ONE_IN_MULTI, **WIDE, model=GQA_2, tensor_parallel_size=6),
        side(ONE_IN_MULTI, model=GQA_2, tensor_parallel_size=4),
    ),
    "heads without context parallelism": pair(
        side(ONE_IN_MULTI, model=GQA_12, tensor_parallel_size=6),
        side(ONE_IN_MULTI, model=GQA_12, tensor_parallel_size=4),
    ),
    "one KV for all heads": pair(
        side(**WIDE, model=MLA, tensor_parallel_size=6), side(model=MLA, tensor_parallel_size=4)
    ),
    "heads of a model that need not be read": pair(side(**WIDE), side(tensor_parallel_size=4)),
    "dcp that divides": pair(
        side(kv(NIXL), "vllm@0.32", decode_context_parallel_size=8),
        side(kv(NIXL), "vllm@0.32", tensor_parallel_size=4, decode_context_parallel_size=4),
    ),
    "a spread cache, and a whole one": pair(
        side(kv(NIXL), "vllm@0.32", decode_context_parallel_size=8), side(kv(NIXL), "vllm@0.32")
    ),
    "blocks that divide": pair(side(block_size=128), side(block_size=64)),
    "pp in prefill": pair(side(tensor_parallel_size=4, pipeline_parallel_size=2), side(tensor_parallel_size=4)),
    "the same first port": pair(side(kv(kv_port=15000), nnodes=2, master_port=7001, **WIDE), side(kv(kv_port="15000"))),
    "ports far enough apart": pair(
        side(kv(kv_port=15000), nnodes=2, master_port=7001, **WIDE), side(kv(kv_port=15016))
    ),
    "ports near, prefill on one node": pair(side(kv(kv_port=15000)), side(kv(kv_port=15004))),
    "an override": pair(
        side(
            kv(LAYERWISE),
            **WIDE,
            section={"override": {"override": True, "reason": "equal groups, tried", "rules": ["kv-context-parallel"]}},
        ),
        side(kv(LAYERWISE)),
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_fits_is_no_error_and_needs_no_advice(name: str) -> None:
    problems = [problem for problem in load(QUIET[name]).warnings if problem.rule.startswith("kv-")]
    assert [problem for problem in problems if "overridden" not in problem.what] == []


def test_other_engines_flags_are_left_alone() -> None:
    """ATOM's connectors are its own: nothing is checked or filled."""
    section = {
        "engine_type": "atom",
        "engine_config": {"model": "/m", "tensor-parallel-size": 2, "kv-transfer-config": {"kv_role": "kv_producer"}},
    }
    problems = problems_of(file_with(section))
    assert not [problem for problem in problems if problem.rule.startswith("kv-")]


# --- the dispatch mode ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (pair(), "cpcd_separate", f"no deploy_mode in the file: {V1} needs prefill asked first"),
        (both(kv(LAYERWISE)), "pd_separate", f"no deploy_mode in the file: {LAYERWISE} needs decode asked first"),
        (both(kv(LAYERWISE), "cdp_separate"), "cdp_separate", "deploy_mode in the file"),
        (both(kv(STORE), "cpcd_separate"), "cpcd_separate", "deploy_mode in the file"),
    ],
)
def test_dispatch(content: dict[str, Any], mode: str, reason: str) -> None:
    dispatch = load(content).dispatch
    assert dispatch is not None and (dispatch.mode, dispatch.reason) == (mode, reason)


@pytest.mark.parametrize(
    "content",
    [both(kv(STORE)), file_with(engine()), pair(side(kv_transfer_config=...), side(kv_transfer_config=...))],
)
def test_no_dispatch_where_nothing_decides_it(content: dict[str, Any]) -> None:
    assert load(content).dispatch is None


# --- what is filled in comes from both sections ------------------------------------------------------------------


def test_sizes_of_both_sides_are_filled_in_on_both() -> None:
    content = pair(
        side(**WIDE, data_parallel_size=2, decode_context_parallel_size=4), side(tensor_parallel_size=4), deploy={}
    )
    engines = load(content).engines
    expected = {Role.PREFILL: KvSizes(1, 8, 1, 2, 4), Role.DECODE: KvSizes(1, 4)}
    for name in ("prefill-0", "decode-0"):
        plan = engines[name].kv
        assert plan is not None and plan.sizes == expected


def test_each_engine_world_has_ports_of_its_own_where_nodes_may_be_shared() -> None:
    content = pair(side(data_parallel_size=3), deploy={"p_instances_num": 2})
    plans = [load(content).engines[f"prefill-{number}"].kv for number in (0, 1)]
    assert [(p.first_port, p.port_step, p.first_world) for p in plans if p] == [(14579, 8, 0), (14579, 8, 3)]
    content["motor_deploy_config"]["p_pod_npu_num"] = 8
    plans = [load(content).engines[f"prefill-{number}"].kv for number in (0, 1)]
    assert [(p.first_port, p.port_step) for p in plans if p] == [(14579, 0), (14579, 0)]
    content["motor_deploy_config"]["p_pod_npu_num"] = 16
    plan = load(content).engines["prefill-1"].kv
    assert plan is not None and plan.port_step == 8


def test_default_ports_give_way_to_what_the_file_says() -> None:
    content = pair(side(port=14600), deploy={"port_ranges": {"decode": {"api": [17000, 17099]}}})
    engines = load(content).engines
    plans = [engines[name].kv for name in ("prefill-0", "decode-0")]
    assert [plan.first_port for plan in plans if plan] == [14579, 17100]
    moved = load(pair(side(port=14580), side(kv(kv_port=14644)))).engines["prefill-0"].kv
    assert moved is not None and moved.first_port == 14652


def test_ports_of_kv_transfer_never_meet_other_ranges() -> None:
    with pytest.raises(ConfigError, match=r"overlap kv ports 15000-15023"):
        load(pair(side(kv(kv_port=15000), data_parallel_size=3, port=15020)))


def test_other_sizes_on_one_side_are_another_engine_on_the_other() -> None:
    """A prefill engine is told decode's sizes: it has to start anew when they change."""

    def digests(tp: int) -> tuple[str, str]:
        plan = load(pair(decode=side(tensor_parallel_size=tp))).plan
        return plan.instance("prefill-0").config_digest, plan.instance("decode-0").config_digest

    assert digests(8)[0] != digests(4)[0]


def test_more_instances_move_nobody_and_have_the_same_digest() -> None:
    one, three = (load(pair(deploy={"p_instances_num": count})) for count in (1, 3))
    for name in ("prefill-0", "decode-0"):
        assert one.plan.instance(name).config_digest == three.plan.instance(name).config_digest
        assert one.engines[name].kv == three.engines[name].kv
    assert len({three.plan.instance(f"prefill-{number}").config_digest for number in range(3)}) == 1


def test_ten_thousand_groups_are_checked_quickly() -> None:
    content = pair(
        side(data_parallel_size=5000), side(data_parallel_size=5000), deploy={"p_pod_npu_num": 8, "d_pod_npu_num": 8}
    )
    load(content)
    start = time.perf_counter()
    load(content)
    assert time.perf_counter() - start < 1.0
