"""One connection per etcd member, and which of them is asked now.

gRPC's own balancing sees a member that is gone, not one that is frozen or without a quorum. So the caller says when
an answer stayed away, and the next member is asked.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc

from controller.store.etcd_settings import EtcdSettings
from controller.store.interface import StoreError

log = logging.getLogger(__name__)

OPTIONS = [
    # gRPC waits up to two minutes between dials, and twenty seconds for one, by default
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses less than five seconds
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each store of the process
    ("grpc.enable_http_proxy", 0),  # http_proxy of the machine is not meant for this
]


class Channels:
    """Made and closed in one event loop."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._index = 0
        self._open: dict[int, Any] = {}
        self._retired: list[Any] = []
        self._credentials: Any = None  # grpc.ChannelCredentials
        self._stamp: tuple[int, ...] = ()  # of the files that they were made from

    def current(self) -> tuple[int, Any]:
        """The index of the member to ask, and its channel. StoreError if a TLS file cannot be read."""
        if self._index not in self._open:
            self._open[self._index] = self._dial(self._settings.endpoints[self._index])
        return self._index, self._open[self._index]

    def move_on(self, failed: int) -> None:
        """The next member is asked from now on, unless somebody else has moved on from `failed` already."""
        if failed != self._index:
            return
        self._index = (self._index + 1) % len(self._settings.endpoints)
        # A certificate may have been renewed because of which the connection failed. Streams of the old channels
        # live on, so these are closed at the end.
        if self._credentials is not None and self._stamp_now() != self._stamp:
            self._retired.extend(self._open.values())
            self._open.clear()

    async def close(self) -> None:
        for channel in [*self._open.values(), *self._retired]:
            await channel.close()
        self._open.clear()
        self._retired.clear()

    def _dial(self, endpoint: str) -> Any:
        scheme, _, target = endpoint.partition("://")
        if scheme == "http":
            return grpc.aio.insecure_channel(target, options=OPTIONS)
        return grpc.aio.secure_channel(target, self._credentials_now(), options=OPTIONS)

    def _credentials_now(self) -> Any:
        stamp = self._stamp_now()
        if self._credentials is None or stamp != self._stamp:
            try:
                ca, cert, key = (path.read_bytes() if path is not None else None for path in self._files())
            except OSError as error:
                if self._credentials is None:
                    raise StoreError(f"{error}; check store.ca, store.cert and store.key in deploy.json") from error
                log.warning("the former TLS files of etcd are used: %s", error)  # they may be being replaced
            else:
                self._credentials = grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=cert)
                self._stamp = stamp
        return self._credentials

    def _files(self) -> tuple[Path | None, Path | None, Path | None]:
        return self._settings.ca, self._settings.cert, self._settings.key

    def _stamp_now(self) -> tuple[int, ...]:
        """Changes when one of the TLS files does."""
        return tuple(path.stat().st_mtime_ns for path in self._files() if path is not None and path.exists())
