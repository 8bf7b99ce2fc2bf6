"""The plan as text for people, and as plain data for `-o json`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from controller.config.render import (
    NODE_LOCAL,
    RUN_ID,
    FirewallRule,
    InstanceRendering,
    PlanRendering,
    SlotRendering,
)
from controller.core.model import Scope
from engine_launch.flags import read_options, to_json
from engine_launch.override import NO_OVERRIDE, Override
from engine_launch.secrets import redact, redact_argv, redact_env

_PORT_WORDS = {"master": "master", "api": "API", "dp_rpc": "data-parallel RPC", "kv": "KV"}


def plan_text(plan: PlanRendering) -> str:
    """Ends with a line break."""
    lines = [
        f'{plan.file}: deployment "{plan.deployment_id}", {count_of(len(plan.instances), "instance")}, '
        f"{count_of(plan.slots, 'slot')}, {count_of(plan.devices, 'device')}",
        f"addresses in <> are nodes that are not known yet; {NODE_LOCAL} is filled in by each node",
    ]
    for instance in plan.instances:
        lines += ["", *_instance_lines(instance)]
        for slot in instance.slots:
            lines += ["", *_slot_lines(slot)]
    lines += ["", "firewall (all TCP)", *_table(plan.firewall)]
    return "\n".join(lines) + "\n"


def plan_data(plan: PlanRendering) -> dict[str, Any]:
    """The same as data: lists and objects only."""
    return {
        "file": plan.file,
        "deployment_id": plan.deployment_id,
        "instances": [_instance_data(instance) for instance in plan.instances],
        "firewall": [vars(rule) for rule in plan.firewall],
    }


def _instance_lines(instance: InstanceRendering) -> list[str]:
    plan, choices = instance.plan, instance.choices
    profile = choices.profile
    assumed = "assumed: " if profile.assumed else ""
    ports = [f"master {plan.master_ports}", f"API {plan.api_ports}"]
    if plan.dp_rpc_ports:
        ports.append(f"data-parallel RPC {plan.dp_rpc_ports}")
    return [
        f"{plan.name}: {plan.role}, {count_of(plan.dp_size, 'group')} of {count_of(plan.nnodes, 'node')}, "
        f"{count_of(plan.devices_per_slot, 'device')} each",
        f"  engine       {plan.engine}, profile {profile.profile.name} ({assumed}{profile.reason})",
        f"  translation  {instance.spec.translation.value} ({choices.translation.reason})",
        f"  failure      restarts {'the whole instance' if plan.scope is Scope.INSTANCE else 'its group'}",
        f"  ports        {', '.join(ports)}",
        *_kv_lines(instance),
        *_override_lines(instance.spec.override),
    ]


def _override_lines(override: Override) -> list[str]:
    """One for each part that stands against Motor's own rules."""
    options = [
        f"  override     --{option.name} {to_json(redact(option.value, option.name))} "
        f"in the place of Motor's own ({override.reason})"
        for option in read_options(override.options)
    ]
    return options + [f"  override     rule {rule} only warns ({override.reason})" for rule in override.rules]


def _kv_lines(instance: InstanceRendering) -> list[str]:
    if instance.spec.kv is None:
        return []
    dispatch = instance.choices.dispatch
    how = f"dispatch {dispatch.mode} ({dispatch.reason}); " if dispatch else ""
    return [f"  KV transfer  {how}{RUN_ID} is new with each start"]


def _slot_lines(slot: SlotRendering) -> list[str]:
    key, command = slot.slot, slot.command
    kind = "headless" if command.headless else "master"
    lines = [
        f"{key}: {slot.assignment.role.value}, instance {key.instance}, dp_rank {key.dp_rank}, "
        f"node_rank {key.node_rank}, {kind}, {count_of(command.expected_workers, 'device')}, "
        f"on {slot.assignment.address}",
        f"  ports  {_port_words(slot)}",
    ]
    lines += _labelled("env", [f"{name}={_quoted(value)}" for name, value in redact_env(slot.env).items()])
    return lines + _labelled("argv", _argv_lines(redact_argv(command.argv)))


def _port_words(slot: SlotRendering) -> str:
    kv = [port for port, kind in slot.ports.items() if kind == "kv"]
    words = [f"{port} {_PORT_WORDS[kind]}" for port, kind in slot.ports.items() if kind != "kv"]
    if kv:
        words.append(f"{kv[0]}-{kv[-1]} KV")
    return ", ".join(words) or "none"


def _labelled(label: str, items: list[str]) -> list[str]:
    return [f"  {label if i == 0 else '':<5}  {item}" for i, item in enumerate(items)]


def _argv_lines(argv: Sequence[str]) -> list[str]:
    """One option with its values on each line, quoted for a shell."""
    groups: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(_quoted(word))
    texts = [" ".join(group) for group in groups]
    texts = [texts[0], *(f"  {text}" for text in texts[1:])]
    return [f"{text} \\" for text in texts[:-1]] + texts[-1:]


def _quoted(word: str) -> str:
    """As a shell needs it; placeholders stay readable."""
    return word if word.startswith("<") and word.endswith(">") else shlex.quote(word)


def _table(rules: Iterable[FirewallRule]) -> list[str]:
    rows = [("on", "ports", "from", "for"), *((r.on, r.ports, r.source, r.purpose) for r in rules)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]


def count_of(number: int, noun: str) -> str:
    """`1 slot`, `2 slots`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _instance_data(instance: InstanceRendering) -> dict[str, Any]:
    plan, choices = instance.plan, instance.choices
    return {
        "name": plan.name,
        "role": plan.role,
        "dp_size": plan.dp_size,
        "nnodes": plan.nnodes,
        "devices_per_slot": plan.devices_per_slot,
        "engine": plan.engine,
        "engine_profile": choices.profile.profile.name,
        "engine_profile_assumed": choices.profile.assumed,
        "engine_profile_reason": choices.profile.reason,
        "dp_translation": instance.spec.translation.value,
        "dp_translation_reason": choices.translation.reason,
        "dispatch": choices.dispatch.mode if choices.dispatch else None,
        "dispatch_reason": choices.dispatch.reason if choices.dispatch else None,
        "restart_scope": plan.scope.value,
        "model": plan.model,
        "config_digest": plan.config_digest,
        "override": _override_data(instance.spec.override),
        "port_ranges": {
            "master": str(plan.master_ports),
            "api": str(plan.api_ports),
            "dp_rpc": str(plan.dp_rpc_ports) if plan.dp_rpc_ports else None,
        },
        "slots": [_slot_data(slot) for slot in instance.slots],
    }


def _slot_data(slot: SlotRendering) -> dict[str, Any]:
    key, command = slot.slot, slot.command
    return {
        "slot": str(key),
        "instance": key.instance,
        "role": slot.assignment.role.value,
        "dp_rank": key.dp_rank,
        "node_rank": key.node_rank,
        "headless": command.headless,
        "devices": command.expected_workers,
        "address": slot.assignment.address,
        "master_addr": slot.assignment.master_addr,
        "ports": {str(port): kind for port, kind in slot.ports.items()},
        "argv": redact_argv(command.argv),
        "env": redact_env(slot.env),
        "node_env": {name: source.value for name, source in command.node_env.items()},
    }


def _override_data(override: Override) -> dict[str, Any] | None:
    if override == NO_OVERRIDE:
        return None
    return {"reason": override.reason, "options": redact(override.options), "rules": list(override.rules)}
