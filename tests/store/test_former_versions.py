"""State that an earlier version has written is read by this one. The files in fixtures/store are never made again:
a new layout adds a new file."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from controller.core.model import GenerationRecord, OperatorState, Placement, SlotKey
from controller.store.interface import Snapshot
from controller.store.sqlite import SqliteStore
from tests.store.etcd_server import EtcdCluster
from tests.store.records import etcd_store, new_deployment, nobody, record

FIXTURES = Path(__file__).parents[1] / "fixtures" / "store"
DEVICES = tuple("01234567")


def placed(number: int, api_port: int | None, dp_rpc_port: int | None = None) -> Placement:
    boot = f"0b5c1b1e-5d7f-4a55-8c3c-5a2f0d3d1{number:03d}"
    return Placement(
        f"node-{number}", boot, f"10.0.0.{number + 1}", DEVICES, api_port, "10.0.0.1", 7001, dp_rpc_port
    )  # fmt: skip


def check_v1(found: Snapshot) -> None:
    assert found.epoch == 42 and len(found.lineage) == 32
    assert found.operator == OperatorState(
        frozenset({"node-7", "node-9"}), "maintenance of rack 4", frozenset({"decode-0"})
    )
    assert {each.scope_id: each for each in found.records} == {
        "prefill-0/0": GenerationRecord(
            "prefill-0", "prefill-0/0", 3, "4f1d0c8a9b7e6f52", "sha256:77ab",
            {SlotKey("prefill-0", 0, rank): placed(rank, 8000 if rank == 0 else None) for rank in range(2)},
            restarts=1, adopted_run_ids=("aa", "bb"),
        ),
        "decode-0": GenerationRecord(
            "decode-0", "decode-0", 12, "9e1d0c8a9b7e6f52", "sha256:99ab",
            {SlotKey("decode-0", n // 2, n % 2): placed(10 + n, 8000 if n == 0 else None, 9100) for n in range(16)},
            outcome="failed", outcome_reason="5 restarts within 600 s; last: node-12: exit code 1",
        ),
    }  # fmt: skip


async def test_sqlite_v1(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    former = sqlite3.connect(path)
    former.executescript((FIXTURES / "sqlite-v1.sql").read_text())
    former.close()
    store = SqliteStore(path)
    check_v1(await store.open(nobody))
    await store.put([record("prefill-0/0", 4)])
    await store.close()


async def test_etcd_v1(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    for key, value in json.loads((FIXTURES / "etcd-v1.json").read_text()).items():
        renamed = (text.replace("/motor/seed/", f"/motor/{deployment}/") for text in (key, value))
        etcd.ctl("put", "--", *renamed)
    store = etcd_store(etcd, deployment)
    check_v1(await store.open(nobody))
    await store.put([record("prefill-0/0", 4)])
    await store.close()
