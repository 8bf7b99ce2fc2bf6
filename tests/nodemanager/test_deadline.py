"""A time limit that lets a cancellation through."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from motor_rpc.deadline import within


async def test_a_result_in_time() -> None:
    assert await within(5.0, asyncio.sleep(0.0, "done")) == "done"


async def test_its_error_is_ours() -> None:
    async def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await within(5.0, fails())


async def test_what_is_late_has_ended_when_the_time_is_over() -> None:
    ended = []

    async def slow() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)
        ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, slow())
    assert ended


async def test_a_cancellation_that_comes_with_the_result_is_not_swallowed() -> None:
    """asyncio.wait_for of 3.10 and 3.11 returns the result, and a loop around it never ends."""
    work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(within(5.0, work))
    await asyncio.sleep(0)
    work.set_result("done")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_ends_the_work() -> None:
    work = asyncio.create_task(asyncio.sleep(60.0))
    task = asyncio.create_task(within(5.0, work))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait({work})
    assert work.cancelled()
