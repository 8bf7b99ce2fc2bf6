"""A store that forgets with its process: for tests, and for trials that say so."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from controller.core.model import GenerationRecord, OperatorState
from controller.store.codec import decode, encode
from controller.store.interface import Snapshot, Standby, StoreError, StoreLocked, Unshared


class MemoryStore(Unshared):
    def __init__(self) -> None:
        self._lineage = secrets.token_hex(16)
        self._epoch = 0
        self._records: dict[str, str] = {}
        self._operator = OperatorState()
        self._open = False

    async def open(self, standby: Standby, gives_way: float = 0.0) -> Snapshot:
        if self._open:
            raise StoreLocked("this memory store is open already")
        self._open = True
        self._epoch += 1
        records = tuple(decode(text) for text in self._records.values())
        return Snapshot(self._lineage, self._epoch, records, self._operator)

    async def put(self, records: Iterable[GenerationRecord]) -> None:
        self._check_open()
        self._records.update({record.scope_id: encode(record) for record in records})

    async def put_operator(self, operator: OperatorState) -> None:
        self._check_open()
        self._operator = operator

    async def raise_epoch(self, at_least: int) -> int:
        self._check_open()
        self._epoch = max(self._epoch, at_least)
        return self._epoch

    async def close(self) -> None:
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError("this memory store is not open")
