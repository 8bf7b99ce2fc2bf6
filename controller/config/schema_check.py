"""Document -> typed sections, with every deviation as a Problem in our own words."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from controller.config.errors import Findings, Path, did_you_mean, dotted
from controller.config.load import Document
from controller.config.schema import Controller, Deploy, DeployFile, Engine, Section
from controller.config.vocabulary import (
    CHECKED_GROUP,
    COORDINATOR_GROUPS,
    EDITOR_KEY,
    ENGINE_SECTIONS,
    MISSPELT,
    REFUSED,
    WITHOUT_EFFECT,
)
from controller.config.vocabulary_sections import NODEMANAGER, Foreign

SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True)
class Sections:
    """The typed sections. Where something was wrong the default stands, and the findings have the error."""

    deploy: Deploy
    controller: Controller
    engines: Mapping[str, Engine]  # section name -> engine, in the file's order


def check_schema(document: Document, findings: Findings) -> Sections:
    """Every section as far as it can be read, so that the rules after this one can report as well."""
    data = _without_foreign_keys(document.data, findings)
    data = {key: value for key, value in data.items() if _is_known_section(key, findings)}
    engines = {
        key: engine
        for key in data
        if key in ENGINE_SECTIONS and (engine := _read(Engine, data[key], key, findings)) is not None
    }
    deploy = _read(Deploy, data.get("motor_deploy_config", {}), "motor_deploy_config", findings)
    controller = _read(Controller, data.get("motor_controller_config", {}), "motor_controller_config", findings)
    return Sections(deploy or Deploy(), controller or Controller(), engines)


def _is_known_section(key: str, findings: Findings) -> bool:
    if key in DeployFile.model_fields:
        return True
    _report_unknown((key,), _known_keys(()), findings)
    return False


def _read(model: type[SectionT], value: Any, name: str, findings: Findings) -> SectionT | None:
    """One section; wrong parts are reported, taken out, and the rest is read again."""
    value = copy.deepcopy(value)
    taken: set[tuple[int | str, ...]] = set()
    while True:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            items = error.errors(include_url=False)
            for item in items:
                if not (item["type"] == "missing" and item["loc"] in taken):  # wrong, reported, and taken out
                    _report(item, (name, *item["loc"]), findings)
            # A section inside this one that lacks a key goes as a whole.
            wrong = {item["loc"][:-1] if item["type"] == "missing" else item["loc"] for item in items}
            found = {loc for loc in wrong if _take_out(value, loc)}
            if () in wrong or not found:
                return None
            taken |= found


def _take_out(value: Any, loc: tuple[int | str, ...]) -> bool:
    """Remove the entry at `loc`, a list's item with its whole list; False if nothing was there."""
    for depth, part in enumerate(loc):
        if not isinstance(value, dict) or part not in value:
            return False
        if depth == len(loc) - 1 or isinstance(value[part], list):
            del value[part]
            return True
        value = value[part]
    return False


