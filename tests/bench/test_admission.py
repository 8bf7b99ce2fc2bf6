"""Registrations come in turns, so that nodes that are in are served beside those that wait."""

from __future__ import annotations

import asyncio

from controller.api.admission import Admission


async def test_so_many_in_a_turn_in_the_order_of_their_coming() -> None:
    admission, turns, entered = Admission(at_once=3), 0, []

    async def come(number: int) -> None:
        assert await admission.enter()
        entered.append((turns, number))

    tasks = [asyncio.create_task(come(number)) for number in range(20)]
    while len(entered) < 20:
        turns += 1
        assert turns < 1000, entered
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert [number for _, number in entered] == list(range(20))
    in_a_turn = [sum(turn == which for turn, _ in entered) for which in {turn for turn, _ in entered}]
    assert max(in_a_turn) <= 3 + 3, "what the first turn lets in at once may be beside one more turn"


async def test_one_that_is_gone_takes_nobodys_turn() -> None:
    admission = Admission(at_once=1)
    assert await admission.enter()
    waiting = [asyncio.create_task(admission.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert await asyncio.wait_for(asyncio.gather(*waiting[1:]), 10.0) == [True, True]


async def test_one_that_waited_too_long_is_told_to_come_again() -> None:
    admission = Admission(at_once=1, patience=-1.0)
    assert await admission.enter(), "its turn at once"
    assert not await admission.enter()
