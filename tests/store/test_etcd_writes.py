"""What lies in etcd: small keys, whole records whatever write was the last, each write carried out once."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from motor_rpc import etcd_wire_pb2 as wire

from controller.core.model import GenerationRecord, OperatorState
from controller.store.etcd_client import EtcdClient
from controller.store.etcd_errors import OutcomeUnknown
from controller.store.interface import StoreError
from tests.store.etcd_server import EtcdCluster
from tests.store.records import etcd_store, new_deployment, nobody, record, wide_record


class Crash(BaseException):
    """The controller's process is gone."""


def keys_of(etcd: EtcdCluster, deployment: str) -> dict[str, bytes]:
    """As etcdctl sees them."""
    found = json.loads(etcd.ctl("get", "--prefix", f"/motor/{deployment}/", "-w", "json")).get("kvs", [])
    return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv.get("value", "")) for kv in found}


def revision_of(etcd: EtcdCluster) -> int:
    return int(json.loads(etcd.ctl("get", "nothing", "-w", "json"))["header"]["revision"])


async def records_of(etcd: EtcdCluster, deployment: str) -> dict[str, GenerationRecord]:
    store = etcd_store(etcd, deployment)
    found = await store.open(nobody)
    await store.close()
    return {each.scope_id: each for each in found.records}


async def test_a_key_has_2_kb_and_a_node_1_kb_at_most(etcd: EtcdCluster) -> None:
    deployment, nodes = new_deployment(), 512
    store = etcd_store(etcd, deployment)
    await store.open(nobody)
    for generation in range(1, 4):
        await store.put([wide_record(nodes, generation)])
    for group in range(64):
        await store.put([record(f"prefill-0/{group}")])
    await store.put_operator(OperatorState(frozenset(f"node-{n:04d}.cluster.example" for n in range(nodes)), "x" * 500))
    sizes = {key: len(key) + len(value) for key, value in keys_of(etcd, deployment).items()}
    assert max(sizes.values()) <= 2048
    assert sum(sizes.values()) <= 1024 * nodes
    for group in range(64):  # a scope of one node
        assert sizes[f"/motor/{deployment}/generation/prefill-0/{group}"] <= 1024
    await store.close()
    assert (await records_of(etcd, deployment))["decode-0"] == wide_record(nodes, 3)


