"""The calls of etcd's v3 API that Motor makes, by path: no generated service, so no name that another etcd client in
the same process could have taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from motor_rpc import etcd_wire_pb2 as wire


@dataclass(frozen=True)
class Call:
    path: str
    request: Any  # message classes; the generated code has no common type that mypy could use
    response: Any
    stream: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def on(self, channel: Any) -> Any:
        """The callable of a grpc.aio channel."""
        make = channel.stream_stream if self.stream else channel.unary_unary
        return make(
            self.path, request_serializer=self.request.SerializeToString, response_deserializer=self.response.FromString
        )


RANGE = Call("/etcdserverpb.KV/Range", wire.RangeRequest, wire.RangeResponse)
TXN = Call("/etcdserverpb.KV/Txn", wire.TxnRequest, wire.TxnResponse)
WATCH = Call("/etcdserverpb.Watch/Watch", wire.WatchRequest, wire.WatchResponse, stream=True)
GRANT = Call("/etcdserverpb.Lease/LeaseGrant", wire.LeaseGrantRequest, wire.LeaseGrantResponse)
REVOKE = Call("/etcdserverpb.Lease/LeaseRevoke", wire.LeaseRevokeRequest, wire.LeaseRevokeResponse)
KEEP_ALIVE = Call(
    "/etcdserverpb.Lease/LeaseKeepAlive", wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveResponse, stream=True
)
AUTHENTICATE = Call("/etcdserverpb.Auth/Authenticate", wire.AuthenticateRequest, wire.AuthenticateResponse)
STATUS = Call("/etcdserverpb.Maintenance/Status", wire.StatusRequest, wire.StatusResponse)
