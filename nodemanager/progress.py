"""Counters of an engine's /metrics as a sign of life: moving ones prove that it computes, still ones prove nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from motor_rpc.deadline import within
from motor_rpc.http_ask import NotHttpError, Place, Request, ask


def sum_of_counters(text: bytes, names: Sequence[str]) -> float | None:
    """The sum over these counters and all their labels; None if none of them is there.

    Lines are `name{labels} value [timestamp]`; comments and the many histogram lines cost one comparison each.
    """
    wanted = tuple(name.encode() for name in names)
    total, found = 0.0, False
    for line in text.split(b"\n"):
        if not line.startswith(wanted):
            continue
        name, _, rest = line.partition(b"{")
        if rest:
            value = rest.rpartition(b"}")[2]
        else:
            name, _, value = line.partition(b" ")
        if name not in wanted:
            continue
        try:
            total += float(value.split()[0])
            found = True
        except (ValueError, IndexError):
            continue
    return total if found else None


class Progress:
    """Reads the counters of one API server and tells whether they moved."""

    def __init__(self, place: Place, path: str, names: Sequence[str]) -> None:
        self._place = place
        self._request = Request(path)
        self._names = names
        self._last: float | None = None

    async def moved(self, limit: float) -> bool:
        """True if they changed since the last call that could read them. `limit` in seconds."""
        if not self._names:
            return False
        try:
            answer = await within(limit, ask(self._place, self._request))
        except (OSError, NotHttpError, asyncio.TimeoutError):
            return False
        total = sum_of_counters(answer.body, self._names) if answer.status == 200 else None
        if total is None:
            return False
        last, self._last = self._last, total
        return last is not None and total != last
