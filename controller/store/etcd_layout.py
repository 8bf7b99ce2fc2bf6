"""Which keys there are, and how a long text becomes several short values.

    <prefix>/<deployment id>/leader                 who leads, under the leader's lease
                             format                 version of this layout
                             lineage, epoch         as in every store
                             operator               what operators have ordered
                             generation/<scope id>  the newest record of a scope
                             part/<subject>@<epoch>.<count>/<number>

A value is the JSON text itself, or, where that is too long for one key, a head that names its parts. Parts are
written first, under a name that no other write has, and count only when the head that names them is there. So a
reader finds the old text or the new one, whole, whatever write was the last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

FORMAT = 1

# Values of at most this length: the key comes on top, and both together stay below 2 kB.
VALUE_BYTES = 1800


@dataclass(frozen=True)
class Keys:
    """The keys of one deployment. `root` ends in a slash."""

    root: str

    @staticmethod
    def of(prefix: str, deployment_id: str) -> Keys:
        return Keys(f"{prefix.rstrip('/')}/{deployment_id}/")

    @property
    def leader(self) -> bytes:
        return self._key("leader")

    @property
    def format(self) -> bytes:
        return self._key("format")

    @property
    def lineage(self) -> bytes:
        return self._key("lineage")

    @property
    def epoch(self) -> bytes:
        return self._key("epoch")

    @property
    def operator(self) -> bytes:
        return self._key("operator")

    @property
    def generations(self) -> bytes:
        return self._key("generation/")

    def generation(self, scope_id: str) -> bytes:
        return self._key(f"generation/{scope_id}")

    @property
    def parts(self) -> bytes:
        return self._key("part/")

    def part_folder(self, head: bytes, epoch: int, count: int) -> bytes:
        """Where the parts of one write of `head` lie. `count` is new with each write of an epoch."""
        subject = head.decode().removeprefix(self.root).removeprefix("generation/")
        return self._key(f"part/{subject}@{epoch}.{count}/")

    def _key(self, name: str) -> bytes:
        return (self.root + name).encode()


@dataclass(frozen=True)
class Written:
    """A text as keys and values: `head` is the value that counts, `parts` come before it."""

    head: bytes
    parts: Mapping[bytes, bytes]


def split(text: str, folder: bytes) -> Written:
    """`text` is ASCII."""
    data = text.encode("ascii")
    if len(data) <= VALUE_BYTES:
        return Written(data, {})
    pieces = [data[start : start + VALUE_BYTES] for start in range(0, len(data), VALUE_BYTES)]
    head = {"parts": folder.decode(), "count": len(pieces), "bytes": len(data)}
    return Written(json.dumps(head).encode(), {folder + b"%04d" % n: piece for n, piece in enumerate(pieces)})


def folder_of(head: bytes) -> bytes | None:
    """Where the parts lie that this head names; None if it holds the whole text. ValueError for no JSON object."""
    value = json.loads(head)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {head[:100]!r}")
    return value["parts"].encode() if "parts" in value else None


def join(head: bytes, stored: Mapping[bytes, bytes]) -> str:
    """The text that `head` stands for. ValueError if parts of it are missing."""
    folder = folder_of(head)
    if folder is None:
        return head.decode()
    named = json.loads(head)
    keys = [folder + b"%04d" % n for n in range(named["count"])]
    text = b"".join(stored.get(key, b"") for key in keys).decode()
    if len(text) != named["bytes"]:
        expected = f"{named['count']} parts of {named['bytes']} bytes together"
        raise ValueError(f"{folder.decode()}: expected {expected}, got {len(text)} bytes")
    return text
