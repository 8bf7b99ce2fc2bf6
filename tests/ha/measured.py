"""What the tests measured, printed at the end of a run and copied into docs by hand."""

from __future__ import annotations

LINES: list[str] = []


def note(what: str, **seconds: float) -> None:
    LINES.append(
        f"{what:<52}" + "".join(f"  {name.replace('_', ' ')} {value:.2f} s" for name, value in seconds.items())
    )
