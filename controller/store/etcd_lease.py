"""A lease, renewed, and judged by this process's own clock."""

from __future__ import annotations

import asyncio
import math
import secrets
import time

from motor_rpc import etcd_wire_pb2 as wire

from controller.store import etcd_calls as calls
from controller.store.etcd_client import EtcdClient
from controller.store.etcd_errors import EtcdError, EtcdUnavailable
from controller.store.etcd_stream import Stream

RETRY_SECONDS = 0.05  # between a failed renewal and the next try


class Lease:
    """What hangs on it is gone at etcd some time after `holds_until`, and never before."""

    def __init__(self, client: EtcdClient, number: int, granted: float) -> None:
        self.number = number
        self._client = client
        self._holds_until = granted + client.settings.lease_seconds - client.settings.margin_seconds

    def holds_until(self) -> float:
        """`time.monotonic()`. Once that moment has passed it never comes back, whatever etcd says later."""
        return self._holds_until

    async def keep(self) -> str:
        """Renew for as long as it holds; return why it does not any more. EtcdError if etcd refuses."""
        settings = self._client.settings
        stream: Stream | None = None
        try:
            while True:
                asked = time.monotonic()
                if asked >= self._holds_until:
                    return self.overdue()
                try:
                    if stream is None:
                        stream = await self._client.stream(calls.KEEP_ALIVE)
                    await stream.send(wire.LeaseKeepAliveRequest(id=self.number))
                    answer = await stream.read(settings.request_seconds)
                    if answer is None:
                        raise stream.silent(f"no answer within {settings.request_seconds:g} s")
                except EtcdUnavailable:
                    # One failed renewal does not give the lease up: the next member is asked.
                    if stream is not None:
                        stream.close()
                    stream = None
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if answer.ttl <= 0:
                    return "its lease has run out or was revoked"
                # From the moment of asking: how long the answer took is not known to etcd.
                if not self._extend(asked + answer.ttl - settings.margin_seconds):
                    return self.overdue()
                await asyncio.sleep(max(0.0, asked + settings.renew_seconds - time.monotonic()))
        finally:
            if stream is not None:
                stream.close()

    def _extend(self, until: float) -> bool:
        if time.monotonic() >= self._holds_until:
            return False  # somebody may have looked at the clock meanwhile and acted on it
        self._holds_until = max(self._holds_until, until)
        return True

    def overdue(self) -> str:
        return f"its lease could not be renewed in time; the last try: {self._client.trouble or 'none was possible'}"

    async def revoke(self) -> None:
        """Give it back at once. EtcdUnavailable: it runs out by itself then."""
        self._holds_until = -math.inf
        await revoke(self._client, self.number)


async def revoke(client: EtcdClient, number: int) -> None:
    """End a lease, and with it what hangs on it; one that is gone already is no error. EtcdError, EtcdUnavailable."""
    try:
        await client.call(calls.REVOKE, wire.LeaseRevokeRequest(id=number), within=1.0)
    except EtcdUnavailable:
        raise
    except EtcdError as error:
        if "lease not found" not in str(error):
            raise


async def grant(client: EtcdClient, within: float) -> Lease:
    """A new lease. EtcdUnavailable."""
    # An id of our own: a second try whose first one was carried out is told so, and does not make a second lease.
    number = 1 + secrets.randbelow(2**62)
    asked = time.monotonic()
    try:
        await client.call(calls.GRANT, wire.LeaseGrantRequest(ttl=client.settings.lease_seconds, id=number), within)
    except EtcdUnavailable:
        raise
    except EtcdError as error:
        if "lease already exists" not in str(error):
            raise
    return Lease(client, number, asked)
