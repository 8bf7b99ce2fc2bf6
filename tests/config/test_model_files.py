"""The model's config.json decides where it can be read, and is missed aloud where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.config.errors import ConfigError
from controller.config.model_files import read_model
from engine_launch.model_facts import ModelFacts, model_facts
from tests.config.files import engine, file_with, load

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}


def model(folder: Path, content: Any) -> str:
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (LLAMA, ModelFacts("llama", ("LlamaForCausalLM",), 80, 64, 8)),
        ({"model_type": "gpt2", "n_head": 12}, ModelFacts("gpt2", heads=12, kv_heads=12)),
        ({"model_type": "falcon", "num_attention_heads": 71, "num_kv_heads": 8}, ModelFacts("falcon", (), None, 71, 8)),
        ({"model_type": "vl", "text_config": {**LLAMA, "num_experts": 8}}, ModelFacts("vl", (), 80, 64, 8, 8)),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, ModelFacts("deepseek_v3", mla=True)),
        (
            {"model_type": "deepseek_v32", "kv_lora_rank": 512, "index_topk": 2048},
            ModelFacts("deepseek_v32", mla=True, sparse=True),
        ),
        ({"model_type": "x", "kv_lora_rank": None, "num_attention_heads": "64"}, ModelFacts("x")),
        ({}, ModelFacts("")),
    ],
)
def test_facts(content: dict[str, Any], facts: ModelFacts) -> None:
    assert model_facts(content) == facts


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert read_model("org/name") == (None, "it has no absolute path, and only a node knows where it lies")
    assert "No such file" in read_model(str(tmp_path / "none"))[1]
    assert "is no JSON" in read_model(model(tmp_path, "{"))[1]
    assert "is no JSON object" in read_model(model(tmp_path, []))[1]


def test_a_plan_is_checked_against_the_model(tmp_path: Path) -> None:
    section = engine(model=model(tmp_path, LLAMA), tensor_parallel_size=16, decode_context_parallel_size=4)
    with pytest.raises(ConfigError, match=r"is more than the copies of a KV head: .* 8 KV heads; .* \[vllm-dcp-kv"):
        load(file_with(prefill=section))
    section["engine_config"]["decode-context-parallel-size"] = 2
    assert not load(file_with(prefill=section)).warnings


def test_a_plan_without_the_model_warns(tmp_path: Path) -> None:
    section = engine(model="/not/there", decode_context_parallel_size=4)
    [warning] = load(file_with(prefill=section)).warnings
    assert warning.rule == "vllm-model-unread" and "/not/there/config.json cannot be read" in warning.what
