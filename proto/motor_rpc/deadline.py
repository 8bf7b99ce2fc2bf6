"""A time limit for something awaited, that lets a cancellation through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

ResultT = TypeVar("ResultT")


async def within(seconds: float | None, work: Awaitable[ResultT]) -> ResultT:
    """The result of `work`, which is cancelled when the time is over. asyncio.TimeoutError then. None: no limit.

    asyncio.wait_for of Python 3.10 and 3.11 returns the result when a cancellation arrives together with it
    (bpo-37658): a loop that was told to end would go on for ever.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.cancel() and not task.cancelled():
            task.exception()  # looked at, so that nobody complains when nobody wants it any more
    if not done:
        await asyncio.wait({task})  # its end first, so that it does nothing after the time is over
        raise asyncio.TimeoutError
    return task.result()
