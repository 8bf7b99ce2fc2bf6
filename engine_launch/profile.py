"""What Motor knows of one engine at one version. The facts themselves stand in vllm.py and vllm_ascend.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from engine_launch.model import FatalPattern, NodeLocal, StageMarker, Translation, WarningPattern


class PcpSupport(str, Enum):
    """Whether the engine can do prefill context parallelism (PCP > 1)."""

    NO = "no"
    YES = "yes"
    V2_RUNNER = "v2_runner"  # only with the engine's V2 model runner


class DcpRule(str, Enum):
    """Which decode context parallel sizes are legal."""

    DIVIDES_TP = "divides_tp"  # tp % dcp == 0
    WITH_PCP_EXACT = "with_pcp_exact"  # as above with pcp 1; else dcp in {1, pcp, tp * pcp}


@dataclass(frozen=True)
class EngineProfile:
    """One engine at one version: allowed shapes, flags, environment, log lines, times.

    `name` is what `engine_profile` in deploy.json takes and what StartCmdMsg carries.
    """

    engine: str  # vllm | vllm_ascend
    version: str  # "0.32": engine versions that begin with it fit
    pcp: PcpSupport
    pcp_with_dp: bool  # PCP and data parallelism in one engine world
    native: frozenset[Translation]  # one-world translations, for mixture-of-experts models
    dcp_rule: DcpRule
    pcp_counts_in_nnodes: bool  # the engine's own `world % nnodes` check counts PCP
    interleave_is_block_with_kv: bool  # with KV transfer and context parallelism: interleave == block size
    command: tuple[str, ...] = ("vllm", "serve")
    flag_list: str = ""  # file in engine_launch/flag_lists; empty: none is known
    strict_flags: bool = False  # a flag that is not in the list is an error, else a warning
    env: Mapping[str, str] = field(default_factory=dict)
    node_env: Mapping[str, NodeLocal] = field(default_factory=dict)
    refused_env: Mapping[str, str] = field(default_factory=dict)  # name -> why deploy.json may not set it
    stages: tuple[StageMarker, ...] = ()
    worker_stage: str = ""  # a worker that printed this stage's line is up and past rendezvous
    fatal_patterns: tuple[FatalPattern, ...] = ()
    warning_patterns: tuple[WarningPattern, ...] = ()
    health_path: str = "/health"
    metrics_path: str = "/metrics"
    # Of metrics_path: any of them moving proves that the engine computes; standing still proves nothing.
    progress_counters: tuple[str, ...] = ()
    drain_flag: str = "shutdown-timeout"  # its value is the drain time in seconds
    stop_seconds: float = 20.0  # SIGTERM to the end of a process that stops well, drain not counted
    notes: tuple[str, ...] = ()  # what an operator of this version should know; shown as warnings
    pcp_notes: tuple[str, ...] = ()  # the same, shown only with PCP > 1

    @property
    def name(self) -> str:
        return f"{self.engine}@{self.version}"
