"""A rule about an engine's configuration: what it forbids or warns of, how hard it is, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

SubjectT = TypeVar("SubjectT")


class RuleSeverity(str, Enum):
    """How hard a rule is."""

    ERROR = "error"
    OVERRIDABLE = "overridable"  # an error, and a warning where the operator names the rule
    WARNING = "warning"


@dataclass(frozen=True)
class Breach:
    """What is wrong in one configuration. Empty parts say nothing."""

    about: str  # the engine option by its long name, or with `in_env` an environment variable
    what: str  # one clause
    got: str = ""
    expected: str = ""
    fix: str = ""
    in_env: bool = False


@dataclass(frozen=True)
class Rule(Generic[SubjectT]):
    """`check` is pure and gives a breach, or None for a configuration that keeps the rule."""

    id: str
    severity: RuleSeverity
    says: str  # the rule itself in one sentence
    source: str
    check: Callable[[SubjectT], Breach | None]
    stricter: str = ""  # where the rule is stricter than the engine: the reason


def breaches(rules: Iterable[Rule[SubjectT]], subject: SubjectT) -> Iterator[tuple[Rule[SubjectT], Breach]]:
    """Every rule that `subject` breaks, in the rules' order."""
    for rule in rules:
        breach = rule.check(subject)
        if breach is not None:
            yield rule, breach
