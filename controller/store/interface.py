"""What a store has to do. Each implementation is held to the same contract tests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from controller.core.model import GenerationRecord, OperatorState


class StoreError(Exception):
    """The store cannot do what was asked; the message says what, where, and what to do."""


class StoreLocked(StoreError):
    """Another controller holds this store."""


@dataclass(frozen=True)
class Leader:
    """The controller that holds a shared store, as its key there says."""

    controller_id: str  # random, new with each start of a controller
    grpc: str  # host:port for node managers
    rest: str  # base URL for operators
    epoch: int  # 0 while it has not counted up yet


#: told who leads; None: unknown, or being elected
Standby = Callable[[Leader | None], None]


@dataclass(frozen=True)
class Snapshot:
    """What a controller starts from."""

    lineage: str  # random, made with the store
    epoch: int  # this controller's own: one above every earlier one, already stored
    records: tuple[GenerationRecord, ...]
    operator: OperatorState = field(default_factory=OperatorState)


class Unshared:
    """What a store says that belongs to one controller alone: it cannot be lost to another."""

    def holds_until(self) -> float:
        return math.inf

    async def lost(self) -> str:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    def trouble(self) -> str:
        return ""


class Store(Protocol):
    """Coroutines of one event loop. Calls may overlap: a store does its writes one after the other. A store whose
    work blocks keeps a thread of its own."""

    async def open(self, standby: Standby, gives_way: float = 0.0) -> Snapshot:
        """Take the store for this controller and count the epoch up. A shared store waits here while another
        controller leads; `standby` is called at the beginning and at each change. For `gives_way` seconds, or until
        another one has led, it is left to others. StoreLocked, StoreError."""

    async def put(self, records: Iterable[GenerationRecord]) -> None:
        """Keep the newest record of each scope. On return all survive a crash; before, each scope has its old or its
        new record, whole. StoreError."""

    async def put_operator(self, operator: OperatorState) -> None:
        """Keep what operators have ordered. StoreError."""

    async def raise_epoch(self, at_least: int) -> int:
        """Make this controller's epoch `at_least`, stored when it returns; the epoch it is now. StoreError."""

    def holds_until(self) -> float:
        """`time.monotonic()` until which this controller may write and order; `math.inf` where nobody can take the
        store away."""

    async def lost(self) -> str:
        """Return, with the reason, once this controller leads no more; never where nobody can take the store away."""

    def trouble(self) -> str:
        """Why the store does not answer at the moment; empty while it does."""

    async def close(self) -> None:
        """Let go, at once; a later open finds everything that was put."""
