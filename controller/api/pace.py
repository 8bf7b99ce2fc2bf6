"""How fast a node stream is read: one node that says too much must not take the time of all others."""

from __future__ import annotations

MESSAGES_AT_ONCE = 2_000  # a log that somebody asked for comes in many pieces
MESSAGES_PER_SECOND = 500  # an honest node says some ten


class Pace:
    """A bucket of messages, refilled steadily. Nothing is dropped: the reader waits, and flow control the node."""

    def __init__(self, rate: float = MESSAGES_PER_SECOND, burst: float = MESSAGES_AT_ONCE) -> None:
        self._each = 1.0 / rate
        self._ahead = burst / rate
        self._paid = 0.0  # on the caller's clock: until when what was read has been paid for

    def wait(self, now: float) -> float:
        """Seconds to wait before the message after this one is read; `now` on any steady clock."""
        self._paid = max(self._paid, now) + self._each
        return max(0.0, self._paid - self._ahead - now)
