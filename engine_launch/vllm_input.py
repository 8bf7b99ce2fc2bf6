"""One vLLM or vLLM-Ascend engine as its rules see it: plain values of deploy.json and of the model's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_launch.model import ParallelShape, Role
from engine_launch.model_facts import ModelFacts
from engine_launch.profile import EngineProfile, PcpLimit
from engine_launch.translation import TranslationChoice

V2_RUNNER_ENV = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True)
class VllmEngine:
    """Options by their long names with dashes; `env` as text. `model` is None where config.json could not be read."""

    profile: EngineProfile
    shape: ParallelShape
    translation: TranslationChoice
    wanted_translation: str = "auto"  # dp_translation in the file
    role: Role = Role.UNION
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    model: ModelFacts | None = None
    model_unread: str = ""  # why `model` is None

    @property
    def ascend(self) -> bool:
        return self.profile.engine == "vllm_ascend"

    @property
    def pcp(self) -> bool:
        return self.shape.pcp > 1

    @property
    def context_parallel(self) -> bool:
        """The KV cache of a request is spread over several workers."""
        return self.shape.pcp * self.shape.dcp > 1

    @property
    def one_world(self) -> bool:
        return self.translation.translation.one_world

    @property
    def transfers_kv(self) -> bool:
        return self.options.get("kv-transfer-config") is not None

    @property
    def v2_runner(self) -> bool:
        return self.env.get(V2_RUNNER_ENV, "") in {"1", "true", "True"}

    def integer(self, option: str) -> int | None:
        """An option's value if it is an integer (true and false are none)."""
        value = self.options.get(option)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def limited(self, limit: PcpLimit) -> bool:
        """True where PCP is on and the engine's PCP has this limit."""
        return self.pcp and limit in self.profile.pcp_limits

    @property
    def cuda_graphs(self) -> bool:
        """Off with enforce-eager or cudagraph_mode NONE (vLLM 0.32 config/vllm.py: enforce_eager sets NONE)."""
        if self.options.get("enforce-eager") is True:
            return False
        config = self.options.get("compilation-config")
        mode = config.get("cudagraph_mode") if isinstance(config, Mapping) else None
        mode = self.options.get("compilation-config.cudagraph_mode", mode)
        return not (isinstance(mode, str) and mode.upper() == "NONE")

    @property
    def speculative_method(self) -> str | None:
        """None without speculation; empty where the file leaves it to the engine."""
        config = self.options.get("speculative-config")
        if config is None:
            return None
        return str(config.get("method") or "") if isinstance(config, Mapping) else ""

    def has_connector(self, name: str) -> bool:
        """The KV connector, alone or inside a MultiConnector."""
        config = self.options.get("kv-transfer-config")
        if not isinstance(config, Mapping):
            return False
        extra = config.get("kv_connector_extra_config")
        inner = extra.get("connectors") if isinstance(extra, Mapping) else None
        listed = inner if isinstance(inner, list) else []
        return any(isinstance(part, Mapping) and part.get("kv_connector") == name for part in (config, *listed))
