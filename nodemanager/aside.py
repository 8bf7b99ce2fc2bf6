"""Work that may block for ever, done aside: in threads and children that nothing has to wait for.

A hung mount, a driver in trouble or a stuck /proc entry blocks whoever touches it, and a process in such a call
does not even die of SIGKILL. So threads are daemons (the interpreter's own pools are joined at its end), and a child
that is late is killed but not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


async def in_thread(work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Run `work` in a thread of its own and return what it returns, or raise what it raises."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def deliver(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        try:
            setter, value = future.set_result, work(*args, **kwargs)
        except Exception as error:
            setter, value = future.set_exception, error  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop is over, and nobody waits
            loop.call_soon_threadsafe(deliver, setter, value)

    threading.Thread(target=run, daemon=True).start()
    return await future


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it wrote."""

    code: int
    output: bytes
    errors: str


class ChildIsLateError(Exception):
    """The child did not end within its time. It was killed; whether it is gone nobody knows."""


async def run_child(argv: Sequence[str], env: Mapping[str, str] | None, seconds: float) -> Ended:
    """Run a short program in a session of its own, with no input. OSError if it cannot be executed."""
    return await in_thread(_run, argv, env, seconds)


def _run(argv: Sequence[str], env: Mapping[str, str] | None, seconds: float) -> Ended:
    child = subprocess.Popen(
        argv, env=env, cwd="/", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        raise ChildIsLateError(f"{argv[0]} did not end within {seconds:g} s") from None
    return Ended(child.returncode, output, errors.decode(errors="replace").strip())