def _without_foreign_keys(data: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    """A copy without the keys that are known from the field and have no effect here; one warning for each."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if key == EDITOR_KEY:
            continue
        if key in MISSPELT:
            findings.warning((key,), f'misspelt: it is read as "{MISSPELT[key]}"', fix="rename it", rule="key-misspelt")
        section = MISSPELT.get(key, key)
        if _is_foreign("", section, value, (key,), findings):
            if section == "motor_coordinator_config":
                _check_coordinator(value, findings)
            continue
        if section == "motor_nodemanager_config":
            _nodemanager(value, key, findings)
            value = {}
        elif isinstance(value, Mapping) and section in WITHOUT_EFFECT:
            value = {k: v for k, v in value.items() if not _is_foreign(section, k, v, (key, k), findings)}
        kept[section] = value
    return kept


def _nodemanager(value: Any, key: str, findings: Findings) -> None:
    """One warning for the whole section: all of it has moved to the nodes."""
    if value:
        advice = Foreign("", keys=NODEMANAGER).advice(value) or "move them there"
        findings.warning(
            (key,), "no effect: a node's settings stand in its own nodemanager.yaml", fix=advice, rule="key-field"
        )


def _check_coordinator(value: Any, findings: Findings) -> None:
    """A misspelt group or dispatch mode would silently not be checked: unknown keys there are errors."""
    section = "motor_coordinator_config"
    if not isinstance(value, Mapping):
        findings.error((section,), "has the wrong type", got=value, expected="an object", rule="value-type")
        return
    for name in value:
        if name not in COORDINATOR_GROUPS:
            _report_unknown((section, name), COORDINATOR_GROUPS, findings)
    checked = value.get(CHECKED_GROUP, {})
    if not isinstance(checked, Mapping):
        findings.error(
            (section, CHECKED_GROUP), "has the wrong type", got=checked, expected="an object", rule="value-type"
        )
        return
    for name in checked:
        if name not in COORDINATOR_GROUPS[CHECKED_GROUP]:
            _report_unknown((section, CHECKED_GROUP, name), COORDINATOR_GROUPS[CHECKED_GROUP], findings)


def _is_foreign(section: str, key: str, value: Any, path: Path, findings: Findings) -> bool:
    if (section, key) in REFUSED:
        findings.error(path, "not supported", fix=REFUSED[section, key], rule="key-refused")
        return True
    known = WITHOUT_EFFECT.get(section, {}).get(key)
    if known is None:
        return False
    what = f"known from the field's files, without effect here: {known.reason}"
    findings.warning(path, what, fix=known.advice(value), rule="key-field")
    return True


def _report_unknown(path: Path, known: Iterable[str], findings: Findings) -> None:
    known = list(known)
    hint = did_you_mean(str(path[-1]), known)
    expected = "" if hint else "one of " + ", ".join(known) if known else "no key here"
    findings.error(path, "unknown key", expected=expected, fix=hint or "remove it", rule="key-unknown")


def _report(item: Any, path: Path, findings: Findings) -> None:
    context = item.get("ctx", {})
    kind: str = item["type"]
    if kind == "extra_forbidden":
        _report_unknown(path, _known_keys(path[:-1]), findings)
        return
    if kind == "missing":
        findings.error(
            path, "is missing", expected="a value", fix=f'add "{path[-1]}" to {dotted(path[:-1])}', rule="key-missing"
        )
        return
    expected = _expected(kind, context)
    if kind.endswith(("_type", "from_float")):
        findings.error(path, "has the wrong type", got=item["input"], expected=expected, rule="value-type")
    else:
        findings.error(path, "has a wrong value", got=item["input"], expected=expected, rule="value-range")


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    fixed = {
        "int_type": "an integer, without quotes",
        "int_from_float": "an integer",
        "float_type": "a number of seconds",
        "finite_number": "a finite number",
        "string_type": "text in quotes",
        "bool_type": "true or false",
        "dict_type": "an object",
        "model_type": "an object",
        "list_type": "a list",
        "string_too_short": "text that is not empty",
        "string_pattern_mismatch": "letters, digits, dots, dashes and underscores, at most 63",
    }
    limits = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    if kind in fixed:
        return fixed[kind]
    if kind == "literal_error":
        return str(context["expected"])
    if kind in {"too_short", "too_long"}:
        return "two numbers: [first, last]"
    for key, words in limits.items():
        if key in context:
            return f"{words} {context[key]}"
    return kind.replace("_", " ")


def _known_keys(path: Path) -> list[str]:
    """The keys that the schema has at `path`, in its order."""
    model: Any = DeployFile
    for part in path:
        field = model.model_fields.get(part) if _is_model(model) else None
        if field is None:
            return []
        model = _model_in(field.annotation)
    section = dotted(path)
    if not _is_model(model):
        return []
    return [*model.model_fields, *WITHOUT_EFFECT.get(section, {})]


def _model_in(annotation: Any) -> Any:
    """The section class of `Engine | None` and the like."""
    if _is_model(annotation):
        return annotation
    return next((arg for arg in getattr(annotation, "__args__", ()) if _is_model(arg)), None)


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)
