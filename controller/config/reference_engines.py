"""The part of docs/configuration.md about engines: options, environment, profiles."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from controller.config.markdown import code, table
from engine_launch.flags import ALIASES, SHORT_FLAGS
from engine_launch.profile import EngineProfile
from engine_launch.profiles import ENGINE_TYPES, PROFILES
from engine_launch.reserved import MASTER_ONLY, READ_OPTIONS

_VALUES = (
    ("`true`", "`--name`"),
    ("`false`", "`--no-name` where the engine has that form, else nothing"),
    ("`null`", "nothing"),
    ("a number", "`--name 0.90`, as it was written"),
    ("text", "`--name text`; with a dash in front `--name=-text`"),
    ("a list of plain values", "`--name a b`; one value with a dash in front `--name=-a`, several are an error"),
    ("an empty list", "an error: it has no form on a command line"),
    ("an object, a list with objects, any list of an option that reads JSON", "`--name '{...}'`, untouched inside"),
)

_FIELDS = {
    "pcp": "whether it has prefill context parallelism, or only with its V2 model runner",
    "pcp_with_dp": "PCP and data parallelism in one engine world",
    "native": "translations with one world over all groups, for mixture-of-experts models",
    "dcp_rule": "divides_tp: TP is a multiple of DCP; with_pcp_exact: with PCP, DCP is 1, PCP or TP x PCP",
    "pcp_counts_in_nnodes": "its own check of workers over nodes counts PCP",
    "interleave_is_block_with_kv": "KV transfer with context parallelism wants the interleave equal to the block size",
    "multi_node": "one engine world may span several nodes",
    "dp_in_process": "one process holds all data-parallel ranks",
    "flag_list": "its list of flags, in engine_launch/flag_lists",
    "strict_flags": "a flag that is not in the list is an error, else a warning",
    "worker_stage": "a worker that has logged this stage is up",
    "stop_seconds": "SIGTERM to the end of a process that stops well, without the drain",
    "drain_flag": "its option for the drain time",
}

# Shown elsewhere, or of no use to an operator.
_NOT_COLUMNS = {"engine", "version", "form", "env", "node_env", "refused_env", "stages", "fatal_patterns"}
_PLAIN = (str, bool, int, float, frozenset, Enum)


def parts() -> Iterator[str]:
    """Blocks of Markdown, in order."""
    yield from _options()
    yield from _override()
    yield from _environment()
    yield from _profiles()


def written(value: Any) -> str:
    """A value as deploy.json has it."""
    return json.dumps(value, ensure_ascii=False)


def _options() -> Iterator[str]:
    yield "## engine_config"
    yield (
        "Names are the engine's long options; dashes and underscores are alike at the top level, and nested data is "
        "never touched. A name that is not in the engine's list of flags, which is made from its own parser, is an "
        "error, or a warning where a profile has only the list of another version (`strict_flags` below); `extra_args` "
        "is the way past the list. Two spellings of one option are an error that names both."
    )
    yield table(("Value", "On the command line"), _VALUES)
    yield "### Short names"
    yield "The field's short names are options as well:"
    yield table(("Name", "Option"), [(code(short), code(name)) for short, name in ALIASES.items()])
    shorts = ", ".join(f"`-{short}` = `{name}`" for short, name in SHORT_FLAGS.items())
    yield f"One-dash flags may stand in `extra_args` only: {shorts}."
    yield "### Options that Motor reads"
    yield "They have to stand in `engine_config`; in `extra_args` they are errors."
    rows = [(code(name), option.kind, option.meaning) for name, option in READ_OPTIONS.items()]
    yield table(("Option", "Kind", "Meaning"), rows)
    for engine, profile in _newest().items():
        more = sorted(profile.form.read - set(READ_OPTIONS))
        if more:
            yield f"`{engine}` reads as well: {', '.join(code(name) for name in more)}."
    yield f"Only processes with an API server get {', '.join(code(name) for name in sorted(MASTER_ONLY))}."
    yield "### Options that Motor keeps for itself"
    yield "Refused, also where the engine's parser would complete a name to one of them."
    rows_ = _by_engine({engine: profile.form.reserved for engine, profile in _newest().items()})
    yield table(("Option", "Engine", "Why"), rows_)


def _override() -> Iterator[str]:
    yield "### The override block"
    yield (
        "`override` in an engine section is for what an operator has to have against Motor's own rules. `options` may "
        "hold the options of the table above: each takes the place of what Motor computes, on every process of the "
        "role (`false` and `null` only take the computed one away). `rules` names overridable rules: their violation "
        "is a warning then. `reason` is obligatory. `motorctl validate` warns of each part, `motorctl plan` marks it."
    )
    yield (
        '```json\n{\n  "override": {\n    "override": true,\n    "reason": "vendor case 1234",\n'
        '    "options": {"data-parallel-external-lb": true},\n    "rules": []\n  }\n}\n```'
    )


def _environment() -> Iterator[str]:
    yield "## Environment"
    yield "`env` of an engine section is given to every process of the role. These names are refused there:"
    rows = _by_engine({engine: profile.refused_env for engine, profile in _newest().items()})
    yield table(("Name", "Engine", "Why"), rows)
    yield "Names that begin with `MOTOR_` are Motor's own. Each node fills in:"
    filled = {
        engine: {name: source.value for name, source in profile.node_env.items()}
        for engine, profile in _newest().items()
    }
    yield table(("Name", "Engine", "From the node's"), _by_engine(filled))
    yield "Motor sets on every engine:"
    yield table(("Name", "Engine", "Value"), _by_engine({e: p.env for e, p in _newest().items()}))


def _profiles() -> Iterator[str]:
    yield "## Engine profiles"
    yield (
        "`engine_profile` names one. Without it the version that the nodes report decides; offline, PCP with "
        "`engine_type: vllm` means vLLM-Ascend, as in the field's files, and anything else the newest. A version that "
        "is newer than all works like the newest, with a warning. One that is older than all is refused, and a node "
        "that has it is `rejected`: which flags it takes is not known."
    )
    yield table(("Field", "Meaning"), [(code(name), meaning) for name, meaning in _FIELDS.items()])
    for engine in ENGINE_TYPES:
        of_engine = [profile for profile in PROFILES.values() if profile.engine == engine]
        names = [f.name for f in dataclasses.fields(EngineProfile) if f.name not in _NOT_COLUMNS]
        names = [name for name in names if all(isinstance(getattr(p, name), _PLAIN) for p in of_engine)]
        varying = [name for name in names if len({_cell(getattr(p, name)) for p in of_engine}) > 1]
        fixed = [name for name in names if name not in varying and _cell(getattr(of_engine[0], name))]
        yield f"### {engine}"
        rows = [
            (code(p.name), *(_cell(getattr(p, name)) for name in varying), "; ".join(p.notes + p.pcp_notes))
            for p in of_engine
        ]
        yield table(("Profile", *(code(name) for name in varying), "Notes"), rows)
        yield "All: " + ", ".join(f"{code(name)} {_cell(getattr(of_engine[0], name))}" for name in fixed) + "."


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, frozenset):
        return ", ".join(sorted(_cell(item) for item in value)) or "none"
    return code(value) if isinstance(value, str) else str(value)


def _newest() -> Mapping[str, EngineProfile]:
    """The last profile of each engine."""
    return {profile.engine: profile for profile in PROFILES.values()}


def _by_engine(tables: Mapping[str, Mapping[str, str]]) -> Iterable[Sequence[str]]:
    """(name, engines, text) with the engines that say the same of a name in one row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for engine, texts in tables.items():
        for name, text in texts.items():
            rows.setdefault((name, text), []).append(engine)
    return [(code(name), ", ".join(engines), text) for (name, text), engines in rows.items()]
