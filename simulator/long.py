"""One large or long world: many nodes, or many hours, with the faults of `World` all along."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

from controller.core import invariants
from controller.core.model import DeploymentPlan, NodeOffer
from controller.core.state import Phase
from simulator.shapes import instance, offer
from simulator.world import World, settle

GROUP = 8
SPARES = 50  # one node in so many has no slot
LARGE = 1000  # nodes; from there on the rules would take more time than what they are held against
CHECK_EVERY = 50  # events, beside the full check of `World`
ROUNDS_SECONDS = 600.0  # an operator looks after what was given up


def deployment(nodes: int) -> tuple[DeploymentPlan, list[NodeOffer]]:
    """One instance of groups of eight over `nodes` nodes, spares included."""
    groups = max(1, (nodes - nodes // SPARES) // GROUP)
    plan = DeploymentPlan("default", (instance("union-0", groups, GROUP),))
    return plan, [
        replace(offer(1, 1), node_id=f"n{i}", address=f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}") for i in range(nodes)
    ]


def live_long(nodes: int, hours: float, seed: int) -> World:
    """A world through `hours` of faults to the calm, in which everything has to become ready. AssertionError."""
    plan, offers = deployment(nodes)
    world = World(plan, offers, seed)
    world.check_every = CHECK_EVERY if nodes > LARGE else 1
    began = time.monotonic()

    def rounds() -> None:
        for node_id, held in world.core.state.nodes.items():
            if held.foreign and held.connected:
                world.order("clean", node_id)
        for scope_id, scope in world.core.state.scopes.items():
            if scope.phase is Phase.FAILED:
                world.order("restart", scope_id)
        ready = sum(scope.phase is Phase.READY for scope in world.core.state.scopes.values())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{world.now / 3600:5.2f} h: {ready} of {len(world.core.state.scopes)} groups ready, {world.steps} events, "
            f"at most {memory:.0f} MB, {time.monotonic() - began:.0f} s of real time",
            flush=True,
        )
        world.later(ROUNDS_SECONDS, rounds)

    world.later(ROUNDS_SECONDS, rounds)
    world.run(hours * 3600.0)
    settle(world)
    invariants.check(world.core.state)
    return world
