"""Document -> typed sections, with every deviation as a Problem in our own words."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from controller.config.errors import Findings, Path, did_you_mean, dotted
from controller.config.load import Document
from controller.config.schema import Controller, Deploy, DeployFile, Engine, Section
from controller.config.vocabulary import ENGINE_SECTIONS, MISSPELT, REFUSED, WITHOUT_EFFECT

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
    known = _known_keys(())
    hint = did_you_mean(key, known)
    findings.error((key,), "unknown key", expected="" if hint else f"one of {', '.join(known)}", fix=hint)
    return False


def _read(model: type[SectionT], value: Any, name: str, findings: Findings) -> SectionT | None:
    """One section; wrong parts are reported, taken out, and the rest is read again."""
    value = copy.deepcopy(value)
    while True:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            items = error.errors(include_url=False)
            for item in items:
                _report(item, (name, *item["loc"]), findings)
            if any(item["type"] == "missing" or not item["loc"] for item in items):
                return None
            taken = [_take_out(value, item["loc"]) for item in items]
            if True not in taken:
                return None


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
        if key in MISSPELT:
            findings.warning((key,), f'misspelt: it is read as "{MISSPELT[key]}"', fix="rename it")
            key = MISSPELT[key]
        if _is_foreign("", key, (key,), findings):
            continue
        if isinstance(value, Mapping) and key in WITHOUT_EFFECT:
            value = {k: v for k, v in value.items() if not _is_foreign(key, k, (key, k), findings)}
        if key == "motor_nodemanager_config" and value:
            reason = "no effect: a node's settings stand in its own nodemanager.yaml"
            findings.warning((key,), reason, fix="move them there")
            value = {}
        kept[key] = value
    return kept


def _is_foreign(section: str, key: str, path: Path, findings: Findings) -> bool:
    if (section, key) in REFUSED:
        findings.error(path, "not supported", fix=REFUSED[section, key])
        return True
    reason = WITHOUT_EFFECT.get(section, {}).get(key)
    if reason is None:
        return False
    findings.warning(path, f"known from the field's files, without effect here: {reason}")
    return True


def _report(item: Any, path: Path, findings: Findings) -> None:
    context = item.get("ctx", {})
    kind: str = item["type"]
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        hint = did_you_mean(str(path[-1]), known)
        expected = "" if hint else "one of " + ", ".join(known) if known else "no key here"
        findings.error(path, "unknown key", expected=expected, fix=hint or "remove it")
        return
    if kind == "missing":
        findings.error(path, "is missing", expected="a value", fix=f'add "{path[-1]}" to {dotted(path[:-1])}')
        return
    findings.error(path, *_wrong_value(kind), got=item["input"], expected=_expected(kind, context))


def _wrong_value(kind: str) -> tuple[str]:
    return ("has the wrong type",) if kind.endswith(("_type", "from_float")) else ("has a wrong value",)


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
