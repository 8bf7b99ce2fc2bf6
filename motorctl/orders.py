"""motorctl pause, resume, cordon, uncordon, drain, declare-lost, clean, restart, stop, start, step-down."""

from __future__ import annotations

import click

from motorctl.client import controller_option, post

REASON = click.option("--reason", default="", help="Kept with the event.")


def _order(controller: str, order: str, target: str, reason: str) -> None:
    click.echo(post(controller, "/v1/orders", {"order": order, "target": target, "reason": reason})["done"])


@click.command()
@controller_option
@click.option("--reason", default="maintenance", show_default=True, help="Shown by status while it lasts.")
def pause(controller: str, reason: str) -> None:
    """No automatic start, stop or restart until `motorctl resume`; verdicts are only logged."""
    _order(controller, "pause", "", reason)


@click.command()
@controller_option
def resume(controller: str) -> None:
    """End a pause, and act on what was found meanwhile."""
    _order(controller, "resume", "", "")


@click.command()
@controller_option
@REASON
@click.argument("node")
def cordon(controller: str, reason: str, node: str) -> None:
    """NODE gets no new slots; what it fills stays."""
    _order(controller, "cordon", node, reason)


@click.command()
@controller_option
@click.argument("node")
def uncordon(controller: str, node: str) -> None:
    """NODE may fill slots again."""
    _order(controller, "uncordon", node, "")


@click.command()
@controller_option
@REASON
@click.argument("node")
def drain(controller: str, reason: str, node: str) -> None:
    """Cordon NODE, stop its gangs in order, and let spares take its slots."""
    _order(controller, "drain", node, reason)


@click.command("declare-lost")
@controller_option
@REASON
@click.argument("node")
def declare_lost(controller: str, reason: str, node: str) -> None:
    """Vouch that nothing runs on the unreachable NODE any more, so that its gang may start elsewhere."""
    _order(controller, "declare-lost", node, reason)


@click.command()
@controller_option
@click.argument("node")
def clean(controller: str, node: str) -> None:
    """Stop the foreign engines that NODE holds: engines this deployment has no record of."""
    _order(controller, "clean", node, "")


@click.command()
@controller_option
@REASON
@click.argument("target")
def restart(controller: str, reason: str, target: str) -> None:
    """Restart an instance (prefill-0) or a group (prefill-0/1) in order, with a fresh restart budget."""
    _order(controller, "restart", target, reason)


@click.command()
@controller_option
@REASON
@click.argument("target")
def stop(controller: str, reason: str, target: str) -> None:
    """Stop an instance or a group in order; it stays down until `motorctl start`."""
    _order(controller, "stop", target, reason)


@click.command()
@controller_option
@click.argument("target")
def start(controller: str, target: str) -> None:
    """Start what `motorctl stop` has stopped."""
    _order(controller, "start", target, "")


@click.command("step-down")
@controller_option
@REASON
def step_down(controller: str, reason: str) -> None:
    """The controller that leads gives the lead to a standby, at once. Engines do not notice."""
    click.echo(post(controller, "/v1/step-down", {"reason": reason})["done"])
