"""What a store has to do. Each implementation is held to the same contract tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from controller.core.model import GenerationRecord, OperatorState


class StoreError(Exception):
    """The store cannot do what was asked; the message says what, where, and what to do."""


class StoreLocked(StoreError):
    """Another controller holds this store."""


@dataclass(frozen=True)
class Snapshot:
    """What a controller starts from."""

    lineage: str  # random, made with the store
    epoch: int  # this controller's own: one above every earlier one, already stored
    records: tuple[GenerationRecord, ...]
    operator: OperatorState = field(default_factory=OperatorState)


class Store(Protocol):
    """Blocking calls, from one thread at a time."""

    def open(self) -> Snapshot:
        """Take the store for this controller and count the epoch up. StoreLocked, StoreError."""

    def put(self, records: Iterable[GenerationRecord]) -> None:
        """Keep the newest record of each scope, all or none; on return they survive a crash. StoreError."""

    def put_operator(self, operator: OperatorState) -> None:
        """Keep what operators have ordered. StoreError."""

    def raise_epoch(self, at_least: int) -> int:
        """Make this controller's epoch `at_least`, on the disk when it returns; the epoch it is now. StoreError."""

    def close(self) -> None:
        """Let go; a later open finds everything that was put."""
