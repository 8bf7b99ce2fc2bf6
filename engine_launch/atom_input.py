"""One ATOM engine as its rules see it: plain values, read from deploy.json and perhaps from the model's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_launch.model import ParallelShape, Role
from engine_launch.model_facts import ModelFacts

DEFAULT_BATCHED_TOKENS = 16384  # model_engine/arg_utils.py of commit ffdf3bb5d, as all paths here
DEFAULT_PREFILL_CHUNK = 16384
DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True)
class AtomEngine:
    """Options by their long names with dashes; `env` as text. `model` is None where config.json could not be read."""

    shape: ParallelShape
    role: Role = Role.UNION
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    model: ModelFacts | None = None
    model_unread: str = ""  # why `model` is None

    @property
    def pcp(self) -> bool:
        return self.shape.pcp > 1

    @property
    def data_parallel(self) -> bool:
        """Several data-parallel ranks in one process."""
        return self.shape.dp_local > 1

    @property
    def dp_attention(self) -> bool:
        return bool(self.options.get("enable-dp-attention"))

    @property
    def tbo(self) -> str:
        """`prefill`, `all`, or empty for off. A bare flag is prefill (arg_utils.py:258-267, 602-605)."""
        value = self.options.get("enable-tbo")
        if value is True:
            return "prefill"
        return value if isinstance(value, str) else ""

    @property
    def moe_merge(self) -> bool:
        """utils/envs.py:493: on by default, and `1` is the only word for it."""
        return self.env.get("ATOM_PCP_MOE_MERGE", "1") == "1"

    @property
    def tbo_works(self) -> bool:
        """With PCP the engine turns TBO off in every other case (llm_engine.py:82-122)."""
        return self.tbo == "prefill" and self.moe_merge and self.shape.tp == 1

    @property
    def chunked_prefill(self) -> bool:
        return self.options.get("enable-chunked-prefill") is not False

    @property
    def speculative(self) -> bool:
        return self.options.get("method") is not None

    def integer(self, option: str) -> int | None:
        """An option's value if it is an integer (true and false are none)."""
        value = self.options.get(option)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def batched_tokens(self) -> int:
        return self.integer("max-num-batched-tokens") or DEFAULT_BATCHED_TOKENS

    @property
    def dcp_interleave(self) -> int:
        """KV slots in a row that stay on one decode-context rank."""
        config = self.options.get("dcp-config")
        value = config.get("interleave_size") if isinstance(config, Mapping) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else 1
