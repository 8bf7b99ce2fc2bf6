"""What engine processes find in their environment -> `env` of their section."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine_launch.kv_connectors import CONNECTORS, KV_PORT
from engine_launch.profile import EngineProfile
from engine_launch.vllm import SILENT_LOG_LEVELS
from motorctl.convert_nodes import Node
from motorctl.convert_read import Report

# The address and the first port of a KV connector that reads them from its environment.
_HOSTS = frozenset(connector.host_env for connector in CONNECTORS.values() if connector.host_env)
_PORTS = frozenset(c.port_setting for c in CONNECTORS.values() if c.port_setting and c.port_setting != KV_PORT)

Differ = Callable[[Node, int, str, str, str], None]


def merged_env(nodes: Sequence[Node], profile: EngineProfile, report: Report, differ: Differ) -> dict[str, str]:
    """What is exported, without what Motor fills or refuses. `differ` is told of names that nodes have not alike."""
    env: dict[str, str] = {}
    left_out: dict[str, dict[str, tuple[Node, int]]] = {}  # reason -> name -> where it stands first
    for number, node in enumerate(nodes):
        for name, word in node.engine.env.items():
            if why := _why_not(name, word.text, word.unknown, profile):
                left_out.setdefault(why, {}).setdefault(name, (node, word.line))
            elif number and env.get(name) != word.text and name not in _PORTS:
                differ(node, word.line, name, word.text, env.get(name, "nothing"))
            else:
                env.setdefault(name, word.text)
        for name in env.keys() - node.engine.env.keys():
            differ(node, node.line, name, "nothing", env[name])
    for why, names in left_out.items():
        node, line = next(iter(names.values()))
        report.note(node.file, line, f"not in env: {', '.join(names)}: {why}")
    return env


def _why_not(name: str, value: str, unknown: str, profile: EngineProfile) -> str:
    if name in profile.refused_env:
        return profile.refused_env[name]
    if name in profile.node_env or name in _HOSTS:
        return "each node fills in its own"
    if name.startswith("MOTOR_"):
        return "names with MOTOR_ are Motor's own"
    if profile.env.get(name) == value:
        return "Motor sets it on every engine"
    if unknown:
        return f"{unknown}; if engines need it, set it under engines in each node's nodemanager.yaml"
    if name == "VLLM_LOGGING_LEVEL" and value.upper() in SILENT_LOG_LEVELS:
        return f"{value} hides the lines from which Motor reads how far a start has come"
    return "the value has several lines" if "\n" in value else ""
