"""Transactions of a leader: carried out only while it leads, and never twice.

Each names the leader key's create revision, so that a deposed leader changes nothing, and the mod revision of the keys
it is about, so that a try that was sent, not answered, and comes late is carried out at most once and never over
something newer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from motor_rpc import etcd_wire_pb2 as wire

from controller.store.etcd_client import EtcdClient, end_of
from controller.store.etcd_election import Term
from controller.store.etcd_errors import EtcdError, EtcdUnavailable
from controller.store.interface import StoreError

#: etcd takes 128 operations in a transaction by default (--max-txn-ops), and as many comparisons
OPERATIONS = 100

WRITE_TRIES = 5  # within so many tries' time a write is stored, or reported as not stored
RETRY_SECONDS = 0.02

Item = TypeVar("Item")


class Writer:
    """One leader's writes; the caller does one after the other."""

    def __init__(self, client: EtcdClient, term: Term, known: Mapping[bytes, int]) -> None:
        self._client = client
        self._term = term
        self._known = dict(known)  # key -> mod revision, of keys that are compared
        self._doubtful: dict[bytes, set[bytes]] = {}  # values of tries whose outcome is not known

    async def commit(self, puts: Mapping[bytes, bytes], removed: Sequence[bytes] = (), leader: bytes = b"") -> None:
        """Write `puts` over what this leader knows to be there, and delete all below the prefixes `removed`: all of it
        or nothing. `leader`: the leader key's new value."""
        operations = [*(_put(key, value) for key, value in puts.items()), *map(_remove, removed)]
        if leader:
            operations.append(_put(self._term.key, leader, self._term.lease.number))
        for key, value in puts.items():
            self._doubtful.setdefault(key, set()).add(value)
        revision = await self._carry_out(operations, tuple(puts), puts)
        for key in puts:
            del self._doubtful[key]
            self._known[key] = revision or self._known[key]

    async def prepare(self, parts: Mapping[bytes, bytes], heads: Sequence[bytes]) -> None:
        """Write parts that none of `heads` names yet."""
        await self._carry_out([_put(key, value) for key, value in parts.items()], heads, {})

    async def remove(self, folders: Sequence[bytes]) -> None:
        """Delete everything below these prefixes, which no head names."""
        await self._carry_out([_remove(folder) for folder in folders], (), {})

    async def _carry_out(
        self, operations: Sequence[wire.RequestOp], compared: Sequence[bytes], wanted: Mapping[bytes, bytes]
    ) -> int:
        """The revision of the write; 0 if an earlier try of it turned out to have been carried out."""
        until = time.monotonic() + WRITE_TRIES * self._client.settings.request_seconds
        while True:
            now = time.monotonic()
            if now >= self._term.holds_until():
                self._term.depose(self._term.lease.overdue())
                raise StoreError(f"etcd: this controller leads no more: {await self._term.lost()}")
            try:
                answer = await self._client.txn(self._request(operations, compared))
            except EtcdUnavailable as error:
                # The same again: the comparisons let only one of the tries through.
                unanswered = error
            except EtcdError as error:
                if "lease not found" in str(error):
                    self._term.depose("its lease has run out or was revoked")
                raise
            else:
                if answer.succeeded:
                    return answer.header.revision
                if self._learn(answer, compared, wanted):
                    return 0
                continue
            if time.monotonic() >= until:
                raise EtcdUnavailable(f"etcd: not stored, or not known to be: {unanswered}") from unanswered
            await asyncio.sleep(RETRY_SECONDS)

    def _request(self, operations: Sequence[wire.RequestOp], compared: Sequence[bytes]) -> wire.TxnRequest:
        leads = wire.Compare(target=wire.Compare.CREATE, key=self._term.key, create_revision=self._term.token)
        same = [
            wire.Compare(target=wire.Compare.MOD, key=key, mod_revision=self._known.get(key, 0)) for key in compared
        ]
        reads = [wire.RequestOp(request_range=wire.RangeRequest(key=key)) for key in (self._term.key, *compared)]
        return wire.TxnRequest(compare=[leads, *same], success=operations, failure=reads)

    def _learn(self, answer: wire.TxnResponse, compared: Sequence[bytes], wanted: Mapping[bytes, bytes]) -> bool:
        """Why was it refused? True: an earlier try was carried out. False: try again, knowing more."""
        found = [each.response_range.kvs[0] if each.response_range.kvs else None for each in answer.responses]
        leader = found[0]
        if leader is None or leader.create_revision != self._term.token:
            self._term.depose(f"another controller leads: {leader.value.decode()}" if leader else "its key is gone")
            raise StoreError("etcd: this controller leads no more: a write was refused")
        there = 0
        for key, kv in zip(compared, found[1:], strict=True):
            value, revision = (kv.value, kv.mod_revision) if kv is not None else (None, 0)
            if revision == self._known.get(key, 0):
                continue
            if value not in self._doubtful.get(key, ()):
                reason = f"{key.decode()} was changed by somebody else"
                self._term.depose(reason)  # so that all is read again
                raise StoreError(f"etcd: {reason}")
            self._known[key] = revision
            there += value == wanted.get(key)
        return bool(wanted) and there == len(wanted)


def _put(key: bytes, value: bytes, lease: int = 0) -> wire.RequestOp:
    return wire.RequestOp(request_put=wire.PutRequest(key=key, value=value, lease=lease))


def _remove(prefix: bytes) -> wire.RequestOp:
    return wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=prefix, range_end=end_of(prefix)))


def batches(items: Sequence[Item], size: int = OPERATIONS) -> Iterator[Sequence[Item]]:
    """At most `size` of them at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))
