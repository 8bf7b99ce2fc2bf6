"""Which fixed ports are taken on which host: one ledger over all groups and roles, so that no two ever meet.

A host is whatever identifies a network namespace to the caller: a node id, or an imaginary node of
`motorctl plan`.
"""

from __future__ import annotations

from collections.abc import Iterable


class PortLedger:
    """Ports by host, each with its owner.

    An owner is any text and may hold ports on several hosts. A port has at most one owner on a host.
    """

    def __init__(self) -> None:
        self._owners: dict[str, dict[int, str]] = {}  # host -> port -> owner

    def take(self, host: str, owner: str, candidates: Iterable[int]) -> int | None:
        """Record and return the first candidate that is free on `host`; None when none is."""
        taken = self._owners.setdefault(host, {})
        for port in candidates:
            if port not in taken:
                taken[port] = owner
                return port
        return None

    def release(self, owner: str) -> None:
        """Free everything `owner` holds, on every host. Nothing held is no error: releases may come twice."""
        for host, taken in list(self._owners.items()):
            kept = {port: holder for port, holder in taken.items() if holder != owner}
            if kept:
                self._owners[host] = kept
            else:
                del self._owners[host]

    def ports_on(self, host: str) -> dict[int, str]:
        """Port -> owner on `host`, a copy, sorted by port."""
        return dict(sorted(self._owners.get(host, {}).items()))
