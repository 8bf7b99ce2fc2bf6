"""One leads at a time, the next takes over, and who has been deposed changes nothing."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from controller.store.etcd import EtcdStore
from controller.store.etcd_client import EtcdClient
from controller.store.etcd_settings import EtcdSettings
from controller.store.etcd_watch import Seen, _changes, follow
from controller.store.interface import Leader, StoreError
from tests.ha.relay import Relay
from tests.store.etcd_server import EtcdCluster
from tests.store.records import LEASE, etcd_store, new_deployment, nobody, record

ROOT = Path(__file__).parents[2]


class Told:
    """What a standby has been told."""

    def __init__(self) -> None:
        self.leaders: list[Leader | None] = []
        self._more = asyncio.Event()

    def __call__(self, leader: Leader | None) -> None:
        self.leaders.append(leader)
        self._more.set()

    async def until(self, name: str) -> Leader:
        """Once `name` leads and has counted the epoch up."""
        while True:
            last = self.leaders[-1] if self.leaders else None
            if last is not None and last.controller_id == name and last.epoch:
                return last
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 10)


@pytest.fixture
async def cable(etcd: EtcdCluster) -> AsyncIterator[Relay]:
    """The only way of one store to etcd."""
    relay = Relay(("127.0.0.1", int(etcd.endpoints[0].rpartition(":")[2])))
    yield relay
    relay.close()


async def opened(store: EtcdStore) -> tuple[EtcdStore, int]:
    return store, (await store.open(nobody)).epoch


async def test_a_standby_is_told_who_leads_and_takes_over_at_once(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    first, epoch = await opened(etcd_store(etcd, deployment, "c1"))
    told = Told()
    second = etcd_store(etcd, deployment, "c2")
    opening = asyncio.create_task(second.open(told))
    assert await told.until("c1") == Leader("c1", "c1:1028", "http://c1:1026", epoch)
    await first.put([record(generation=5)])
    begun = time.monotonic()
    await first.close()
    snapshot = await opening
    assert time.monotonic() - begun < 0.5, "a planned hand-over waits for no lease"
    assert snapshot.epoch == epoch + 1 and snapshot.records == (record(generation=5),)
    assert told.leaders[0] is None and told.leaders[-1] is None
    assert first.holds_until() == -math.inf < time.monotonic() < second.holds_until()
    await second.close()


async def test_who_gives_way_waits_for_nobody_for_long(etcd: EtcdCluster) -> None:
    store = etcd_store(etcd, new_deployment(), "c1")
    begun = time.monotonic()
    await store.open(nobody, gives_way=0.6)
    assert time.monotonic() - begun >= 0.6
    await store.close()


async def test_who_gives_way_finds_its_own_key(etcd: EtcdCluster) -> None:
    """Its lease could not be given back at the hand-over. When the key goes, nobody else has led yet."""
    store = etcd_store(etcd, new_deployment(), "c1")
    key = store._keys.leader.decode()
    etcd.ctl("put", key, store._leader_text(3).decode())
    told = Told()
    begun = time.monotonic()
    opening = asyncio.create_task(store.open(told, gives_way=1.5))
    await told.until("c1")
    etcd.ctl("del", key)
    await asyncio.wait_for(opening, 10)
    assert time.monotonic() - begun >= 1.5
    await store.close()


async def test_who_gives_way_leads_again_once_another_has_led(etcd: EtcdCluster) -> None:
    """It stands by from the first moment: it knows the new leader, and follows when that one ends."""
    deployment = new_deployment()
    first, epoch = await opened(etcd_store(etcd, deployment, "c1"))
    await first.close()
    told = Told()
    opening = asyncio.create_task(first.open(told, gives_way=1000.0))
    await asyncio.sleep(0.2)
    second, _ = await opened(etcd_store(etcd, deployment, "c2"))
    assert (await told.until("c2")).epoch == epoch + 1
    await second.close()
    assert (await asyncio.wait_for(opening, 10)).epoch == epoch + 2
    await first.close()


async def test_one_of_several_standbys_takes_over(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    leader, epoch = await opened(etcd_store(etcd, deployment, "c0"))
    told = Told()
    others = [etcd_store(etcd, deployment, f"c{n}") for n in range(1, 6)]
    openings = {asyncio.create_task(opened(each)) for each in others}
    watching = etcd_store(etcd, deployment, "watching")
    openings.add(asyncio.create_task(watching.open(told)))  # type: ignore[arg-type]
    await told.until("c0")
    epochs = [epoch]
    while openings:
        await leader.close()
        done, openings = await asyncio.wait(openings, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        result = done.pop().result()
        leader, epoch = result if isinstance(result, tuple) else (watching, result.epoch)
        epochs.append(epoch)
        done, _ = await asyncio.wait(openings, timeout=0.1) if openings else (set(), set())
        assert not done, "two lead"
    await leader.close()
    assert epochs == list(range(1, 8))


async def test_a_standby_that_gives_up_leaves_nothing_behind(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    first, _ = await opened(etcd_store(etcd, deployment, "c1"))
    opening = asyncio.create_task(etcd_store(etcd, deployment, "c2").open(nobody))
    await asyncio.sleep(0.2)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await first.close()
    assert f"/motor/{deployment}/leader" not in etcd.ctl("get", "--prefix", f"/motor/{deployment}/")


async def test_a_store_can_be_opened_again(etcd: EtcdCluster) -> None:
    store = etcd_store(etcd, new_deployment())
    for epoch in range(1, 4):
        assert (await store.open(nobody)).epoch == epoch
        await store.put([record(generation=epoch)])
        await store.close()


async def test_who_cannot_renew_steps_down_before_another_can_lead(etcd: EtcdCluster, cable: Relay) -> None:
    """Cut off from etcd: its own clock says so, while etcd still shows it as the leader."""
    deployment = new_deployment()
    first, _ = await opened(etcd_store(etcd, deployment, "c1", [f"http://{cable.address}"]))
    told = Told()
    second = etcd_store(etcd, deployment, "c2")
    opening = asyncio.create_task(second.open(told))
    await told.until("c1")
    cable.cut()
    cut = time.monotonic()
    late = asyncio.create_task(first.put([record(generation=66)]))
    reason = await asyncio.wait_for(first.lost(), 10)
    stepped_down = time.monotonic()
    assert "could not be renewed in time" in reason
    assert not opening.done() and "c1" in etcd.ctl("get", f"/motor/{deployment}/leader")
    assert first.holds_until() < stepped_down < cut + LEASE
    snapshot = await asyncio.wait_for(opening, 10)
    assert snapshot.records == () and snapshot.epoch == 2
    with pytest.raises(StoreError):
        await late
    cable.mend()  # what was held back arrives now, and is refused
    await second.put([record(generation=2)])
    with pytest.raises(StoreError, match="leads no more"):
        await first.put([record(generation=67)])
    await asyncio.sleep(0.3)
    assert '"generation": 2,' in etcd.ctl("get", f"/motor/{deployment}/generation/prefill-0/0")
    await first.close()
    assert second.holds_until() > time.monotonic()
    await second.close()


async def test_a_failed_renewal_does_not_give_the_lease_up(etcd: EtcdCluster, cable: Relay) -> None:
    store, _ = await opened(etcd_store(etcd, new_deployment(), "c1", [f"http://{cable.address}"], lease_seconds=4))
    losing = asyncio.create_task(store.lost())
    for _ in range(2):
        cable.cut()
        await asyncio.sleep(1.6)  # one renewal is due each second
        assert store.trouble()
        cable.mend()
        await asyncio.sleep(1.2)
        assert store.trouble() == ""
    assert not losing.done() and store.holds_until() > time.monotonic() + 1
    await store.put([record()])
    await store.close()
    assert await losing == "it was asked to end"


async def test_a_frozen_leader_is_replaced_and_finds_itself_deposed(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    program = f"""
import asyncio, os, signal, sys, time
from tests.store.etcd_server import EtcdCluster
from tests.store.records import etcd_store, nobody, record

