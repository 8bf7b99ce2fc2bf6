"""Which fixed ports are taken on which host: one ledger over all groups and roles, so that no two ever meet.

A host is whatever identifies a network namespace to the caller: a node id, or an imaginary node of
`motorctl plan`.
"""

from __future__ import annotations

from collections.abc import Iterable


class PortLedger:
    """Ports by host, each with the owner that released it will free.

    An owner is any text; one owner may hold ports on several hosts (a generation holds its master port on one
    host and its API port on another). A port has at most one owner on a host.
    """

    def __init__(self) -> None:
        self._owners: dict[str, dict[int, str]] = {}  # host -> port -> owner
        self._held: dict[str, list[tuple[str, int]]] = {}  # owner -> (host, port): releasing one walks over its own

    def take(self, host: str, owner: str, candidates: Iterable[int]) -> int | None:
        """Record and return the first candidate that is free on `host`; None when none is."""
        taken = self._owners.setdefault(host, {})
        for port in candidates:
            if port not in taken:
                taken[port] = owner
                self._held.setdefault(owner, []).append((host, port))
                return port
        return None

    def release(self, owner: str) -> None:
        """Free everything `owner` holds, on every host; nothing held is no error (a release may come twice)."""
        for host, port in self._held.pop(owner, []):
            del self._owners[host][port]

    def ports_on(self, host: str) -> dict[int, str]:
        """Port -> owner on `host`, a copy, sorted by port."""
        return dict(sorted(self._owners.get(host, {}).items()))
