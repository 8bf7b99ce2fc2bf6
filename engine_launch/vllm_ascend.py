"""vLLM-Ascend: the plug-in's own rules over vLLM's. Paths in comments are below its package folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine_launch.model import NodeLocal
from engine_launch.profile import DcpRule, EngineProfile, PcpSupport
from engine_launch.vllm import BOTH_NATIVE, ENV, PROGRESS_COUNTERS, REFUSED_ENV, STOP_SECONDS, UNREAD
from engine_launch.vllm_log import ASCEND_FATAL_PATTERNS, FATAL_PATTERNS, STAGES, WARNING_PATTERNS, WORKER_STAGE

# The plug-in's multi-node guide (docs/source/tutorials/features/long_sequence_context_parallel_multi_node.md,
# parent of 5f8c0e8fec, lines 71-254) sets these per node.
NODE_ENV: Mapping[str, NodeLocal] = MappingProxyType(
    {
        "VLLM_HOST_IP": NodeLocal.ADDRESS,
        "HCCL_IF_IP": NodeLocal.ADDRESS,  # root-info and control address of HCCL
        "GLOO_SOCKET_IFNAME": NodeLocal.INTERFACE,
        "TP_SOCKET_IFNAME": NodeLocal.INTERFACE,
        "HCCL_SOCKET_IFNAME": NodeLocal.INTERFACE,
        "ASCEND_RT_VISIBLE_DEVICES": NodeLocal.DEVICES,
    }
)

_RANK_TABLE = "a rank table fixes ranks and devices that Motor assigns; a node's own file may set one"

ASCEND_REFUSED_ENV: Mapping[str, str] = MappingProxyType(
    {
        **REFUSED_ENV,
        "HCCL_IF_IP": REFUSED_ENV["VLLM_HOST_IP"],
        "ASCEND_RT_VISIBLE_DEVICES": REFUSED_ENV["CUDA_VISIBLE_DEVICES"],
        "RANK_TABLE_FILE": _RANK_TABLE,
        "RANK_ID": _RANK_TABLE,
        "RANK_SIZE": _RANK_TABLE,
    }
)


def _profile(version: str, **facts: object) -> EngineProfile:
    base: dict[str, object] = {
        "pcp": PcpSupport.YES,
        # ValueError with data_parallel_size > 1: platform.py:349-358 of v0.22.1rc1 and v0.23.0, :340-349 of
        # v0.24.0rc1 (PR #10178).
        "pcp_with_dp": False,
        "native": BOTH_NATIVE,
        # MLA: tp % dcp == 0. GQA also needs the model's number of KV heads, which a plan does not know.
        "dcp_rule": DcpRule.DIVIDES_TP,
        "pcp_counts_in_nnodes": False,  # its vLLM is older than 0.30 (PR #55111)
        # AssertionError otherwise: platform.py:483-493 of v0.18.0, :743-752 of v0.23.0, and on to v0.25.1rc1.
        "interleave_is_block_with_kv": True,
        "flag_list": "vllm-0.32.json",
        "strict_flags": False,  # the list is upstream's, of another version
        "env": ENV,
        "node_env": NODE_ENV,
        "refused_env": ASCEND_REFUSED_ENV,
        "stages": STAGES,
        "worker_stage": WORKER_STAGE,
        "fatal_patterns": FATAL_PATTERNS + ASCEND_FATAL_PATTERNS,
        "warning_patterns": WARNING_PATTERNS,
        "progress_counters": PROGRESS_COUNTERS,
        "stop_seconds": STOP_SECONDS,
    }
    return EngineProfile(engine="vllm_ascend", version=version, **{**base, **facts})  # type: ignore[arg-type]


# Up to v0.21.0rc1 platform.py has no data-parallel check.
_PCP_WITH_DP: dict[str, object] = {"pcp_with_dp": True}
# platform.py:339-343 of v0.25.1rc1; worker/v2/pcp_manager.py:33-53 refuses DCP and PP beside it.
_V2_ONLY: dict[str, object] = {"pcp": PcpSupport.V2_RUNNER}

PROFILES: tuple[EngineProfile, ...] = (
    _profile("0.12", **_PCP_WITH_DP, notes=UNREAD),
    _profile("0.13", **_PCP_WITH_DP),
    _profile("0.14", **_PCP_WITH_DP, notes=UNREAD),
    _profile("0.15", **_PCP_WITH_DP, notes=UNREAD),
    _profile("0.16", **_PCP_WITH_DP, notes=UNREAD),
    _profile("0.17", **_PCP_WITH_DP, notes=UNREAD),
    _profile("0.18", **_PCP_WITH_DP),
    _profile("0.19", **_PCP_WITH_DP, notes=UNREAD),
    _profile("0.20", **_PCP_WITH_DP, notes=UNREAD),
    _profile("0.21", **_PCP_WITH_DP),
    _profile("0.22"),
    _profile("0.23"),
    _profile("0.24"),
    _profile("0.25", **_V2_ONLY),
)
