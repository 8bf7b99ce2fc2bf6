"""Every timer of the core is a setting of deploy.json, with the core's own default."""

from __future__ import annotations

from dataclasses import fields

from controller.config.schema import TimerSettings
from controller.core.model import Timers


def test_every_timer_can_be_set_and_has_one_default() -> None:
    settings = TimerSettings()
    for field in fields(Timers):
        assert hasattr(settings, field.name), f"motor_controller_config.timers lacks {field.name}"
        if field.name != "node_timeout":  # follows the heartbeat interval
            assert getattr(settings, field.name) == field.default
