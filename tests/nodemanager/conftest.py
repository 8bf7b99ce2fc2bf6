"""Each test gets a folder of its own and must leave no process behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodemanager.places import describe_left, kill_all, marked


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder; at the end no process that was started from it may live."""
    tmp_path.chmod(0o755)
    try:
        yield tmp_path
        left = describe_left(tmp_path)
    finally:
        kill_all(tmp_path)
    assert not left, f"left behind: {left}"
    assert not marked(tmp_path)
