"""Random writes, crashes and accidents on the way to a real etcd, compared with a model of what may be there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from motor_rpc import etcd_wire_pb2 as wire

from controller.core.model import GenerationRecord, OperatorState
from controller.store.etcd import EtcdStore
from controller.store.etcd_client import EtcdClient
from controller.store.etcd_errors import OutcomeUnknown
from controller.store.interface import Snapshot, StoreError
from tests.store.etcd_server import EtcdCluster
from tests.store.records import etcd_store, new_deployment, nobody, wide_record

REAL_TXN = EtcdClient.txn
ACCIDENTS = ("none", "lost", "answer lost", "late", "crash before", "crash after", "deaf", "mute")
NODES = (1, 12, 30)  # in one key; in a few parts; in some more


class Crash(BaseException):
    """The controller's process is gone."""


@dataclass
class Way:
    """The way to etcd. What happens to the `at`-th transaction from now on."""

    accident: str = "none"
    at: int = 0
    held: list[wire.TxnRequest] = field(default_factory=list)

    async def txn(self, client: EtcdClient, request: wire.TxnRequest) -> wire.TxnResponse:
        self.at -= 1
        here, accident = self.at == 0, self.accident
        if here and accident == "crash before":
            raise Crash
        if (here and accident == "lost") or (self.at <= 0 and accident == "mute"):
            raise OutcomeUnknown("it got lost")
        if here and accident == "late":
            self.held.append(request)
            raise OutcomeUnknown("it is late")
        answer = await REAL_TXN(client, request)
        if here and accident == "crash after":
            raise Crash
        if (here and accident == "answer lost") or (self.at <= 0 and accident == "deaf"):
            raise OutcomeUnknown("its answer got lost")
        return answer

    async def deliver(self, client: EtcdClient) -> None:
        """What was late arrives, when it is of no use any more."""
        self.accident = "none"
        while self.held:
            await REAL_TXN(client, self.held.pop())


@dataclass
class Model:
    """What may be in the store: several possibilities where a write's outcome is not known."""

    records: dict[str, list[GenerationRecord | None]] = field(default_factory=dict)
    operator: list[OperatorState] = field(default_factory=lambda: [OperatorState()])
    epoch: int = 0  # at least

    def certain(self, found: Snapshot) -> None:
        """Compare with what is there, and know it from now on."""
        records = {each.scope_id: each for each in found.records}
        for scope, possible in self.records.items():
            assert records.get(scope) in possible, scope
            self.records[scope] = [records.get(scope)]
        assert set(records) <= set(self.records)
        assert found.operator in self.operator
        self.operator = [found.operator]
        assert found.epoch > self.epoch
        self.epoch = found.epoch


step = st.tuples(
    st.sampled_from(("put", "put", "put", "operator", "epoch", "reopen")),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(NODES)), min_size=1, max_size=4, unique_by=lambda x: x[0]),
    st.sampled_from(ACCIDENTS),
    st.integers(1, 4),
)


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    road = Way()

    async def txn(client: EtcdClient, request: wire.TxnRequest) -> wire.TxnResponse:
        return await road.txn(client, request)

    monkeypatch.setattr(EtcdClient, "txn", txn)
    yield road


@given(st.lists(step, min_size=1, max_size=12))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_whatever_happens_the_store_holds_what_it_may(etcd: EtcdCluster, way: Way, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    asyncio.run(walk(etcd, way, steps))


async def walk(etcd: EtcdCluster, way: Way, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    way.accident, way.held = "none", []
    deployment, model = new_deployment(), Model()
    # tries are short, so that a write that never gets an answer is given up soon
    store = etcd_store(etcd, deployment, lease_seconds=60, request_seconds=0.1)
    try:
        model.certain(await store.open(nobody))
        for number, (what, puts, accident, at) in enumerate(steps, 1):
            way.accident, way.at = accident, at
            try:
                if what == "reopen":
                    await store.close()
                    way.accident = "none"
                    model.certain(await store.open(nobody))
                else:
                    await do(store, model, what, number, puts)
            except Crash:
                way.accident = "none"
                await store.close()
                model.certain(await store.open(nobody))
            assert store._client is not None
            await way.deliver(store._client)
        await store.close()
        model.certain(await store.open(nobody))
        in_parts = sum(len(folders) for folders in store._folders.values())
        found = etcd.ctl("get", "--prefix", "--keys-only", f"/motor/{deployment}/part/").split()
        assert len({key.rpartition("/")[0] for key in found}) == in_parts, "left-over parts"
    finally:
        await store.close()


async def do(store: EtcdStore, model: Model, what: str, number: int, puts: list[tuple[int, int]]) -> None:
    """One write. What it would change is possible from its beginning, and certain after its end."""
    if what == "put":
        new = {f"decode-{scope}": wide_record(nodes, number, f"decode-{scope}") for scope, nodes in puts}
        for scope, kept in new.items():
            model.records.setdefault(scope, [None]).append(kept)
        try:
            await store.put(new.values())
        except StoreError:
            return
        model.records.update({scope: [kept] for scope, kept in new.items()})
    elif what == "operator":
        ordered = OperatorState(frozenset(f"node-{n:04d}" for n in range(puts[0][1] * 10)), f"step {number}")
        model.operator.append(ordered)
        try:
            await store.put_operator(ordered)
        except StoreError:
            return
        model.operator = [ordered]
    else:
        try:
            model.epoch = await store.raise_epoch(model.epoch + puts[0][0])
        except StoreError:
            return
