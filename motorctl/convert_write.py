"""A planned slot -> a piece of shell script that starts its engine by hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from controller.config.render import RUN_ID, InstanceRendering, SlotRendering, placeholder
from engine_launch.flags import is_flag_like
from engine_launch.model import NodeLocal

# Shell variables for what a plan does not know, and the comment behind each. In deploy.json they are left out again:
# engine_launch/shell_text.py reads them as values that a script does not set.
_ADDRESS, _MASTER, _INTERFACE, _DEVICES, _RUN = (
    "NODE_ADDRESS",
    "MASTER_ADDRESS",
    "NODE_INTERFACE",
    "NODE_DEVICES",
    "RUN_ID",
)
_SOURCES = {NodeLocal.ADDRESS: _ADDRESS, NodeLocal.INTERFACE: _INTERFACE, NodeLocal.DEVICES: _DEVICES}


def slot_script(instance: InstanceRendering, slot: SlotRendering) -> str:
    """Lines to paste into a shell of the slot's node, in a subshell, so that they change nothing in it.

    Every value that only the node knows is a variable, and nothing starts where one is not set.
    """
    command = slot.command
    own, master = placeholder(slot.slot), slot.assignment.master_addr
    variables = {own: _ADDRESS, RUN_ID: _RUN} | ({} if master == own else {master: _MASTER})
    env = {name: _quoted(value, variables) for name, value in sorted(command.env.items())}
    env |= {name: f'"${_SOURCES[source]}"' for name, source in sorted(command.node_env.items())}
    rows = list(_rows([_quoted(word, variables) for word in command.argv], command.argv))
    used = "\n".join([*env.values(), *rows])
    lines = [
        *_settings(used, slot, instance),
        *(f"export {name}={text}" for name, text in env.items()),
        "exec " + " \\\n    ".join(rows),
    ]
    return "\n".join([f"(  # {slot.slot}: {_role(slot, instance)}", *(f"  {line}" for line in lines), ")", ""])


def _role(slot: SlotRendering, instance: InstanceRendering) -> str:
    if slot.command.headless:
        what = "headless"
    else:
        what = f"API on port {slot.command.api_port}"
    devices = instance.plan.devices_per_slot
    return f"{instance.plan.role}, {what}, {devices} device{'s' * (devices != 1)}"


def _settings(used: str, slot: SlotRendering, instance: InstanceRendering) -> Iterator[str]:
    """A line for each variable that the script uses."""
    devices = ",".join(str(number) for number in range(instance.plan.devices_per_slot))
    settings = {
        _ADDRESS: "the data address of this node",
        _MASTER: f"the data address of the node of {slot.assignment.master_addr.strip('<>')}",
        _INTERFACE: "the interface of that address, such as eth0",
        _DEVICES: f"the devices for this engine, such as {devices}",
        _RUN: "equal on all nodes, and another for each start",
    }
    for name, meaning in settings.items():
        if f"${name}" in used:
            yield f': "${{{name}:?{meaning}}}"'


def _quoted(word: str, variables: dict[str, str]) -> str:
    """A word for the shell, with `"$NAME"` in the place of each placeholder."""
    pattern = "|".join(re.escape(text) for text in variables)
    pieces = re.split(f"({pattern})", word)
    if len(pieces) == 1:
        return shlex.quote(word)
    return "".join(f'"${variables[text]}"' if text in variables else shlex.quote(text) for text in pieces if text)


def _rows(quoted: Sequence[str], argv: Sequence[str]) -> Iterator[str]:
    """The command, then each flag with its values on a line of its own."""
    row: list[str] = []
    for number, (word, plain) in enumerate(zip(quoted, argv, strict=True)):
        # `-m` of `python -m` belongs to the command.
        if row and is_flag_like(plain) and not (number == 1 and plain == "-m"):
            yield " ".join(row)
            row = []
        row.append(word)
    yield " ".join(row)
