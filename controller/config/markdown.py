"""Tables of a Markdown document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def code(text: str) -> str:
    """`text`, and nothing for nothing."""
    return f"`{text}`" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells may hold anything on one line; bars in them are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines)
