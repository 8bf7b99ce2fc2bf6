"""How the set-up programs end: the result on standard output, everything else on standard error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from demo.cache import Log, SetupFailed, cache_root, print_progress
from demo.stopping import StopRequested, stop_on_signals


def run_program(work: Callable[[Log], Path]) -> int:
    """Do the work and print the path it returns; the exit code is 0, 1 (failed), 130 or 143 (stopped)."""
    with stop_on_signals():
        try:
            print(work(print_progress))
            return 0
        except SetupFailed as failure:
            print_progress(str(failure))
            return 1
        except OSError as error:
            print_progress(
                f"FAILED: {error}\n  what to do: {cache_root()} must be writable and have space left, or"
                " XDG_CACHE_HOME must name another folder that is"
            )
            return 1
        except StopRequested as stop:
            print_progress(f"{stop}; nothing half-made is left behind")
            return stop.exit_code
