"""Numbers that a message can carry and nobody can mean: NaN makes every comparison false, infinity overflows timers."""

from __future__ import annotations

import math

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message


def not_finite(message: Message) -> str:
    """The first field that holds NaN or an infinity, and what it holds, as in "health.interval_seconds: nan"; empty if
    none does. Looks into all messages below, also those of lists, but not into maps.
    """
    for field, value in message.ListFields():
        kind = field.message_type
        if field.cpp_type != Field.CPPTYPE_DOUBLE and (kind is None or kind.GetOptions().map_entry):
            continue
        for one in [value] if isinstance(value, (float, Message)) else value:
            if isinstance(one, Message):
                if found := not_finite(one):
                    return f"{field.name}.{found}"
            elif not math.isfinite(one):
                return f"{field.name}: {one}"
    return ""
