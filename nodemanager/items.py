"""One answer of a prepare: what was checked, and how it went."""

from __future__ import annotations

from dataclasses import dataclass

WARNING = "WARNING"


@dataclass(frozen=True)
class Item:
    """`detail` says what was found; on failure also what was expected and what to do. One that begins with `WARNING`
    is worth reading although nothing is refused for it.
    """

    name: str
    ok: bool
    detail: str


def warning(name: str, detail: str) -> Item:
    return Item(name, True, f"{WARNING}: {detail}")
