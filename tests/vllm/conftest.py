"""Real engines leave things outside a test's folder: caches, sockets, and shared memory when they are killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from demo.shared_memory import noted, remove_noted


@pytest.fixture
def scratch() -> Iterator[Path]:
    """HOME and TMPDIR of the engines. Short, because they put sockets there, whose paths may have 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="mv-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path) -> Iterator[None]:
    """What the engines of a test map in /dev/shm is deleted after it."""

    def engines() -> list[int]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if any("VLLM::" in word or word.startswith("vllm.entrypoints") for word in words):
                found.append(process.pid)
        return found

    note = tmp_path / "shared-memory"
    with noted(engines, note):
        yield
    remove_noted(note)
