"""Property tests try the same examples in every `make test`, so that a change is judged by what it changes; `make fuzz`
draws new ones, and what those find becomes a test."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
if "FUZZ" in os.environ:
    settings.register_profile("new", max_examples=max(1, int(100 * float(os.environ["FUZZ"]))), deadline=None)
    settings.load_profile("new")
else:
    settings.load_profile("same")
