"""What the shared store is told: where etcd is, how to get in, and how long things may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EtcdSettings:
    """`motor_controller_config.store` of deploy.json, where its kind is etcd."""

    endpoints: tuple[str, ...]  # "https://10.0.0.1:2379" or http://
    prefix: str = "/motor"
    user: str = ""
    password_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    lease_seconds: int = 5  # etcd gives leadership away this long after the last renewal
    request_seconds: float = 1.0  # one try of one call; then the next member is asked

    @property
    def renew_seconds(self) -> float:
        """Between two renewals of the lease. Two tries more fit before the lease is given up."""
        return renew_seconds(self.lease_seconds)

    @property
    def margin_seconds(self) -> float:
        """So long before the lease can run out this controller stops writing and ordering: for clocks of different
        speed, and for what is on its way."""
        return margin_seconds(self.lease_seconds)


def renew_seconds(lease_seconds: float) -> float:
    return lease_seconds / 4


def margin_seconds(lease_seconds: float) -> float:
    return lease_seconds / 10


def shortest_lease(request_seconds: float) -> float:
    """Of this length a lease outlives a renewal that fails twice: renewal + 2 x try + margin <= lease."""
    return 2 * request_seconds / (1 - renew_seconds(1.0) - margin_seconds(1.0))
