"""The demonstration: a real engine over three nodes of this machine, from nothing to an answer and back.

Usage: python -m demo.run [--keep] [--loopback]        (`make demo` calls it)

Ends with code 0 after a right answer, 1 if something failed, 130 or 143 after Ctrl-C or SIGTERM, which it takes
at any moment. However it ends, nothing is left but the engine and the model in the cache; after a failure also
the logs in `.demo/last-logs`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import signal
import sys
import time
from pathlib import Path
from typing import Any

from demo.cache import SetupFailed, cache_root, print_progress
from demo.cluster import Cluster, DemoFailed
from demo.engine_environment import ensure_engine_environment
from demo.model import ensure_model
from demo.namespaces import CleanUpFailed, network
from demo.progress import Progress, display
from demo.question import EXPECTED, QUESTION, ask
from demo.run_folder import ROOT, keep_logs, run_folder
from demo.settings import node_count, write_settings
from demo.stopping import StopRequested, check_stop, request_stop, stop_on_signals
from motorctl.client import ControllerError, get

READY_SECONDS = 15 * 60.0
POLL_SECONDS = 0.3
ANSWER_SECONDS = 3.0  # of the controller
MOST_RESTARTS = 1
TABLE_WIDTH = 120
NEEDED_MEMORY = 4.5e9
"""Bytes of memory that three ranks of the small model and the daemons take."""


def main() -> int:
    """Entry point of `python -m demo.run`; returns the exit code."""
    parser = argparse.ArgumentParser("python -m demo.run", description="A real engine over three nodes, shown.")
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C, and say where it is")
    parser.add_argument("--loopback", action="store_true", help="loopback addresses instead of network namespaces")
    options = parser.parse_args()
    with stop_on_signals():
        signal.signal(signal.SIGHUP, request_stop)
        try:
            run_demo(options.keep, options.loopback)
            return 0
        except (SetupFailed, DemoFailed, CleanUpFailed) as failure:
            say(str(failure))
            return 1
        except OSError as error:
            say(f"FAILED: {error}; {ROOT} and {cache_root()} must be writable and have space left")
            return 1
        except StopRequested as stop:
            say(f"{stop}; everything is shut down")
            return stop.exit_code


def say(line: str) -> None:
    """One line for the user; a terminal that is gone must not keep the shutdown from its work."""
    with contextlib.suppress(OSError):
        print_progress(line)


def show(text: str) -> None:
    """Part of the result, on standard output."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def run_demo(keep: bool = False, loopback: bool = False) -> None:
    """Everything from set-up to shutdown. DemoFailed, SetupFailed, CleanUpFailed or StopRequested otherwise."""
    began = time.monotonic()
    check_machine()
    engine = ensure_engine_environment(say)
    model = ensure_model(say, engine)
    say(f"engine: vLLM {engine.version} in {engine.python.parent.parent}; model: {model}")
    with run_folder(say) as folder, network(node_count(), say, loopback=loopback) as nodes:
        settings = write_settings(folder, nodes, engine, model)
        # Nodes in namespaces have a /dev/shm of their own, see Cluster.
        with folder.note_shared_memory() if nodes.kind == "loopback" else contextlib.nullcontext():
            run_cluster(Cluster(folder, nodes, settings), keep)
    check_stop()
    say(f"done in {time.monotonic() - began:.0f} s; nothing is left but the cache {cache_root()}")


def run_cluster(cluster: Cluster, keep: bool) -> None:
    """From the start of the daemons to their end."""
    where = "network namespaces" if cluster.network.kind == "namespaces" else "loopback addresses"
    say(f"starting motor-controller and {len(cluster.network.nodes)} motor-nodemanagers on {where}")
    finished = False
    try:
        cluster.start()
        cluster.start_next_manager(set())
        url = wait_until_ready(cluster)
        answer_question(url)
        print_table(get(cluster.settings.rest, "/v1/status"))
        if keep:
            stay(cluster.settings.rest, url)
        finished = True
    except (DemoFailed, ControllerError) as failure:
        raise DemoFailed(explain(cluster, failure)) from failure
    finally:
        cluster.stop(say, hurry=not finished)


