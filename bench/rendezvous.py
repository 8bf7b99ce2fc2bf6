"""Gang assembly and ranks side by side: Motor, and PyTorch's elastic rendezvous (torchrun's c10d backend).

Usage: python -m bench.rendezvous [RUNS] [AGENTS ...]       (default 5 and 8 32 64)

Both: one gang of N agents on loopback, all there at once, from the last one's call to the last one that knows its rank.
Motor's figure holds more: the record on the disk, a prepare that each node answers, the StartCmdMsg with the command
line. Its N agents are streams of one process; 8 are also run as real node managers with their checks of ports, devices
and model. PyTorch's agents are processes (more than 64: forked after the import) without Motor's checks.

A loss: Motor counts from a node's word that its engine died to the last member's stop; with real managers from SIGKILL
of an engine. PyTorch counts from SIGKILL of an agent until the last other agent's own view is without it, which its
keep-alives bring. (torchrun's workers mostly notice earlier, by their own broken connections.)
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from bench.load import MS, fleet, register
from bench.reactions import at, first
from bench.table import Figure, show
from tests.cluster.deployment import Deployment, engine_section

REAL = 8
SCRIPT = Path(__file__).with_name("torchrun_rendezvous.py")


async def motor(agents: int, runs: int) -> list[Figure]:
    """Streams of one process; each gang is an instance of its own in one deployment."""
    joined, known = [], []
    async with fleet(agents * runs, instances=runs, nnodes=agents) as (_, loaded):
        for number in range(runs):
            loaded.reset()
            gang = loaded.nodes[number * agents : (number + 1) * agents]
            await register(gang, loaded)
            seen = await loaded.until(lambda seen: seen.started == agents, "starts")
            joined.append(MS * (seen.started_at - seen.registered_at))
            loaded.reset()
            began = time.perf_counter()
            gang[-1].fail()
            seen = await loaded.until(lambda seen: seen.stopped == agents, "stops")
            known.append(MS * (seen.stopped_at - began))
    return [
        Figure(f"Motor, {agents} streams: last join -> all know their rank", joined, "ms"),
        Figure(f"Motor, {agents} streams: a death told -> all know", known, "ms"),
    ]


def motor_managers(runs: int) -> list[Figure]:
    """Real node managers and the scripted engine."""
    joined, known = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="motor-bench-") as folder:
            sections = {"motor_engine_union_config": engine_section(nnodes=REAL)}
            d = Deployment(Path(folder), sections, {"timers": {"restart_backoff": 60.0, "restart_backoff_max": 60.0}})
            try:
                d.start_controller()
                d.start_nodes(REAL)
                started = first(d, "started", 0.0)
                joined.append(MS * (started - max(at(e) for e in d.events() if e["code"] == "registered")))
                d.wait_ready()
                victim = d.members()[f"union-0/0/{REAL - 1}"]
                killed = time.time()
                os.kill(victim["pid"], signal.SIGKILL)
                logs = [node.root / "manager.out" for name, node in d.nodes.items() if name != victim["node_id"]]
                d.wait(lambda logs=logs: all(map(_stop_line, logs)), "every member's stop")  # type: ignore[misc]
                told = [datetime.strptime(_stop_line(log)[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() for log in logs]
                known.append(MS * (max(told) - killed))
            finally:
                d.close()
    return [
        Figure(f"Motor, {REAL} real node managers: last join -> all told to start", joined, "ms"),
        Figure(f"Motor, {REAL} real node managers: an engine killed -> all know", known, "ms"),
    ]


def _stop_line(log: Path) -> str:
    return next((line for line in log.read_text().splitlines() if "stopping: failure stop" in line), "")


def torch(python: str, agents: int, runs: int) -> list[Figure]:
    how = "forked" if agents > 64 else "processes"
    command = [python, str(SCRIPT), str(agents), str(runs), how, str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return [
        Figure(f"PyTorch, {agents} {how}: last join -> all know their rank", _ms(found["joined"]), "ms", digits=0),
        Figure(f"PyTorch, {agents} {how}: an agent killed -> all know", _ms(found["known"]), "ms", digits=0),
    ]


def _ms(seconds: list[float]) -> list[float]:
    return [MS * value for value in seconds]


def torch_python() -> str:
    """The interpreter of the engine environment, which has torch's CPU build."""
    command = [sys.executable, "-m", "demo.engine_environment"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def main(runs: int = 5, sizes: tuple[int, ...] = (8, 32, 64)) -> None:
    python = torch_python()
    for agents in sizes:
        show(*asyncio.run(motor(agents, runs)))
        show(*torch(python, agents, runs))
    show(*motor_managers(runs))


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given[:1], *([tuple(given[1:])] if given[1:] else []))  # type: ignore[arg-type]
