"""ATOM (ROCm): one process on one node. Paths in comments are below its package folder, of commit ffdf3bb5d, which is
323 commits after v0.1.6-rc0 and calls itself 0.1.6rc1.dev323.

Up to 0.1.5 ATOM has no prefill context parallelism (PR #1220 brought it, 2026-07-01): only later versions stand here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine_launch.atom_log import FATAL_PATTERNS, STAGES, WORKER_STAGE
from engine_launch.model import NodeLocal
from engine_launch.model_facts import DEEPSEEK_V4
from engine_launch.profile import CommandForm, DcpRule, EngineProfile, PcpModels, PcpSupport, PortKind
from engine_launch.refused_env import ADDRESS, DEVICES, SHARED, TOPOLOGY
from engine_launch.reserved import CONSUMED

ENV: Mapping[str, str] = MappingProxyType(
    {
        # utils/__init__.py:175-195: processes get titles, which wipes /proc/PID/environ, where Motor's mark stands.
        "SPT_NOENV": "1",
    }
)

NODE_ENV: Mapping[str, NodeLocal] = MappingProxyType(
    {
        # model_runner.py:905-916: the process takes devices 0.. of those that it sees, with no choice of its own.
        "HIP_VISIBLE_DEVICES": NodeLocal.DEVICES,
        # utils/network.py get_ip: the address that KV transfer tells its peers.
        "ATOM_HOST_IP": NodeLocal.ADDRESS,
    }
)

_PORT = "Motor leases a port of its own for each engine"

REFUSED_ENV: Mapping[str, str] = MappingProxyType(
    {
        # config.py:900-913 overwrites the command line with them.
        "ATOM_DP_SIZE": TOPOLOGY,
        "ATOM_DP_RANK": TOPOLOGY,
        "ATOM_DP_RANK_LOCAL": TOPOLOGY,
        "ATOM_DP_MASTER_IP": TOPOLOGY,
        "ATOM_DP_MASTER_PORT": _PORT,
        "ATOM_DP_BASE_PORT": _PORT,
        **SHARED,
        "ATOM_HOST_IP": ADDRESS,
        "ROCR_VISIBLE_DEVICES": DEVICES,
        "ATOM_PROCESS_NAME_PREFIX": "workers are found by the titles of their processes",
        # entrypoints/openai_server.py:12: another server, with other flags and another log.
        "USE_ATOMESH_ENTRYPOINTS": "it starts a router in the engine's place",
    }
)

FORM = CommandForm(
    # entrypoints/openai_server.py: raises the limit of open files first, then the server's main.
    command=("python", "-m", "atom.entrypoints.openai_server"),
    model_flag="model",
    port_options=MappingProxyType(
        {PortKind.MASTER: "master-port", PortKind.API: "server-port", PortKind.DP_RPC: "data-parallel-rpc-port"}
    ),
    # Without them the torch store takes a free port of its own choice long before it listens there (config.py:831),
    # and the data-parallel ranks of all engines of a node meet at 29500 (config.py:828).
    port_env=MappingProxyType({"ATOM_DP_BASE_PORT": PortKind.MASTER, "ATOM_DP_MASTER_PORT": PortKind.DP_RPC}),
    consumed=CONSUMED - {"port", "data-parallel-size-local"} | {"server-port"},
    read=CONSUMED - {"data-parallel-size-local"}
    | {
        "server-port",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "prefill-context-parallel-size",
        "decode-context-parallel-size",
        "enable-expert-parallel",
        "enable-dp-attention",
        "enable-tbo",
        "enable-chunked-prefill",
        "max-num-batched-tokens",
        "max-model-len",
        "block-size",
        "dcp-config",
        "moe-backend",
        "method",
        "kv-transfer-config",
    },
    reserved=MappingProxyType(
        {
            # It ends in MASTER_PORT of the workers (model_runner.py:927), which nothing there reads.
            "port": "in ATOM --port is a port inside the engine; the API's is server-port",
        }
    ),
)

# Guide (docs/context_parallel_guide.md); the engine does not look.
PCP_MODELS = PcpModels(DEEPSEEK_V4, "atom-pcp-model")

# entrypoints/openai/metrics.py; prometheus adds the ending. All three move when a request ends, not before
# (model_engine/scheduler.py:2396-2400).
PROGRESS_COUNTERS = (
    "atom:requests_finished_total",
    "atom:prompt_tokens_total",
    "atom:generation_tokens_total",
)

PROFILES: tuple[EngineProfile, ...] = (
    EngineProfile(
        engine="atom",
        version="0.1.6",
        pcp=PcpSupport.YES,
        pcp_models=PCP_MODELS,
        # DP-attention is refused beside PCP (llm_engine.py:69-78), plain data parallelism is not.
        pcp_with_dp=True,
        native=frozenset(),
        dcp_rule=DcpRule.DIVIDES_TP,  # config.py:1645-1649
        pcp_counts_in_nnodes=True,
        interleave_is_block_with_kv=False,
        # model_runner.py:905-916: every rank's device is counted on this node, and there is no node rank.
        multi_node=False,
        dp_in_process=True,  # engine_core_mgr.py:152-220: one engine core for each rank, below one process
        form=FORM,
        flag_list="atom-0.1.6.json",
        strict_flags=True,
        env=ENV,
        node_env=NODE_ENV,
        refused_env=REFUSED_ENV,
        stages=STAGES,
        worker_stage=WORKER_STAGE,
        # async_proc.py:106-110; the number counts tensor and prefill-context ranks together.
        worker_title=r"ATOM::(?:DP\d+)?TP\d",
        core_title=r"ATOM::EngineCore",
        fatal_patterns=FATAL_PATTERNS,
        progress_counters=PROGRESS_COUNTERS,
        text_prompts=True,  # entrypoints/openai/protocol.py:200
        # No option for it: uvicorn waits for open requests, then 5 s for the engine cores (engine_core_mgr.py:526-537).
        drain_flag="",
    ),
)
