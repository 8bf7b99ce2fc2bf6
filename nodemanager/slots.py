"""The place an engine process fills, as the node names it in folders, messages and environments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from motor_rpc import control_pb2 as pb

# An instance name becomes part of a folder name.
INSTANCE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


@dataclass(frozen=True, order=True)
class SlotKey:
    """Node `node_rank` of data-parallel rank `dp_rank` of an instance; `str()` is what operators type and
    read.
    """

    instance: str
    dp_rank: int
    node_rank: int

    def __str__(self) -> str:
        return f"{self.instance}/{self.dp_rank}/{self.node_rank}"

    @property
    def folder(self) -> str:
        return f"{self.instance}_{self.dp_rank}_{self.node_rank}"

    @staticmethod
    def parse(text: str) -> SlotKey:
        """Read `instance/dp_rank/node_rank`; ValueError if it is not that."""
        instance, dp_rank, node_rank = text.split("/")
        if not INSTANCE_PATTERN.match(instance):
            raise ValueError(f"{instance!r} is no instance name")
        return SlotKey(instance, int(dp_rank), int(node_rank))

    @staticmethod
    def from_message(slot: pb.Slot) -> SlotKey:
        """ValueError for an instance name that could leave the state folder."""
        if not INSTANCE_PATTERN.match(slot.instance):
            raise ValueError(
                f"slot.instance: expected at most 63 letters, digits, '.', '_' or '-', got {slot.instance!r}"
            )
        return SlotKey(slot.instance, slot.dp_rank, slot.node_rank)

    def message(self) -> pb.Slot:
        return pb.Slot(instance=self.instance, dp_rank=self.dp_rank, node_rank=self.node_rank)
