"""Many worlds, one for each seed. Usage: python -m simulator [--seeds 2000] [--first 0] [--seed N]
One large or long world:               python -m simulator --nodes 10000 --hours 1 [--seed N]

A failing seed is printed with its last decisions; put it into tests/core/failing_seeds.txt, which `make test` replays.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback

from simulator.long import live_long
from simulator.shapes import deployment
from simulator.world import World, live


def try_seed(seed: int) -> tuple[int, int, str]:
    """(seed, events handled, "" or what went wrong)."""
    kept: list[World] = []
    try:
        plan, offers = deployment(seed)
        kept.append(live(plan, offers, seed))
        return seed, kept[0].steps, ""
    except Exception:
        return seed, 0, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--nodes", type=int, help="one world of so many nodes in groups of eight")
    parser.add_argument("--hours", type=float, default=1.0, help="of simulated time, with --nodes")
    given = parser.parse_args()
    if given.nodes is not None:
        began = time.monotonic()
        world = live_long(given.nodes, given.hours, given.seed or 0)
        seconds = time.monotonic() - began
        print(f"{given.nodes} nodes, {given.hours:g} h: {world.steps} events in {seconds:.0f} s, everything ready")
        return 0
    seeds = [given.seed] if given.seed is not None else list(range(given.first, given.first + given.seeds))
    began, events, failed, told = time.monotonic(), 0, [], time.monotonic()
    with multiprocessing.Pool(min(os.cpu_count() or 1, len(seeds))) as pool:
        for number, (seed, steps, wrong) in enumerate(pool.imap_unordered(try_seed, seeds, chunksize=8), 1):
            events += steps
            if wrong:
                failed.append(seed)
                print(f"seed {seed} fails: python -m simulator --seed {seed}\n{wrong}", flush=True)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"{number} of {len(seeds)} seeds, {events} events, {len(failed)} failed", flush=True)
    seconds = time.monotonic() - began
    print(f"{len(seeds) - len(failed)} passed, {len(failed)} failed, {events} events in {seconds:.0f} s")
    if failed:
        print(f"failing seeds: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
