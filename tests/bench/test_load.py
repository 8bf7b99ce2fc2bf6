"""The load generator against a real controller, small: what the figures are made with has to work."""

from __future__ import annotations

import pytest

from bench import load
from bench.load import GROUP, all_ready, fleet, is_ready, register, until_async
from bench.table import Figure

NODES = 6 * GROUP


@pytest.mark.parametrize("shared", [2, 0])
async def test_every_node_registers_prepares_starts_and_is_ready(shared: int) -> None:
    async with fleet(NODES, shared) as (controller, loaded):
        await all_ready(loaded)
        await until_async(lambda: is_ready(controller), "all groups to be ready")
        seen = loaded.seen
        assert (seen.registered, seen.prepared, seen.started, seen.ready) == (NODES,) * 4
        assert (seen.lost, seen.refused, seen.stopped) == (0, 0, 0)


async def test_no_node_is_lost_when_the_controller_is_killed_and_started_again() -> None:
    back, ready, again, *_ = await load.storm(1, NODES)
    assert again.values == [0.0], "no stream broke again, no engine was started or stopped"
    assert back.values[0] <= ready.values[0] < 60.0


async def test_a_failure_stops_its_own_group_alone() -> None:
    async with fleet(NODES) as (_, loaded):
        await all_ready(loaded)
        loaded.reset()
        loaded.nodes[-1].fail()
        await loaded.until(lambda seen: seen.stopped == GROUP, "the stops")
        stopped = [node for node in loaded.nodes if node.held is None or node.held.state == load.STOPPED]
        assert loaded.seen.stopped == GROUP and len(stopped) == GROUP


async def test_reconnects_leave_nothing_behind() -> None:
    first, second = await load.drift(1, 10 * 4 * GROUP, 4 * GROUP)
    assert max(*first.values, *second.values) < 10.0  # per cent of a small process; the full count is in the bench


async def test_every_heartbeat_is_acknowledged() -> None:
    async with fleet(NODES) as (_, loaded):
        loaded.beating = False
        await register(loaded.nodes, loaded)
        await loaded.until(lambda seen: seen.registered == NODES, "registrations")
        rate, delays = await load.offer_beats(loaded, 200, seconds=1.0)
        assert rate > 100.0 and len(delays) >= 199


def test_a_line_has_its_figures_its_runs_and_its_aim() -> None:
    assert Figure("x", [3.0, 1.0, 2.0], "ms", "5").line().split(maxsplit=1)[1] == (
        "1.0 /       2.0 /       3.0 ms  (3 runs; aim 5)"
    )
