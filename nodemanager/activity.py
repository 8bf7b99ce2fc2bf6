"""Looks at one slot's devices -> are they flat, busy, busy without memory traffic, or unknown. Pure.

*Flat* is the state of a slot when any one of its devices was below the threshold. A hung rank has all its devices
flat; but ranks of one engine work in step, so one flat device among busy ones is as suspicious: its worker waits or
is frozen, and the others may well spin for it. The detail names it. Flat says nothing by itself: an idle engine is
flat too, and only a late canary makes it count. Runs are kept for each device, so that two devices that are flat in
turn never add up.

*Busy without memory* is how a deadlocked collective looks (vllm #46097: cores at about 96 %, memory at 0): all
devices compute, all are known not to touch their memory.

*Unknown* is everything that was not seen: a device that is missing in a look ends its run, and one unknown device
makes a slot unknown unless another is flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodemanager.telemetry.source import DeviceSample

UNKNOWN = "unknown"
FLAT = "flat"
BUSY = "busy"
BUSY_WITHOUT_MEMORY = "busy_without_memory"

HIGH_COMPUTE = 80.0  # percent; a spinning collective keeps the cores near 100
STILL = 0.05  # percent
PEAK_LOOKS = 3  # what an idle rank showed before it froze must not count any more
NO_MEMORY = 1.0  # percent; work on a model moves memory all the time


@dataclass(frozen=True)
class DevicesState:
    """`since` is on the caller's clock. `flat_samples`: looks in a row of the device that is flat the longest."""

    state: str = UNKNOWN
    since: float = 0.0
    flat_samples: int = 0
    flat_peak: float = -1.0  # percent; the most that the flattest device has shown in the newest looks

    @property
    def still(self) -> bool:
        """The flattest device shows nothing at all: a rank that waits for a frozen one still turns over."""
        return self.state == FLAT and 0.0 <= self.flat_peak < STILL

    detail: str = "not looked at yet"


@dataclass(frozen=True)
class _Run:
    samples: int
    since: float
    shown: tuple[float, ...]  # percent, in the newest looks

    @property
    def peak(self) -> float:
        return max(self.shown)


def kind_of(sample: DeviceSample, threshold: float) -> str:
    """What one look says of one device. `threshold` in percent."""
    if sample.compute_pct is None:
        return UNKNOWN
    if sample.compute_pct < threshold:
        return FLAT
    if sample.compute_pct >= HIGH_COMPUTE and sample.membw_pct is not None and sample.membw_pct < NO_MEMORY:
        return BUSY_WITHOUT_MEMORY
    return BUSY


class Activity:
    """Follows the devices of one slot. `threshold` in percent."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._flat: dict[str, _Run] = {}
        self.now = DevicesState()

    def feed(self, samples: Sequence[DeviceSample], at: float, problem: str = "", source: str = "") -> DevicesState:
        """Take in one look at all of the slot's devices. `problem`: why some or all could not be read."""
        kinds = {sample.name: kind_of(sample, self._threshold) for sample in samples}
        shown = {sample.name: sample.compute_pct or 0.0 for sample in samples}
        self._flat = {
            name: _Run(run.samples + 1, run.since, (*run.shown, shown[name])[-PEAK_LOOKS:])
            if (run := self._flat.get(name))
            else _Run(1, at, (shown[name],))
            for name, kind in kinds.items()
            if kind == FLAT
        }
        if self._flat:
            name = max(self._flat, key=lambda one: (self._flat[one].samples, -self._flat[one].peak))
            run = self._flat[name]
            self.now = DevicesState(FLAT, run.since, run.samples, run.peak, self._flat_detail(name, samples, source))
            return self.now
        if problem or not kinds or UNKNOWN in kinds.values():
            state, detail = UNKNOWN, problem or _why_unknown(samples)
        elif all(kind == BUSY_WITHOUT_MEMORY for kind in kinds.values()):
            state, detail = BUSY_WITHOUT_MEMORY, "all compute and none moves memory"
        else:
            state, detail = BUSY, ", ".join(_shown(sample) for sample in samples[:4])
        since = self.now.since if state == self.now.state and self.now.since else at
        self.now = DevicesState(state, since, detail=f"{source}: {detail}" if source else detail)
        return self.now

    def _flat_detail(self, name: str, samples: Sequence[DeviceSample], source: str) -> str:
        sample = next(one for one in samples if one.name == name)
        flat = len(self._flat)
        text = f"{_shown(sample)}, below {self._threshold:g} %"
        if sample.health and sample.health != "OK":
            text += f", {sample.health}"
        if len(samples) > 1:
            text += f"; {flat} of {len(samples)} devices are flat"
        return f"{source}: {text}" if source else text


def _why_unknown(samples: Sequence[DeviceSample]) -> str:
    unread = [sample.name for sample in samples if sample.compute_pct is None]
    return f"no utilisation of {', '.join(unread[:8])}" if unread else "no device was seen"


def _shown(sample: DeviceSample) -> str:
    return f"{sample.name} at {sample.compute_pct:.0f} %" if sample.compute_pct is not None else f"{sample.name}: ?"