def check_machine() -> None:
    """SetupFailed where the engine cannot run; a warning where it may not."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        raise SetupFailed("FAILED: vLLM for CPUs needs libnuma.so.1\n  what to do: apt-get install libnuma1") from None
    import psutil

    available = psutil.virtual_memory().available
    if available < NEEDED_MEMORY:
        say(f"WARNING: {available / 1e9:.1f} GB of memory are free, the engine needs {NEEDED_MEMORY / 1e9:.1f} GB")


def wait_until_ready(cluster: Cluster) -> str:
    """Show each node's way until the controller lists the engine; returns its URL. DemoFailed if it fails."""
    deadline = time.monotonic() + READY_SECONDS
    progress = Progress.of(cluster.network.nodes)
    after = 0
    with display() as shown:
        while True:
            check_stop()
            cluster.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"not ready after {READY_SECONDS / 60:.0f} minutes")
            # The first answers fail because the controller is not up yet; its end is seen above.
            with contextlib.suppress(ControllerError):
                events = get(cluster.settings.rest, f"/v1/events?after={after}&limit=1000", ANSWER_SECONDS)
                status = get(cluster.settings.rest, "/v1/status", ANSWER_SECONDS)
                after = events["next_after"]
                cluster.start_next_manager({node["node_id"] for node in status["nodes"]})
                shown.update(progress, progress.take(events["events"], status))
                fail_if_failed(status)
                if found := get(cluster.settings.rest, "/v1/instances", ANSWER_SECONDS):
                    return str(found[0]["url"])
            time.sleep(POLL_SECONDS)


def fail_if_failed(status: dict[str, Any]) -> None:
    """DemoFailed when Motor has given up, or has restarted the engine without success."""
    for instance in status["instances"]:
        failures = max((group["restarts"] for group in instance["groups"]), default=0)
        if instance["state"] == "failed":
            raise DemoFailed(f"{instance['name']}: Motor has given up on it")
        if failures > MOST_RESTARTS:
            raise DemoFailed(f"{instance['name']} failed {failures} times before it was ready")


def answer_question(url: str) -> None:
    """Ask and print; DemoFailed for a wrong answer."""
    say(f"asking the engine at {url} (the first answer takes up to half a minute)")
    began = time.monotonic()
    answer = ask(url)
    show(f"\nQ: {QUESTION}\nA: {answer}\n")
    say(f"answered in {time.monotonic() - began:.1f} s")
    if EXPECTED not in answer:
        raise DemoFailed(f"the answer says nothing of {EXPECTED}")


def print_table(status: dict[str, Any]) -> None:
    """The table of `motorctl status`."""
    from rich.console import Console

    from motorctl.status_view import print_status

    # Where it goes to a file or a pipe, rich would take 80 columns and fold what does not fit.
    width = None if sys.stdout.isatty() else TABLE_WIDTH
    with contextlib.suppress(OSError):
        print_status(status, Console(width=width))
        print(flush=True)


def stay(rest: str, url: str) -> None:
    """Leave it running until StopRequested."""
    show(
        f"running until Ctrl-C\n"
        f"  engine      {url}/v1\n"
        f"  controller  {rest}/v1/status   (its API: {rest}/docs)\n"
        f"  status      {Path(sys.executable).with_name('motorctl')} status --controller {rest}"
    )
    while True:
        check_stop()
        time.sleep(0.2)


def explain(cluster: Cluster, failure: Exception) -> str:
    """Print the status as far as there is one; returns what failed, the last words of the rank, and where the
    logs are kept.
    """
    lines = [f"FAILED: {failure}"]
    with contextlib.suppress(ControllerError):
        status = get(cluster.settings.rest, "/v1/status")
        print_table(status)
        for instance in status["instances"]:
            for group in instance["groups"]:
                if found := group["last_failure"]:
                    lines.append(f"  first failure: {found['slot']} on {found['node_id']}: {found['reason']}")
                    lines += [f"  | {line}" for line in found["last_log_lines"][-15:]]
    with contextlib.suppress(OSError):
        kept = keep_logs(cluster.folder)
        lines += [f"  log: {path}" for path in sorted(kept.iterdir())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
