"""Random kills, one after the other: after each everything is ready again, and at the end nothing is left.

KILLS and SEED in the environment: `make soak` takes 200. The seed of a run is printed; the same one kills the same
kinds of processes in the same order.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults import invariants, measured
from tests.faults.cluster import Cluster

KILLS = int(os.environ.get("KILLS", "30"))
SEED = int(os.environ.get("SEED") or 0) or random.SystemRandom().randrange(1, 1_000_000)
BOUND = 60.0  # seconds from a kill until everything is ready


@dataclass(frozen=True)
class Killed:
    """What was killed, and the group that has to start anew for it (None: nobody has to)."""

    what: str
    group: int | None = None


Victim = Callable[[Cluster, random.Random], Killed]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def of_slot(what: str, find: Callable[[Cluster, str], int]) -> Victim:
    """One process of a slot chosen at random."""

    def victim(cluster: Cluster, rng: random.Random) -> Killed:
        slot = rng.choice(sorted(cluster.d.members()))
        kill(find(cluster, slot))
        return Killed(f"{what} of {slot}", int(slot.split("/")[1]))

    return victim


def manager(cluster: Cluster, rng: random.Random) -> Killed:
    node = rng.choice(sorted(cluster.d.nodes))
    kill(cluster.manager(node))
    time.sleep(rng.uniform(0.0, 2.0))  # systemd takes a moment, too
    cluster.restart_manager(node)
    cluster.d.wait(lambda: cluster.d.node_states()[node] in ("assigned", "spare"), f"{node} to be back", BOUND)
    return Killed(f"manager of {node}")


def controller(cluster: Cluster, rng: random.Random) -> Killed:
    kill(cluster.controller())
    time.sleep(rng.uniform(0.0, 2.0))
    cluster.restart_controller()
    return Killed("controller")


def pair(cluster: Cluster, rng: random.Random) -> Killed:
    """A process of a slot and, before it is repaired, somebody whose task that is."""
    first = rng.choice(OF_SLOTS)(cluster, rng)
    time.sleep(rng.uniform(0.0, 1.0))
    second = rng.choice((manager, controller))(cluster, rng)
    return Killed(f"{first.what}, then {second.what}", first.group)


OF_SLOTS = (of_slot("engine", Cluster.engine), of_slot("worker", Cluster.worker), of_slot("shim", Cluster.shim))
VICTIMS: tuple[Victim, ...] = (*OF_SLOTS, manager, controller, pair)


def test_random_kills(cluster: Cluster) -> None:
    print(f"\n{KILLS} random kills, SEED={SEED}")
    rng = random.Random(SEED)
    took: list[float] = []
    for number in range(1, KILLS + 1):
        time.sleep(rng.uniform(0.0, 0.5))
        before, began = cluster.before(), time.monotonic()
        killed = rng.choice(VICTIMS)(cluster, rng)
        for group, generation in enumerate(before.generations):
            if group == killed.group:
                cluster.d.wait(
                    lambda g=group, n=generation: cluster.groups()[g]["generation"] > n,  # type: ignore[misc]
                    f"group {group} to start anew", BOUND,
                )  # fmt: skip
        cluster.wait_settled(BOUND)
        took.append(time.monotonic() - began)
        print(f"{number:4d} {killed.what}: ready after {took[-1]:.1f} s")
        invariants.check(cluster)
        for group in range(len(before.generations)):
            if group != killed.group:
                cluster.untouched(before, group)
    median, longest = sorted(took)[len(took) // 2], max(took)
    print(f"median {median:.1f} s, longest {longest:.1f} s")
    measured.note(f"{KILLS} random kills (SEED={SEED}), the slowest", None, None, longest)
