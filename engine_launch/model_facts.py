"""What a model's config.json says of it, as far as engines' rules ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelKind:
    """A family of models, known by what config.json says."""

    name: str  # for people
    model_types: frozenset[str]
    architectures: frozenset[str]  # one of these is part of an architecture's name

    def fits(self, model_type: str, architectures: Iterable[str]) -> bool:
        """Is a model with these two a member of the family?"""
        return model_type in self.model_types or any(
            part in name for name in architectures for part in self.architectures
        )


# ATOM commit ffdf3bb5d model_engine/model_runner.py: is_deepseek_v4. A draft's own type counts as its target's.
DEEPSEEK_V4 = ModelKind("DeepSeek-V4", frozenset({"deepseek_v4", "deepseek_v4_mtp"}), frozenset({"DeepseekV4"}))

# vLLM 0.32 transformers_utils/model_arch_config_convertor.py:150-206: the names that it tries, in its order.
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True)
class ModelFacts:
    """One model. None: its config.json does not say."""

    model_type: str
    architectures: tuple[str, ...] = ()
    layers: int | None = None
    heads: int | None = None  # query heads
    kv_heads: int | None = None  # as many as query heads where the file names none
    experts: int | None = None
    mla: bool = False  # multi-head latent attention: one KV for all heads
    sparse: bool = False  # MLA that looks at the best tokens only (an indexer with a top k)

    def is_a(self, kind: ModelKind) -> bool:
        """Is it a member of this family?"""
        return kind.fits(self.model_type, self.architectures)

    @property
    def name(self) -> str:
        """For people: the architecture, else the type."""
        return self.architectures[0] if self.architectures else self.model_type or "a model without a type"


def model_facts(content: Mapping[str, Any]) -> ModelFacts:
    """The facts in config.json's content; a multimodal model's language part counts."""
    inner = content.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else content
    names = content.get("architectures")
    heads = _first(text, _HEADS)
    return ModelFacts(
        model_type=str(content.get("model_type") or ""),
        architectures=tuple(str(name) for name in names) if isinstance(names, list) else (),
        layers=_first(text, ("num_hidden_layers",)),
        heads=heads,
        kv_heads=_first(text, _KV_HEADS) or heads,
        experts=_first(text, _EXPERTS),
        # Same file, :314-347. Model types are not compared: a new one with these keys is MLA as well.
        mla=text.get("kv_lora_rank") is not None or text.get("compress_ratios") is not None,
        # vLLM 0.32 v1/worker/gpu/pcp_manager.py:170; vLLM-Ascend v0.23.0 utils.py:114-122.
        sparse="index_topk" in text,
    )


def _first(text: Mapping[str, Any], names: Iterable[str]) -> int | None:
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
