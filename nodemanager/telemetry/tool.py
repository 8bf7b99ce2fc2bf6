"""Runs a vendor's command-line tool with a limit. Blocking: for the thread of a look."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from nodemanager.telemetry.source import TelemetryError

LONGEST_OUTPUT = 1 << 20


def run_tool(argv: Sequence[str], limit: float) -> str:
    """What it prints. TelemetryError if it is not there, fails, is late (then it is killed, and not waited for: a
    process in a driver does not die).
    """
    what = " ".join(argv[:3])
    try:
        child = subprocess.Popen(
            argv, cwd="/", start_new_session=True, env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise TelemetryError(f"{what}: cannot be run: {error.strerror}") from None
    try:
        output, errors = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        raise TelemetryError(f"{what}: not done after {limit:g} s") from None
    text = output[:LONGEST_OUTPUT].decode(errors="replace")
    if child.returncode != 0:
        said = (errors.decode(errors="replace").strip() or text.strip() or "nothing").splitlines()[0][:200]
        raise TelemetryError(f"{what}: ended with {child.returncode}: {said}")
    return text


class Stream:
    """One long-lived tool that prints a line now and then; `on_line` hears them, in a thread of this object's.

    The tool writes into a pipe, so it ends by itself with its next line when the manager is killed.
    """

    def __init__(self, argv: Sequence[str], on_line: Callable[[str], None]) -> None:
        self._argv = list(argv)
        self._on_line = on_line
        self._child: subprocess.Popen[bytes] | None = None
        self.last_line_at = 0.0  # monotonic
        self.last_words = ""

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """TelemetryError if it cannot be executed."""
        self.close()
        try:
            self._child = subprocess.Popen(
                self._argv, cwd="/", start_new_session=True, env={**os.environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            raise TelemetryError(f"{self._argv[0]}: cannot be run: {error.strerror}") from None
        threading.Thread(target=self._read, args=(self._child,), daemon=True, name="telemetry stream").start()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed under us
            for line in iter(lambda: child.stdout.readline(4096), b""):  # type: ignore[union-attr]
                text = line.decode(errors="replace").rstrip()
                if text and child is self._child:
                    self.last_line_at, self.last_words = time.monotonic(), text[:200]
                    self._on_line(text)
        with contextlib.suppress(OSError):
            child.wait(1.0) if child.poll() is None else None

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.5)  # one that is stuck in the driver is left behind
