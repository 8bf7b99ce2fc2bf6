"""Every bench in turn, and one table at the end. Usage: python -m bench [PART ...]      (`make bench`)

Without PART: all but `failover` and `reactions`, which real node managers and engines make slow.

Two cores are enough: one for what is measured, one for what measures it. Nothing else should run.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import core, load, reactions, rendezvous, startup, validate

RUNS = 5
#: name -> (the command that runs this part alone, what to call)
PARTS: dict[str, tuple[str, Callable[[], None]]] = {
    "core": (f"python -m bench.core {RUNS}", lambda: core.main(RUNS)),
    "starts": (f"python -m bench.load starts {RUNS}", lambda: load.main("starts", RUNS)),
    "heartbeats": (f"python -m bench.load heartbeats {RUNS}", lambda: load.main("heartbeats", RUNS)),
    "storm": (f"python -m bench.load storm {RUNS}", lambda: load.main("storm", RUNS)),
    "failure": (f"python -m bench.load failure {RUNS}", lambda: load.main("failure", RUNS)),
    "status": (f"python -m bench.load status {RUNS}", lambda: load.main("status", RUNS)),
    "drift": (f"python -m bench.load drift {RUNS} 10000", lambda: load.main("drift", RUNS, 10_000)),
    "validate": ("python -m bench.validate 7", lambda: validate.main(7)),
    "startup": ("python -m bench.startup 10", lambda: startup.main(10)),
    "rendezvous": (f"python -m bench.rendezvous {RUNS}", lambda: rendezvous.main(RUNS)),
    "failover": (f"python -m bench.failover {RUNS}", lambda: as_command("bench.failover", str(RUNS))),
    "reactions": (f"python -m bench.reactions {RUNS} 20", lambda: reactions.main(RUNS, 20)),
}


#: only when asked for: real daemons and engines, some minutes more
APART = ("failover", "reactions")


def as_command(module: str, *arguments: str) -> None:
    """A bench that reads its own command line."""
    print(subprocess.check_output([sys.executable, "-m", module, *arguments], text=True), end="")


class Tee(io.TextIOBase):
    """What is printed is shown at once and kept for the table."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def write(self, text: str) -> int:
        self.kept.append(text)
        return sys.__stdout__.write(text) if sys.__stdout__ else len(text)

    def flush(self) -> None:
        if sys.__stdout__:
            sys.__stdout__.flush()


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    began, table, failed = time.monotonic(), [], []
    for name in names or [name for name in PARTS if name not in APART]:
        command, part = PARTS[name]
        print(f"\n{name}: {command}", flush=True)
        kept = Tee()
        try:
            with contextlib.redirect_stdout(kept):
                part()
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed.append(name)
            kept.kept.append(f"FAILED: {error}\n")
            print(f"FAILED: {error}", flush=True)
        table.append(f"`{command}`\n\n```\n{''.join(kept.kept)}```\n")
    minutes = (time.monotonic() - began) / 60
    print(f"\n{'=' * 100}\n{machine()}; min / median / max; the whole in {minutes:.0f} min\n")
    print("\n".join(table))
    return 1 if failed else 0


def machine() -> str:
    """What it was run on."""
    model = next(
        (x.partition(":")[2].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "name" in x), ""
    )
    count = Path("/proc/cpuinfo").read_text().count("processor\t")
    idle = Path("/proc/loadavg").read_text().split()[0]
    return f"{count} x {model}, Python {sys.version.split()[0]}, load average at the end {idle}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
