"""Three real members: killed, frozen, without a quorum, started again; with TLS and log-in."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from motor_rpc import etcd_wire_pb2 as wire

from controller.store import etcd_calls as calls
from controller.store.etcd import EtcdStore
from controller.store.etcd_client import EtcdClient
from controller.store.etcd_settings import EtcdSettings
from controller.store.interface import StoreError
from tests.store.etcd_server import EtcdCluster, make_tls
from tests.store.records import LEASE, etcd_store, new_deployment, nobody, record, wide_record


@asynccontextmanager
async def leading(store: EtcdStore) -> AsyncIterator[asyncio.Task[str]]:
    """The store, open; the task is done when it leads no more."""
    await store.open(nobody)
    losing = asyncio.create_task(store.lost())
    try:
        yield losing
    finally:
        losing.cancel()
        await store.close()


async def put_until_stored(store: EtcdStore, generation: int, seconds: float = 15.0) -> None:
    """As the controller does: what was not stored is tried again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            await store.put([record(generation=generation), wide_record(20, generation)])
            return
        except StoreError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)


async def test_members_that_die_one_after_the_other_cost_neither_leadership_nor_a_write(three: EtcdCluster) -> None:
    """Each generation is written under steady kills; etcdctl's watch, an independent witness, sees each once."""
    deployment = new_deployment()
    head = f"/motor/{deployment}/generation/prefill-0/0"
    store = etcd_store(three, deployment, lease_seconds=4, request_seconds=0.5)
    async with leading(store) as losing:
        generation = 0
        for victim in ("the member that is asked", "etcd's leader", "the member that is asked", "etcd's leader"):
            index = await asyncio.to_thread(three.leader)
            if victim == "the member that is asked":
                assert store._client is not None
                index = store._client.channels.current()[0]
            await asyncio.to_thread(three.kill, index)
            for _ in range(20):
                generation += 1
                await put_until_stored(store, generation)
            await asyncio.to_thread(three.start, index)
            assert not losing.done(), losing.result()
    history = _history(three, head)
    assert [value["generation"] for value in history] == list(range(1, generation + 1))
    async with leading(store):
        pass


async def test_a_frozen_member_is_left_for_another(three: EtcdCluster) -> None:
    """Its connections stay open and nothing is answered."""
    store = etcd_store(three, new_deployment(), lease_seconds=4, request_seconds=0.5)
    async with leading(store) as losing:
        await store.put([record(generation=1)])
        assert store._client is not None
        index = store._client.channels.current()[0]
        three.freeze(index)
        try:
            for generation in range(2, 20):
                await put_until_stored(store, generation)
            await asyncio.sleep(4.5)  # longer than the lease
            assert not losing.done(), losing.result()
            assert store._client.channels.current()[0] != index
        finally:
            three.thaw(index)


async def test_a_standby_on_a_frozen_member_sees_the_change_of_leaders(three: EtcdCluster) -> None:
    deployment = new_deployment()
    first, second = etcd_store(three, deployment, "c1"), etcd_store(three, deployment, "c2", three.endpoints[::-1])
    await first.open(nobody)
    opening = asyncio.create_task(second.open(nobody))
    await asyncio.sleep(0.3)
    three.freeze(2)
    try:
        await first.close()
        assert (await asyncio.wait_for(opening, 15)).epoch == 2
    finally:
        three.thaw(2)
    await second.close()


async def test_without_a_quorum_the_leader_steps_down_and_one_leads_again_when_it_is_back(three: EtcdCluster) -> None:
    deployment = new_deployment()
    store, other = etcd_store(three, deployment, "c1"), etcd_store(three, deployment, "c2")
    async with leading(store) as losing:
        await store.put([record(generation=1), wide_record(100, 1)])
        three.kill(1)
        three.kill(2)
        killed = time.monotonic()
        putting = asyncio.create_task(store.put([record(generation=2)]))
        waiting = asyncio.create_task(other.open(nobody))
        assert "could not be renewed in time" in await asyncio.wait_for(losing, 10)
        assert time.monotonic() - killed < LEASE, "before etcd could have given it away"
        with pytest.raises(StoreError):
            await putting
        await asyncio.wait({waiting}, timeout=1.0)
        assert not waiting.done()
        await asyncio.to_thread(three.start, 1, 2)
        snapshot = await asyncio.wait_for(waiting, 20)
        assert snapshot.epoch == 2
        # the put was refused, not judged: it may have been carried out when the quorum came back
        assert {each.generation for each in snapshot.records if each.scope_id == "prefill-0/0"} <= {1, 2}
        assert wide_record(100, 1) in snapshot.records
        with pytest.raises(StoreError, match="leads no more"):
            await store.put([record(generation=3)])
    await other.put([record(generation=4)])
    await other.close()


async def no_leader(cluster: EtcdCluster, index: int) -> None:
    """Wait until this member knows of no leader of etcd's."""
    client = EtcdClient(EtcdSettings((cluster.endpoints[index],)))
    deadline = time.monotonic() + 60
    try:
        while (await client.call(calls.STATUS, wire.StatusRequest(), 5.0)).leader:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    finally:
        await client.close()


