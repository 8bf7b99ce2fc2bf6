"""The end of an engine whose supervisor broke: without its shim's help, by what the record and the marks tell."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from nodemanager import left_overs, shim_client
from nodemanager.records import boot_id

log = logging.getLogger(__name__)

SHIM_SECONDS = 2.0  # a shim whose engine is gone records that and ends
RETRY_SECONDS = 1.0


async def end_by_force(
    select: Callable[[], list[left_overs.Process]], status: Callable[[], Mapping[str, Any]], name: str
) -> None:
    """SIGKILL to what `select` finds, then to the shim; returns when nothing of either is left."""
    while True:
        try:
            left = await left_overs.end(select)
            await _end_shim(status)
            if not left:
                return
            log.error("%s: %d process(es) do not die after SIGKILL", name, len(left))
        except Exception:  # whatever broke the supervisor may break this too; nobody else ends the engine
            log.exception("%s: ending it by force failed; trying again", name)
        await asyncio.sleep(RETRY_SECONDS)


async def _end_shim(status: Callable[[], Mapping[str, Any]]) -> None:
    deadline = asyncio.get_running_loop().time() + SHIM_SECONDS
    while shim_client.alive(found := status(), boot_id()):
        if asyncio.get_running_loop().time() > deadline:
            os.kill(int(found["shim_pid"]), signal.SIGKILL)
        await asyncio.sleep(0.05)
    shim_client.collect(found)
