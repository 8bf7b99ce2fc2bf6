"""Flags that an engine's own parser knows, read from the lists that flag_lists/make_flag_list.py wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

# action="append" in vLLM 0.32 entrypoints/launchers/cli_args.py: each stands for one more value.
REPEATABLE = frozenset({"middleware"})


@dataclass(frozen=True)
class FlagList:
    """Long option names without dashes in front. An empty list knows nothing, so it calls nothing unknown."""

    source: str = ""  # "vllm-0.32"
    kinds: Mapping[str, str] = field(default_factory=dict)  # name -> bool | value | list | json
    negatable: frozenset[str] = field(default_factory=frozenset)  # names with a --no-NAME form

    @property
    def json_valued(self) -> frozenset[str]:
        """Names whose one value is JSON, lists included."""
        return frozenset(name for name, kind in self.kinds.items() if kind == "json")

    def knows(self, name: str) -> bool:
        """True for a listed name, the `no-` form of a negatable one, and for all when the list is empty."""
        return not self.kinds or name in self.kinds or name.removeprefix("no-") in self.negatable


@cache
def load_flag_list(file_name: str) -> FlagList:
    """The list in `file_name`; an empty one where none is named. FileNotFoundError if it is not installed."""
    if not file_name:
        return FlagList()
    path = resources.files("engine_launch") / "flag_lists" / file_name
    content: dict[str, dict[str, str | bool]] = json.loads(path.read_text(encoding="utf-8"))
    return FlagList(
        source=file_name.removesuffix(".json"),
        kinds={flag.removeprefix("--"): str(entry["kind"]) for flag, entry in content.items()},
        negatable=frozenset(flag.removeprefix("--") for flag, entry in content.items() if entry["negatable"]),
    )
