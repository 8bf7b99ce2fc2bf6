"""Run a long command: say how it goes, keep what it printed, leave none of its processes behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demo.cache import PROGRESS_SECONDS, Log, SetupFailed
from demo.stopping import check_stop

# Settings that would send an installation elsewhere or let another environment's modules in.
_DROPPED = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
_LINE_WIDTH = 80
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Command:
    """One step of a set-up.

    `advice` looks at the last lines of a failed run and says what to do. `hold` are file descriptors that
    the child inherits, the entry's lock among them.
    """

    what: str
    arguments: Sequence[str | Path]
    environment: Mapping[str, str]
    advice: Callable[[str], str]
    hold: Sequence[int] = ()


@dataclass
class _Output:
    """The last lines a child printed."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    rest: str = ""

    def add(self, data: bytes) -> None:
        # Progress bars end their lines with a carriage return alone.
        *whole, self.rest = re.split(r"[\r\n]+", self.rest + data.decode(errors="replace"))
        self.lines.extend(line for line in whole if line.strip())

    def close(self) -> None:
        self.add(b"\n")

    @property
    def last(self) -> str:
        """The newest line that tells of progress; pip's warnings don't."""
        telling = (line.strip() for line in reversed(self.lines))
        return next((line[:_LINE_WIDTH] for line in telling if not line.startswith("WARNING")), "none yet")


def clean_environment(temporary: Path, **more: str) -> dict[str, str]:
    """The caller's environment without what redirects Python or pip, with a place for temporary files."""
    kept = {k: v for k, v in os.environ.items() if k not in _DROPPED and not k.startswith("PYTHON")}
    temporary.mkdir(parents=True, exist_ok=True)
    ours = {
        "TMPDIR": str(temporary),
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_PROGRESS_BAR": "off",
    }
    return {**kept, **ours, **more}


def run(command: Command, log: Log) -> list[str]:
    """Run to the end, with a progress line every PROGRESS_SECONDS; returns its last lines (40 at most).

    Raises SetupFailed with command, last lines and advice for any exit code but 0, StopRequested when asked
    to stop. Either way the child's whole process group is gone afterwards.
    """
    started = time.monotonic()
    log(f"{command.what} ...")
    arguments = [str(argument) for argument in command.arguments]
    try:
        child = subprocess.Popen(
            arguments,
            env=dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own: Ctrl-C reaches only this process, which then ends the child in order.
            start_new_session=True,
            pass_fds=tuple(command.hold),
            preexec_fn=_die_with(os.getpid()),
        )
    except OSError as error:
        raise SetupFailed(_failure(command, arguments, 0.0, f"did not start: {error}", [])) from error
    output = _Output()
    try:
        _follow(child, output, command.what, started, log)
    finally:
        _end_group(child)
    took = time.monotonic() - started
    if child.returncode != 0:
        code = child.returncode
        ended = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        raise SetupFailed(_failure(command, arguments, took, ended, list(output.lines)))
    log(f"{command.what}: done in {took:.0f} s")
    return list(output.lines)


def _die_with(parent: int) -> Callable[[], None] | None:
    """What the child does before its program starts: have the kernel end it when this process is killed."""
    if _libc is None:
        return None

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return die_with_parent


def _follow(child: subprocess.Popen[bytes], output: _Output, what: str, started: float, log: Log) -> None:
    assert child.stdout is not None
    said = started
    with selectors.DefaultSelector() as selector, child.stdout as stream:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ)
        at_end = False
        while True:
            check_stop()
            # The exit is asked before the pipe is read, so that nothing printed before it is missed; the end
            # of the pipe alone isn't awaited, a grandchild could keep it open.
            exited = child.poll() is not None
            if at_end:
                time.sleep(0.05)
            else:
                selector.select(0.0 if exited else 0.2)
                at_end = _drain(stream.fileno(), output)
            if exited:
                break
            now = time.monotonic()
            if now - said >= PROGRESS_SECONDS:
                log(f"{what}: {now - started:.0f} s, last output: {output.last}")
                said = now
    output.close()


def _drain(descriptor: int, output: _Output) -> bool:
    """Read what is there; True at the end of the pipe."""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(descriptor, 65536):
            output.add(data)
        return True
    return False


def _end_group(child: subprocess.Popen[bytes], grace: float = 3.0) -> None:
    """End a child that still runs, then what is left of its group; returns with the child reaped."""
    if child.poll() is None:
        # An interrupted pip deletes its own temporary files.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _failure(command: Command, arguments: list[str], took: float, ended: str, lines: list[str]) -> str:
    shown = lines[-15:] or ["(nothing printed)"]
    return "\n".join(
        [
            f"FAILED: {command.what}, after {took:.0f} s",
            f"  ran: {shlex.join(arguments)}",
            f"  came back: {ended}",
            *(f"  | {line}" for line in shown),
            f"  what to do: {command.advice(chr(10).join(lines))}",
        ]
    )
