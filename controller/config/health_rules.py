"""health_check_config -> what a node is told and what the core judges by, and the rules between the times."""

from __future__ import annotations

from controller.config.engine_input import EngineInput
from controller.config.errors import Findings, Shown
from controller.config.schema import HEALTH_ATTEMPTS, HealthCheck, TimerSettings
from controller.core.model import HangSettings
from engine_launch.health import HealthChecks

_KEY = "health_check_config"


def health_checks(given: HealthCheck) -> HealthChecks:
    """The part that the nodes do."""
    return HealthChecks(
        canary=given.enable_virtual_inference,
        canary_off_reason="" if given.enable_virtual_inference else "enable_virtual_inference is false",
        canary_interval=given.canary_interval,
        canary_deadline=given.canary_deadline,
        warm_up_deadline=given.warm_up_deadline,
        usage_threshold=given.npu_usage_threshold,
        sample_interval=given.sample_interval,
        collector_timeout=given.health_collector_timeout,
    )


def hang_settings(given: HealthCheck) -> HangSettings:
    """The part that the core does."""
    return HangSettings(
        canary=given.enable_virtual_inference,
        canary_deadline=given.canary_deadline,
        max_failure_count=given.max_failure_count,
        collective_deadlock_after=given.collective_deadlock_after,
        hang_after_unknown=given.hang_after_unknown,
        enforce=given.hang_verdict == "enforce",
    )


def check_health(engine: EngineInput, timers: TimerSettings, findings: Findings) -> None:
    """A verdict needs samples within the canary's window, and no step may be judged before it is late."""
    given = engine.engine.health_check_config
    path = (engine.section, _KEY)
    if given.canary_deadline < 2 * given.sample_interval:
        findings.error(
            (*path, "canary_deadline"),
            f"devices are looked at every {given.sample_interval:g} s: a late canary would be judged by one look",
            got=Shown(f"{given.canary_deadline:g} s"),
            expected=f"at least {2 * given.sample_interval:g} s, twice sample_interval",
            rule="health-samples",
        )
    for name in ("warm_up_deadline", "collective_deadlock_after", "hang_after_unknown"):
        if getattr(given, name) < given.canary_deadline:
            findings.error(
                (*path, name),
                "is less than canary_deadline",
                got=Shown(f"{getattr(given, name):g} s"),
                expected=f"at least {given.canary_deadline:g} s",
                rule="health-nest",
            )
    if given.warm_up_deadline > timers.start_timeout:
        findings.warning(
            (*path, "warm_up_deadline"),
            f"is never reached: motor_controller_config.timers.start_timeout is {timers.start_timeout:g} s",
            got=Shown(f"{given.warm_up_deadline:g} s"),
            rule="health-reach",
        )
    if not given.enable_virtual_inference:
        findings.warning(
            (*path, "enable_virtual_inference"),
            "is false: without the canary a frozen engine is not found, and ready means only that the API answers",
            rule="health-canary",
        )
    if given.health_collector_timeout_retry_attempts != HEALTH_ATTEMPTS:
        findings.warning(
            (*path, "health_collector_timeout_retry_attempts"),
            f"no effect: a ready engine is called unready after {HEALTH_ATTEMPTS} bad answers of its health endpoint",
            got=given.health_collector_timeout_retry_attempts,
            rule="health-attempts",
        )
