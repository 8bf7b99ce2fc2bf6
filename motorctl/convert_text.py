"""A converted deployment as JSON to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine_launch.flags import to_json


def json_text(data: Mapping[str, Any], indent: int = 0) -> str:
    """JSON to read: objects of the schema over several lines, numbers as they were written."""
    inner = "  " * (indent + 1)
    rows = []
    for name, value in data.items():
        deeper = isinstance(value, Mapping) and value and indent < 2
        rows.append(f"{inner}{json.dumps(name)}: {json_text(value, indent + 1) if deeper else _flat(value)}")
    return "{\n" + ",\n".join(rows) + "\n" + "  " * indent + "}"


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_flat(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flat, value)) + "]"
    return to_json(value)
