"""Records as JSON text, so that a person can read a store and an older version's state stays loadable."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from controller.core.model import GenerationRecord, OperatorState, Placement, SlotKey

VERSION = 1


def encode(record: GenerationRecord) -> str:
    data: dict[str, Any] = {f.name: getattr(record, f.name) for f in fields(record) if f.name != "members"}
    data["members"] = {str(slot): asdict(placed) for slot, placed in sorted(record.members.items())}
    data["version"] = VERSION
    return json.dumps(data, sort_keys=True)


def decode(text: str) -> GenerationRecord:
    """ValueError for text that is no record of a version this program knows."""
    try:
        data: dict[str, Any] = json.loads(text)
        version = data.pop("version")
        if version > VERSION:
            raise ValueError(f"record version {version} is newer than {VERSION}, the newest this program reads")
        members = {
            SlotKey.parse(slot): Placement(**{**placed, "devices": tuple(placed["devices"])})
            for slot, placed in data.pop("members").items()
        }
        data["adopted_run_ids"] = tuple(data.get("adopted_run_ids", ()))
        return GenerationRecord(members=members, **data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a generation record: {error!r}: {text[:200]}") from error


def encode_operator(operator: OperatorState) -> str:
    data = {"cordoned": sorted(operator.cordoned), "paused": operator.paused, "stopped": sorted(operator.stopped)}
    return json.dumps({**data, "version": VERSION}, sort_keys=True)


def decode_operator(text: str) -> OperatorState:
    """ValueError for text that is no operator state."""
    try:
        data: dict[str, Any] = json.loads(text)
        return OperatorState(frozenset(data["cordoned"]), data["paused"], frozenset(data["stopped"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an operator state: {error!r}: {text[:200]}") from error
