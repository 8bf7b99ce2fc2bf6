"""How fast the whole system reacts, with real daemons and the scripted engine on loopback.

Usage: python -m bench.reactions [RUNS] [DEATHS]       (default 5 and 20)

Times are taken from the controller's own event list (wall clock, milliseconds) and from this process:
  registered -> ready  last registration of a two-node instance until it is ready (0.2 s of it the scripted engine)
  silent -> known      SIGSTOP of a node's manager until the controller calls it unreachable, at the default timers
  death -> known       SIGKILL of a follower's engine until the controller has recorded the failure
  known -> all told    until the node of the other member has begun to stop its engine
  orphans              engine processes without a living start of Motor's, after all those deaths
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from controller.config.controller_rules import read_timers
from controller.config.errors import Findings
from controller.config.schema import TimerSettings
from tests.cluster.deployment import Deployment, engine_section
from tests.nodemanager.places import marked

FOLLOWER = "union-0/0/1"


def at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def first(d: Deployment, code: str, after: float) -> float:
    """Wall clock of the first event with this code after a time; waits for it."""
    return float(d.wait(lambda: next((at(e) for e in d.events() if e["code"] == code and at(e) >= after), 0.0), code))


@contextmanager
def deployment(**timers: float) -> Iterator[Deployment]:
    """Two nodes, one instance over both, ready."""
    with tempfile.TemporaryDirectory(prefix="motor-bench-") as folder:
        sections = {"motor_engine_union_config": engine_section()}
        d = Deployment(Path(folder), sections, {"timers": timers} if timers else {})
        try:
            d.start_controller()
            d.start_nodes(2)
            d.wait_ready()
            yield d
        finally:
            d.close()


def registered_to_ready() -> float:
    with deployment() as d:
        registered = max(at(e) for e in d.events() if e["code"] == "registered")
        return first(d, "ready", registered) - registered


def silent_to_known() -> float:
    """A machine that answers nothing and closes no connection: the worst case."""
    timers = read_timers(TimerSettings(), {}, Findings("defaults", {}))
    with deployment(heartbeat_interval=timers.heartbeat_interval, node_timeout=timers.node_timeout) as d:
        process = d.nodes["n2"].process
        assert process is not None
        stopped = time.time()
        process.send_signal(signal.SIGSTOP)
        try:
            return first(d, "unreachable", stopped) - stopped
        finally:
            process.send_signal(signal.SIGCONT)


def deaths(count: int) -> tuple[list[float], list[float], int]:
    """(death -> known, known -> all told, orphans) of so many deaths, one after the other."""
    known, told = [], []
    with deployment(restart_backoff=0.1, restart_backoff_max=0.1, max_restarts=count + 1) as d:
        master_log = d.nodes["n1"].root / "manager.out"
        for number in range(count):
            lines = len(master_log.read_text().splitlines())
            killed = time.time() - 0.001
            os.kill(d.members()[FOLLOWER]["pid"], signal.SIGKILL)
            failure = first(d, "failure_stop", killed)
            known.append(failure - killed)
            stop = d.wait(lambda n=lines: _stop_line(master_log, n), "the master's stop")  # type: ignore[misc]
            told.append(max(0.0, datetime.strptime(stop[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() - failure))
            d.wait(lambda n=number: d.group()["generation"] == n + 2, "the restart")  # type: ignore[misc]
            d.wait_ready()
        living = {member["pid"] for member in d.members().values()}
        engines = {
            p.pid for p in marked(d.root) if "serve" in p.cmdline() and "--scripted-worker" not in str(p.cmdline())
        }
    return known, told, len(engines - living)


def _stop_line(log: Path, after: int) -> str:
    return next((x for x in log.read_text().splitlines()[after:] if "stopping: failure stop" in x), "")


def show(name: str, values: list[float]) -> None:
    ordered = sorted(values)
    late = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    parts = [ordered[0], statistics.median(ordered), late, ordered[-1]]
    figures = " / ".join(f"{1e3 * value:7.1f}" for value in parts)
    print(f"{name:<22} {figures} ms  (min/median/p99/max of {len(values)})", flush=True)


def main(runs: int, count: int) -> None:
    show("registered -> ready", [registered_to_ready() for _ in range(runs)])
    show("silent -> known", [silent_to_known() for _ in range(runs)])
    known, told, orphans = deaths(count)
    show("death -> known", known)
    show("known -> all told", told)
    print(f"orphans                {orphans} after {count} deaths")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [5, 20][len(given) :]))
