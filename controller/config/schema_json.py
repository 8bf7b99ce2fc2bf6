"""The JSON Schema of deploy.json (draft 2020-12), made from the schema and the vocabulary: for editors and other tools.

It says what a key may hold. What relations between keys forbid is said by `motorctl validate` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.config.schema import DeployFile
from controller.config.vocabulary import (
    CHECKED_GROUP,
    COORDINATOR_GROUPS,
    EDITOR_KEY,
    ENGINE_SECTIONS,
    MISSPELT,
    REFUSED,
    WITHOUT_EFFECT,
)
from controller.config.vocabulary_sections import Foreign
from engine_launch.profiles import ENGINE_TYPES, PROFILES
from engine_launch.reserved import READ_OPTIONS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# Pydantic's name of the definition for each section that has foreign keys.
_DEFINITIONS = {
    "motor_deploy_config": "Deploy",
    "motor_controller_config": "Controller",
    next(iter(ENGINE_SECTIONS)): "Engine",
}

_KINDS: Mapping[str, dict[str, Any]] = {
    "number": {"type": ["integer", "string", "null"]},
    "size": {"type": ["integer", "null"], "minimum": 1},
    "port": {"type": ["integer", "null"], "minimum": 1024, "maximum": 65535},
    "text": {"type": ["string", "null"]},
    "switch": {"type": ["boolean", "null"]},
    "object": {"type": ["object", "null"]},
    "seconds": {"type": ["integer", "null"], "minimum": 0},
}


def deploy_schema() -> dict[str, Any]:
    """A document that stands for itself: no reference leaves it."""
    schema = DeployFile.model_json_schema(ref_template="#/$defs/{model}")
    definitions = schema["$defs"]
    for name, definition in definitions.items():
        _tidy(name, definition)
    for section, definition in _DEFINITIONS.items():
        definitions[definition]["properties"] |= _foreign(section)
    definitions["NodeManager"] = {"type": "object", "deprecated": True}
    _engine(definitions["Engine"]["properties"])
    _tidy("DeployFile", schema)
    for section in ENGINE_SECTIONS:  # a section may be left out, and not be null
        schema["properties"][section] = _without_null(schema["properties"][section])
    schema["properties"] |= _foreign("") | {
        EDITOR_KEY: {"type": "string", "description": "Where an editor finds this schema."},
        "motor_coordinator_config": _coordinator(WITHOUT_EFFECT[""]["motor_coordinator_config"]),
        **{
            wrong: {"type": "object", "deprecated": True, "description": f"Misspelt: write {right}."}
            for wrong, right in MISSPELT.items()
        },
    }
    return {
        "$schema": DIALECT,
        **schema,
        "title": "deploy.json",
        "anyOf": [{"required": [section]} for section in ENGINE_SECTIONS],
    }


def _tidy(name: str, definition: dict[str, Any]) -> None:
    """Sections have no default of their own here: their keys have them."""
    for property_ in definition.get("properties", {}).values():
        if "$ref" in property_ and "default" in property_:
            del property_["default"]
    definition["title"] = name


def _without_null(property_: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = next(kind for kind in property_["anyOf"] if kind != {"type": "null"})
    return {key: value for key, value in property_.items() if key not in ("anyOf", "default")} | kept


def _foreign(section: str) -> dict[str, Any]:
    known: dict[str, Any] = {
        key: {"deprecated": True, "description": _sentence(foreign)}
        for key, foreign in WITHOUT_EFFECT.get(section, {}).items()
    }
    refused = {key: _refused(text) for (where, key), text in REFUSED.items() if where == section}
    return known | refused


def _sentence(foreign: Foreign) -> str:
    instead = f"; use {foreign.instead}" if foreign.instead else ""
    return f"Without effect: {foreign.reason}{instead}."


def _refused(text: str) -> dict[str, Any]:
    return {"not": {}, "description": f"Refused: {text}."}


def _coordinator(foreign: Foreign) -> dict[str, Any]:
    groups: dict[str, Any] = {name: {"deprecated": True} for name in COORDINATOR_GROUPS}
    groups[CHECKED_GROUP] = _closed({name: {} for name in COORDINATOR_GROUPS[CHECKED_GROUP]})
    return _closed(groups) | {"description": _sentence(foreign)}


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _engine(properties: dict[str, Any]) -> None:
    properties["engine_type"]["enum"] = list(_spellings(ENGINE_TYPES))
    properties["engine_profile"]["examples"] = list(PROFILES)
    properties["env"]["additionalProperties"] = {"type": ["string", "number"]}
    properties["engine_config"]["properties"] = {
        spelling: _KINDS[option.kind] | {"description": f"{option.meaning[0].upper()}{option.meaning[1:]}."}
        for name, option in READ_OPTIONS.items()
        for spelling in _spellings([name])
    }


def _spellings(names: Iterable[str]) -> Iterable[str]:
    """Dashes and underscores are alike in names of options and engines."""
    for name in names:
        yield name
        yield from sorted({name.replace("-", "_"), name.replace("_", "-")} - {name})
