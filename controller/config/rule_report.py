"""Breaches of listed rules as findings: each carries the id of its rule."""

from __future__ import annotations

from collections.abc import Iterable

from controller.config.engine_input import EngineInput
from controller.config.errors import Findings, Shown
from engine_launch.rule import Rule, RuleSeverity, SubjectT, breaches

# What a breach may be about that is a key of the section and no engine option.
SECTION_KEYS = frozenset({"dp_translation", "engine_profile"})


def report_breaches(
    engine: EngineInput, rules: Iterable[Rule[SubjectT]], subject: SubjectT, findings: Findings
) -> None:
    """Check every rule. An overridable one says why it is stricter than the engine, where it is."""
    for rule, breach in breaches(rules, subject):
        path = (engine.section, "env", breach.about) if breach.in_env else engine.path(breach.about)
        if breach.about in SECTION_KEYS:
            path = (engine.section, breach.about)
        got = Shown(breach.got)
        if rule.severity is RuleSeverity.WARNING:
            findings.warning(path, breach.what, got=got, expected=breach.expected, fix=breach.fix, rule=rule.id)
            continue
        overridable = rule.severity is RuleSeverity.OVERRIDABLE
        what = breach.what
        if rule.stricter and overridable:
            what = f"{what} (stricter than the engine: {rule.stricter})"
        findings.error(
            path, what, got=got, expected=breach.expected, fix=breach.fix, rule=rule.id, overridable=overridable
        )
