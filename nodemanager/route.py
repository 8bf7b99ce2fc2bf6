"""Which controller to dial next. Several stand by, one leads, and each of them knows who."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TypeAlias

Endpoint: TypeAlias = tuple[str, int]

#: Refusals that are followed at once, one after the other. Two controllers that name each other must not be a loop.
MAX_HOPS = 2

#: Sessions that break soon after they came about, until the next in the list is tried.
MAX_BROKEN = 2


class End(Enum):
    """How a dial, or the session that came of it, ended."""

    BROKE = auto()  # the stream of a session: its controller may have been restarted, or the network blinked
    SILENT = auto()  # a session whose controller did not answer any more
    NO_ANSWER = auto()  # no session came about
    NOT_LEADER = auto()  # refused: another one leads, or nobody
    REFUSED = auto()  # refused for another reason


class Route:
    """The node file's list, gone through in a circle, and the leader that a controller has named."""

    def __init__(self, listed: Sequence[Endpoint], may_dial: Callable[[str], bool] = lambda host: True) -> None:
        """`may_dial` says whether the connection to a host that is not in the list is secure enough."""
        self._listed = tuple(listed)
        self._may_dial = may_dial
        self._at = 0
        self._told: Endpoint | None = None
        self._hops = 0
        self.tried: Endpoint | None = (
            None  # the last that did not answer, or does not lead, until a session comes about
        )
        self.failures = 0  # dials after a wait, since `settled`

    @property
    def target(self) -> Endpoint:
        return self._told or self._listed[self._at]

    @property
    def rounds(self) -> int:
        """How often the whole list was tried in vain."""
        return self.failures // len(self._listed)

    def registered(self) -> None:
        """A session came about."""
        self._hops, self.tried = 0, None

    def settled(self) -> None:
        """The session lasted: the next loss is a new one."""
        self.failures = 0

    def after(self, end: End, leader: Endpoint | None = None) -> bool:
        """Choose the next target; True: it is to be dialled at once. `leader`: whom a refusal names."""
        if end is End.NOT_LEADER and leader not in (None, self.target) and self._hops < MAX_HOPS:
            assert leader is not None
            if leader in self._listed or self._may_dial(leader[0]):
                self._told = leader
                self._hops += 1
                return True
        self.failures += 1
        if end is End.BROKE and self.failures <= MAX_BROKEN:
            return False
        no_leader = end is not End.REFUSED and leader is None
        if no_leader:
            self.tried = self.target
        if self._told is None or not no_leader:
            self._at = (self._at + 1) % len(self._listed)
        # else: back to the one that named it, which keeps this node until another leads (RegisterMsg)
        self._told, self._hops = None, 0
        return False
