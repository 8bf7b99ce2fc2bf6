"""The health settings of one start, as the controller sent them and as its record keeps them for the next manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from motor_rpc import control_pb2 as pb


@dataclass(frozen=True)
class Checks:
    """Times in seconds. A start without settings (an older controller) has no canary."""

    canary: bool = False
    canary_off_reason: str = "the controller sent no health settings"
    canary_interval: float = 15.0
    canary_deadline: float = 30.0
    warm_up_deadline: float = 600.0
    prompt_tokens: int = 2
    served_model: str = ""
    usage_threshold: float = 3.0
    sample_interval: float = 5.0
    collector_timeout: float = 5.0

    @staticmethod
    def from_message(message: pb.StartCmdMsg) -> Checks:
        """Zeros are what an older controller did not send: defaults stand for them."""
        if not message.HasField("health"):
            return Checks()
        sent, own = message.health, Checks()
        return Checks(
            canary=sent.canary,
            canary_off_reason=sent.canary_off_reason,
            canary_interval=sent.canary_interval_seconds or own.canary_interval,
            canary_deadline=sent.canary_deadline_seconds or own.canary_deadline,
            warm_up_deadline=sent.warm_up_deadline_seconds or own.warm_up_deadline,
            prompt_tokens=sent.canary_prompt_tokens or own.prompt_tokens,
            served_model=sent.served_model,
            usage_threshold=sent.usage_threshold_percent or own.usage_threshold,
            sample_interval=sent.sample_interval_seconds or own.sample_interval,
            collector_timeout=sent.collector_timeout_seconds or own.collector_timeout,
        )

    @staticmethod
    def from_record(stored: Mapping[str, Any]) -> Checks:
        """What a record holds; fields that this version does not know are left out."""
        known = {entry.name for entry in fields(Checks)}
        return Checks(**{name: value for name, value in stored.items() if name in known})
