"""The project's own virtual environment, .venv in the repository: Motor, editable, and its development tools.

Usage: python3 -m demo.project_environment        (any Python from 3.10 on; prints .venv's python as the last line)

Standard library only. Nothing is written outside the repository and the folders that pip is told to use.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from demo.cache import Log, SetupFailed
from demo.child import Command, clean_environment, run
from demo.command_line import run_program

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv"
WORK = ROOT / ".make"
OLDEST_PYTHON = (3, 10)


def stamp() -> Path:
    """The file that vouches for a complete environment: for this pyproject.toml, at this very place."""
    content = (ROOT / "pyproject.toml").read_bytes() + str(FOLDER).encode()
    return FOLDER / f"motor-complete-{hashlib.sha256(content).hexdigest()[:12]}"


def ensure_project_environment(log: Log) -> Path:
    """Python of .venv, made or brought up to date first where needed (a minute, a download of 70 MB).

    Raises SetupFailed or StopRequested; the next call then goes on where this one ended.
    """
    python = FOLDER / "bin" / "python"
    if stamp().exists() and os.access(python, os.X_OK):
        return python
    _check_python()
    environment = clean_environment(WORK / "tmp")

    def step(what: str, *arguments: str | Path) -> None:
        run(Command(what, arguments, environment, _advice), log)

    try:
        if not _has_pip(python):
            step("creating .venv", sys.executable, "-m", "venv", "--clear", FOLDER)
        for old in FOLDER.glob("motor-complete-*"):
            old.unlink()
        step("installing Motor and its tools into .venv", python, "-m", "pip", "install", "-e", f"{ROOT}[dev]")
        stamp().touch()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    return python


def _has_pip(python: Path) -> bool:
    """False for an environment whose making was interrupted, or whose interpreter is gone."""
    return os.access(python, os.X_OK) and (FOLDER / "bin" / "pip").exists()


def _check_python() -> None:
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise SetupFailed(
            f"FAILED: Motor needs Python {oldest} or newer, this is {platform.python_version()} ({sys.executable})\n"
            f"  what to do: name another one, for example `make PYTHON=python3.11 demo`"
        )
    # Debian's python3 has venv, but not what venv installs pip with.
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise SetupFailed(
            f"FAILED: {sys.executable} cannot make virtual environments\n"
            f"  what to do: apt-get install python{sys.version_info.major}.{sys.version_info.minor}-venv"
            " (or python3-venv)"
        )


def _advice(output: str) -> str:
    """What to do about a failed step, from its last lines."""
    if "No space left" in output:
        return "free 500 MB and run again"
    return "check the network and `pip config list`, then run again"


def main() -> int:
    """Entry point of `python3 -m demo.project_environment`."""
    return run_program(ensure_project_environment)


if __name__ == "__main__":
    sys.exit(main())
