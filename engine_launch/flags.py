"""engine_config -> options of the engine's command line.

Only the names at the top level are normalised. Nested data belongs to the engine and is passed on as written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine_launch.secrets import is_secret

# Short names of the field (PyMotor cf/resolver.py:206-220, es/core/vllm/vllm_config.py:45-56) -> vLLM's own.
ALIASES: Mapping[str, str] = {
    "model-path": "model",
    "model-name": "served-model-name",
    "npu-mem-utils": "gpu-memory-utilization",
    "dp-size": "data-parallel-size",
    "tp-size": "tensor-parallel-size",
    "pp-size": "pipeline-parallel-size",
    "pcp-size": "prefill-context-parallel-size",
    "dcp-size": "decode-context-parallel-size",
    "enable-ep": "enable-expert-parallel",
    "dp-rpc-port": "data-parallel-rpc-port",
}

# One-dash flags of `vllm serve` (vLLM 0.32 engine/arg_utils.py); they may stand in extra_args.
SHORT_FLAGS: Mapping[str, str] = {
    "n": "nnodes",
    "r": "node-rank",
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "dcp": "decode-context-parallel-size",
    "dp": "data-parallel-size",
    "dpn": "data-parallel-rank",
    "dpr": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
    "dpb": "data-parallel-backend",
    "dph": "data-parallel-hybrid-lb",
    "dpe": "data-parallel-external-lb",
    "dpm": "data-parallel-multi-port-external-lb",
    "ep": "enable-expert-parallel",
    "q": "quantization",
    "sc": "speculative-config",
    "dc": "diffusion-config",
    "cc": "compilation-config",
    "ac": "attention-config",
    "asc": "api-server-count",
    "O": "optimization-level",
}

# argparse resolves abbreviations (vLLM leaves that on); shorter ones match too much to say anything.
_SHORTEST_ABBREVIATION = 3

_NEGATIVE_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")  # argparse's own pattern


class FlagError(ValueError):
    """A value that cannot be written on a command line; the text names the key and says why."""


@dataclass(frozen=True)
class Option:
    """One top-level entry of engine_config."""

    name: str  # the engine's long name without dashes in front: tensor-parallel-size
    spelled: str  # the key as the operator wrote it
    value: Any


@dataclass(frozen=True)
class Conflict:
    """Two keys of one engine_config that mean the same flag."""

    name: str
    first: str
    second: str


def canonical_name(key: str) -> str:
    """The engine's long option name for a key: dashes and underscores are alike, aliases are resolved.

    In a dotted key (`compilation_config.max_size`) only the part before the first dot is an option name.
    """
    head, dot, rest = key.partition(".")
    head = head.replace("_", "-")
    return ALIASES.get(head, head) + dot + rest


def read_options(engine_config: Mapping[str, Any]) -> list[Option]:
    """All entries in file order, names normalised. Two spellings of one flag stay two: see `conflicts`."""
    return [Option(canonical_name(key), key, value) for key, value in engine_config.items()]


def conflicts(options: Iterable[Option]) -> list[Conflict]:
    """Every flag that is spelled twice; `no-x` is a spelling of x."""
    first: dict[str, str] = {}
    found = []
    for option in options:
        name = option.name.removeprefix("no-")
        if name in first:
            found.append(Conflict(name, first[name], option.spelled))
        else:
            first[name] = option.spelled
    return found


def render_option(
    option: Option,
    negatable: Collection[str] = (),
    json_valued: Collection[str] = (),
    spelled: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """The command-line words of one option; none for null, and none for a false that has no `--no-` form.

    `negatable` holds the names with a `--no-NAME` form, `json_valued` those whose lists are one JSON value,
    `spelled` the names that the engine's parser spells in another way. FlagError for what a command line cannot carry.
    """
    written = spelled.get(option.name, option.name)
    flag = f"--{written}"
    value = option.value
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        return [f"--no-{written}"] if option.name in negatable else []
    if isinstance(value, Mapping):
        return [flag, to_json(value)]
    if isinstance(value, (list, tuple)) and option.name in json_valued:
        return [flag, to_json(value)]
    if isinstance(value, (list, tuple)):
        return _render_list(option, flag, value)
    return _flag_and_word(flag, scalar_text(value))


def _render_list(option: Option, flag: str, values: list[Any] | tuple[Any, ...]) -> list[str]:
    if not values:
        raise FlagError(f"{option.spelled}: an empty list has no form on a command line; leave the key out")
    if any(value is None or isinstance(value, (Mapping, list, tuple)) for value in values):
        return [flag, to_json(values)]
    words = [scalar_text(value) for value in values]
    if len(words) == 1:
        return _flag_and_word(flag, words[0])
    unsafe = next((word for word in words if is_flag_like(word)), None)
    if unsafe is not None:
        shown = "one" if is_secret(option.name) else repr(unsafe)
        raise FlagError(
            f"{option.spelled}: {shown} begins with a dash and is one of several values; the engine's parser "
            "would read it as a flag"
        )
    return [flag, *words]


def _flag_and_word(flag: str, word: str) -> list[str]:
    return [f"{flag}={word}"] if word.startswith("-") else [flag, word]


def is_flag_like(word: str) -> bool:
    """As argparse sees it: a negative number is a value (no option looks like one), -1e5 and -inf are flags."""
    return word.startswith("-") and word != "-" and not _NEGATIVE_NUMBER.match(word)


def scalar_text(value: Any) -> str:
    """A scalar as the operator wrote it: true and false in lower case, numbers in their own form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def to_json(value: Any) -> str:
    """Compact JSON in the operator's order, numbers in their own form (json.dumps makes 0.90 into 0.9)."""
    if isinstance(value, Mapping):
        inner = ",".join(f"{json.dumps(str(k), ensure_ascii=False)}:{to_json(v)}" for k, v in value.items())
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(to_json(item) for item in value)}]"
    if value is None:
        return "null"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return scalar_text(value)


def flag_names(words: Iterable[str]) -> list[tuple[str, str]]:
    """(word as written, long option name) of every flag in a list of command-line words.

    A negative number is a value. `--no-x` counts as x.
    """
    found = []
    for word in words:
        if not is_flag_like(word):
            continue
        head = word.split("=", 1)[0]
        bare = head.lstrip("-")
        if head.startswith("--"):
            name = canonical_name(bare).split(".", 1)[0]
        else:
            name = _short_flag(bare)
        found.append((head, name.removeprefix("no-")))
    return found


def _short_flag(bare: str) -> str:
    """The long name of a one-dash flag as argparse reads it: `tp`, its beginning `t`, or `n2` for `-n 2`."""
    if bare in SHORT_FLAGS:
        return SHORT_FLAGS[bare]
    completed = next((long for short, long in SHORT_FLAGS.items() if short.startswith(bare)), None)
    return completed or SHORT_FLAGS.get(bare[:1], bare)


def abbreviates(name: str, targets: Collection[str]) -> str | None:
    """The target that argparse might take `name` for (it accepts unambiguous beginnings of long names)."""
    if len(name) < _SHORTEST_ABBREVIATION:
        return None
    for target in targets:
        if target != name and target.startswith(name):
            return target
    return None
