"""The oracle: every pinned argv of an upstream-vLLM profile goes through the real parser, and vLLM derives from it
the ranks, worlds and addresses that Motor meant."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.config.render import InstanceRendering, SlotRendering, render_plan
from demo.engine_environment import ensure_engine_environment
from engine_launch.translation import world_place
from tests.golden_shapes import SHAPES, load_shape

pytestmark = pytest.mark.vllm

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


def upstream_slots() -> Iterator[tuple[str, InstanceRendering, SlotRendering]]:
    for shape in SHAPES:
        for instance in render_plan(load_shape(shape)).instances:
            if instance.spec.profile.startswith("vllm@"):
                for slot in instance.slots:
                    yield f"{shape}:{slot.slot}", instance, slot


def address_of(placeholder: str) -> str:
    """A literal for an imaginary node: `<prefill-0/1/0>` -> fd00::101:0 (an IPv6 literal has to work everywhere)."""
    _, dp_rank, node_rank = placeholder.strip("<>").split("/")
    return f"fd00::{int(dp_rank) + 1}:{int(node_rank) + 1}"


def real_argv(slot: SlotRendering, model: Path) -> list[str]:
    words = [address_of(word) if word.startswith("<") else word for word in slot.command.argv]
    return [*words[:2], str(model), *words[3:], "--load-format", "dummy", "--skip-tokenizer-init"]


def derive(commands: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """One child process for all command lines."""
    environment = ensure_engine_environment(print)
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [str(environment.python), str(SCRIPT)],
        input=json.dumps({"commands": commands}),
        capture_output=True,
        text=True,
        timeout=300,
        env=quiet,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, config in (("dense", _DENSE), ("moe", _MOE)):
        folders[name] = tmp_path_factory.mktemp(name)
        (folders[name] / "config.json").write_text(json.dumps(config))
    return folders


@pytest.fixture(scope="module")
def derived(models: dict[str, Path]) -> dict[str, dict[str, Any]]:
    commands = {
        name: real_argv(slot, models["moe" if instance.spec.shape.expert_parallel else "dense"])
        for name, instance, slot in upstream_slots()
    }
    return derive(commands)


@pytest.mark.parametrize("name", [name for name, _, _ in upstream_slots()])
def test_vllm_derives_what_motor_meant(name: str, derived: dict[str, dict[str, Any]]) -> None:
    instance, slot = next((i, s) for n, i, s in upstream_slots() if n == name)
    found = derived[name]
    assert "error" not in found, found["error"]
    shape, translation = instance.spec.shape, instance.spec.translation
    place = world_place(shape, translation, slot.slot.dp_rank, slot.slot.node_rank)
    assert found["headless"] == slot.command.headless
    assert found["world_size"] == shape.group_world
    assert found["local_world_size"] == slot.command.expected_workers
    assert (found["nnodes"], found["node_rank"]) == (place.nnodes, place.node_rank)
    assert (found["nnodes_within_dp"], found["node_rank_within_dp"]) == (shape.nnodes, slot.slot.node_rank)
    assert found["data_parallel_size"] == (shape.dp if translation.one_world else 1)
    if translation.one_world:
        assert found["data_parallel_rank"] == slot.slot.dp_rank
        assert found["data_parallel_external_lb"] == (place.dp_rank is not None)
        assert found["data_parallel_master_ip"] == address_of(slot.assignment.master_addr)
        assert found["data_parallel_rpc_port"] == slot.assignment.dp_rpc_port
    if place.nnodes > 1:
        assert found["master_addr"] == address_of(slot.assignment.master_addr)
        assert found["master_port"] == slot.assignment.master_port
        assert found["distributed_executor_backend"] == "mp"
    if not slot.command.headless:
        assert (found["host"], found["port"]) == (address_of(slot.assignment.address), slot.assignment.api_port)


# What Motor refuses is refused by vLLM: name -> (model, words, part of vLLM's message).
REFUSED_BY_VLLM = {
    "ranks that restart in each group": (
        "moe",
        "--tensor-parallel-size 8 --nnodes 2 --node-rank 0 --data-parallel-size 4 --data-parallel-rank 1",
        "requires `--data-parallel-size-local 1`",
    ),
    "native for a dense model": (
        "dense",
        "--tensor-parallel-size 2 --nnodes 4 --node-rank 0 --data-parallel-size 2 --data-parallel-rank 0",
        "Non-MoE models do not support external data parallel",
    ),
    "workers over nodes": ("dense", "--tensor-parallel-size 8 --nnodes 3", "must evenly divide"),
    "dcp": ("dense", "--tensor-parallel-size 8 --decode-context-parallel-size 3", "must be divisible by dcp_size"),
    "dcp beside pcp": (
        "dense",
        "--tensor-parallel-size 8 --prefill-context-parallel-size 2 --decode-context-parallel-size 4",
        "valid DCP sizes are [1, 2, 16]",
    ),
    "ray in one world": ("moe", "--nnodes 2 --data-parallel-backend ray", "requires `--data-parallel-backend mp`"),
    "api servers without an api": ("dense", "--headless --api-server-count 2", "api_server_count with headless"),
    "unknown flag": ("dense", "--max-modl-len 5", "unrecognized arguments: --max-modl-len"),
}

# What Motor refuses although vLLM takes it: it would change ranks or sizes behind Motor's back.
TAKEN_BY_VLLM = {
    "abbreviated rank": ("--tensor-parallel-size 2 --nnodes 2 --node-ran 1", ("node_rank", 1)),
    "attached value": ("--tensor-parallel-size 2 -n2 -r1", ("node_rank", 1)),
    "beginning of a short flag": ("-t 4", ("world_size", 4)),
}


@pytest.fixture(scope="module")
def odd(models: dict[str, Path]) -> dict[str, dict[str, Any]]:
    def argv(model: str, words: str) -> list[str]:
        return ["vllm", "serve", str(models[model]), *words.split(), "--skip-tokenizer-init"]

    refused = {name: argv(model, words) for name, (model, words, _) in REFUSED_BY_VLLM.items()}
    return derive({**refused, **{name: argv("dense", words) for name, (words, _) in TAKEN_BY_VLLM.items()}})


@pytest.mark.parametrize("name", REFUSED_BY_VLLM)
def test_vllm_refuses_what_motor_refuses(name: str, odd: dict[str, dict[str, Any]]) -> None:
    assert REFUSED_BY_VLLM[name][2] in odd[name].get("error", "accepted")


@pytest.mark.parametrize("name", TAKEN_BY_VLLM)
def test_vllm_completes_what_motor_refuses_to_guess(name: str, odd: dict[str, dict[str, Any]]) -> None:
    field, value = TAKEN_BY_VLLM[name][1]
    assert odd[name].get(field) == value, odd[name]
