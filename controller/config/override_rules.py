"""The `override` block of an engine section: what it may name, and what it turns into warnings."""

from __future__ import annotations

from collections.abc import Collection

from controller.config.engine_input import EngineInput
from controller.config.errors import Findings, Path, did_you_mean
from engine_launch.flag_list import load_flag_list
from engine_launch.flags import FlagError, conflicts, read_options, render_option
from engine_launch.override import NO_OVERRIDE, Override


def read_override(engine: EngineInput, known_rules: Collection[str], findings: Findings) -> Override:
    """The block as the command line and the plan need it. Call it before the rules that it may override."""
    given = engine.engine.override
    if given is None or not given.override:
        return NO_OVERRIDE
    path: Path = (engine.section, "override")
    _check_options(engine, path, findings)
    for position, rule in enumerate(given.rules):
        if rule in known_rules:
            findings.override(engine.section, rule, given.reason)
        else:
            hint = did_you_mean(rule, known_rules)
            findings.error(
                (*path, "rules", position),
                "there is no such rule",
                got=rule,
                fix=hint or "docs/configuration.md lists them",
                rule="override-rule",
            )
    if not given.options and not given.rules:
        findings.warning(path, "no effect: it names no option and no rule", fix="remove it", rule="override-unused")
    return Override(given.reason, given.options, tuple(given.rules))


def report_unused(engine: EngineInput, findings: Findings) -> None:
    """After all rules: an overridden rule that nothing breaks is a left-over."""
    given = engine.engine.override
    if given is None or not given.override:
        return
    broken = {problem.rule for problem in findings.problems if problem.path[:1] == (engine.section,)}
    for position, rule in enumerate(given.rules):
        if rule not in broken and findings.is_overridden(engine.section, rule):
            findings.warning(
                (engine.section, "override", "rules", position),
                "no effect: nothing breaks this rule",
                got=rule,
                rule="override-unused",
            )


def _check_options(engine: EngineInput, path: Path, findings: Findings) -> None:
    assert engine.engine.override is not None
    form, flags = engine.profile.form, load_flag_list(engine.profile.flag_list)
    listed = read_options(engine.engine.override.options)
    for conflict in conflicts(listed):
        findings.error(
            (*path, "options", conflict.second),
            f'means the same flag as "{conflict.first}": --{conflict.name}',
            expected="one of the two",
            fix=f'remove "{conflict.second}" or "{conflict.first}"',
            rule="option-once",
        )
    for option in listed:
        where = (*path, "options", option.spelled)
        name = option.name.removeprefix("no-")
        if name not in form.reserved:
            hint = did_you_mean(name, form.reserved)
            fix = hint or "write it into engine_config"
            findings.error(
                where, "is no option that Motor keeps for itself", got=option.value, fix=fix, rule="override-option"
            )
            continue
        try:
            render_option(option, flags.negatable, flags.json_valued, flags.spelled)
        except FlagError as error:
            findings.error(
                where, "cannot be written on a command line", got=option.value, fix=str(error), rule="option-value"
            )
            continue
        findings.warning(
            where,
            f"overridden ({engine.engine.override.reason}): Motor keeps it for itself, since {form.reserved[name]}",
            got=option.value,
            rule="override-shown",
        )
