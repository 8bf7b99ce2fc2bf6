"""The state folder: one start per generation, nothing forgotten, clear words when it cannot be written."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from nodemanager import records as module
from nodemanager.records import AlreadyLockedError, RecordError, Records, StartRecord
from nodemanager.slots import SlotKey

KEY = SlotKey("prefill-0", 0, 1)


def record(generation: int = 1) -> StartRecord:
    kinds = {"int": 0, "str": "", "list[str]": [], "dict[str, str]": {}, "float": 0.0, "bool": False}
    values = {entry.name: kinds.get(str(entry.type)) for entry in fields(StartRecord)}
    return StartRecord(**{**values, "slot": str(KEY), "generation": generation})  # type: ignore[arg-type]


@pytest.fixture
def state(tmp_path: Path) -> Records:
    made = Records(tmp_path / "state")
    made.make_folders()
    return made


def test_node_id_is_made_once_and_the_incarnation_counts(state: Records) -> None:
    first, one = state.identity(None)
    again, two = Records(state.state_dir).identity(None)
    assert first == again and (one, two) == (1, 2)
    assert Records(state.state_dir).identity("mine") == ("mine", 3)


def test_a_generation_is_made_once(state: Records) -> None:
    folder = state.create(record())
    assert json.loads((folder / "start.json").read_text())["slot"] == "prefill-0/0/1"
    with pytest.raises(FileExistsError):
        state.create(record())
    assert Records(state.state_dir).load(folder) == record()
    state.create(record(10))
    state.create(record(9))
    assert [f.name for f in state.generations(KEY)] == ["1", "9", "10"]


def test_newest_is_remembered(state: Records) -> None:
    state.note(KEY, 3, 5)
    state.note(KEY, 2, 4)
    state.note(KEY, 3, 5, closed=True)
    state.persist(KEY)
    seen = Records(state.state_dir).newest(KEY)
    assert (seen.epoch, seen.generation, seen.closed_generation) == (3, 5, 5)


def test_fields_of_a_newer_version_are_ignored(state: Records) -> None:
    folder = state.create(record())
    stored = json.loads((folder / "start.json").read_text())
    (folder / "start.json").write_text(json.dumps({**stored, "later": 1}))
    assert state.load(folder) == record()
    del stored["run_id"]
    (folder / "start.json").write_text(json.dumps(stored))
    with pytest.raises(RecordError, match="another version"):
        state.load(folder)


def test_a_write_that_fails_leaves_the_old(state: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk."""
    state.note(KEY, 1, 1)
    state.persist(KEY)

    def full(path: str, value: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(RecordError, match=r"newest\.json.*No space left.*make room"):
        state.note(KEY, 2, 2)
        state.persist(KEY)
    assert Records(state.state_dir).newest(KEY).generation == 1
    with pytest.raises(RecordError, match="No space left"):
        state.create(record(2))
    assert list(state.generations(KEY)) == []  # the same start may be tried again
    monkeypatch.undo()
    state.persist(KEY)
    assert Records(state.state_dir).newest(KEY).generation == 2
    state.create(record(2))


def test_identity_on_a_full_disk(state: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines must be adopted all the same; only the very first start needs the write."""
    node_id, _ = state.identity(None)

    def full(path: str, value: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    assert state.identity(None) == (node_id, 2)
    fresh = Records(state.state_dir / "other")
    fresh.make_folders()
    with pytest.raises(RecordError):
        fresh.identity(None)


def test_one_manager_at_a_time(state: Records) -> None:
    state.lock()
    with pytest.raises(AlreadyLockedError, match=f"pid {os.getpid()}"):
        Records(state.state_dir).lock()
    state.unlock()
    other = Records(state.state_dir)
    other.lock()
    other.unlock()


@pytest.mark.parametrize("text", ["../x/0/0", "a b/0/0", ".hidden/0/0", "p/0", "p/x/0"])
def test_slot_names_stay_inside_the_folder(text: str) -> None:
    with pytest.raises(ValueError):
        SlotKey.parse(text)
