"""How fast the whole system reacts, with real daemons and the scripted engine on loopback.

Usage: python -m bench.reactions [RUNS]       (default 5)

Times are taken from the controller's own event list (wall clock, milliseconds) and from this process:
  death -> known      SIGKILL of a follower's engine until the controller has recorded the failure
  known -> all told   until the node of every other member has begun to stop its engine
  registered -> ready last registration of a two-node instance until it is ready (the scripted engine needs about 0.2 s)
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.cluster.deployment import Deployment, engine_section


def at(event: dict[str, str]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def first(d: Deployment, code: str, after: float) -> float:
    """Wall clock of the first event with this code after a time; waits for it."""
    return float(d.wait(lambda: next((at(e) for e in d.events() if e["code"] == code and at(e) >= after), 0.0), code))


def main(runs: int) -> None:
    known, told, ready = [], [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="motor-bench-") as folder:
            d = Deployment(Path(folder), {"motor_engine_union_config": engine_section()})
            try:
                d.start_controller()
                d.start_nodes(2)
                d.wait_ready()
                registered = max(at(e) for e in d.events() if e["code"] == "registered")
                ready.append(first(d, "ready", registered) - registered)
                master_log = d.nodes["n1"].root / "manager.out"
                killed = time.time() - 0.001
                os.kill(d.members()["union-0/0/1"]["pid"], signal.SIGKILL)
                failure = first(d, "failure_stop", killed)
                known.append(failure - killed)
                d.wait(lambda log=master_log: "stopping: failure stop" in log.read_text(), "the master's stop")  # type: ignore[misc]
                line = next(x for x in master_log.read_text().splitlines() if "stopping: failure stop" in x)
                stop = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
                told.append(max(0.0, stop - failure))
                d.wait(lambda deployment=d: deployment.group()["generation"] == 2, "the restart")  # type: ignore[misc]
                d.wait_ready()
            finally:
                d.close()
    for name, values in (("death -> known", known), ("known -> all told", told), ("registered -> ready", ready)):
        low, middle, high = min(values), statistics.median(values), max(values)
        figures = " / ".join(f"{1e3 * value:7.1f}" for value in (low, middle, high))
        print(f"{name:<22} {figures} ms  (min/median/max of {len(values)})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
