"""Doing something inside another network namespace without a process for it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000


def inside(namespace: Path, work: Callable[[], T]) -> T:
    """What `work` returns, run in the namespace that is mounted at a path; sockets it makes stay there.

    OSError where entering is not allowed, and whatever `work` raises.
    """

    def enter_and_work() -> T:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(namespace))
        finally:
            os.close(descriptor)
        return work()

    # A thread of its own: setns changes only the thread that calls it, and this one ends afterwards.
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(enter_and_work).result()
