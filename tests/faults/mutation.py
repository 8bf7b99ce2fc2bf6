"""What a mutation is: data, applied to a copy of the tree by `mutations.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Text that stands exactly once in `file`, and what stands there instead."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """`row`: section and fault as docs/faults.md has them. `removed`: what the product then lacks, one clause.

    Every test has to fail, and `says`, or one of them, has to be in the words of each failure. `env` goes to pytest.
    """

    row: str
    tests: tuple[str, ...]
    removed: str
    says: str | tuple[str, ...]
    edits: tuple[Edit, ...]
    env: tuple[tuple[str, str], ...] = ()


def wall_clock_in(file: str) -> Edit:
    """Every time.monotonic() of a file gives the time of day."""
    return Edit(
        file, "\nimport time\n", "\nimport time as _time\n\nclass time:\n    monotonic = time = _time.time\n\n"
    )  # fmt: skip
