"""Flags that an engine's own parser knows, read from the lists that flag_lists/make_flag_list.py wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources

# action="append" in vLLM 0.32 entrypoints/launchers/cli_args.py: each stands for one more value.
REPEATABLE = frozenset({"middleware"})


@dataclass(frozen=True)
class FlagList:
    """Long option names without dashes in front. An empty list knows nothing, so it calls nothing unknown."""

    source: str = ""  # "vllm-0.32"
    kinds: Mapping[str, str] = field(default_factory=dict)  # name -> bool | value | list | json | optional
    negatable: frozenset[str] = field(default_factory=frozenset)  # names with a --no-NAME form
    spelled: Mapping[str, str] = field(default_factory=dict)  # kv-cache-dtype -> kv_cache_dtype, where they differ

    @cached_property  # asked for each command line, and there are hundreds of flags
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
    # Keys without dashes say where a list comes from.
    flags = {flag.removeprefix("--"): entry for flag, entry in content.items() if flag.startswith("--")}
    return FlagList(
        source=file_name.removesuffix(".json"),
        kinds={_dashed(flag): str(entry["kind"]) for flag, entry in flags.items()},
        negatable=frozenset(_dashed(flag) for flag, entry in flags.items() if entry["negatable"]),
        spelled={_dashed(flag): flag for flag in flags if _dashed(flag) != flag},
    )


def versions_with(name: str, source: str) -> str:
    """Which other lists of the engine that `source` is of know the flag: "vllm-0.24 and newer"; empty for none."""
    engine = source.rsplit("-", 1)[0]
    files = resources.files("engine_launch") / "flag_lists"
    listed = [
        file.name for file in files.iterdir() if file.name.startswith(f"{engine}-") and file.name.endswith(".json")
    ]
    sources = sorted((file.removesuffix(".json") for file in listed), key=_version)
    having = [each for each in sources if name in load_flag_list(f"{each}.json").kinds]
    if not having:
        return ""
    first, last = having[0], having[-1]
    if last == sources[-1]:
        return f"{first} and newer"
    return f"{first} to {last}" if first != last else first


def _version(source: str) -> tuple[int, ...]:
    return tuple(int(number) for number in source.rsplit("-", 1)[1].split("."))


def _dashed(flag: str) -> str:
    return flag.replace("_", "-")
