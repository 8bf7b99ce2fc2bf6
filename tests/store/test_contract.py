"""What every store has to do, run against each of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.core.model import OperatorState, SlotKey
from controller.store.etcd import EtcdStore
from controller.store.interface import Snapshot, Store, StoreError, StoreLocked
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore
from tests.store.etcd_server import EtcdCluster
from tests.store.records import etcd_store, new_deployment, nobody, record, wide_record


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """The same store, each time as a new controller would open it."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "deep" / "store.sqlite3")
    cluster: EtcdCluster = request.getfixturevalue("etcd")
    deployment = new_deployment()
    return lambda: etcd_store(cluster, deployment)


async def read(store: Store) -> Snapshot:
    """What a new controller finds."""
    snapshot = await store.open(nobody)
    await store.close()
    return snapshot


async def test_a_new_store_is_empty_and_the_epoch_grows_with_each_open(reopen: Callable[[], Store]) -> None:
    epochs, lineages = [], set()
    for _ in range(3):
        store = reopen()
        snapshot = await store.open(nobody)
        assert snapshot.records == ()
        epochs.append(snapshot.epoch)
        lineages.add(snapshot.lineage)
        await store.close()
    assert epochs == [1, 2, 3]
    assert len(lineages) == 1 and len(lineages.pop()) == 32


async def test_records_come_back_as_they_were_and_the_newest_wins(reopen: Callable[[], Store]) -> None:
    store = reopen()
    await store.open(nobody)
    other = record("prefill-0/1", 2, restarts=3, outcome="failed", outcome_reason="why", adopted_run_ids=("a", "b"))
    await store.put([record(), other])
    await store.put([record(generation=3)])
    await store.close()
    snapshot = await read(reopen())
    assert set(snapshot.records[0].members) == {SlotKey("prefill-0", 0, 0)}
    assert {r.scope_id: r for r in snapshot.records} == {"prefill-0/0": record(generation=3), "prefill-0/1": other}


async def test_a_raised_epoch_stays_and_never_falls(reopen: Callable[[], Store]) -> None:
    store = reopen()
    await store.open(nobody)
    assert await store.raise_epoch(9) == 9
    assert await store.raise_epoch(4) == 9
    await store.close()
    assert (await read(reopen())).epoch == 10


async def test_orders_of_operators_come_back(reopen: Callable[[], Store]) -> None:
    store = reopen()
    assert (await store.open(nobody)).operator == OperatorState()
    ordered = OperatorState(frozenset({"n1"}), "maintenance", frozenset({"prefill-0"}))
    await store.put_operator(ordered)
    await store.close()
    assert (await read(reopen())).operator == ordered


async def test_an_open_store_lets_no_second_controller_in(reopen: Callable[[], Store]) -> None:
    first, second = reopen(), reopen()
    epoch = (await first.open(nobody)).epoch
    opening = asyncio.create_task(second.open(nobody))
    if isinstance(second, EtcdStore):  # it waits; the others refuse
        done, _ = await asyncio.wait({opening}, timeout=0.5)
        assert not done
        await first.close()
        assert (await opening).epoch == epoch + 1
        await second.close()
    else:
        with pytest.raises(StoreLocked):
            await opening
        await first.close()
    assert (await read(reopen())).epoch > epoch


async def test_an_open_store_holds_until_a_moment_to_come(reopen: Callable[[], Store]) -> None:
    store = reopen()
    await store.open(nobody)
    losing = asyncio.create_task(store.lost())
    assert store.holds_until() > time.monotonic() and store.trouble() == ""
    done, _ = await asyncio.wait({losing}, timeout=0.1)
    assert not done
    losing.cancel()
    await store.close()


async def test_writes_that_overlap_are_done_one_after_the_other(reopen: Callable[[], Store]) -> None:
    store = reopen()
    await store.open(nobody)
    await asyncio.gather(
        *(store.put([record(generation=n), wide_record(20, n)]) for n in range(1, 6)),
        store.put_operator(OperatorState(paused="rack 4")),
        store.raise_epoch(7),
    )
    await store.close()
    found = await read(reopen())
    assert {r.generation for r in found.records} == {5} and found.operator.paused == "rack 4" and found.epoch == 8


async def test_many_records_are_kept_at_once(reopen: Callable[[], Store]) -> None:
    kept = {f"prefill-0/{n}": record(f"prefill-0/{n}", 3) for n in range(250)}
    store = reopen()
    await store.open(nobody)
    await store.put(kept.values())
    await store.close()
    assert {r.scope_id: r for r in (await read(reopen())).records} == kept


async def test_many_cordoned_nodes_and_a_long_reason_come_back(reopen: Callable[[], Store]) -> None:
    ordered = OperatorState(frozenset(f"node-{n:05d}" for n in range(5000)), "µ" * 3000)
    failed = record(outcome="failed", outcome_reason="é" * 5000)
    store = reopen()
    await store.open(nobody)
    await store.put_operator(ordered)
    await store.put([failed])
    await store.close()
    found = await read(reopen())
    assert found.operator == ordered and found.records == (failed,)


async def test_a_closed_store_keeps_nothing(reopen: Callable[[], Store]) -> None:
    store = reopen()
    await store.open(nobody)
    await store.close()
    with pytest.raises(StoreError):
        await store.put([record()])


async def test_sqlite_survives_kill_9_right_after_put(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from controller.store.sqlite import SqliteStore\n"
        "from tests.store.records import nobody, record\n"
        "store = SqliteStore(Path(sys.argv[1]))\n"
        "async def go():\n"
        "    await store.open(nobody); await store.put([record(generation=7)])\n"
        "asyncio.run(go())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "store.sqlite3"
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[2], check=False
    )
    assert (await SqliteStore(path).open(nobody)).records == (record(generation=7),)


async def test_sqlite_says_what_it_cannot_read_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    path.write_text("not a database, but more than a hundred characters of somebody's important notes" * 2)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not readable as Motor's state"):
        await SqliteStore(path).open(nobody)
    assert path.read_bytes() == before


async def test_sqlite_in_a_place_that_is_no_folder_says_which_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"store\.path"):
        await SqliteStore(tmp_path / "file" / "store.sqlite3").open(nobody)
