"""After the last process of an engine: wait until its devices have their memory back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from nodemanager import device_memory
from nodemanager.config import NodeConfig
from nodemanager.device_memory import Occupied

PAUSE_SECONDS = (0.2, 5.0)  # between two looks: first, longest; a vendor's tool takes up to a second


def looker(config: NodeConfig) -> Callable[[Sequence[str]], Awaitable[list[Occupied]]]:
    """Which of some devices of this node are known not to be free."""
    kind = config.devices.kind
    idle = device_memory.idle_bytes(kind, config.limits.device_memory_mb)

    async def look(devices: Sequence[str]) -> list[Occupied]:
        return [] if kind == "cpu" or not devices else await device_memory.occupied(kind, devices, idle)

    return look


async def wait_until_free(
    look: Callable[[Sequence[str]], Awaitable[list[Occupied]]], devices: Sequence[str], seconds: float
) -> str:
    """Empty when they are free, or when nobody can tell; else what is not free after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = PAUSE_SECONDS[0]
    while found := await look(devices):
        left = deadline - time.monotonic()
        if left <= 0:
            return f"devices not free {seconds:g} s after the last process ended: {'; '.join(map(str, found))}"
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 2, PAUSE_SECONDS[1])
    return ""
