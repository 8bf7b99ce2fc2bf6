"""Options and extra arguments of one engine section: names, values, and what Motor keeps for itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any

from controller.config.engine_input import EngineInput, is_integer
from controller.config.errors import Findings, Path, Shown, did_you_mean
from engine_launch.command import WILDCARD_HOSTS
from engine_launch.flag_list import REPEATABLE, FlagList, load_flag_list, versions_with
from engine_launch.flags import (
    SHORT_FLAGS,
    FlagError,
    Option,
    abbreviates,
    flag_names,
    render_option,
)
from engine_launch.guarded import guarded_flags
from engine_launch.model import Translation
from engine_launch.profile import CommandForm
from engine_launch.profiles import ENGINE_TYPES


def check_options(engine: EngineInput, findings: Findings) -> None:
    """engine_config and extra_args: reserved names, unknown names, values that no command line can carry.

    Nothing is said of the options of an engine that is not supported.
    """
    if engine.engine.engine_type.replace("-", "_") not in ENGINE_TYPES:
        return
    flags, form = load_flag_list(engine.profile.flag_list), engine.profile.form
    for option in engine.options.values():
        path = (engine.section, "engine_config", option.spelled)
        if _check_reserved(option.name, path, form, flags, findings):
            continue
        if option.name not in form.consumed and _check_known(option, path, engine, flags, findings):
            _check_value(option, path, engine, flags, findings)
    _check_model(engine, findings)
    _check_host(engine, findings)
    _check_extra_args(engine, flags, findings)


def drain_of(engine: EngineInput, findings: Findings) -> float:
    """Seconds that a planned stop lets requests finish; 0 where the option is absent."""
    flag = engine.profile.drain_flag
    value: Any = engine.value(flag)
    if value is None:
        return 0.0
    if not is_integer(value) or value < 0:
        findings.error(
            engine.path(flag), "is no time", got=value, expected="whole seconds, 0 or more", rule="option-drain"
        )
        return 0.0
    return float(value)


def _check_reserved(name: str, path: Path, form: CommandForm, flags: FlagList, findings: Findings) -> bool:
    """True (and an error) for an option that Motor computes, also where argparse would complete the name."""
    bare = name.removeprefix("no-")
    target = bare if bare in form.reserved else _completed(bare, form.reserved, form, flags)
    if target is None:
        return False
    what = f"may not be set: {form.reserved[target]}"
    if target != bare:
        what = f"the engine may take it for --{target}, which {what}"
    findings.error(path, what, fix='remove it, or insist on it in an "override" block', rule="option-reserved")
    return True


def _completed(name: str, targets: Iterable[str], form: CommandForm, flags: FlagList) -> str | None:
    """The target that the engine's parser may complete `name` to; None for names that are flags themselves."""
    if name in flags.kinds or name in form.read:
        return None
    return abbreviates(name, sorted(targets))


def _check_known(option: Option, path: Path, engine: EngineInput, flags: FlagList, findings: Findings) -> bool:
    """True for a flag that the engine has, as far as that is known."""
    name = option.name.split(".", 1)[0]
    if flags.knows(name):
        return True
    target = SHORT_FLAGS.get(name) or _completed(name, engine.profile.form.read, engine.profile.form, flags)
    if target is not None and target in engine.options:
        first = engine.options[target].spelled
        what = f'means the same flag as "{first}": --{target}'
        findings.error(path, what, expected="one of the two", fix=f'remove "{option.spelled}"', rule="option-once")
        return False
    if target is not None:
        fix = f'write "{target}"'
        findings.error(
            path, f"short for --{target}: Motor reads long names only", got=Shown(name), fix=fix, rule="option-long"
        )
        return False
    report = findings.error if engine.profile.strict_flags else findings.warning
    others = versions_with(name, flags.source)
    hint = f"{others} have it" if others else did_you_mean(name, flags.kinds)
    way_past = 'if your engine has it, pass it in "extra_args"'
    fix = f"{hint} (else: {way_past})" if hint else way_past
    report(path, f"not a flag of {flags.source}", got=Shown(f"--{name}"), fix=fix, rule="option-known")
    return not engine.profile.strict_flags


