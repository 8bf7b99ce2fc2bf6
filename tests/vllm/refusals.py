"""Every refusal of Motor's vLLM rules, shown to the real vLLM 0.32: what it says to the same command line.

Usage: python -m tests.vllm.refusals      (prints the table of docs/oracle.md)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vllm.oracle import derive, write_models


@dataclass(frozen=True)
class Shown:
    """A command line that breaks a rule, and what 0.32 says."""

    model: str  # of tests/vllm/oracle.py
    words: str
    says: str  # part of its message
    looks: str = "arguments"  # how far it goes: arguments | model | pcp, as parse_commands.py explains


@dataclass(frozen=True)
class Taken:
    """Motor is stricter: 0.32 takes the command line, and `fact` has this value."""

    words: str
    fact: str
    value: Any
    why: str  # what would go wrong


@dataclass(frozen=True)
class Read:
    """Not of vLLM 0.32, or past what a machine without devices reaches: read in the source that the rule names."""

    why: str


_ASCEND = Read("of vLLM-Ascend, which was shown it once: see its tables")
_PCP = "--prefill-context-parallel-size 2 --tensor-parallel-size 2"

# Rule -> what shows it.
BY_RULE: Mapping[str, Shown | Taken | Read] = {
    "dp-translation": Shown(
        "dense",
        "--tensor-parallel-size 2 --nnodes 4 --node-rank 0 --data-parallel-size 2 --data-parallel-rank 0",
        "Non-MoE models do not support external data parallel",
    ),
    "dcp-tp": Shown(
        "dense", "--tensor-parallel-size 8 --decode-context-parallel-size 3", "must be divisible by dcp_size"
    ),
    "vllm-nnodes": Shown("dense", "--tensor-parallel-size 8 --nnodes 3", "must evenly divide"),
    "vllm-nnodes-without-pcp": Read("0.32 counts PCP; 0.29 says so itself, see the table above"),
    "vllm-master-port": Taken(
        "--tensor-parallel-size 2 --nnodes 2", "master_port", 29501, "every group of a host would get this port"
    ),
    "vllm-executor": Shown(
        "dense",
        "--tensor-parallel-size 2 --nnodes 2 --distributed-executor-backend ray",
        "nnodes > 1 can only be set when distributed executor backend is mp",
    ),
    "vllm-native-backend": Shown(
        "moe", "--nnodes 2 --data-parallel-backend ray", "requires `--data-parallel-backend mp`"
    ),
    "vllm-ranks-in-process": Taken(
        "--data-parallel-size 8 --data-parallel-size-local 3",
        "data_parallel_size_local",
        3,
        "it would wait for ranks that nobody holds",
    ),
    "vllm-expert-model": Shown(
        "dense", "--enable-expert-parallel", "Number of experts in the model must be greater than 0", "model"
    ),
    "vllm-heads": Shown("dense", "--tensor-parallel-size 5", "must be divisible by tensor parallel size (5)", "model"),
    "vllm-pp-layers": Taken(
        "--pipeline-parallel-size 4", "pipeline_parallel_size", 4, "a stage of a model of 2 layers stays empty"
    ),
    "vllm-eplb": Read("the CPU build refuses expert load balancing before it looks at expert parallelism"),
    "vllm-fault-tolerance": Shown(
        "moe", "--enable-fault-tolerance", "Fault tolerance requires external load balancer mode"
    ),
    "vllm-certificate": Taken(
        "--ssl-keyfile /k",
        "data_parallel_size",
        1,
        "it would load the model, and end when it begins to serve",
    ),
    "vllm-pcp-missing": Read(
        "of 0.25 and older: their arguments pass, their attention asserts that it can do PCP; 0.12 beneath vLLM-Ascend "
        "says so itself, see the tables of vLLM-Ascend"
    ),
    "vllm-pcp-pp": Read("of 0.26 to 0.31, and of vLLM-Ascend's V2 runner"),
    "vllm-pcp-dcp": Read("of vLLM-Ascend's V2 runner"),
    "vllm-pcp-lora": Shown("mla", f"{_PCP} --enable-lora", "MRV2 PCP does not support LoRA yet", "pcp"),
    "vllm-pcp-speculation": Shown(
        "mla",
        f'{_PCP} --speculative-config {{"method":"ngram","num_speculative_tokens":2}}',
        "MRV2 PCP only supports DSpark or single-module MTP",
        "pcp",
    ),
    "vllm-pcp-model": Shown("dense", _PCP, "MRV2 PCP currently supports MLA models only", "pcp"),
    "vllm-pcp-dcp-model": Shown(
        "mla", f"{_PCP} --decode-context-parallel-size 2", "MRV2 PCP + DCP supports sparse MLA models only", "pcp"
    ),
    "vllm-pcp-dcp-backend": Shown(
        "sparse",
        f"{_PCP} --decode-context-parallel-size 2 --dcp-comm-backend a2a",
        "MRV2 PCP + DCP requires dcp_comm_backend='ag_rs'",
        "pcp",
    ),
    "vllm-pcp-graphs": Shown("sparse", _PCP, "MRV2 sparse MLA PCP does not support CUDA graphs yet", "pcp"),
    "ascend-pcp-runner": _ASCEND,
    "vllm-dcp-pcp": Shown(
        "dense",
        "--tensor-parallel-size 8 --prefill-context-parallel-size 2 --decode-context-parallel-size 4",
        "valid DCP sizes are [1, 2, 16]",
    ),
    "vllm-dcp-kv-heads": Shown(
        "gqa",
        "--tensor-parallel-size 8 --decode-context-parallel-size 8",
        "exceeds the maximum supported value (2)",
        "model",
    ),
    "vllm-interleave-size": Read("Motor's own: a stripe of no token is none"),
    "vllm-interleave-block": Taken(
        "--tensor-parallel-size 8 --block-size 128 --cp-kv-cache-interleave-size 48",
        "cp_kv_cache_interleave_size",
        48,
        "without DCP nobody looks; with it the engine asserts that it divides the block, after the model is loaded",
    ),
    "ascend-interleave-is-block": _ASCEND,
    "ascend-sparse-dcp": _ASCEND,
    "vllm-nixl-dcp": Read("an assertion when the whole configuration is made, which the CPU build refuses earlier"),
    "vllm-nixl-pcp": Read("raised by the connector of a running engine, and PCP does not run on CPUs"),
    "ascend-cp-runner": _ASCEND,
    "ascend-mtp-stages": _ASCEND,
    "ascend-flashcomm-tp": _ASCEND,
    "ascend-flashcomm-experts": _ASCEND,
    "ascend-blocking-graphs": _ASCEND,
}

# Refusals of other checks (reserved options, the list of flags): name -> what shows it.
OTHERS: Mapping[str, Shown | Taken] = {
    "ranks that restart in each group": Shown(
        "moe",
        "--tensor-parallel-size 8 --nnodes 2 --node-rank 0 --data-parallel-size 4 --data-parallel-rank 1",
        "requires `--data-parallel-size-local 1`",
    ),
    "api servers without an api": Shown("dense", "--headless --api-server-count 2", "api_server_count with headless"),
    "unknown flag": Shown("dense", "--max-modl-len 5", "unrecognized arguments: --max-modl-len"),
    "abbreviated rank": Taken(
        "--tensor-parallel-size 2 --nnodes 2 --node-ran 1", "node_rank", 1, "the rank would not be Motor's"
    ),
    "attached value": Taken("--tensor-parallel-size 2 -n2 -r1", "node_rank", 1, "the rank would not be Motor's"),
    "beginning of a short flag": Taken("-t 4", "world_size", 4, "Motor would lease devices for another size"),
}


def ask() -> dict[str, dict[str, Any]]:
    """vLLM's answer to each command line, in one child process."""
    shown = {name: each for name, each in {**BY_RULE, **OTHERS}.items() if not isinstance(each, Read)}
    with tempfile.TemporaryDirectory() as folder:
        models = write_models(Path(folder))
        commands, looks = {}, {}
        for name, each in shown.items():
            model = models[each.model if isinstance(each, Shown) else "dense"]
            commands[name] = ["vllm", "serve", str(model), *each.words.split(), "--skip-tokenizer-init"]
            looks[name] = each.looks if isinstance(each, Shown) else "arguments"
        return derive(commands, looks=looks)


def table() -> str:
    """The answers as Markdown."""
    found = ask()
    lines = ["| refusal of Motor's | what vLLM 0.32 says to it |", "|---|---|"]
    for name, each in {**BY_RULE, **OTHERS}.items():
        if isinstance(each, Shown):
            says = "refused: `" + each.says.replace("`", "") + "`"
            assert each.says in " ".join(found[name].get("error", "").split()), (name, found[name])
        elif isinstance(each, Taken):
            says = f"takes it ({each.fact} {each.value}); Motor is stricter: {each.why}"
        else:
            says = f"not asked: {each.why}"
        lines.append(f"| {name} | {says} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
