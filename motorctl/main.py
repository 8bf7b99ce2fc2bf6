"""`motorctl`: a command is imported only when it runs, so `--help` costs nothing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, and the line that `motorctl --help` shows for it."""

    target: str  # "module:attribute" of a click command
    help: str


# New commands are registered here and nowhere else; the order is the order of `motorctl --help`.
COMMANDS: dict[str, LazyCommand] = {
    "init": LazyCommand("motorctl.init:init", "Write a commented sample of a deployment file."),
    "validate": LazyCommand("motorctl.planning:validate", "Check a deployment file; all errors at once."),
    "plan": LazyCommand("motorctl.planning:plan", "Show every engine command of a deployment, without hardware."),
    "convert": LazyCommand("motorctl.convert:convert", "Shell scripts with engine commands to deploy.json, and back."),
    "bench-command": LazyCommand(
        "motorctl.bench_command:bench_command", "Print the benchmark of an ATOM deployment and of its baseline."
    ),
    "schema": LazyCommand("motorctl.schema:schema", "The JSON Schema of a deployment file, or its reference."),
    "status": LazyCommand("motorctl.watching:status", "What runs where, and why something is not up."),
    "events": LazyCommand("motorctl.watching:events", "Decisions with their reasons."),
    "logs": LazyCommand("motorctl.watching:logs", "An engine's or a node manager's log."),
    "restart": LazyCommand("motorctl.orders:restart", "Restart an instance or a group, in order."),
    "stop": LazyCommand("motorctl.orders:stop", "Stop an instance or a group until `start`."),
    "start": LazyCommand("motorctl.orders:start", "Start what was stopped."),
    "drain": LazyCommand("motorctl.orders:drain", "Empty a node: its slots go to spares."),
    "cordon": LazyCommand("motorctl.orders:cordon", "Give a node no new slots."),
    "uncordon": LazyCommand("motorctl.orders:uncordon", "End a cordon."),
    "declare-lost": LazyCommand("motorctl.orders:declare_lost", "Vouch that an unreachable node is dead."),
    "clean": LazyCommand("motorctl.orders:clean", "Stop foreign engines of a node."),
    "pause": LazyCommand("motorctl.orders:pause", "No automatic action until `resume`."),
    "resume": LazyCommand("motorctl.orders:resume", "End a pause."),
    "step-down": LazyCommand("motorctl.orders:step_down", "Hand the lead over to a standby controller."),
    "certs": LazyCommand("motorctl.certs:certs", "Make and look at certificates of controllers and nodes."),
    "token": LazyCommand("motorctl.token_commands:token", "Make, list and remove tokens for REST."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and line of help, and loads them on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{entry.target} is no click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="motor-pcp", prog_name="motorctl")
def main() -> None:
    """Look at and act on a Motor deployment."""


if __name__ == "__main__":
    main()
