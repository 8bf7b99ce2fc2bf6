"""The oracle: argv of Motor's, put through the argument code of a real vLLM (parse_commands.py), and what it derived
compared with what Motor meant."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from controller.config.render import InstanceRendering, SlotRendering
from demo.engine_environment import ensure_engine_environment
from engine_launch.translation import world_place
from tests.vllm.older_wheels import run_with

SCRIPT = Path(__file__).with_name("parse_commands.py")

_DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1536,
    "intermediate_size": 3072,
    "num_hidden_layers": 2,
    "num_attention_heads": 48,
    "num_key_value_heads": 48,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
_MOE = {
    **_DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}
# Multi-head latent attention; `sparse` has the indexer of DeepSeek-V3.2.
_MLA = {
    **_DENSE,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 512,
    "q_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
}
_SPARSE = {
    **_MLA,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "dense": _DENSE,
    "gqa": {**_DENSE, "num_key_value_heads": 4},
    "moe": _MOE,
    "mla": _MLA,
    "sparse": _SPARSE,
}


def write_models(folder: Path) -> dict[str, Path]:
    """Folders with a config.json each, by name."""
    for name, config in CONFIGS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return {name: folder / name for name in CONFIGS}


def address_of(placeholder: str) -> str:
    """A literal for an imaginary node: `<prefill-0/1/0>` -> fd00::2:1 (an IPv6 literal has to work everywhere)."""
    _, dp_rank, node_rank = placeholder.strip("<>").split("/")
    return f"fd00::{int(dp_rank) + 1}:{int(node_rank) + 1}"


def real_argv(slot: SlotRendering, models: Mapping[str, Path], instance: InstanceRendering) -> list[str]:
    """A planned command with addresses for the placeholders and a model that is there."""
    model = models["moe" if instance.spec.shape.expert_parallel else "dense"]
    words = [address_of(word) if word.startswith("<") else word for word in slot.command.argv]
    return [*words[:2], str(model), *words[3:], "--load-format", "dummy", "--skip-tokenizer-init"]


def derive(
    commands: Mapping[str, list[str]], version: str | None = None, looks: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """What vLLM makes of each command line, in one child process.

    `version` None: the engine's environment. `looks` says how far each goes; parse_commands.py explains it.
    """
    job = json.dumps({"commands": commands, "looks": looks or {}})
    output = run_with(version, SCRIPT, stdin=job) if version else _run_installed(job)
    result: dict[str, dict[str, Any]] = json.loads(output.splitlines()[-1])
    return result


def _run_installed(job: str) -> str:
    environment = ensure_engine_environment(print)
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PATH": "/usr/bin:/bin"}
    command = [str(environment.python), str(SCRIPT)]
    done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=300, env=quiet, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def disagreements(
    found: Mapping[str, Any], instance: InstanceRendering, slot: SlotRendering, optional: Collection[str] = ()
) -> list[str]:
    """Where vLLM derived other ranks, worlds or addresses than Motor meant. Only an `optional` fact may be missing."""
    shape, translation = instance.spec.shape, instance.spec.translation
    place = world_place(shape, translation, slot.slot.dp_rank, slot.slot.node_rank)
    meant: dict[str, Any] = {
        "headless": slot.command.headless,
        "world_size": shape.group_world,
        "local_world_size": slot.command.expected_workers // shape.dp_local,
        "nnodes": place.nnodes,
        "node_rank": place.node_rank,
        "nnodes_within_dp": shape.nnodes,
        "node_rank_within_dp": slot.slot.node_rank,
        "data_parallel_size": shape.dp_local * (shape.dp if translation.one_world else 1),
        "data_parallel_size_local": shape.dp_local,
    }
    if translation.one_world:
        meant["data_parallel_rank"] = slot.slot.dp_rank * shape.dp_local
        meant["data_parallel_external_lb"] = place.dp_rank is not None
        meant["data_parallel_hybrid_lb"] = place.hybrid
        meant["data_parallel_master_ip"] = address_of(slot.assignment.master_addr)
        meant["data_parallel_rpc_port"] = slot.assignment.dp_rpc_port
    if place.nnodes > 1:
        meant["master_addr"] = address_of(slot.assignment.master_addr)
        meant["master_port"] = slot.assignment.master_port
        meant["distributed_executor_backend"] = "mp"
    if not slot.command.headless:
        meant["host"], meant["port"] = address_of(slot.assignment.address), slot.assignment.api_port
    return [
        f"{name}: vLLM has {found.get(name, 'no such fact')}, Motor meant {value}"
        for name, value in meant.items()
        if found.get(name, value if name in optional else None) != value
    ]
