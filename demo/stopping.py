"""Ending in order on Ctrl-C and SIGTERM.

A signal is only noted; loops ask at points where everything they own is in a `finally`. Raising out of the
handler instead could strike between starting a child and remembering it.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_noted: int | None = None


class StopRequested(BaseException):
    """The process was asked to end; not an Exception, so that no handler for failures swallows it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


def request_stop(signal_number: int, _frame: FrameType | None = None) -> None:
    """Note that the process shall end; usable as a signal handler and from a program's own handler."""
    global _noted
    if _noted is None:
        _noted = signal_number


def check_stop() -> None:
    """Raise StopRequested when a stop was requested."""
    if _noted is not None:
        raise StopRequested(_noted)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Note SIGINT and SIGTERM while inside. Main thread only (ValueError elsewhere)."""
    before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