async def test_one_commit_per_change_and_no_write_without_one(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    store = etcd_store(etcd, deployment)
    await store.open(nobody)
    before = revision_of(etcd)
    await store.put([record(generation=2)])
    assert revision_of(etcd) == before + 1
    await store.put([record(generation=3), record("prefill-0/1")])
    assert revision_of(etcd) == before + 2
    await asyncio.sleep(1.5)  # the lease is renewed meanwhile
    assert revision_of(etcd) == before + 2
    await store.close()


@pytest.mark.parametrize("nodes", [2, 40, 512])
@pytest.mark.parametrize("answer_lost", [False, True], ids=["before it is sent", "after it is sent"])
async def test_a_crash_between_any_two_writes_leaves_whole_records(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch, nodes: int, answer_lost: bool
) -> None:
    old, new = wide_record(nodes, 1), wide_record(nodes, 2)
    sent, crash_at, real = 0, -1, EtcdClient.txn

    async def txn(client: EtcdClient, request: wire.TxnRequest) -> wire.TxnResponse:
        nonlocal sent
        sent += 1
        if sent == crash_at and not answer_lost:
            raise Crash
        answer = await real(client, request)
        if sent == crash_at:
            raise Crash
        return answer

    monkeypatch.setattr(EtcdClient, "txn", txn)
    outcomes = []
    for crashing_write in range(1, 20):
        deployment = new_deployment()
        store = etcd_store(etcd, deployment)
        await store.open(nobody)
        await store.put([old])
        sent, crash_at = 0, crashing_write
        try:
            await store.put([new])
            break
        except Crash:
            crash_at = -1
        await store.close()  # gives the lease back, and nothing more
        found = (await records_of(etcd, deployment))["decode-0"]
        assert found in (old, new)
        outcomes.append(found.generation)
        # the next controller has cleared away what no record names
        values = keys_of(etcd, deployment)
        named = [json.loads(v) for k, v in values.items() if "/generation/" in k]
        parts = sum(head.get("count", 0) for head in named)
        assert sum("/part/" in key for key in values) == parts
    crash_at = -1
    await store.close()
    assert outcomes == sorted(outcomes) and len(outcomes) >= (1 if nodes == 2 else 2)
    assert outcomes[-1] == (2 if answer_lost else 1)


async def test_a_write_whose_answer_is_lost_is_carried_out_once(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, real, lost = new_deployment(), EtcdClient.txn, 0

    async def txn(client: EtcdClient, request: wire.TxnRequest) -> wire.TxnResponse:
        nonlocal lost
        answer = await real(client, request)
        if lost:
            lost -= 1
            raise OutcomeUnknown("the answer got lost")
        return answer

    monkeypatch.setattr(EtcdClient, "txn", txn)
    store = etcd_store(etcd, deployment)
    lost, before = 1, revision_of(etcd)  # of the election
    assert (await store.open(nobody)).epoch == 1
    leader = json.loads(etcd.ctl("get", f"/motor/{deployment}/leader", "-w", "json"))["kvs"][0]
    assert (leader["create_revision"], leader["mod_revision"]) == (before + 1, before + 2), "elected once"
    for generation in range(1, 4):
        lost = 2
        await store.put([record(generation=generation), wide_record(40, generation)])
    lost = 2
    assert await store.raise_epoch(9) == 9
    versions = json.loads(etcd.ctl("get", f"/motor/{deployment}/generation/prefill-0/0", "-w", "json"))["kvs"][0]
    assert versions["version"] == 3
    await store.close()
    found = await records_of(etcd, deployment)
    assert {each.generation for each in found.values()} == {3}


async def test_a_try_that_comes_late_changes_nothing(etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was held up, the caller was told that nothing was stored, and has stored something newer since."""
    deployment, real, held = new_deployment(), EtcdClient.txn, list[wire.TxnRequest]()
    hold = False

    async def txn(client: EtcdClient, request: wire.TxnRequest) -> wire.TxnResponse:
        if hold:
            held.append(request)
            raise OutcomeUnknown("held up")
        return await real(client, request)

    monkeypatch.setattr(EtcdClient, "txn", txn)
    store = etcd_store(etcd, deployment, lease_seconds=10, request_seconds=0.2)  # given up after 1 s
    await store.open(nobody)
    await store.put([record(generation=1)])
    hold = True
    with pytest.raises(StoreError, match="not known to be"):
        await store.put([record(generation=2)])
    hold = False
    await store.put([record(generation=3)])
    assert held
    client = EtcdClient(store._settings)
    for request in held:
        assert not (await real(client, request)).succeeded
    await client.close()
    await store.close()
    assert (await records_of(etcd, deployment))["prefill-0/0"].generation == 3


async def test_a_try_that_was_carried_out_after_all_is_known_as_ones_own(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller was told that the outcome is not known, and comes back with something newer."""
    deployment, real, deaf = new_deployment(), EtcdClient.txn, False

    async def txn(client: EtcdClient, request: wire.TxnRequest) -> wire.TxnResponse:
        answer = await real(client, request)
        if deaf:
            raise OutcomeUnknown("the answer got lost")
        return answer

    monkeypatch.setattr(EtcdClient, "txn", txn)
    store = etcd_store(etcd, deployment, lease_seconds=10, request_seconds=0.2)  # given up after 1 s
    await store.open(nobody)
    for nodes in (1, 40):
        await store.put([wide_record(nodes, 1)])
        deaf = True
        with pytest.raises(StoreError):
            await store.put([wide_record(nodes, 2)])
        deaf = False
        await store.put([wide_record(nodes, 3)])
    assert sum("/part/" in key for key in keys_of(etcd, deployment)) == len(_parts(wide_record(40, 3)))
    await store.close()
    assert (await records_of(etcd, deployment))["decode-0"] == wide_record(40, 3)


async def test_what_somebody_else_has_changed_is_not_written_over(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    store = etcd_store(etcd, deployment)
    await store.open(nobody)
    await store.put([record()])
    etcd.ctl("put", f"/motor/{deployment}/generation/prefill-0/0", "by hand")
    with pytest.raises(StoreError, match="was changed by somebody else"):
        await store.put([record(generation=2)])
    assert "was changed by somebody else" in await store.lost()
    await store.close()
    with pytest.raises(StoreError, match="not readable as Motor's state"):
        await etcd_store(etcd, deployment).open(nobody)


async def test_a_newer_layout_is_not_touched(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    etcd.ctl("put", f"/motor/{deployment}/format", "2")
    with pytest.raises(StoreError, match="expected 1, got 2"):
        await etcd_store(etcd, deployment).open(nobody)
    assert list(keys_of(etcd, deployment)) == [f"/motor/{deployment}/format"]


def _parts(kept: GenerationRecord) -> Any:
    from controller.store.codec import encode
    from controller.store.etcd_layout import split

    return split(encode(kept), b"x/").parts
