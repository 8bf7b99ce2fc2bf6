"""Who leads, as this process knows it: itself, another controller, or nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timezone

from motor_rpc.deadline import within

from controller.config.advertise_rules import Advertised
from controller.store.interface import Leader
from controller.term import Term


class Leadership:
    """What the doors of this process look at before they answer a node or an operator."""

    def __init__(self, own: Advertised) -> None:
        self.own = own
        self.term: Term | None = None  # this process leads
        self.leader: Leader | None = None  # another one does
        self.ended: Term | None = None  # the last term here: can be read until somebody leads again
        self.trouble = ""  # why nobody is known to lead
        self.store_trouble: Callable[[], str] = lambda: ""  # why the store does not answer just now
        self.since = time.time()  # of the present state
        self._changed = asyncio.Event()

    def told(self, leader: Leader | None) -> None:
        """Another controller leads; None: nobody is known to."""
        if leader is not None and (leader.grpc == self.own.grpc or leader.rest == self.own.rest):
            # This controller was killed and started again within its lease. To send anybody there is to send them here.
            self.trouble = "the lease of this controller's earlier run has not run out yet"
            leader = None
        elif leader is None and not self.trouble:
            self.trouble = "no controller has been elected yet"
        if leader is not None:
            self.ended, self.trouble = None, ""
        if (leader is None) != (self.leader is None) or (leader and self.leader and leader != self.leader):
            self.since = time.time()
        self.leader = leader
        self._pulse()

    def begin(self, term: Term) -> None:
        self.term, self.leader, self.ended, self.trouble = term, None, None, ""
        self.since = time.time()
        self._pulse()

    def end(self, reason: str) -> None:
        """This process leads no more. Nobody else is known to, until the store says so."""
        self.ended, self.term, self.trouble = self.term, None, reason
        self.since = time.time()
        self._pulse()

    def failed(self, reason: str) -> None:
        """The store could not be opened; it is tried again."""
        self.leader, self.trouble = None, reason
        self._pulse()

    def describe(self) -> str:
        """One line for the service manager and for people."""
        if self.term is not None:
            return f"leader, epoch {self.term.service.state.epoch}"
        if self.leader is not None:
            return f"standby, leader {self.leader.rest}"
        return f"standby, no leader since {self.since_text()}: {self.why()}; engines keep running"

    def why(self) -> str:
        """Why nobody is known to lead; what the store says now comes first."""
        return self.store_trouble() or self.trouble

    def since_text(self) -> str:
        return datetime.fromtimestamp(self.since, timezone.utc).isoformat(timespec="seconds")

    async def change(self, seconds: float | None = None) -> None:
        """Wait for the next change, at most so long."""
        try:
            await within(seconds, self._changed.wait())
        except asyncio.TimeoutError:
            pass

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
