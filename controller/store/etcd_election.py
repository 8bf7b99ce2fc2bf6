"""Who leads: the key that only one controller can make, for as long as its lease lives."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import aclosing

from motor_rpc import etcd_wire_pb2 as wire

from controller.store.etcd_client import EtcdClient
from controller.store.etcd_errors import EtcdError, EtcdUnavailable, OutcomeUnknown
from controller.store.etcd_lease import Lease, grant, revoke
from controller.store.etcd_watch import follow

log = logging.getLogger(__name__)


class Term:
    """The time for which this controller leads. `token` is the revision at which the key was made: every write names
    it, and none is carried out once the key is gone, or somebody else's."""

    def __init__(
        self, client: EtcdClient, key: bytes, lease: Lease, renewing: asyncio.Task[str], token: int, owed: set[int]
    ) -> None:
        self.key = key
        self.lease = lease
        self.token = token
        self._client = client
        self._owed = owed
        self._renewing = renewing
        self._watching = asyncio.create_task(self._watch())
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.create_task(self._guard())

    def holds_until(self) -> float:
        return -math.inf if self._over.done() else self.lease.holds_until()

    def depose(self, reason: str) -> None:
        """The first reason counts."""
        if not self._over.done():
            self._over.set_result(reason)

    async def lost(self) -> str:
        return await asyncio.shield(self._over)

    async def end(self) -> None:
        """Let the key go. Nothing is raised: a lease that cannot be given back is owed, and runs out."""
        self.depose("it was asked to end")
        tasks = (self._ending, self._renewing, self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await _give_back(self.lease, self._owed)

    async def _guard(self) -> None:
        """Notice the end, whatever brings it: this process's clock first of all."""
        sources: set[asyncio.Future[str]] = {self._renewing, self._watching, self._over}
        while not self._over.done():
            left = self.lease.holds_until() - time.monotonic()
            if left <= 0:
                self.depose(self.lease.overdue())
                return
            done, _ = await asyncio.wait(sources, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for source in done - {self._over}:
                error = source.exception()
                self.depose(str(error) if error is not None else source.result())

    async def _watch(self) -> str:
        async with aclosing(follow(self._client, self.key, self._client.settings.lease_seconds)) as states:
            async for seen in states:
                if seen is None:  # nobody answers; the lease has its own clock
                    continue
                if seen.kv is None:
                    return "its key is gone"
                if seen.kv.create_revision != self.token:
                    return f"another controller leads: {seen.kv.value.decode(errors='replace')}"
        raise AssertionError("a key is followed for ever")


async def stand(client: EtcdClient, key: bytes, value: bytes, owed: set[int]) -> Term | None:
    """Try to become leader; None if somebody else is. EtcdUnavailable, EtcdError. Leases that could not be given back
    are added to `owed`."""
    lease = await grant(client, client.settings.lease_seconds)
    renewing = asyncio.create_task(lease.keep())
    token: int | None = None
    try:
        token = await _take(client, key, value, lease)
    finally:
        if token is None:
            renewing.cancel()
            # Also against a try that is still on its way: without its lease it cannot make the key any more.
            await _give_back(lease, owed)
    return Term(client, key, lease, renewing, token, owed) if token is not None else None


async def _take(client: EtcdClient, key: bytes, value: bytes, lease: Lease) -> int | None:
    """The revision at which the key was made for this lease, or None if another holds it."""
    is_free = wire.Compare(target=wire.Compare.CREATE, key=key, create_revision=0)
    put = wire.RequestOp(request_put=wire.PutRequest(key=key, value=value, lease=lease.number))
    read = wire.RequestOp(request_range=wire.RangeRequest(key=key))
    request = wire.TxnRequest(compare=[is_free], success=[put], failure=[read])
    while time.monotonic() < lease.holds_until():
        try:
            answer = await client.txn(request)
        except EtcdUnavailable:
            # Asked again: only one of the tries can find the key free, and the others read whose it is.
            await asyncio.sleep(0.02)
            continue
        if answer.succeeded:
            return answer.header.revision
        found = answer.responses[0].response_range.kvs
        if found and found[0].lease == lease.number:
            return found[0].create_revision
        if found:
            return None
    raise OutcomeUnknown(f"etcd: no answer to whether this controller leads: {client.trouble}")


async def pay(client: EtcdClient, owed: set[int]) -> None:
    """Give back the leases that are owed: etcd counts them anew when it elects a leader of its own, so that the key of
    a term that is over would hold up the next one by a whole lease. Nothing is raised."""
    for number in tuple(owed):
        try:
            await revoke(client, number)
        except EtcdError as error:
            log.info("a lease of an earlier term is not given back yet: %s", error)
        else:
            owed.discard(number)


async def _give_back(lease: Lease, owed: set[int]) -> None:
    owed.add(lease.number)  # first: this may be cancelled
    try:
        await lease.revoke()
    except EtcdError as error:
        log.warning("the lease could not be given back, it runs out by itself: %s", error)
    else:
        owed.discard(lease.number)
