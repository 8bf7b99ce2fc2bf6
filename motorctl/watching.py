"""motorctl status, events and logs: seeing what a deployment does and why."""

from __future__ import annotations

import json
import sys
import time
from urllib.parse import quote, urlencode

import click

from motorctl.client import controller_option, get, stream

EXIT_NOT_READY = 1
EVENT_WAIT_SECONDS = 30
SHOWN = 200  # members and nodes that a person may want to see in one table


@click.command()
@controller_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("-w", "--watch", is_flag=True, help="Redraw whenever something happens, until Ctrl-C.")
@click.option("-a", "--all", "everything", is_flag=True, help=f"Every member and node, also of more than {SHOWN}.")
def status(controller: str, output: str, watch: bool, everything: bool) -> None:
    """Instances, members and nodes; for everything that is not up: what is missing, since when, why.

    Exit code: 0 all instances ready, 1 not ready, or no controller leads; 3 no answer.
    """
    path = "/v1/status" if everything or output == "json" else f"/v1/status?limit={SHOWN}"
    if watch:
        _watch(controller, output, path)
        return
    answer = get(controller, path)
    _print(answer, output)
    sys.exit(0 if answer["ready"] and not answer.get("stale_since") else EXIT_NOT_READY)


def _print(answer: dict[str, object], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
    else:
        from motorctl.status_view import print_status

        print_status(answer)


def _watch(controller: str, output: str, path: str) -> None:
    """Redraw on events; stages and ages move without one, so every second as well."""
    if output == "json":
        while True:
            click.echo(json.dumps(get(controller, path)))
            time.sleep(1.0)
    from rich.live import Live

    from motorctl.status_view import status_view

    with Live(status_view(get(controller, path)), auto_refresh=False, screen=True) as live:
        while True:
            newest = get(controller, "/v1/events?limit=1")["next_after"]
            get(controller, f"/v1/events?after={newest}&limit=1&wait_seconds=1")
            live.update(status_view(get(controller, path)), refresh=True)


@click.command()
@controller_option
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option("-n", "--limit", default=200, show_default=True, help="How many of the newest to show.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.argument("subject", default="")
def events(controller: str, follow: bool, limit: int, output: str, subject: str) -> None:
    """Decisions with their reasons, oldest first.

    SUBJECT: an instance, group, slot or node to look at, such as prefill-0/1 or "node n7".
    """
    after, wait = 0, 0
    while True:
        query = urlencode({"after": after, "limit": limit, "subject": subject, "wait_seconds": wait})
        answer = get(controller, f"/v1/events?{query}", timeout=EVENT_WAIT_SECONDS + 10)
        for line in answer["events"]:
            if output == "json":
                click.echo(json.dumps(line))
            else:
                click.echo(f"{line['at'][:23]}  {line['subject']:<16}  {line['code']:<16}  {line['sentence']}")
        if not follow:
            return
        after, wait = max(after, answer["next_after"]), EVENT_WAIT_SECONDS


@click.command()
@controller_option
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("-n", "--tail", default=200, show_default=True, help="Lines from the end.")
@click.argument("target")
def logs(controller: str, follow: bool, tail: int, target: str) -> None:
    """The log of a slot's engine (prefill-0/0/1) or of a node's manager (its node_id)."""
    query = urlencode({"tail": tail, "follow": "true" if follow else "false"})
    for chunk in stream(controller, f"/v1/logs/{quote(target)}?{query}"):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
