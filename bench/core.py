"""The core alone, in a process like the controller's: many nodes from the first registration to the last start
action, no network, no store.

Usage: python -m bench.core [RUNS]       (default 5)
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from dataclasses import replace

from controller.core import actions as a
from controller.core import events as e
from controller.core.core import Core
from controller.core.model import DeploymentPlan
from controller.main import calm_collector
from simulator.shapes import instance, offer

GROUP = 8
SIZES = (8, 1_000, 10_000)


def once(nodes: int) -> float:
    """Seconds until every one of `nodes` nodes in groups of eight was told to start."""
    core = Core(DeploymentPlan("default", (instance("prefill-0", nodes // GROUP, GROUP),)), 1, 0.0, "lineage")
    offers = [
        replace(offer(1, 1), node_id=f"n{i}", address=f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}") for i in range(nodes)
    ]
    todo: deque[a.Action] = deque()
    starts = 0
    began = time.perf_counter()
    for number, one in enumerate(offers):
        todo.extend(core.handle(e.NodeRegistered(0.0, str(number), f"s{number}", "default", one)))
    while todo:
        match todo.popleft():
            case a.StoreRecord(record=record):
                todo.extend(core.handle(e.RecordStored(0.0, "x", record.scope_id, record.generation)))
            case a.SendPrepare(node_id=node_id, slot=slot, generation=generation):
                session = core.state.nodes[node_id].session or ""
                todo.extend(core.handle(e.PrepareReported(0.0, "x", session, node_id, slot, generation, True)))
            case a.SendStart():
                starts += 1
    spent = time.perf_counter() - began
    assert starts == nodes, f"{starts} starts for {nodes} nodes"
    return spent


def main(runs: int) -> None:
    calm_collector()  # as the controller does
    for nodes in SIZES:
        values = [once(nodes) for _ in range(runs)]
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{nodes:>6} nodes: {low:.3f} / {middle:.3f} / {high:.3f} s  (min/median/max of {runs})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
