"""health_check_config: what nodes are told, what the core judges by, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from controller.api import wire
from controller.core.model import HangSettings
from engine_launch.health import HealthChecks
from tests.config.files import engine, file_with, load, texts


def with_health(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return file_with(prefill=engine(section={"health_check_config": given}, **more))


def test_defaults() -> None:
    loaded = load(file_with(prefill=engine()))
    (plan,) = loaded.plan.instances
    assert plan.hang == HangSettings()
    assert loaded.engines["prefill-0"].health == HealthChecks()
    assert plan.hang.canary and plan.hang.max_failure_count == 6


def test_every_setting_arrives() -> None:
    given = {
        "enable_virtual_inference": True,
        "npu_usage_threshold": 5,
        "max_failure_count": 4,
        "health_collector_timeout": 2,
        "sample_interval": 3,
        "canary_interval": 20,
        "canary_deadline": 40.5,
        "warm_up_deadline": 900,
        "collective_deadlock_after": 400,
        "hang_after_unknown": 500,
        "hang_verdict": "log",
    }
    loaded = load(with_health(given))
    assert not loaded.warnings
    (plan,) = loaded.plan.instances
    assert plan.hang == HangSettings(True, 40.5, 4, 400, 500, enforce=False)
    assert loaded.engines["prefill-0"].health == HealthChecks(True, "", 20, 40.5, 900, 5, 3, 2)


def test_what_a_master_and_a_follower_are_told() -> None:
    served = {"served-model-name": ["first", "second"], "prefill-context-parallel-size": 2}
    spec = load(with_health({}, **served, tensor_parallel_size=4)).engines["prefill-0"]
    master = wire.health_settings(spec, has_api=True)
    assert master.canary and not master.canary_off_reason
    assert (master.served_model, master.canary_prompt_tokens) == ("first", 4)
    assert (master.canary_interval_seconds, master.canary_deadline_seconds) == (15, 30)
    follower = wire.health_settings(spec, has_api=False)
    assert not follower.canary and "headless" in follower.canary_off_reason
    assert follower.sample_interval_seconds == 5


def test_turned_off_is_said_everywhere() -> None:
    loaded = load(with_health({"enable_virtual_inference": False}))
    assert not loaded.plan.instances[0].hang.canary
    settings = wire.health_settings(loaded.engines["prefill-0"], has_api=True)
    assert (settings.canary, settings.canary_off_reason) == (False, "enable_virtual_inference is false")
    assert settings.served_model == "/m", "without a served name it is the model's"


def test_other_health_checks_are_no_other_engine() -> None:
    one, other = load(with_health({"canary_interval": 20})), load(file_with(prefill=engine()))
    assert one.plan.instances[0].config_digest == other.plan.instances[0].config_digest


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"canary_deadline": 8}, "canary_deadline (line 5): devices are looked at every 5 s"),
        ({"warm_up_deadline": 20}, "is less than canary_deadline; got 20 s; expected at least 30 s"),
        ({"collective_deadlock_after": 10}, "collective_deadlock_after (line 5): is less than canary_deadline"),
        ({"hang_after_unknown": 10}, "hang_after_unknown (line 5): is less than canary_deadline"),
        ({"npu_usage_threshold": 0}, "npu_usage_threshold (line 5): has a wrong value"),
        ({"npu_usage_threshold": 300}, "expected at most 100"),
        ({"max_failure_count": 0}, "expected at least 1"),
        ({"max_failure_count": "6"}, "expected an integer, without quotes"),
        ({"hang_verdict": "restart"}, "expected 'enforce' or 'log'"),
        ({"canary_intervall": 3}, 'did you mean "canary_interval"?'),
        ({"enable_virtual_inference": "yes"}, "expected true or false"),
    ],
)
def test_refused(given: dict[str, Any], message: str) -> None:
    found = texts(with_health(given))
    assert [text for text in found if text.startswith("error:") and message in text], found


def test_a_deadline_that_is_never_reached() -> None:
    content = with_health({"warm_up_deadline": 9000})
    assert [text for text in texts(content) if "is never reached" in text and text.startswith("warning")]
