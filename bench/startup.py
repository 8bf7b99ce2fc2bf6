"""How long `--help` of the three programs takes. Usage: python -m bench.startup [RUNS]       (default 10)"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench.table import Figure, show

PROGRAMS = ("motor-controller", "motor-nodemanager", "motorctl")


def seconds(program: str) -> float:
    command = [str(Path(sys.executable).with_name(program)), "--help"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main(runs: int) -> None:
    for program in PROGRAMS:
        seconds(program)  # compiled files are written once
        show(Figure(f"{program} --help", [1000 * seconds(program) for _ in range(runs)], "ms", "150", 0))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
