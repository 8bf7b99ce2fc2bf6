"""The value of one key, as it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from motor_rpc import etcd_wire_pb2 as wire

from controller.store import etcd_calls as calls
from controller.store.etcd_client import EtcdClient
from controller.store.etcd_errors import EtcdError, EtcdUnavailable

ASK_SECONDS = 1.0  # of silence, until the member is asked whether it is there: a frozen one keeps its connections


@dataclass(frozen=True)
class Seen:
    kv: wire.KeyValue | None  # None: the key does not exist


async def follow(client: EtcdClient, key: bytes, patience: float) -> AsyncGenerator[Seen | None, None]:
    """The key's state now and after each change; None when nobody has answered for `patience` seconds.

    States, not events: after a broken stream or a compaction the key is read again and the watch goes on from there.
    That loses no state, and needs no history. EtcdError for what etcd refuses.
    """
    last: Seen | None = None
    while True:
        try:
            kv, revision = await client.get(key, patience)
        except EtcdUnavailable:
            last = None
            yield None
            continue
        if last is None or last.kv != kv:
            last = Seen(kv)
            yield last
        try:
            async with aclosing(_changes(client, key, revision + 1)) as changes:
                async for last in changes:
                    yield last
        except EtcdUnavailable:
            await asyncio.sleep(0.02)  # the next member is asked; a server that ends each stream at once is spared


async def _changes(client: EtcdClient, key: bytes, start: int) -> AsyncGenerator[Seen, None]:
    """Changes from revision `start`. Ends when the history from there is gone; EtcdUnavailable."""
    stream = await client.stream(calls.WATCH)
    try:
        await stream.send(wire.WatchRequest(create_request=wire.WatchCreateRequest(key=key, start_revision=start)))
        asked = True  # it has to say that the watch is made
        while True:
            answer = await stream.read(client.settings.request_seconds if asked else ASK_SECONDS)
            if answer is None:
                if asked:
                    raise stream.silent("no answer")
                asked = True
                await stream.send(wire.WatchRequest(progress_request=wire.WatchProgressRequest()))
                continue
            asked = False
            if answer.canceled:
                _explain(client, answer)
                return
            if answer.events:
                newest = answer.events[-1]
                yield Seen(newest.kv if newest.type == wire.Event.PUT else None)
    finally:
        stream.close()


def _explain(client: EtcdClient, answer: wire.WatchResponse) -> None:
    """EtcdError, EtcdUnavailable, or nothing where the key just has to be read again."""
    reason = answer.cancel_reason
    if answer.compact_revision or "compacted" in reason:
        return
    if "permission denied" in reason or "auth" in reason.lower():
        # etcd 3.4 says so of a forgotten log-in too. The key is read before the next watch: that call tells which.
        client.forget_login()
        raise EtcdUnavailable(f"etcd: watch refused: {reason}")
    raise EtcdError(f"etcd: watch refused: {reason or 'no reason given'}")
