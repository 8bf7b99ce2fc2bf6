"""Which models an engine is right for. Asked twice: where deploy.json is read, if the model lies there too, and on
every node before a start, where it lies in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_launch.model import EngineSpec
from engine_launch.model_facts import ModelKind
from engine_launch.profiles import resolve


@dataclass(frozen=True)
class ModelNeed:
    """The kind that one engine needs, and for people what asks for it and the way out."""

    kind: ModelKind
    reason: str


def model_need(spec: EngineSpec) -> ModelNeed | None:
    """None: any model will do, or the operator has overridden the rule that wants one."""
    need = resolve(spec.profile).pcp_models
    if need is None or spec.shape.pcp == 1 or need.rule in spec.override.rules:
        return None
    return ModelNeed(
        need.kind,
        f"PCP ({spec.shape.pcp} here) is for {need.kind.name} only: use such a model, leave "
        f'prefill-context-parallel-size out, or name rule "{need.rule}" in override.rules',
    )
