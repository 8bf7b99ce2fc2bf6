"""The environment of one engine section."""

from __future__ import annotations

import re

from controller.config.engine_input import EngineInput
from controller.config.errors import Findings, Path
from engine_launch.flags import scalar_text
from engine_launch.guarded import guarded_env
from engine_launch.vllm import SILENT_LOG_LEVELS

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def read_env(engine: EngineInput, findings: Findings) -> dict[str, str]:
    """The section's `env` as text. Names that would change the topology, or that Motor fills, are errors."""
    env: dict[str, str] = {}
    for name, value in engine.engine.env.items():
        path = (engine.section, "env", name)
        if not _NAME.match(name):
            findings.error(
                path, "is no name of an environment variable", expected="letters, digits, underscores", rule="env-name"
            )
        elif name in engine.profile.refused_env:
            findings.error(
                path, f"may not be set: {engine.profile.refused_env[name]}", fix="remove it", rule="env-reserved"
            )
        elif name.startswith("MOTOR_"):
            findings.error(
                path,
                "may not be set: names with MOTOR_ are Motor's own",
                fix="rename or remove it",
                rule="env-reserved",
            )
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            findings.error(
                path, "has the wrong type", got=value, expected='text or a number, such as "1"', rule="env-value"
            )
        else:
            env[name] = scalar_text(value)
            _check_value(engine, name, env[name], path, findings)
    return env


def _check_value(engine: EngineInput, name: str, value: str, path: Path, findings: Findings) -> None:
    if why := guarded_env([name]).get(name):
        findings.warning(
            path,
            f"nodes refuse it: {why}",
            fix="set it in engines.<name>.env of the node files, or name it in their allow_env",
            rule="env-guarded",
        )
    if "\0" in value or "\n" in value:
        findings.error(path, "holds a line break or a zero byte", expected="one line of text", rule="env-value")
    if name == "VLLM_LOGGING_LEVEL" and value.upper() in SILENT_LOG_LEVELS:
        findings.error(
            path,
            "hides the lines from which Motor reads how far a start has come; followers would never be ready",
            got=value,
            expected="INFO or DEBUG",
            rule="env-log-level",
        )
    if name in engine.profile.node_env:
        findings.warning(
            path,
            "one value for all nodes replaces what each node would fill in",
            got=value,
            fix="remove it unless every node has this interface",
            rule="env-node",
        )
