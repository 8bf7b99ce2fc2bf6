"""Vendor tools that print recorded outputs, put on the PATH in front of everything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures" / "telemetry"


class FakeTools:
    """`tool(name, **cases)`: a script that answers by the words of its command line."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def tool(self, name: str, cases: dict[str, str], otherwise: str = "exit 9") -> Path:
        """`cases`: pattern of the arguments as `case` takes it -> shell commands."""
        branches = "".join(f'  "{pattern}") {commands} ;;\n' for pattern, commands in cases.items())
        path = self.folder / name
        log = f'echo "$*" >> "{self.folder}/{name}.calls"'
        path.write_text(f'#!/bin/sh\n{log}\ncase "$*" in\n{branches}  *) {otherwise} ;;\nesac\n')
        path.chmod(0o755)
        return path

    def calls(self, name: str) -> list[str]:
        file = self.folder / f"{name}.calls"
        return file.read_text().splitlines() if file.exists() else []


def cat(name: str) -> str:
    return f"cat '{FIXTURES / name}'"


def stream(name: str, seconds: float = 0.1) -> str:
    """The file again and again, as a watching tool prints."""
    return f"while cat '{FIXTURES / name}'; do sleep {seconds}; done"


def running(folder: Path) -> list[int]:
    """Processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if str(folder) in words and state != "Z" and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found
