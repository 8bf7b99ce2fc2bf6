"""What the store's tests keep, and the stores they keep it in."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.core.model import GenerationRecord, Placement, SlotKey
from controller.store.etcd import EtcdStore
from controller.store.etcd_settings import EtcdSettings
from controller.store.interface import Leader
from tests.store.etcd_server import MOTOR_PASSWORD, EtcdCluster

LEASE = 2  # seconds, the shortest that etcd's own default allows


def record(scope_id: str = "prefill-0/0", generation: int = 1, **more: Any) -> GenerationRecord:
    slot = SlotKey("prefill-0", 0, 0)
    placed = Placement("n1", "boot", "10.0.0.1", ("0", "1"), 8000, "10.0.0.1", 7001, None)
    return GenerationRecord("prefill-0", scope_id, generation, "run", "digest", {slot: placed}, **more)


def wide_record(nodes: int, generation: int = 1, scope_id: str = "decode-0") -> GenerationRecord:
    """One world over many nodes, with names and devices as long as real ones."""
    devices = tuple(str(device) for device in range(16))
    members = {}
    for number in range(nodes):
        node = f"rack-{number // 32:02d}-node-{number:04d}.cluster.example"
        boot, address = f"0b5c1b1e-5d7f-4a55-8c3c-5a2f0d3d{number:04d}", f"10.20.{number // 250}.{number % 250}"
        slot = SlotKey("decode-0", number // 8, number % 8)
        members[slot] = Placement(node, boot, address, devices, 8000, "10.20.0.0", 7001 + generation, 9100)
    return GenerationRecord("decode-0", scope_id, generation, "9e1d0c8a9b7e6f52", "77ab" * 16, members)


def nobody(leader: Leader | None) -> None:
    """For an open that does not have to wait."""


def new_deployment() -> str:
    """An id that no other test has."""
    return f"d-{secrets.token_hex(4)}"


def etcd_store(
    cluster: EtcdCluster, deployment: str, name: str = "c1", endpoints: Sequence[str] = (), **more: Any
) -> EtcdStore:
    settings = EtcdSettings(
        tuple(endpoints or cluster.endpoints),
        **{"lease_seconds": LEASE, "request_seconds": LEASE / 4, **_way_in(cluster), **more},
    )
    return EtcdStore(settings, deployment, Leader(name, f"{name}:1028", f"http://{name}:1026", 0))


def _way_in(cluster: EtcdCluster) -> dict[str, Any]:
    """What TLS and user authentication of this cluster ask for."""
    given: dict[str, Any] = {}
    if cluster.tls:
        given.update(ca=cluster.tls.ca, cert=cluster.tls.cert, key=cluster.tls.key)
    if cluster.auth:
        password: Path = cluster.folder / "password"
        password.write_text(MOTOR_PASSWORD + "\n")
        given.update(user="motor", password_file=password)
    return given
