"""Numbers that remember how they were written: 0.90 stays 0.90 on an engine's command line."""

from __future__ import annotations


class WrittenFloat(float):
    """A number that prints as it was written."""

    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)  # copies and pickles keep the form
