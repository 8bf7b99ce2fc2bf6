"""A stream to one etcd member, whose silence is noticed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from controller.store.etcd_calls import Call
from controller.store.etcd_errors import EtcdUnavailable

if TYPE_CHECKING:
    from controller.store.etcd_client import EtcdClient


class Stream:
    """Every failure is EtcdUnavailable, after which the caller opens another, or EtcdError, which is final."""

    def __init__(self, client: EtcdClient, index: int, call: Call, opened: Any) -> None:
        self._client = client
        self._index = index
        self._call = call
        self._opened = opened  # grpc.aio.StreamStreamCall
        self._reading: asyncio.Future[Any] | None = None

    async def send(self, request: Any) -> None:
        writing = _watched(self._opened.write(request))
        await asyncio.wait({writing}, timeout=self._client.settings.request_seconds)
        if not writing.done():
            writing.cancel()
            raise self.silent(f"nothing could be sent for {self._client.settings.request_seconds:g} s")
        await self._result(writing)

    async def read(self, seconds: float) -> Any | None:
        """The next message; None if there is none within `seconds`, and the stream goes on."""
        # Kept over calls: a read that is cancelled ends the whole stream.
        if self._reading is None:
            self._reading = _watched(self._opened.read())
        await asyncio.wait({self._reading}, timeout=seconds)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        answer = await self._result(reading)
        if answer is grpc.aio.EOF:
            raise await self._ended()
        self._client.trouble = ""
        return answer

    def silent(self, why: str) -> EtcdUnavailable:
        """Give this member up."""
        self._client.silent(self._index, f"{self._call.name}: {why}")
        return EtcdUnavailable(f"etcd: {self._client.trouble}")

    def close(self) -> None:
        self._opened.cancel()
        if self._reading is not None:
            self._reading.cancel()

    async def _result(self, task: asyncio.Future[Any]) -> Any:
        try:
            return task.result()
        except grpc.aio.AioRpcError as error:
            self._client.failed(self._index, self._call, error)
            raise EtcdUnavailable(f"etcd: {error.details()}") from error
        except asyncio.InvalidStateError:  # grpc.aio's answer to a write after the end
            raise await self._ended() from None
        except asyncio.CancelledError:
            # of the task, not of this coroutine: the call was cancelled below it
            raise self.silent("the stream was cancelled") from None

    async def _ended(self) -> EtcdUnavailable:
        """The member has ended the stream: why?"""
        code, details = await self._opened.code(), await self._opened.details()
        if code is grpc.StatusCode.OK:
            return self.silent("the stream was ended")
        error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
        self._client.failed(self._index, self._call, error)
        return EtcdUnavailable(f"etcd: {details}")


def _watched(work: Any) -> asyncio.Future[Any]:
    """A task whose failure nobody complains about when nobody is interested any more."""
    task: asyncio.Future[Any] = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
