"""An end that nobody tells: a shim that is frozen or blocked reaps nobody, and its engine stays a zombie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodemanager.shim import process_stat

SILENT_SECONDS = 5.0  # a shim tells within milliseconds; one that takes so long will not do it any more


class UnreportedEnd:
    """Watches one engine's main process beside its shim. Times come from outside, on the monotonic clock."""

    def __init__(self) -> None:
        self._since: float | None = None

    def silent_for(self, status: Mapping[str, Any], now: float) -> float:
        """Seconds since the engine was first seen to be over while its shim still calls it running; 0 if it runs."""
        stat = process_stat(int(status.get("engine_pid") or 0))
        runs = stat is not None and stat[1] == status.get("engine_start") and stat[2] not in "ZX"
        if runs or status.get("state") != "running":
            self._since = None
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since


def exit_of(status: Mapping[str, Any]) -> dict[str, int]:
    """`exit_code` or `exit_signal` of an engine that nobody has reaped yet; {} if the kernel does not tell."""
    pid = int(status.get("engine_pid") or 0)
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return {}
    state, started, raw = fields[0], int(fields[19]), int(fields[49])  # proc(5): fields 3, 22 and 52
    if state != b"Z" or started != status.get("engine_start"):
        return {}
    return {"exit_signal": os.WTERMSIG(raw)} if os.WIFSIGNALED(raw) else {"exit_code": os.WEXITSTATUS(raw)}
