"""Every argv, environment and port of the pinned shapes; a reviewer reads them in tests/golden."""

from __future__ import annotations

import difflib

import pytest

from tests.golden_shapes import GOLDEN, SHAPES, golden_path, golden_text


@pytest.mark.parametrize("name", SHAPES)
def test_plan_is_as_pinned(name: str) -> None:
    path = golden_path(name)
    pinned = path.read_text(encoding="utf-8") if path.exists() else ""
    now = golden_text(name)
    if now == pinned:
        return
    difference = difflib.unified_diff(pinned.splitlines(), now.splitlines(), f"golden/{path.name}", "now", lineterm="")
    pytest.fail(
        "the plan differs from its golden file; if it should, run `python -m tests.golden_update` and review:\n"
        + "\n".join(difference)
    )


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SHAPES)