def _check_value(option: Option, path: Path, engine: EngineInput, flags: FlagList, findings: Findings) -> None:
    if option.value is None:
        return
    kind = flags.kinds.get(option.name)
    report = findings.error if engine.profile.strict_flags else findings.warning
    if kind == "bool" and not isinstance(option.value, bool):
        report(path, "is a switch", got=option.value, expected="true or false", rule="option-value")
    elif kind not in (None, "bool", "optional") and isinstance(option.value, bool):
        report(path, "takes a value", got=option.value, expected="null where it is not wanted", rule="option-value")
    elif kind == "value" and isinstance(option.value, list) and len(option.value) > 1:
        fix = 'repeat it in "extra_args"' if option.name in REPEATABLE else ""
        report(path, "takes one value", got=option.value, expected="one value", fix=fix, rule="option-value")
    try:
        words = render_option(option, flags.negatable, flags.json_valued, flags.spelled)
    except FlagError as error:
        findings.error(
            path, "cannot be written on a command line", got=option.value, fix=str(error), rule="option-value"
        )
        return
    _check_guarded(words, path, flags, findings)


def _check_guarded(words: Sequence[str], path: Path, flags: FlagList, findings: Findings) -> None:
    """What a node refuses unless its own file lets it through."""
    for name, why in guarded_flags(words, flags.kinds).items():
        findings.warning(
            path,
            f"nodes refuse --{name}: {why}",
            fix="name it in allow_flags of the node files",
            rule="option-guarded",
        )


def _check_model(engine: EngineInput, findings: Findings) -> None:
    model = engine.value("model")
    if model is None:
        findings.error(
            engine.path("model"), "the model is missing", fix='add "model": a path or a hub name', rule="option-model"
        )
    elif not isinstance(model, str) or not model or model.startswith("-"):
        findings.error(
            engine.path("model"), "is no model", got=model, expected="a path or a hub name", rule="option-model"
        )


def _check_host(engine: EngineInput, findings: Findings) -> None:
    host = engine.value("host")
    if host is None or host in WILDCARD_HOSTS:
        return
    path = engine.path("host")
    one_master = engine.shape.dp == 1 or engine.translation.translation is Translation.NATIVE_INTERNAL
    if not isinstance(host, str) or not _is_address(host):
        findings.error(
            path, "is no address", got=host, expected='a literal address, "0.0.0.0" or "::"', rule="option-host"
        )
    elif one_master:
        findings.warning(
            path, "fits only if this node becomes the master", got=host, fix="remove it", rule="option-host-node"
        )
    else:
        findings.error(
            path,
            f"each of {engine.shape.dp} masters has its own address",
            got=host,
            expected='"0.0.0.0", "::", or nothing',
            fix="remove it: every master then listens on its own data address",
            rule="option-host",
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_extra_args(engine: EngineInput, flags: FlagList, findings: Findings) -> None:
    path: Path = (engine.section, "extra_args")
    words, form = engine.engine.extra_args, engine.profile.form
    _check_guarded(words, path, flags, findings)
    if words and not words[0].startswith("-"):
        findings.error(
            (*path, 0), "is no flag", got=words[0], expected="a word that begins with a dash", rule="extra-args-flag"
        )
    spelled = {option.name.removeprefix("no-"): option.spelled for option in engine.options.values()}
    seen: dict[str, str] = {}
    for word, name in flag_names(words):
        if _check_reserved(name, path, form, flags, findings):
            continue
        target = name if name in form.read else _completed(name, form.read, form, flags)
        if target is not None:
            what = f"{word} is --{target}, from which Motor computes"
            findings.error(path, what, expected="it in engine_config", fix="move it there", rule="extra-args-read")
        elif name in spelled:
            what = f'{word} stands in engine_config as well, as "{spelled[name]}"'
            findings.error(path, what, fix="remove one of them", rule="option-once")
        elif name in seen and name not in REPEATABLE:
            findings.error(
                path,
                f"{word} stands twice",
                got=Shown(f"{seen[name]} and {word}"),
                fix="remove one",
                rule="option-once",
            )
        seen[name] = word
