"""docs/configuration.md, made from the schema, the vocabulary, the profiles and the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from controller.config import reference_engines
from controller.config.markdown import code, table
from controller.config.rule_list import RULE_GROUPS
from controller.config.schema_json import deploy_schema
from controller.config.schema_section import FIELD, MOTOR, PCP_PAPER
from controller.config.vocabulary import (
    ANY_ENGINE,
    COORDINATOR_GROUPS,
    ENGINE_SECTIONS,
    MISSPELT,
    REFUSED,
    WITHOUT_EFFECT,
)
from controller.config.vocabulary_sections import NODEMANAGER, Foreign

_REF = "#/$defs/"

_INTRO = f"""# deploy.json

Every key, every rule, and where each comes from. Made by `make docs` from the program itself: change that, not this.

`motorctl validate FILE` checks a file: all errors at once with file, line, path, value, rule and fix; warnings apart;
exit code 0 for a usable file and 2 for any other; `-o json` says the same to programs. `motorctl plan FILE` shows what
comes of it, without hardware. `motorctl init` writes a commented sample, `motorctl schema` the JSON Schema for an
editor. The file is JSON, or YAML where its name ends in `.yaml` or `.yml` (plain `no` and `on` are text there, as YAML
1.2 has it).

There are three classes of keys: those of the tables below; those that the field's own files carry and that have
[no effect](#keys-of-the-field-without-effect) here, one warning each; and all others, which are errors.

| Source | What it is |
|---|---|
| {PCP_PAPER} | the guide "Cross-node Prefill Context Parallel orchestration" of vLLM-Ascend |
| {FIELD} | the deployment files of the field: PyMotor, `motor/config` and `examples`, June and July 2026 |
| {MOTOR} | Motor's own |
| anything else | a file and line of the engine that the row is about, at the version that is named |
"""


def reference() -> str:
    """The whole document. Ends with a line break."""
    parts = [
        _INTRO,
        "## Keys",
        *_keys(deploy_schema()),
        *reference_engines.parts(),
        *_rules(),
        *_without_effect(),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


# --- keys ---------------------------------------------------------------------------------------------------


def _keys(schema: Mapping[str, Any]) -> Iterator[str]:
    yield _table_of(schema)
    yield from _sections(schema, "", schema)


def _sections(definition: Mapping[str, Any], path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """The sections inside a section; those that are alike (roles) have one table."""
    alike: dict[str, list[str]] = {}
    for name, property_ in definition["properties"].items():
        if (inner := _definition_name(property_)) is not None:
            alike.setdefault(inner, []).append(name)
    for inner, names in alike.items():
        section = schema["$defs"][inner]
        if not section.get("properties"):
            continue
        yield f"### {', '.join(code(f'{path}{name}') for name in names)}"
        yield str(section.get("description", ""))
        yield _table_of(section)
        yield from _sections(section, f"{path}{names[0] if len(names) == 1 else ANY_ENGINE}.", schema)


def _table_of(definition: Mapping[str, Any]) -> str:
    required = definition.get("required", [])
    rows = [
        _row(name, property_, name in required)
        for name, property_ in definition["properties"].items()
        if "x-source" in property_
    ]
    return table(("Key", "Type", "Default", "Unit", "Meaning", "Source"), rows)


def _row(name: str, property_: Mapping[str, Any], required: bool) -> Sequence[str]:
    unset = property_.get("x-unset")
    if required:
        default = "none: it has to be there"
    elif unset:
        default = str(unset)
    elif "default" in property_:
        default = code(reference_engines.written(property_["default"]))
    else:
        default = ""
    kind = _type(property_) if _definition_name(property_) is None else "section"
    return code(name), kind, default, property_.get("x-unit", ""), property_["description"], property_["x-source"]


def _definition_name(property_: Mapping[str, Any]) -> str | None:
    """Name of the section that a property holds; None for plain values."""
    for choice in (property_, *property_.get("anyOf", ())):
        if str(choice.get("$ref", "")).startswith(_REF):
            return str(choice["$ref"]).removeprefix(_REF)
    return None


def _type(property_: Mapping[str, Any]) -> str:
    kinds = [kind for kind in property_.get("anyOf", [property_]) if kind.get("type") != "null"]
    return " or ".join(_plain_type(kind) for kind in kinds)


def _plain_type(kind: Mapping[str, Any]) -> str:
    if "enum" in kind:
        return ", ".join(code(str(value)) for value in kind["enum"])
    text = str(kind.get("type", "any"))
    if text == "array":
        text = f"list of {kind['items']['type']}s" if "type" in kind.get("items", {}) else "list"
    limits = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [f"{sign} {kind[name]:g}" for name, sign in limits.items() if name in kind]
    return f"{text} {', '.join(found)}".strip()


# --- rules --------------------------------------------------------------------------------------------------


def _rules() -> Iterator[str]:
    yield "## Rules with an id"
    yield (
        "An *overridable* rule is an error until `override.rules` names it. Where a rule is stricter than the engine, "
        "the reason stands with it."
    )
    for title, rules in RULE_GROUPS.items():
        yield f"### {title}"
        rows = []
        for rule in rules:
            stricter = getattr(rule, "stricter", "")
            says = f"{rule.says} Stricter than the engine: {stricter}." if stricter else rule.says
            rows.append((code(rule.id), rule.severity.value, says, rule.source))
        yield table(("Id", "Severity", "Rule", "Source"), rows)


# --- the field's keys ---------------------------------------------------------------------------------------


def _without_effect() -> Iterator[str]:
    yield "## Keys of the field without effect"
    yield "One warning each, with what to use instead. Source: PyMotor's `motor/config` and `examples`."
    rows: list[Sequence[str]] = []
    for section, keys in WITHOUT_EFFECT.items():
        if section in ENGINE_SECTIONS and section != next(iter(ENGINE_SECTIONS)):
            continue
        prefix = f"{ANY_ENGINE if section in ENGINE_SECTIONS else section}." if section else ""
        for name, foreign in keys.items():
            rows += _foreign_rows(f"{prefix}{name}", foreign)
    for name, foreign in NODEMANAGER.items():
        rows += _foreign_rows(f"motor_nodemanager_config.{name}", foreign)
    yield table(("Key", "Why", "Use instead"), rows)
    yield (
        "`motor_coordinator_config` is kept as it is. Its groups are known, and so are the keys of "
        f"`scheduler_config`; others are errors: {', '.join(code(name) for name in COORDINATOR_GROUPS)}."
    )
    yield "## Keys that are refused"
    wrong = [(code(name), f"a warning: it is read as {code(right)}") for name, right in MISSPELT.items()]
    refused = [(code(".".join(filter(None, where))), why) for where, why in REFUSED.items()]
    yield table(("Key", "What happens"), [*wrong, *refused])


def _foreign_rows(path: str, foreign: Foreign) -> Iterable[Sequence[str]]:
    yield code(path), foreign.reason, foreign.instead
    if path.startswith("motor_engine_"):
        return  # the same keys as in motor_nodemanager_config
    for name, instead in foreign.keys.items():
        if isinstance(instead, Foreign):
            yield from _foreign_rows(f"{path}.{name}", instead)
        else:
            yield code(f"{path}.{name}"), "", instead
