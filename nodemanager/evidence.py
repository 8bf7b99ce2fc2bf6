"""Why an engine ended, in one sentence, from what the shim recorded and what the engine's log said."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodemanager.idleness import OWN_QUESTIONS
from nodemanager.log_follower import tail
from nodemanager.stages import LAST_LINES, StageTracker

CONFIGURATION = "configuration"
TRANSIENT = "transient"


def last_lines(log_file: Path) -> list[str]:
    """The end of a log without the traces of Motor's own questions, of which an idle engine's log is full."""
    return [line for line in tail(log_file, 40 * LAST_LINES) if not OWN_QUESTIONS.search(line)][-LAST_LINES:]


@dataclass(frozen=True)
class EndOfEngine:
    """How the main process ended. `failure_class` is empty when nothing tells it."""

    text: str
    exit_code: int | None
    exit_signal: int | None
    failure_class: str


def explain_end(rank: int, status: Mapping[str, Any], tracker: StageTracker, asked: bool) -> EndOfEngine:
    """`status` as the shim wrote it, or as the supervisor completed it (`shim_lost`, `rebooted`)."""
    code, number = status.get("exit_code"), status.get("exit_signal")
    failure_class = tracker.fatal.failure_class if tracker.fatal else ""
    if status.get("rebooted"):
        text = "the machine was restarted"
    elif status.get("shim_lost") and not status.get("shim_pid"):
        text = "the node manager ended before it had started the engine"
    elif status.get("shim_silent"):
        how = _how(code, number) if (code, number) != (None, None) else "the engine ended, nobody knows how"
        silent, shim = status["shim_silent"], status.get("shim_pid", 0)
        text = f"{how}; its shim (pid {shim}) was frozen: it did not say so for {silent:.0f} s and was killed"
    elif status.get("shim_lost"):
        text = f"shim lost: the shim (pid {status.get('shim_pid', 0)}) was killed, so its engine was ended too"
    elif status.get("launch_error"):
        text = f"nothing was started: {status['launch_error']}"
        failure_class = TRANSIENT  # a full disk, no processes left
    elif status.get("start_error"):
        text = f"the engine could not be started: {status['start_error']}"
        failure_class = failure_class or CONFIGURATION
    else:
        text = _how(code, number)
        if not asked:
            text += _by_whom(status, number)
    if tracker.fatal and not asked:
        text += f"; {tracker.fatal.meaning}: {tracker.fatal.line}"
    return EndOfEngine(f"rank {rank}: {text}", code, number, failure_class)


def _how(code: int | None, number: int | None) -> str:
    if number is None:
        return f"the engine exited with code {code}"
    try:
        return f"the engine was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"the engine was ended by signal {number}"


def _by_whom(status: Mapping[str, Any], number: int | None) -> str:
    stop = status.get("stop")
    if stop:
        return f": {stop['by']} stopped it ({stop['reason']})"
    if number == signal.SIGKILL:
        return " that nobody asked for (the kernel's out-of-memory killer? see dmesg)"
    return ", and nobody asked it to stop"
