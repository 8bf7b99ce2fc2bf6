"""When an environment counts as complete; the installation itself is replaced by a stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo import cache, engine_environment
from demo.engine_environment import MARKER, EngineEnvironment, ensure_engine_environment, environment_name

VERSION = "0.32.0+cpu"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment will be; an installation only makes two commands and leaves temporary files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine_environment, "NEEDED_BYTES", 0)
    monkeypatch.setattr(engine_environment, "_install", install)
    return tmp_path / "motor" / environment_name()


def install(folder: Path, work: Path, lock: int, log: cache.Log) -> str:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "bin" / "vllm").write_text("#!/bin/sh\n")
    (folder / "bin" / "vllm").chmod(0o755)
    (work / "pip-download").touch()
    log("installed")
    return VERSION


def test_it_is_made_once(folder: Path) -> None:
    log: list[str] = []
    made = ensure_engine_environment(log.append)
    assert made == EngineEnvironment(folder / "bin" / "python", folder / "bin" / "vllm", VERSION)
    assert ensure_engine_environment(log.append) == made
    assert log.count("installed") == 1
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_a_folder_without_marker_is_half_made_and_replaced(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "half").touch()
    ensure_engine_environment(print)
    assert not (folder / "half").exists()
    assert (folder / MARKER).exists()


def test_a_failed_installation_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, work: Path, lock: int, log: cache.Log) -> str:
        install(folder, work, lock, log)
        raise cache.SetupFailed("no network")

    monkeypatch.setattr(engine_environment, "_install", fail)
    with pytest.raises(cache.SetupFailed):
        ensure_engine_environment(print)
    assert [path.name for path in folder.parent.iterdir()] == [f"{folder.name}.lock"]


@pytest.mark.parametrize("damage", ["interpreter removed", "moved", "marker cut short"])
def test_an_environment_that_cannot_run_any_more_is_made_again(folder: Path, damage: str) -> None:
    ensure_engine_environment(print)
    if damage == "interpreter removed":
        (folder / "bin" / "python").unlink()
        (folder / "bin" / "python").symlink_to("/nowhere/python3")
    elif damage == "moved":
        (folder / MARKER).write_text(json.dumps({"path": "/elsewhere", "version": VERSION}))
    else:
        (folder / MARKER).write_text('{"path"')
    log: list[str] = []
    made = ensure_engine_environment(log.append)
    assert "installed" in log
    subprocess.run([made.python, "-c", ""], check=True)


def test_too_little_space_is_said_before_anything_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_environment, "NEEDED_BYTES", 10**18)
    with pytest.raises(cache.SetupFailed, match="needs 1000000000 GB"):
        ensure_engine_environment(print)
    assert not folder.exists()


def test_a_missing_cpu_build_of_pytorch_is_explained() -> None:
    output = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    assert "PIP_EXTRA_INDEX_URL" in engine_environment._advice(output)
