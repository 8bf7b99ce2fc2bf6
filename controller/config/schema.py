"""deploy.json as a whole. Keys, types, defaults and meanings stand in schema_*.py and nowhere else.

Relations between keys are in the *_rules.py modules; what the engines' own options mean is in engine_launch.
"""

from __future__ import annotations

from controller.config.schema_controller import Controller, NodeManager, TimerSettings
from controller.config.schema_deploy import Deploy
from controller.config.schema_engine import HEALTH_ATTEMPTS, Engine, HealthCheck
from controller.config.schema_section import FIELD, Section, key

__all__ = [
    "HEALTH_ATTEMPTS",
    "Controller",
    "Deploy",
    "DeployFile",
    "Engine",
    "HealthCheck",
    "NodeManager",
    "Section",
    "TimerSettings",
]


class DeployFile(Section):
    """One deployment: at least one engine section, everything else has defaults."""

    motor_deploy_config: Deploy = key(Deploy(), "How many instances, on what machines.", source=FIELD)
    motor_controller_config: Controller = key(
        Controller(), "Where the controller listens, its state, its times.", source=FIELD
    )
    motor_nodemanager_config: NodeManager = key(
        NodeManager(), "Without effect: a node's settings stand in its own nodemanager.yaml.", source=FIELD
    )
    motor_engine_prefill_config: Engine | None = key(
        None, "The engine of prefill instances.", source=FIELD, unset="no prefill instances"
    )
    motor_engine_decode_config: Engine | None = key(
        None, "The engine of decode instances.", source=FIELD, unset="no decode instances"
    )
    motor_engine_union_config: Engine | None = key(
        None, "The engine of instances that do both.", source=FIELD, unset="no union instances"
    )
