"""How long an engine may run without a manager, or without a controller: what the manager grants its shim.

Without `self_fence` the manager renews for `orphan_grace`, whether or not a controller can be heard: losing sight is
not failure. With it the engine has to be gone when a controller that lost sight of it may start another one. So the
grant ends at a fixed time after the last word of a controller, however many managers came and went since: one that has
heard nobody yet grants nothing, and what an earlier one granted runs on.
"""

from __future__ import annotations

from dataclasses import dataclass

ORPHAN_GRACE = "orphan_grace"
SELF_FENCE = "self_fence"

LONGEST_PAUSE_SECONDS = 60.0
SHORTEST_PAUSE_SECONDS = 0.05
UNHEARD_PAUSE_SECONDS = 0.5  # the first word may come in the last moment
# The manager stops the engine itself, in order and with the true reason; the shim comes after it.
FENCE_MARGIN_SECONDS = 2.0


@dataclass(frozen=True)
class Lease:
    """`grace`: seconds from now until the shim stops the engine, None = never. `why` names the setting it comes from.

    `renew` is false where nothing may be granted. `silent` is set when the fence is due: seconds without a controller.
    """

    grace: float | None
    why: str
    pause: float  # until the next look
    renew: bool = True
    silent: float | None = None


def lease(orphan_grace: float | None, self_fence: float, heard_at: float | None, now: float) -> Lease:
    """`heard_at`: when this manager last heard a controller (monotonic as `now`); None = not yet."""
    pause = min(LONGEST_PAUSE_SECONDS, orphan_grace / 10 if orphan_grace else LONGEST_PAUSE_SECONDS)
    if not self_fence:
        return Lease(orphan_grace, ORPHAN_GRACE, pause)
    pause = min(pause, self_fence / 10)
    if heard_at is None:
        return Lease(None, SELF_FENCE, min(pause, UNHEARD_PAUSE_SECONDS), renew=False)
    left = self_fence - (now - heard_at)
    if left <= 0:
        return Lease(0.0, SELF_FENCE, pause, renew=False, silent=now - heard_at)
    fence = left + FENCE_MARGIN_SECONDS
    pause = max(SHORTEST_PAUSE_SECONDS, min(pause, left))
    if orphan_grace is not None and orphan_grace < fence:
        return Lease(orphan_grace, ORPHAN_GRACE, pause)
    return Lease(fence, SELF_FENCE, pause)


def first_grace(orphan_grace: float | None, self_fence: float) -> float | None:
    """What the shim starts with, until a manager's first renewal."""
    if not self_fence:
        return orphan_grace
    return self_fence if orphan_grace is None else min(orphan_grace, self_fence)
