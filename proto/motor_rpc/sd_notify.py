"""systemd's notification socket, spoken directly: READY, STATUS, WATCHDOG and STOPPING (sd_notify(3))."""

from __future__ import annotations

import asyncio
import os
import socket


def notify(message: str) -> bool:
    """Send `message` to the service manager; False where there is none or it does not listen."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return False
    if path.startswith("@"):
        path = "\0" + path[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), path)
        return True
    except OSError:
        return False


def watchdog_period() -> float | None:
    """Seconds between two signs of life that systemd's WatchdogSec asks for; None if it does not watch this
    process.
    """
    try:
        period = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
        watched = int(os.environ.get("WATCHDOG_PID", str(os.getpid())))
    except ValueError:
        return None
    return period / 3 if period > 0 and watched == os.getpid() else None


async def feed_watchdog() -> None:
    """Send signs of life from the event loop for as long as it turns: a blocked loop is what systemd should
    see.
    """
    period = watchdog_period()
    while period is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(period)
