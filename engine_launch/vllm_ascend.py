"""vLLM-Ascend: the plug-in's own rules over vLLM's. Paths in comments are below its package folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine_launch.model import NodeLocal
from engine_launch.profile import DcpRule, EngineProfile, PcpLimit, PcpSupport
from engine_launch.vllm import BOTH_NATIVE, ENV, PROGRESS_COUNTERS, REFUSED_ENV, STOP_SECONDS, flag_list_of
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
        # Its vLLM's own (config/parallel.py of 0.25 and older); what the model's KV heads allow is a rule of its own.
        "dcp_rule": DcpRule.DIVIDES_TP,
        "pcp_counts_in_nnodes": False,  # its vLLM is older than 0.30 (PR #55111)
        # AssertionError otherwise: platform.py:483-493 of v0.18.0, :743-752 of v0.23.0, and on to v0.25.1rc1.
        "interleave_is_block_with_kv": True,
        # The Dockerfile of each tag names the vLLM that it sits on: always the one with the same two numbers. The
        # plug-in adds no flag (platform.py: pre_register_and_update adds a value to --quantization), but a build may
        # sit on a vLLM between two versions, so an unknown flag is a warning.
        "flag_list": flag_list_of(version),
        "strict_flags": False,
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


# Up to v0.21.0rc1 platform.py has no data-parallel check (read at every tag from v0.12.0rc1 on).
_PCP_WITH_DP: dict[str, object] = {"pcp_with_dp": True}
# platform.py:339-343 of v0.25.1rc1 and v0.26.0rc1. The V2 runner has PCP from v0.26.0rc1 on; what it refuses was read
# in builds of August 2026, worker/v2/pcp_manager.py:33-53. Models without MLA: vLLM 0.26 config/vllm.py:2133-2136.
_V2_ONLY: dict[str, object] = {
    "pcp": PcpSupport.V2_RUNNER,
    "pcp_limits": frozenset({PcpLimit.NO_PP, PcpLimit.NO_DCP, PcpLimit.NO_LORA, PcpLimit.MLA_ONLY}),
    "pcp_notes": (
        # PR #14023 brought it; v0.26.0rc1's arguments were run, its runner was not.
        "PCP of the V2 runner is new: v0.26.0rc1 takes its arguments, and a prefill has not been seen",
    ),
}

# Its vLLM refuses it, and no patch of v0.12.0rc1 takes that away: vLLM 0.12.0 config/parallel.py:315-319. v0.25.1rc1
# refuses it on the V1 runner, and its vLLM on the V2 runner: "Model Runner V2 does not yet support".
_NO_PCP: dict[str, object] = {"pcp": PcpSupport.NO}

# --shutdown-timeout came with vLLM 0.18, and with it the drain.
_NO_DRAIN: dict[str, object] = {"drain_flag": ""}

PROFILES: tuple[EngineProfile, ...] = (
    _profile("0.12", **_NO_PCP, **_PCP_WITH_DP, **_NO_DRAIN),
    *(_profile(f"0.{minor}", **_PCP_WITH_DP, **_NO_DRAIN) for minor in range(13, 18)),
    *(_profile(f"0.{minor}", **_PCP_WITH_DP) for minor in range(18, 22)),
    *(_profile(f"0.{minor}") for minor in range(22, 25)),
    _profile("0.25", **_NO_PCP),
    _profile("0.26", **_V2_ONLY),
)