class Cluster:
    tls, auth, endpoints = None, False, {etcd.endpoints!r}

async def main():
    store = etcd_store(Cluster(), {deployment!r}, "c1")
    await store.open(nobody)
    await store.put([record()])
    print("leads", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    # the very next thing that is looked at after the sleep
    print("holds", store.holds_until() > time.monotonic(), flush=True)
    try:
        await store.put([record(generation=66)])
        print("wrote", flush=True)
    except Exception as error:
        print("refused", error, flush=True)
    print("lost", await store.lost(), flush=True)
    await store.close()

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 20) == b"leads\n"
        begun = time.monotonic()
        second = etcd_store(etcd, deployment, "c2")
        snapshot = await asyncio.wait_for(second.open(nobody), 15)
        assert time.monotonic() - begun < 5 * LEASE
        assert snapshot.epoch == 2
        os.kill(process.pid, signal.SIGCONT)
        output = (await asyncio.wait_for(process.communicate(), 20))[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert output.startswith("holds False\nrefused etcd: this controller leads no more") and "lost its lease" in output
    await second.put([record(generation=2)])
    await second.close()


async def test_a_leader_whose_key_is_taken_away_is_told_and_refused(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    for command, reason in (
        (("del", f"/motor/{deployment}/leader"), "its key is gone"),
        (("lease", "revoke"), "its key is gone"),
    ):
        store, _ = await opened(etcd_store(etcd, deployment))
        losing = asyncio.create_task(store.lost())
        if command[0] == "lease":
            kvs = json.loads(etcd.ctl("get", f"/motor/{deployment}/leader", "-w", "json"))["kvs"]
            command = (*command, f"{kvs[0]['lease']:x}")
        etcd.ctl(*command)
        assert await asyncio.wait_for(losing, 10) == reason
        assert store.holds_until() == -math.inf
        with pytest.raises(StoreError, match="leads no more"):
            await store.put([record()])
        with pytest.raises(StoreError, match="leads no more"):
            await store.raise_epoch(50)
        await store.close()
    assert "generation" not in etcd.ctl("get", "--prefix", f"/motor/{deployment}/")


async def test_a_write_finds_out_before_the_watch_does(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    store, _ = await opened(etcd_store(etcd, deployment))
    etcd.ctl("del", f"/motor/{deployment}/leader")  # this loop has not run since
    with pytest.raises(StoreError, match="leads no more"):
        await store.put([record()])
    assert await store.lost() == "its key is gone"
    await store.close()


async def test_a_standby_goes_on_after_a_compaction(etcd: EtcdCluster, cable: Relay) -> None:
    deployment = new_deployment()
    first, _ = await opened(etcd_store(etcd, deployment, "c1"))
    told = Told()
    second = etcd_store(etcd, deployment, "c2", [f"http://{cable.address}"])
    opening = asyncio.create_task(second.open(told))
    await told.until("c1")
    cable.cut()
    await first.put([record()])
    revision = json.loads(etcd.ctl("get", "x", "-w", "json"))["header"]["revision"]
    etcd.ctl("compaction", str(revision), "--physical")
    await asyncio.sleep(0.5)
    cable.mend()
    await asyncio.sleep(0.1)
    await first.close()
    assert (await asyncio.wait_for(opening, 10)).records == (record(),)
    await second.close()


async def test_a_watch_from_a_forgotten_revision_ends_so_that_the_key_is_read_again(etcd: EtcdCluster) -> None:
    deployment = new_deployment()
    key = f"/motor/{deployment}/leader"
    for value in ("1", "2", "3"):
        etcd.ctl("put", key, value)
    revision = json.loads(etcd.ctl("get", "x", "-w", "json"))["header"]["revision"]
    etcd.ctl("compaction", str(revision), "--physical")
    client = EtcdClient(EtcdSettings(tuple(etcd.endpoints)))

    async def all_changes() -> list[Seen]:
        return [seen async for seen in _changes(client, key.encode(), revision - 2)]

    assert await asyncio.wait_for(all_changes(), 10) == []
    async with aclosing(follow(client, key.encode(), 5.0)) as states:
        seen = await asyncio.wait_for(anext(states), 10)
    assert seen is not None and seen.kv is not None and seen.kv.value == b"3"
    await client.close()


async def test_without_etcd_a_controller_waits_and_says_so(etcd: EtcdCluster, cable: Relay) -> None:
    cable.cut()
    told = Told()
    store = etcd_store(etcd, new_deployment(), endpoints=[f"http://{cable.address}"])
    opening = asyncio.create_task(store.open(told))
    await asyncio.wait({opening}, timeout=LEASE + 1)
    assert not opening.done() and told.leaders == [None] and cable.address in store.trouble()
    cable.mend()
    assert (await asyncio.wait_for(opening, 15)).epoch == 1
    await store.close()
