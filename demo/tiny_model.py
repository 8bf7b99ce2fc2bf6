"""Tiny models for tests, made in a second without the engine's environment and without a download.

Usage: python -m demo.tiny_model dense|moe        (prints the model's folder as the last line)

dense: Llama with random weights; runs, and repeats its tokens
moe: mixture of experts, configuration and tokenizer only, for `--load-format dummy`

The sizes matter: with a head_dim of 16 vLLM's attention kernel for CPUs fails at the first request, and 4
heads over 2 key-value heads split for tensor parallelism of 1 and 2.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.cache import Log, entry, exclusive, publish, workspace
from demo.command_line import run_program
from demo.stopping import check_stop

SEED = 1
HIDDEN = 256
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
INTERMEDIATE = 512
LAYERS = 2
CONTEXT = 2048

BEGIN, END = "<|begin|>", "<|end|>"
BYTE_TOKENS = 256
BEGIN_ID, END_ID = BYTE_TOKENS, BYTE_TOKENS + 1
VOCABULARY = 320  # a multiple of 64, so that no engine pads it
PRINTABLE = range(0x20, 0x7F)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": CONTEXT,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "use_cache": True,
    "bos_token_id": BEGIN_ID,
    "eos_token_id": END_ID,
    "pad_token_id": END_ID,
    "torch_dtype": "float32",
}
DENSE_CONFIG = {**_COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}
MOE_CONFIG = {
    **_COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "router_aux_loss_coef": 0.001,
    "output_router_logits": False,
    "use_sliding_window": False,
    "sliding_window": None,
}


@dataclass(frozen=True)
class Tensor:
    """One float32 weight in row-major order."""

    shape: tuple[int, ...]
    values: array[float]


def ensure_dense_model(log: Log) -> Path:
    """Folder of a two-layer Llama with random weights that are the same everywhere.

    Bytes are its tokens. It never ends an answer by itself and answers in printable characters, so a request
    for n tokens gets n tokens and each can be shown. Raises StopRequested.
    """
    return _ensure("dense", _write_dense, log)


def ensure_moe_model(log: Log) -> Path:
    """Folder of a two-layer mixture of experts without weights, for `--load-format dummy`.

    Raises StopRequested.
    """
    return _ensure("moe", _write_moe, log)


def _ensure(kind: str, write: Callable[[Path], None], log: Log) -> Path:
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    name = f"tiny-{kind}-{digest}"
    if entry(name).exists():
        return entry(name)
    with exclusive(name, log):
        if entry(name).exists():
            return entry(name)
        with workspace(name) as work:
            log(f"making {entry(name)}")
            folder = work / "model"
            folder.mkdir()
            write(folder)
            return publish(folder, name)


def _write_dense(folder: Path) -> None:
    _write_json(folder / "config.json", DENSE_CONFIG)
    _write_tokenizer(folder)
    _write_safetensors(folder / "model.safetensors", dict(_dense_weights(random.Random(SEED))))


def _write_moe(folder: Path) -> None:
    _write_json(folder / "config.json", MOE_CONFIG)
    _write_tokenizer(folder)


def _dense_weights(source: random.Random) -> Iterator[tuple[str, Tensor]]:
    # Only random(), whose sequence Python promises to keep for a seed, unlike that of gauss().
    def matrix(rows: int, columns: int, scale: float) -> Tensor:
        check_stop()
        values = (scale * (2 * source.random() - 1) for _ in range(rows * columns))
        return Tensor((rows, columns), array("f", values))

    def norm() -> Tensor:
        return Tensor((HIDDEN,), array("f", [1.0]) * HIDDEN)

    def linear(outputs: int, inputs: int) -> Tensor:
        return matrix(outputs, inputs, (3 / inputs) ** 0.5)

    yield "model.embed_tokens.weight", matrix(VOCABULARY, HIDDEN, 1.0)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", norm()
        yield f"{at}.self_attn.q_proj.weight", linear(HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.k_proj.weight", linear(KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.v_proj.weight", linear(KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.o_proj.weight", linear(HIDDEN, HEADS * HEAD_DIM)
        yield f"{at}.post_attention_layernorm.weight", norm()
        yield f"{at}.mlp.gate_proj.weight", linear(INTERMEDIATE, HIDDEN)
        yield f"{at}.mlp.up_proj.weight", linear(INTERMEDIATE, HIDDEN)
        yield f"{at}.mlp.down_proj.weight", linear(HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", norm()
    yield "lm_head.weight", _printable_only(linear(VOCABULARY, HIDDEN))


def _printable_only(head: Tensor) -> Tensor:
    """Zero the rows of tokens that shall not win: they score 0, the best of 95 random ones scores more."""
    for token in range(VOCABULARY):
        if token not in PRINTABLE:
            head.values[token * HIDDEN : (token + 1) * HIDDEN] = array("f", [0.0]) * HIDDEN
    return head


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """The safetensors format: length of the header, the header as JSON, then the numbers, little-endian."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + 4 * len(tensor.values)
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            if sys.byteorder == "big":
                tensor.values.byteswap()
            file.write(tensor.values.tobytes())


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary, as GPT-2 laid it down.

    Printable bytes stand for themselves, the others for the characters from U+0100 on.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    replaced = [byte for byte in range(BYTE_TOKENS) if byte not in kept]
    return [chr(byte) if byte in kept else chr(0x100 + replaced.index(byte)) for byte in range(BYTE_TOKENS)]


def _write_tokenizer(folder: Path) -> None:
    special = [
        {"id": number, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, text in ((BEGIN_ID, BEGIN), (END_ID, END))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {character: byte for byte, character in enumerate(byte_alphabet())},
                "merges": [],
            },
        },
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "pad_token": END,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Entry point of `python -m demo.tiny_model KIND`."""
    makers = {"dense": ensure_dense_model, "moe": ensure_moe_model}
    parser = argparse.ArgumentParser("python -m demo.tiny_model", description="Make a tiny model for tests.")
    parser.add_argument("kind", choices=makers)
    return run_program(makers[parser.parse_args().kind])


if __name__ == "__main__":
    sys.exit(main())
