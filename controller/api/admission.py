"""Who may register now. After a restart every node of a cluster comes at once: those that are in have to be served
beside those that wait, and a node that waited too long has given up already."""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 16  # registrations in one turn of the event loop, some 10 ms of work
PATIENCE = 7.0  # seconds; a node gives up after 10 (nodemanager/link.py), and what is done for it then is wasted


class Admission:
    """A queue, first come, first served."""

    def __init__(self, at_once: int = AT_ONCE, patience: float = PATIENCE) -> None:
        self._at_once = at_once
        self._patience = patience
        self._left = at_once
        self._turning = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> bool:
        """Wait for one's turn. False when that took too long: the node is to come again later."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn)
        if self._left and not self._waiting:
            self._left -= 1
            return True
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn
        return loop.time() - came <= self._patience

    def _turn(self) -> None:
        """Once per turn of the loop, while anybody comes."""
        self._left = self._at_once
        while self._left and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # its stream is gone
                waiting.set_result(None)
                self._left -= 1
        self._turning = bool(self._waiting) or self._left < self._at_once
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)
