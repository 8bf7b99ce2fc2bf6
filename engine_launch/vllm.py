"""Upstream vLLM (CUDA, CPU): one profile for each version. Paths in comments are below its package folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine_launch.model import NodeLocal, Translation
from engine_launch.profile import DcpRule, EngineProfile, PcpLimit, PcpSupport
from engine_launch.refused_env import ADDRESS, SHARED, TOPOLOGY
from engine_launch.vllm_log import FATAL_PATTERNS, STAGES, WARNING_PATTERNS, WORKER_STAGE

BOTH_NATIVE = frozenset({Translation.NATIVE_EXTERNAL, Translation.NATIVE_INTERNAL})

ENV: Mapping[str, str] = MappingProxyType(
    {
        # vLLM changes process titles and so wipes /proc/PID/environ, where Motor's mark of left-overs stands.
        "SPT_NOENV": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
)

NODE_ENV: Mapping[str, NodeLocal] = MappingProxyType(
    {
        # utils/network_utils.py:52-91: broadcast queues bind here; without it vLLM guesses an interface.
        "VLLM_HOST_IP": NodeLocal.ADDRESS,
        "GLOO_SOCKET_IFNAME": NodeLocal.INTERFACE,
        "TP_SOCKET_IFNAME": NodeLocal.INTERFACE,
        "NCCL_SOCKET_IFNAME": NodeLocal.INTERFACE,
        "CUDA_VISIBLE_DEVICES": NodeLocal.DEVICES,
    }
)

_LOG = "start-up stages and failures are read from the engine's log lines"

REFUSED_ENV: Mapping[str, str] = MappingProxyType(
    {
        # config/parallel.py:1003-1009 reads VLLM_DP_*.
        "VLLM_DP_SIZE": TOPOLOGY,
        "VLLM_DP_RANK": TOPOLOGY,
        "VLLM_DP_RANK_LOCAL": TOPOLOGY,
        "VLLM_DP_MASTER_IP": TOPOLOGY,
        "VLLM_DP_MASTER_PORT": TOPOLOGY,
        **SHARED,
        "VLLM_HOST_IP": ADDRESS,
        "VLLM_LOGGING_PREFIX": _LOG,
        "VLLM_LOGGING_CONFIG_PATH": _LOG,
        "VLLM_CONFIGURE_LOGGING": _LOG,
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "a master whose engine died has to end, or nothing restarts it",
    }
)

# With these levels the stage lines (INFO) are missing, and a follower is ready only by its stage lines.
SILENT_LOG_LEVELS = frozenset({"WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"})

# v1/metrics/loggers.py; prometheus adds the endings. The last one counts the engine's steps.
PROGRESS_COUNTERS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:iteration_tokens_total_count",
)

# SIGTERM to a headless process: 5 s of grace, 4 s of SIGTERM, SIGKILL of the worker; measured as a whole.
STOP_SECONDS = 13.4


# v1/worker/gpu/pcp_manager.py: validate_config, by the version that has the limit first.
_ALWAYS = frozenset({PcpLimit.MLA_ONLY, PcpLimit.NO_LORA})
_PCP_LIMITS_26 = _ALWAYS | {PcpLimit.NO_PP, PcpLimit.NO_SPECULATION, PcpLimit.SPARSE_EAGER}
_PCP_LIMITS_33 = _ALWAYS | {PcpLimit.MTP_OR_DSPARK, PcpLimit.DCP_SPARSE_ONLY, PcpLimit.DCP_AG_RS}
_PCP_LIMITS_32 = _PCP_LIMITS_33 | {PcpLimit.SPARSE_EAGER}  # 0.33 has graphs for some sparse models
_PCP_LIMITS_30 = _PCP_LIMITS_32 | {PcpLimit.NO_PP}


def flag_list_of(version: str) -> str:
    """The list that make_flag_list.py wrote for a vLLM of this version."""
    return f"vllm-{version}.json"


def _profile(version: str, **facts: object) -> EngineProfile:
    base: dict[str, object] = {
        "pcp": PcpSupport.YES,
        "pcp_with_dp": True,
        "native": BOTH_NATIVE,
        "dcp_rule": DcpRule.WITH_PCP_EXACT,  # config/parallel.py:590-603 of 0.32
        "pcp_counts_in_nnodes": True,  # engine/arg_utils.py:2358-2372 of 0.32; since 0.30 (PR #55111)
        "interleave_is_block_with_kv": False,
        "pcp_limits": _PCP_LIMITS_32,
        "flag_list": flag_list_of(version),
        "strict_flags": True,
        "env": ENV,
        "node_env": NODE_ENV,
        "refused_env": REFUSED_ENV,
        "stages": STAGES,
        "worker_stage": WORKER_STAGE,
        "fatal_patterns": FATAL_PATTERNS,
        "warning_patterns": WARNING_PATTERNS,
        "progress_counters": PROGRESS_COUNTERS,
        "stop_seconds": STOP_SECONDS,
    }
    return EngineProfile(engine="vllm", version=version, **{**base, **facts})  # type: ignore[arg-type]


# The flag exists, and no attention implementation behind it: v1/worker/cp_utils.py asserts `supports_pcp`, which is
# False wherever it is set; config/vllm.py of 0.24 and 0.25 lists it among what the V2 runner cannot do.
_NO_PCP: dict[str, object] = {
    "pcp": PcpSupport.NO,
    "pcp_with_dp": False,
    "dcp_rule": DcpRule.DIVIDES_TP,  # config/parallel.py:490 of 0.23, an assertion
    "pcp_counts_in_nnodes": False,
    "pcp_limits": frozenset(),
}
# The first PCP of upstream's own (v1/worker/gpu/pcp_manager.py). "PCP does not support data parallelism yet.":
# config/parallel.py:509 of 0.26, :528 of 0.27.1, :549 of 0.29.
_FIRST_PCP: dict[str, object] = {
    "pcp_with_dp": False,
    "pcp_counts_in_nnodes": False,
    "pcp_limits": _PCP_LIMITS_26,
    "pcp_notes": ("upstream's PCP is young here, and was never seen working; 0.30 and newer can do more",),
}

PROFILES: tuple[EngineProfile, ...] = (
    *(_profile(f"0.{minor}", **_NO_PCP) for minor in range(18, 26)),
    *(_profile(f"0.{minor}", **_FIRST_PCP) for minor in range(26, 30)),
    _profile("0.30", pcp_limits=_PCP_LIMITS_30),
    _profile("0.31", pcp_limits=_PCP_LIMITS_30),
    _profile("0.32"),
    _profile("0.33", pcp_limits=_PCP_LIMITS_33),
)
