"""Following a file as it grows, with inotify and without."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodemanager import log_follower
from nodemanager.log_follower import LogFollower, tail
from tests.nodemanager.places import until


@pytest.mark.parametrize("events", [True, False])
async def test_lines_come_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: bool) -> None:
    if not events:
        monkeypatch.setattr(log_follower, "open_inotify", lambda path: None)
        monkeypatch.setattr(log_follower, "POLL_SECONDS", 0.05)
    path = tmp_path / "log"
    path.write_text("one\ntw")
    got: list[str] = []
    follower = LogFollower(path, got.extend)
    task = asyncio.create_task(follower.follow())
    await asyncio.sleep(0.2)
    assert got == ["one"]
    with path.open("a") as file:
        file.write("o\nloading 1%\rloading 2%\rrest")
    await until(lambda: len(got) == 4, 2.0)
    assert got == ["one", "two", "loading 1%", "loading 2%"]
    task.cancel()
    follower.read_rest()
    assert got[-1] == "rest"


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    got: list[str] = []
    follower = LogFollower(path, got.extend)
    path.write_text("a long first line\n")
    follower.read_new()
    path.write_text("new\n")
    follower.read_new()
    assert got == ["a long first line", "new"]


def test_of_a_long_log_only_head_and_tail_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "HEAD_BYTES", 1000)
    monkeypatch.setattr(log_follower, "CHUNK", 1000)
    monkeypatch.setattr(log_follower, "TAIL_BYTES", 1000)
    path = tmp_path / "log"
    path.write_text("".join(f"line {number:5}\n" for number in range(10_000)))
    got: list[str] = []
    LogFollower(path, got.extend).read_rest()
    assert got[0] == "line     0" and got[-1] == "line  9999" and len(got) < 300


def test_tail(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail(path, 5) == []
    path.write_text("1\n2\n3\n")
    assert tail(path, 2) == ["2", "3"] and tail(path, 0) == []
