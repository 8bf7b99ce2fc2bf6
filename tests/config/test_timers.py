"""Every timer of the core is a setting of deploy.json, with the core's own default."""

from __future__ import annotations

from dataclasses import fields

import pytest

from controller.config.controller_rules import read_timers
from controller.config.errors import Findings
from controller.config.schema import TimerSettings
from controller.core.model import Timers


def test_every_timer_can_be_set_and_has_one_default() -> None:
    settings = TimerSettings()
    for field in fields(Timers):
        assert hasattr(settings, field.name), f"motor_controller_config.timers lacks {field.name}"
        if field.name not in ("heartbeat_interval", "node_timeout"):  # follow the size of the cluster
            assert getattr(settings, field.name) == field.default


@pytest.mark.parametrize("slots, interval, timeout", [(8, 2.0, 7.0), (3000, 2.0, 7.0), (15_000, 10.0, 31.0)])
def test_a_large_cluster_beats_slower(slots: int, interval: float, timeout: float) -> None:
    timers = read_timers(TimerSettings(), {}, Findings("deploy.json", {}), slots)
    assert (timers.heartbeat_interval, timers.node_timeout) == (interval, timeout)
    given = read_timers(TimerSettings(heartbeat_interval=3.0), {}, Findings("deploy.json", {}), slots)
    assert (given.heartbeat_interval, given.node_timeout) == (3.0, 10.0)
