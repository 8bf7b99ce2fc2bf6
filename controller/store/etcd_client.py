"""Calls to etcd: the member that answers is found, each try has a deadline, an expired log-in is renewed.

No packaged Python client is used: docs/deploy-ha.md says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc
from motor_rpc import etcd_wire_pb2 as wire

from controller.store import etcd_calls as calls
from controller.store.etcd_channels import Channels
from controller.store.etcd_errors import EtcdError, EtcdUnavailable, OutcomeUnknown, Verdict, judge, refusal
from controller.store.etcd_settings import EtcdSettings
from controller.store.etcd_stream import Stream
from controller.store.interface import StoreError

PAGE = 500  # keys read at once; gRPC takes messages of up to 4 MB, a key and its value have about 2 kB

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds between two tries


class EtcdClient:
    """Made, used and closed in one event loop."""

    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        self.channels = Channels(settings)
        self.trouble = ""  # why the last try of any call failed; empty after one that did not
        self._token = ""
        self._login = asyncio.Lock()
        self._logged_in_once = False

    async def close(self) -> None:
        await self.channels.close()

    # -- what is asked ---------------------------------------------------------------------------------------------

    async def get(self, key: bytes, within: float) -> tuple[wire.KeyValue | None, int]:
        """A key's value, or None, and the revision at which that is so."""
        answer = await self.call(calls.RANGE, wire.RangeRequest(key=key), within)
        return (answer.kvs[0] if answer.kvs else None), answer.header.revision

    async def list(self, prefix: bytes, within: float) -> list[wire.KeyValue]:
        """Everything below `prefix`, as it was at one moment, in order of the keys."""
        start, end, revision, found = prefix, end_of(prefix), 0, list[wire.KeyValue]()
        while True:
            page = wire.RangeRequest(key=start, range_end=end, limit=PAGE, revision=revision)
            try:
                answer = await self.call(calls.RANGE, page, within)
            except EtcdError as error:
                if "compacted" not in str(error):
                    raise
                # that moment is gone from etcd's history: begin again with a newer one
                start, revision, found = prefix, 0, []
                continue
            found.extend(answer.kvs)
            if not answer.more:
                return found
            revision = revision or answer.header.revision
            start = answer.kvs[-1].key + b"\0"

    async def txn(self, request: wire.TxnRequest) -> wire.TxnResponse:
        """One try. OutcomeUnknown: the caller has to find out whether it was carried out."""
        answer: wire.TxnResponse = await self.call(calls.TXN, request, self.settings.request_seconds, again=False)
        return answer

    async def call(
        self, call: calls.Call, request: Any, within: float, again: bool = True, logged_in: bool = True
    ) -> Any:
        """The answer, tried again on other members for `within` seconds. EtcdError, EtcdUnavailable.

        `again`: whether a second try does no harm when the first was carried out and only its answer is lost.
        """
        deadline = time.monotonic() + within
        pause, left = FIRST_PAUSE, within
        while left > 0:
            index, channel = self.channels.current()
            metadata = await self.metadata(left) if logged_in else ()
            try:
                timeout = min(self.settings.request_seconds, left)
                answer = await call.on(channel)(request, timeout=timeout, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                verdict = self.failed(index, call, error)
                if verdict is Verdict.AGAIN and not again:
                    raise OutcomeUnknown(f"etcd: {call.name} was sent and not answered: {self.trouble}") from error
            else:
                self.trouble = ""
                return answer
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause, left = min(2 * pause, LONGEST_PAUSE), deadline - time.monotonic()
        raise EtcdUnavailable(
            f"etcd: none of {', '.join(self.settings.endpoints)} answered {call.name} within {within:.1f} s; the last "
            f"one: {self.trouble or 'log-in refused again and again'}"
        )

    async def stream(self, call: calls.Call) -> Stream:
        """A stream to the member that is asked now. EtcdError, EtcdUnavailable."""
        index, channel = self.channels.current()
        metadata = await self.metadata(self.settings.request_seconds)
        # Without hasleader, a member that has lost its quorum keeps the stream and says nothing.
        opened = call.on(channel)(metadata=(*metadata, ("hasleader", "true")))
        return Stream(self, index, call, opened)

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def failed(self, index: int, call: calls.Call, error: grpc.aio.AioRpcError) -> Verdict:
        """Draw the consequences of a failed try, for the next one. EtcdError if there need not be one."""
        endpoint, details = self.settings.endpoints[index], error.details() or error.code().name
        verdict = judge(error)
        if verdict is Verdict.AGAIN:
            self.silent(index, f"{call.name}: {details}")
        elif verdict is Verdict.LOGIN and self.settings.user:
            self._token = ""
        else:
            raise refusal(endpoint, call.name, details, self.settings.user, self.settings.prefix) from error
        return verdict

    def silent(self, index: int, why: str) -> None:
        """That member gave no answer: the next one is asked from now on."""
        self.trouble = f"{self.settings.endpoints[index]}: {why}"
        self.channels.move_on(index)

    # -- log-in ----------------------------------------------------------------------------------------------------

    async def metadata(self, within: float) -> Sequence[tuple[str, str]]:
        """What tells etcd who asks. Logs in if need be: tokens expire, and a restarted member has forgotten them."""
        if not self.settings.user:
            return ()
        async with self._login:
            if not self._token:
                request = wire.AuthenticateRequest(name=self.settings.user, password=self._password())
                answer = await self.call(calls.AUTHENTICATE, request, within, logged_in=False)
                self._token, self._logged_in_once = answer.token, True
            return (("token", self._token),)

    def forget_login(self) -> None:
        self._token = ""

    def _password(self) -> str:
        path = self.settings.password_file
        if path is None:
            raise StoreError("store.user is set and store.password_file is not")
        try:
            return path.read_text().strip()  # read each time: it may have been changed
        except (OSError, UnicodeDecodeError) as error:
            why = f"{path}: the password cannot be read: {error}; check store.password_file in deploy.json"
            if not self._logged_in_once:
                raise StoreError(why) from error
            self.trouble = why  # it may be being replaced
            raise EtcdUnavailable(why) from error


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix` (which does not end in 0xff)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
