"""What a failed call of etcd means for the caller: gRPC's codes, and etcd's habits with them."""

from __future__ import annotations

from enum import Enum

import grpc

from controller.store.interface import StoreError


class EtcdError(StoreError):
    """etcd refused what was asked; asking again gives the same answer."""


class EtcdUnavailable(EtcdError):
    """No member answered in time. A read or an idempotent write may be asked again."""


class OutcomeUnknown(EtcdUnavailable):
    """A transaction was sent and not answered: it has been carried out, or will be, or never."""


class Verdict(Enum):
    AGAIN = "ask another member"
    LOGIN = "log in again"
    REFUSED = "no"


# Besides the usual two: UNKNOWN is what etcd 3.4 and 3.5 answer when a proposal finds no quorum ("context deadline
# exceeded") or is dropped during a change of leaders; CANCELLED and INTERNAL come from a member that is ending.
_AGAIN = frozenset(
    {
        *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN),
        *(grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED),
    }
)


def judge(error: grpc.aio.AioRpcError) -> Verdict:
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNAUTHENTICATED or "auth store is old" in details:
        return Verdict.LOGIN
    if error.code() in _AGAIN or "too many requests" in details:
        return Verdict.AGAIN
    return Verdict.REFUSED


def refusal(endpoint: str, what: str, details: str, user: str, prefix: str) -> EtcdError:
    """`details` are etcd's own words; what to do is added for the refusals that an operator can end."""
    who = f"user {user!r}" if user else "whom its certificate names, unless store.user is set; or set that"
    grant = f"etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/"
    fixes = {
        "permission denied": f"grant it ({grant}) to {who}",
        "user name is empty": "set store.user and store.password_file in deploy.json",
        "authentication failed": f"check store.user ({user!r}) and what store.password_file holds",
        "authentication is not enabled": "run etcdctl auth enable, or remove store.user from deploy.json",
        "invalid auth token": "set store.user and store.password_file in deploy.json",
        "database space exceeded": "compact and defragment etcd, then run etcdctl alarm disarm",
    }
    fix = next((fix for words, fix in fixes.items() if words in details), "")
    return EtcdError(f"etcd {endpoint}: {what} refused: {details}" + (f"; {fix}" if fix else ""))
