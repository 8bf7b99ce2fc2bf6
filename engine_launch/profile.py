"""What Motor knows of one engine at one version. The facts themselves stand in a file for each engine: vllm.py,
vllm_ascend.py, atom.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from engine_launch.model import FatalPattern, NodeLocal, StageMarker, Translation, WarningPattern
from engine_launch.model_facts import ModelKind
from engine_launch.reserved import CONSUMED, READ, RESERVED


class PcpSupport(str, Enum):
    """Whether the engine can do prefill context parallelism (PCP > 1)."""

    NO = "no"
    YES = "yes"
    V2_RUNNER = "v2_runner"  # only with the engine's V2 model runner


class DcpRule(str, Enum):
    """Which decode context parallel sizes are legal."""

    DIVIDES_TP = "divides_tp"  # tp % dcp == 0
    WITH_PCP_EXACT = "with_pcp_exact"  # as above with pcp 1; else dcp in {1, pcp, tp * pcp}


class PcpLimit(str, Enum):
    """What an engine's PCP cannot do, or cannot be combined with."""

    MLA_ONLY = "mla_only"
    NO_PP = "no_pp"
    NO_DCP = "no_dcp"
    DCP_SPARSE_ONLY = "dcp_sparse_only"  # with DCP > 1 only for sparse MLA models
    DCP_AG_RS = "dcp_ag_rs"  # with DCP > 1 only with dcp-comm-backend ag_rs
    NO_LORA = "no_lora"
    NO_SPECULATION = "no_speculation"
    MTP_OR_DSPARK = "mtp_or_dspark"  # no other way of speculation
    SPARSE_EAGER = "sparse_eager"  # sparse MLA models without CUDA graphs, with DCP 1


class PortKind(str, Enum):
    """What a fixed port of an engine process is for."""

    MASTER = "master"  # the torch store of its world
    API = "api"
    DP_RPC = "dp_rpc"  # where data-parallel ranks meet


@dataclass(frozen=True)
class PcpModels:
    """The only models that an engine's PCP is right for."""

    kind: ModelKind
    rule: str  # id of the rule that says so; an operator may override it


@dataclass(frozen=True)
class CommandForm:
    """How an engine's command line is written; the defaults are vLLM's."""

    command: tuple[str, ...] = ("vllm", "serve")
    model_flag: str = ""  # without dashes in front; empty: the model stands right behind the command
    # The option that carries a port, or in deploy.json the first port of a range.
    port_options: Mapping[PortKind, str] = field(
        default_factory=lambda: MappingProxyType(
            {PortKind.MASTER: "master-port", PortKind.API: "port", PortKind.DP_RPC: "data-parallel-rpc-port"}
        )
    )
    port_env: Mapping[str, PortKind] = field(default_factory=dict)  # ports that the environment carries
    consumed: frozenset[str] = CONSUMED  # read from engine_config, and put on the command line by Motor
    read: frozenset[str] = READ  # what Motor and its rules look at: it may not hide in extra_args
    reserved: Mapping[str, str] = field(default_factory=lambda: RESERVED)  # option -> why it is Motor's own


VLLM_FORM = CommandForm()


@dataclass(frozen=True)
class EngineProfile:
    """One engine at one version: allowed shapes, flags, environment, log lines, times.

    `name` is what `engine_profile` in deploy.json takes and what StartCmdMsg carries.
    """

    engine: str  # vllm | vllm_ascend | atom
    version: str  # "0.32": engine versions that begin with it fit
    pcp: PcpSupport
    pcp_with_dp: bool  # PCP and data parallelism in one engine world
    native: frozenset[Translation]  # one-world translations, for mixture-of-experts models
    dcp_rule: DcpRule
    pcp_counts_in_nnodes: bool  # the engine's own `world % nnodes` check counts PCP
    interleave_is_block_with_kv: bool  # with KV transfer and context parallelism: interleave == block size
    pcp_limits: frozenset[PcpLimit] = frozenset()
    pcp_models: PcpModels | None = None  # None: pcp_limits say all there is
    multi_node: bool = True  # one engine world may span several nodes
    # Data-parallel ranks live in one process, and `data-parallel-size` makes no groups of slots.
    dp_in_process: bool = False
    form: CommandForm = VLLM_FORM
    flag_list: str = ""  # file in engine_launch/flag_lists; empty: none is known
    strict_flags: bool = False  # a flag that is not in the list is an error, else a warning
    env: Mapping[str, str] = field(default_factory=dict)
    node_env: Mapping[str, NodeLocal] = field(default_factory=dict)
    refused_env: Mapping[str, str] = field(default_factory=dict)  # name -> why deploy.json may not set it
    stages: tuple[StageMarker, ...] = ()
    worker_stage: str = ""  # a worker that printed this stage's line is up and past rendezvous
    worker_title: str = r"VLLM::Worker"  # regular expression: how the title of a worker process begins
    core_title: str = r"VLLM::EngineCore"  # the same of an engine core, which works itself where it has no workers
    fatal_patterns: tuple[FatalPattern, ...] = ()
    warning_patterns: tuple[WarningPattern, ...] = ()
    health_path: str = "/health"
    metrics_path: str = "/metrics"
    text_prompts: bool = False  # /v1/completions takes text only, no token ids
    # Of metrics_path: any of them moving proves that the engine computes; standing still proves nothing.
    progress_counters: tuple[str, ...] = ()
    drain_flag: str = "shutdown-timeout"  # its value is the drain time in seconds
    stop_seconds: float = 20.0  # SIGTERM to the end of a process that stops well, drain not counted
    notes: tuple[str, ...] = ()  # what an operator of this version should know; shown as warnings
    pcp_notes: tuple[str, ...] = ()  # the same, shown only with PCP > 1

    @property
    def name(self) -> str:
        return f"{self.engine}@{self.version}"
