"""What every store has to do, run against each of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.core.model import GenerationRecord, OperatorState, Placement, SlotKey
from controller.store.interface import Store, StoreError, StoreLocked
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore


def record(scope_id: str = "prefill-0/0", generation: int = 1, **more: object) -> GenerationRecord:
    slot = SlotKey("prefill-0", 0, 0)
    placed = Placement("n1", "boot", "10.0.0.1", ("0", "1"), 8000, "10.0.0.1", 7001, None)
    return GenerationRecord("prefill-0", scope_id, generation, "run", "digest", {slot: placed}, **more)  # type: ignore[arg-type]


@pytest.fixture(params=["memory", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """The same store, each time as a new controller would open it."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    return lambda: SqliteStore(tmp_path / "deep" / "store.sqlite3")


def test_a_new_store_is_empty_and_the_epoch_grows_with_each_open(reopen: Callable[[], Store]) -> None:
    epochs, lineages = [], set()
    for _ in range(3):
        store = reopen()
        snapshot = store.open()
        assert snapshot.records == ()
        epochs.append(snapshot.epoch)
        lineages.add(snapshot.lineage)
        store.close()
    assert epochs == [1, 2, 3]
    assert len(lineages) == 1 and len(lineages.pop()) == 32


def test_records_come_back_as_they_were_and_the_newest_wins(reopen: Callable[[], Store]) -> None:
    store = reopen()
    store.open()
    other = record("prefill-0/1", 2, restarts=3, outcome="failed", outcome_reason="why", adopted_run_ids=("a", "b"))
    store.put([record(), other])
    store.put([record(generation=3)])
    store.close()
    snapshot = reopen().open()
    assert set(snapshot.records[0].members) == {SlotKey("prefill-0", 0, 0)}
    assert {r.scope_id: r for r in snapshot.records} == {"prefill-0/0": record(generation=3), "prefill-0/1": other}


def test_a_raised_epoch_stays_and_never_falls(reopen: Callable[[], Store]) -> None:
    store = reopen()
    store.open()
    assert store.raise_epoch(9) == 9
    assert store.raise_epoch(4) == 9
    store.close()
    assert reopen().open().epoch == 10


def test_orders_of_operators_come_back(reopen: Callable[[], Store]) -> None:
    store = reopen()
    assert store.open().operator == OperatorState()
    ordered = OperatorState(frozenset({"n1"}), "maintenance", frozenset({"prefill-0"}))
    store.put_operator(ordered)
    store.close()
    assert reopen().open().operator == ordered


def test_an_open_store_refuses_a_second_controller(reopen: Callable[[], Store]) -> None:
    first = reopen()
    first.open()
    with pytest.raises(StoreLocked):
        reopen().open()
    first.close()
    reopen().open()


def test_sqlite_survives_kill_9_right_after_put(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from controller.store.sqlite import SqliteStore\n"
        "from tests.store.test_contract import record\n"
        "store = SqliteStore(Path(sys.argv[1])); store.open(); store.put([record(generation=7)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "store.sqlite3"
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[2], check=False)
    assert SqliteStore(path).open().records == (record(generation=7),)


def test_sqlite_says_what_it_cannot_read_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    path.write_text("not a database, but more than a hundred characters of somebody's important notes" * 2)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not readable as Motor's state"):
        SqliteStore(path).open()
    assert path.read_bytes() == before


def test_sqlite_in_a_place_that_is_no_folder_says_which_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"store\.path"):
        SqliteStore(tmp_path / "file" / "store.sqlite3").open()
