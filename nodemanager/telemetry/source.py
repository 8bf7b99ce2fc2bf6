"""One look at devices, and the interface of whoever takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class TelemetryError(Exception):
    """Nothing could be read; the text says why. The devices' state is unknown then."""


@dataclass(frozen=True)
class DeviceSample:
    """One device at one moment. None = not known: a field that is missing proves nothing.

    `name` is what *_VISIBLE_DEVICES takes. `membw_pct` tells a deadlocked collective, which keeps the cores busy
    and moves no memory, from work.
    """

    name: str
    at: float  # on the monotonic clock
    compute_pct: float | None = None
    membw_pct: float | None = None
    mem_used_bytes: int | None = None
    power_w: float | None = None
    health: str | None = None  # the tool's own word; "OK" where all is well
    pids: tuple[int, ...] | None = None  # processes that hold memory of it
    owner: str = ""  # slot whose own process this is; empty for a real device
    aliases: tuple[str, ...] = ()  # other names of the same device: a UUID


class Source(Protocol):
    """Where samples come from. `sample` may block: it is called in a thread of its own, with a limit."""

    @property
    def name(self) -> str:
        """For people: "npu-smi watch"."""

    def sample(self) -> list[DeviceSample]:
        """Every device of the node. TelemetryError if nothing can be read."""

    def close(self) -> None:
        """End what it keeps running."""


@dataclass(frozen=True)
class Unavailable:
    """Stands in where there is nothing to read from."""

    reason: str
    name: str = "none"

    def sample(self) -> list[DeviceSample]:
        raise TelemetryError(self.reason)

    def close(self) -> None:
        pass


def number(text: str) -> float | None:
    """A number out of a tool's output; None for `-`, `N/A`, `[Not Supported]` and anything else."""
    try:
        value = float(text.strip().removesuffix("%").strip())
    except ValueError:
        return None
    return value if value >= 0 and value != float("inf") else None


def percent(text: str) -> float | None:
    """As `number`; a value beyond 100 is a tool's defect, and unknown."""
    value = number(text)
    return value if value is not None and value <= 100 else None
