"""motor_engine_{prefill,decode,union}_config: one role's engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from controller.config.schema_section import FIELD, PCP_PAPER, Count, Seconds, Section, key, seconds
from controller.core.model import HangSettings
from engine_launch.health import HealthChecks

_CHECKS = HealthChecks()
_HANG = HangSettings()

# A ready engine is unready after so many late or bad answers of its health endpoint: fixed, on the node.
HEALTH_ATTEMPTS = 3


class HealthCheck(Section):
    """How an engine's health is watched. The field's keys keep their names and defaults, but the canary is on."""

    enable_virtual_inference: bool = key(
        True, "The canary: a one-token request when nothing else shows progress.", source=PCP_PAPER
    )
    npu_usage_threshold: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = key(
        _CHECKS.usage_threshold, "A device below it is flat.", source=FIELD, unit="%"
    )
    max_failure_count: Count = key(
        _HANG.max_failure_count,
        "So many flat samples in a row of one rank, while the canary is late, make it hung.",
        source=FIELD,
    )
    health_collector_timeout: Seconds = seconds(
        _CHECKS.collector_timeout, "For one answer of the engine's health endpoint.", source=FIELD
    )
    health_collector_timeout_retry_attempts: Count = key(
        HEALTH_ATTEMPTS,
        f"Read, and fixed at {HEALTH_ATTEMPTS}: bad answers until a ready engine is unready.",
        source=FIELD,
    )
    sample_interval: Seconds = seconds(_CHECKS.sample_interval, "Devices are looked at so often.")
    canary_interval: Seconds = seconds(_CHECKS.canary_interval, "Without progress for so long a canary is sent.")
    canary_deadline: Seconds = seconds(_CHECKS.canary_deadline, "A canary's answer later than this is late.")
    warm_up_deadline: Seconds = seconds(_CHECKS.warm_up_deadline, "For the first canary, before ready.")
    collective_deadlock_after: Seconds = seconds(
        _HANG.collective_deadlock_after, "All ranks busy without memory traffic for so long is a deadlock."
    )
    hang_after_unknown: Seconds = seconds(
        _HANG.hang_after_unknown, "Devices that nothing is known of, and no progress for so long, are a hang."
    )
    hang_verdict: Literal["enforce", "log"] = key("enforce", "`log` only says what `enforce` would do.")


class Override(Section):
    """What the operator insists on, against Motor's own rules. `motorctl plan` marks every part of it."""

    override: bool = key(True, "false switches the whole block off.")
    reason: Annotated[str, Field(min_length=1)] = key(..., "Why; shown wherever the override shows.")
    options: dict[str, Any] = key(
        {}, "Reserved engine options: they take the place of what Motor computes, on every process of the role."
    )
    rules: list[str] = key([], "Ids of overridable rules: their violation is a warning.")


class Engine(Section):
    """One role's engine."""

    engine_type: str = key(..., "Which engine.", source=FIELD)
    engine_config: dict[str, Any] = key(
        ...,
        "The engine's own options by name, dashes or underscores; nested data is passed on untouched.",
        source=FIELD,
    )
    env: dict[str, Any] = key({}, "Environment of every engine process, values as text or numbers.", source=FIELD)
    extra_args: list[str] = key([], "Words for the command line as they are: the way past the list of known flags.")
    dp_translation: Literal["auto", "replica", "native_external", "native_internal"] = key(
        "auto", "How several groups become engine command lines: an engine for each, or one world over all."
    )
    engine_profile: str | None = key(
        None,
        "engine@version, such as vllm_ascend@0.23: whose rules and flags hold.",
        unset="from the nodes' versions; offline: PCP with engine_type vllm means vllm_ascend@0.23, else the newest",
    )
    engine: Annotated[str, Field(min_length=1)] | None = key(
        None, "Which of the `engines` in the nodes' nodemanager.yaml.", unset="as engine_type"
    )
    health_check_config: HealthCheck = key(HealthCheck(), "How its health is watched.", source=FIELD)
    override: Override | None = key(None, "What the operator insists on, against Motor's rules.", unset="nothing")
