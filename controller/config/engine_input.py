"""One engine section as the rules see it: options by name, the shape, the profile, the translation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.config.errors import Findings, Path, Shown
from controller.config.schema import Engine
from controller.config.vocabulary import ENGINE_SECTIONS
from engine_launch.flags import Option, conflicts, read_options
from engine_launch.model import ParallelShape, Role
from engine_launch.profile import EngineProfile
from engine_launch.profiles import ENGINE_TYPES, ProfileChoice, UnknownProfile, choose, resolve
from engine_launch.translation import TranslationChoice, choose_translation, engine_shape

_SIZES = {
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "prefill-context-parallel-size": "pcp",
    "decode-context-parallel-size": "dcp",
    "data-parallel-size": "dp",
    "data-parallel-size-local": "dp_local",
    "nnodes": "nnodes",
}


@dataclass(frozen=True)
class EngineInput:
    """Everything later steps read. Made by `read_engine`; where something was wrong, the findings have it."""

    section: str
    role: Role
    engine: Engine
    options: Mapping[str, Option]  # by normalised name; of two spellings the first
    shape: ParallelShape
    choice: ProfileChoice
    translation: TranslationChoice

    @property
    def profile(self) -> EngineProfile:
        return self.choice.profile

    def path(self, name: str) -> Path:
        """Where option `name` stands, in the operator's spelling; the engine_config when it is absent."""
        option = self.options.get(name)
        here: Path = (self.section, "engine_config")
        return (*here, option.spelled) if option else here

    def value(self, name: str) -> Any:
        """An option's value; None when it is absent."""
        option = self.options.get(name)
        return option.value if option else None

    def integer(self, name: str) -> int | None:
        """An option's value if it is an integer (true and false are none)."""
        value = self.value(name)
        return value if is_integer(value) else None


def read_engine(section: str, engine: Engine, findings: Findings) -> EngineInput:
    """Sizes that are not usable are reported and count as 1."""
    options: dict[str, Option] = {}
    listed = read_options(engine.engine_config)
    for option in listed:
        options.setdefault(option.name, option)
    _report_conflicts(section, listed, findings)
    shape = _shape(section, options, findings)
    choice = _profile(section, engine, shape, findings)
    shape = engine_shape(engine.dp_translation, shape, choice.profile)
    translation = choose_translation(engine.dp_translation, shape, choice.profile)
    return EngineInput(section, Role(ENGINE_SECTIONS[section]), engine, options, shape, choice, translation)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _report_conflicts(section: str, listed: list[Option], findings: Findings) -> None:
    for conflict in conflicts(listed):
        findings.error(
            (section, "engine_config", conflict.second),
            f'means the same flag as "{conflict.first}": --{conflict.name}',
            expected="one of the two",
            fix=f'remove "{conflict.second}" or "{conflict.first}"',
            rule="option-once",
        )


def _shape(section: str, options: Mapping[str, Option], findings: Findings) -> ParallelShape:
    sizes: dict[str, int] = {}
    for name, field in _SIZES.items():
        option = options.get(name)
        if option is None or option.value is None:
            continue
        if is_integer(option.value) and option.value >= 1:
            sizes[field] = option.value
            continue
        path = (section, "engine_config", option.spelled)
        as_number = isinstance(option.value, str) and option.value.strip().isdigit()
        fix = f"write {option.value.strip()} without quotes" if as_number else ""
        findings.error(
            path,
            "is no usable size",
            got=option.value,
            expected="an integer of at least 1",
            fix=fix,
            rule="option-size",
        )
    expert_parallel = _switch(section, options.get("enable-expert-parallel"), findings)
    return ParallelShape(**sizes, expert_parallel=expert_parallel)


def _switch(section: str, option: Option | None, findings: Findings) -> bool:
    if option is None or option.value is None:
        return False
    if not isinstance(option.value, bool):
        path = (section, "engine_config", option.spelled)
        findings.error(path, "has the wrong type", got=option.value, expected="true or false", rule="option-value")
        return False
    return option.value


def _profile(section: str, engine: Engine, shape: ParallelShape, findings: Findings) -> ProfileChoice:
    engine_type = engine.engine_type.replace("-", "_")
    if engine_type not in ENGINE_TYPES:
        known = " or ".join(f'"{name}"' for name in ENGINE_TYPES)
        findings.error(
            (section, "engine_type"),
            "this engine is not supported",
            got=engine.engine_type,
            expected=known,
            rule="engine-type",
        )
        engine_type = ENGINE_TYPES[0]
    if engine.engine_profile is None:
        return choose(engine_type, None, shape.pcp)
    path = (section, "engine_profile")
    try:
        profile = resolve(engine.engine_profile)
    except UnknownProfile as error:
        findings.error(path, "unknown engine profile", got=engine.engine_profile, fix=str(error), rule="engine-profile")
        return choose(engine_type, None, shape.pcp)
    # The field's files say vllm where they mean the plug-in, and only there.
    fitting = ("vllm", "vllm_ascend") if engine_type == "vllm" else (engine_type,)
    if profile.engine not in fitting:
        findings.error(
            path,
            "the profile is of another engine",
            got=Shown(profile.name),
            expected=f"a profile of {' or '.join(fitting)}, as engine_type says",
            rule="engine-profile",
        )
        return choose(engine_type, None, shape.pcp)
    return choose(engine_type, engine.engine_profile, shape.pcp)
