"""Breaches of listed rules as findings: each carries the id of its rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from controller.config.engine_input import EngineInput
from controller.config.errors import NOTHING, Findings, Path, Shown
from engine_launch.rule import Rule, RuleSeverity, SubjectT, breaches

# What a breach may be about that is a key of the section and no engine option.
SECTION_KEYS = frozenset({"dp_translation", "engine_profile"})


class ListedRule(Protocol):
    """What the reference lists of a rule, wherever its check stands."""

    @property
    def id(self) -> str: ...
    @property
    def severity(self) -> RuleSeverity: ...
    @property
    def says(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def stricter(self) -> str: ...


@dataclass(frozen=True)
class StatedRule:
    """A rule whose check needs more than one section's options, and so stands where what it needs is known."""

    id: str
    severity: RuleSeverity
    says: str  # in one sentence
    source: str = "Motor"
    stricter: str = ""  # where the rule is stricter than the engine: the reason


def report(
    findings: Findings,
    rule: ListedRule,
    path: Path,
    what: str,
    *,
    got: Any = NOTHING,
    expected: str = "",
    fix: str = "",
) -> None:
    """One breach, as hard as its rule. An overridable rule says why it is stricter than the engine, where it is."""
    if rule.severity is RuleSeverity.WARNING:
        findings.warning(path, what, got=got, expected=expected, fix=fix, rule=rule.id)
        return
    overridable = rule.severity is RuleSeverity.OVERRIDABLE
    if rule.stricter and overridable:
        what = f"{what} (stricter than the engine: {rule.stricter})"
    findings.error(path, what, got=got, expected=expected, fix=fix, rule=rule.id, overridable=overridable)


def report_breaches(
    engine: EngineInput, rules: Iterable[Rule[SubjectT]], subject: SubjectT, findings: Findings
) -> None:
    """Check every rule of an engine's list."""
    for rule, breach in breaches(rules, subject):
        path = (engine.section, "env", breach.about) if breach.in_env else engine.path(breach.about)
        if breach.about in SECTION_KEYS:
            path = (engine.section, breach.about)
        report(
            findings, rule, path, breach.what, got=Shown(breach.got), expected=breach.expected, fix=breach.fix
        )  # fmt: skip