async def test_a_lease_that_could_not_be_given_back_is_given_back_when_etcd_answers(three: EtcdCluster) -> None:
    """etcd counts leases anew once it has a quorum again; nobody waits for that of a term that is over."""
    store = etcd_store(three, new_deployment(), lease_seconds=120)
    assert (await store.open(nobody)).epoch == 1
    three.kill(1)
    three.kill(2)
    await no_leader(three, 0)  # until then it takes proposals, and carries them out when it has a quorum again
    await store.close()
    opening = asyncio.create_task(store.open(nobody))
    await asyncio.sleep(0.5)
    assert not opening.done()
    await asyncio.to_thread(three.start, 1, 2)
    assert (await asyncio.wait_for(opening, 30)).epoch == 2
    await store.close()


async def test_all_members_start_again_within_the_lease(three: EtcdCluster) -> None:
    store = etcd_store(three, new_deployment(), lease_seconds=10)
    async with leading(store) as losing:
        await store.put([record(generation=1)])
        for index in range(3):
            three.kill(index)
        restarting = asyncio.create_task(asyncio.to_thread(three.start))
        await put_until_stored(store, 2)
        await restarting
        await asyncio.sleep(3)  # a renewal later
        assert not losing.done(), losing.result()


# -- TLS and log-in ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """TLS both ways, and users; tokens live two seconds."""
    folder = tmp_path_factory.mktemp("guarded")
    flags = ("--auth-token-ttl", "2")
    cluster = EtcdCluster(folder / "etcd", 3, make_tls(folder / "tls"), auth=True, flags=flags)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def test_a_log_in_that_expired_or_was_forgotten_is_renewed(guarded: EtcdCluster) -> None:
    deployment = new_deployment()
    store, standby = etcd_store(guarded, deployment, "c1"), etcd_store(guarded, deployment, "c2")
    async with leading(store) as losing:
        waiting = asyncio.create_task(standby.open(nobody))
        await store.put([record(generation=1)])
        await asyncio.sleep(3.5)  # longer than a token lives
        await store.put([record(generation=2)])
        for index in range(3):
            await asyncio.to_thread(guarded.kill, index)
            await asyncio.to_thread(guarded.start, index)
            await put_until_stored(store, 3 + index)
        assert not losing.done() and not waiting.done()
    snapshot = await asyncio.wait_for(waiting, 10)
    assert {each.generation for each in snapshot.records} == {5}
    await standby.close()


async def test_who_is_not_let_in_is_told_what_to_do(guarded: EtcdCluster, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-password")
    deployment = new_deployment()
    for more, said in (
        ({"user": "", "password_file": None}, "unless store.user is set"),
        ({"password_file": wrong}, "check store.user ('motor')"),
        ({"password_file": tmp_path / "none"}, "check store.password_file"),
        ({"prefix": "/others"}, "grant-permission ROLE --prefix=true readwrite /others/"),
        ({"ca": tmp_path / "none"}, "check store.ca"),
    ):
        with pytest.raises(StoreError) as caught:
            await asyncio.wait_for(etcd_store(guarded, deployment, **more).open(nobody), 10)
        assert said in str(caught.value) and "not-the-password" not in str(caught.value)


async def test_a_user_for_an_etcd_that_asks_for_none_is_a_mistake(etcd: EtcdCluster, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("x")
    store = etcd_store(etcd, new_deployment(), user="motor", password_file=tmp_path / "password")
    with pytest.raises(StoreError, match="etcdctl auth enable"):
        await store.open(nobody)


async def test_without_a_client_certificate_nobody_gets_through(guarded: EtcdCluster) -> None:
    store = etcd_store(guarded, new_deployment(), cert=None, key=None)
    opening = asyncio.create_task(store.open(nobody))
    await asyncio.wait({opening}, timeout=2.0)
    assert not opening.done() and store.trouble()
    opening.cancel()
    with suppress(asyncio.CancelledError):
        await opening


async def test_renewed_certificates_are_used_for_the_next_connection(guarded: EtcdCluster, tmp_path: Path) -> None:
    """The first ones are another authority's: etcd is unreachable until the right ones are put there."""
    assert guarded.tls is not None
    strange = make_tls(tmp_path / "tls")
    store = etcd_store(guarded, new_deployment(), ca=strange.ca, cert=strange.cert, key=strange.key)
    opening = asyncio.create_task(store.open(nobody))
    await asyncio.wait({opening}, timeout=1.0)
    assert not opening.done()
    for old, new in ((strange.ca, guarded.tls.ca), (strange.cert, guarded.tls.cert), (strange.key, guarded.tls.key)):
        old.write_bytes(new.read_bytes())
    assert (await asyncio.wait_for(opening, 15)).epoch == 1
    await store.close()


def _history(cluster: EtcdCluster, key: str) -> list[dict[str, int]]:
    """Every value that the key has ever had, from etcd's own history."""
    command = ["etcdctl", "--endpoints", cluster.endpoints[0], "watch", key, "--rev", "1", "-w", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"ETCDCTL_API": "3"}) as watching:
        assert watching.stdout is not None
        try:
            line = watching.stdout.readline()
        finally:
            watching.kill()
    return [json.loads(base64.b64decode(event["kv"]["value"])) for event in json.loads(line)["Events"]]
