"""A store that forgets with its process: for tests, and for trials that say so."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from controller.core.model import GenerationRecord, OperatorState
from controller.store.codec import decode, encode
from controller.store.interface import Snapshot, StoreLocked


class MemoryStore:
    def __init__(self) -> None:
        self._lineage = secrets.token_hex(16)
        self._epoch = 0
        self._records: dict[str, str] = {}
        self._operator = OperatorState()
        self._open = False

    def open(self) -> Snapshot:
        if self._open:
            raise StoreLocked("this memory store is open already")
        self._open = True
        self._epoch += 1
        records = tuple(decode(text) for text in self._records.values())
        return Snapshot(self._lineage, self._epoch, records, self._operator)

    def put(self, records: Iterable[GenerationRecord]) -> None:
        self._records.update({record.scope_id: encode(record) for record in records})

    def put_operator(self, operator: OperatorState) -> None:
        self._operator = operator

    def raise_epoch(self, at_least: int) -> int:
        self._epoch = max(self._epoch, at_least)
        return self._epoch

    def close(self) -> None:
        self._open = False
