"""Protobuf messages of any content, made from their own descriptions."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st

UNSIGNED = (0, 1, 2, 7, 1000, 2**31, 2**32 - 1)
HUGE = (*UNSIGNED, 2**48, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
SIGNED = (0, 1, -1, 255, 2**31 - 1, -(2**31))
DOUBLES = (0.0, -1.0, 0.5, 1e-300, 1e300, math.inf, -math.inf, math.nan)

_NUMBERS = {
    Field.TYPE_UINT32: UNSIGNED,
    Field.TYPE_INT32: SIGNED,
    Field.TYPE_UINT64: HUGE,
    Field.TYPE_INT64: (*SIGNED, 2**63 - 1, -(2**63)),
    Field.TYPE_DOUBLE: DOUBLES,
    Field.TYPE_BOOL: (True, False),
}


def texts(known: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Names that mean something, and such that should not."""
    odd = (
        "",
        " ",
        "..",
        "../../x",
        "/etc/passwd",
        "a" * 5000,
        "a/b/c",
        "\n\x1b[2J",
        "é\u202e",
        "0",
        "-1",
        "$(id)",
        "%s",
    )
    return st.one_of(st.sampled_from([*known, *odd]), st.text(max_size=12))


@st.composite
def message_of(draw: st.DrawFn, kind: Any, known: tuple[str, ...], depth: int = 0) -> Any:
    """A message of class `kind`; some of its fields are set."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.containing_oneof is not None and field.message_type is not None:
            continue  # one of them is chosen below
        if draw(st.integers(0, 3)) == 0:
            continue
        _fill(draw, made, field, known, depth)
    for group in kind.DESCRIPTOR.oneofs:
        choices = [field for field in group.fields if field.message_type is not None]
        if choices:
            _fill(draw, made, draw(st.sampled_from(choices)), known, depth)
    return made


def _fill(draw: st.DrawFn, made: Any, field: Any, known: tuple[str, ...], depth: int) -> None:
    target = getattr(made, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        for key in draw(st.lists(texts(known), max_size=3)):
            target[key] = draw(_value(inner, known))
    elif field.message_type is not None:
        kind = field.message_type._concrete_class
        if field.is_repeated:
            if depth < 3:
                target.extend(draw(st.lists(message_of(kind, known, depth + 1), max_size=3)))
        else:
            target.CopyFrom(draw(message_of(kind, known, depth + 1)))
    elif field.is_repeated:
        target.extend(draw(st.lists(_value(field, known), max_size=4)))
    else:
        setattr(made, field.name, draw(_value(field, known)))


def _value(field: Any, known: tuple[str, ...]) -> st.SearchStrategy[Any]:
    if field.type == Field.TYPE_STRING:
        return texts(known)
    if field.type == Field.TYPE_BYTES:
        return st.binary(max_size=50)
    if field.type == Field.TYPE_ENUM:
        return st.integers(0, 9)
    return st.sampled_from(_NUMBERS[field.type])
