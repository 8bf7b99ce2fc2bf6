"""Reserved options that the operator insists on: they take the place of what Motor computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_launch.flag_list import FlagList
from engine_launch.flags import read_options, render_option


@dataclass(frozen=True)
class Override:
    """The `override` block of an engine section; `motorctl plan` shows each part."""

    reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # as written
    rules: tuple[str, ...] = ()  # ids of rules whose violation is a warning

    def words(self, flags: FlagList) -> list[str]:
        """The command-line words of `options`. FlagError for what a command line cannot carry."""
        return [
            word
            for option in read_options(self.options)
            for word in render_option(option, flags.negatable, flags.json_valued, flags.spelled)
        ]

    def replaces(self) -> frozenset[str]:
        """Names of the options, also of those that only take a computed one away (false, null)."""
        return frozenset(option.name.removeprefix("no-") for option in read_options(self.options))


NO_OVERRIDE = Override()


def without(words: Sequence[str], names: Iterable[str]) -> list[str]:
    """`words` (`--name value ...` or `--name`, as Motor writes them) without the options called `names`."""
    flags = {f"--{name}" for name in names}
    kept: list[str] = []
    keep = True
    for word in words:
        if word.startswith("--"):
            keep = word.split("=", 1)[0] not in flags
        if keep:
            kept.append(word)
    return kept
