"""What `motorctl status` shows of a deployment too large for one table."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from controller.core import status, status_brief
from controller.core.model import DeploymentPlan
from motorctl.status_view import status_view
from simulator.cluster import Cluster
from simulator.shapes import instance, offer


def shown(answer: dict[str, object]) -> str:
    console = Console(width=200)
    with console.capture() as kept:
        console.print(status_view(answer))
    return kept.get()


def test_what_is_well_is_counted_and_what_is_not_is_shown() -> None:
    made = Cluster(DeploymentPlan("default", (instance("union-0", 40, 8),)), check_every_step=False)
    for number in range(320):
        made.connect(made.add_node(replace(offer(number, 1), node_id=f"n{number}")))
    made.settle()
    made.disconnect(made.nodes["n100"])
    brief = shown(status_brief.deployment(made.core.state, made.now, 200))
    assert "union-0/12/4" in brief and "unreachable" in brief and "union-0/3/0" not in brief
    assert (
        "nodes: 319 assigned, 1 unreachable" in brief and "not shown: 39 groups, 319 nodes; --all shows them" in brief
    )
    assert "not shown" not in shown(status.deployment(made.core.state, made.now))
