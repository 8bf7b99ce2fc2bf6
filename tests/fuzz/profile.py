"""How much is tried: a little in `make test`, more in `make fuzz`."""

from __future__ import annotations

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings

TIMES = float(os.environ.get("FUZZ", "1"))  # `make fuzz` sets it


def examples(quick: int) -> int:
    """So many in `make test`, FUZZ times as many in `make fuzz`."""
    return max(1, int(quick * TIMES))


def tried(quick: int, seconds: float = 5.0) -> settings:
    """Settings of a property: one example takes no longer than `seconds`, on two busy cores."""
    return settings(
        max_examples=examples(quick),
        deadline=timedelta(seconds=seconds),
        suppress_health_check=list(HealthCheck),
        database=None,  # a run leaves nothing behind; what it finds is printed and becomes a test
        print_blob=True,
    )
