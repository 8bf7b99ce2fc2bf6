"""Worlds in virtual time: those that failed once, and some more. `make sim` runs thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.shapes import deployment
from simulator.world import live

FAILED_ONCE = [
    int(line.split()[0])
    for line in Path(__file__).with_name("failing_seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("seed", [*FAILED_ONCE, *range(100_000, 100_050)])
def test_every_world_ends_ready(seed: int) -> None:
    plan, offers = deployment(seed)
    world = live(plan, offers, seed)
    assert world.steps > 50, "a world in which nothing happens proves nothing"


def test_a_seed_is_one_world() -> None:
    plan, offers = deployment(3)
    first, second = live(plan, offers, 3), live(plan, offers, 3)
    assert [line.sentence for line in first.core.state.story] == [line.sentence for line in second.core.state.story]
