"""How the rules over KV transfer report: each finding carries its listed rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller.config.errors import NOTHING, Findings, Path
from engine_launch.rule import RuleSeverity


@dataclass(frozen=True)
class KvRule:
    """A rule as the reference lists it; the check stands where it is used."""

    id: str
    severity: RuleSeverity
    says: str  # in one sentence
    source: str
    stricter: str = ""  # where the rule is stricter than the engine: the reason


def report(
    findings: Findings, rule: KvRule, path: Path, what: str, *, got: Any = NOTHING, expected: str = "", fix: str = ""
) -> None:
    if rule.severity is RuleSeverity.WARNING:
        findings.warning(path, what, got=got, expected=expected, fix=fix, rule=rule.id)
        return
    overridable = rule.severity is RuleSeverity.OVERRIDABLE
    if rule.stricter:
        what = f"{what} (stricter than the engine: {rule.stricter})"
    findings.error(path, what, got=got, expected=expected, fix=fix, rule=rule.id, overridable=overridable)
