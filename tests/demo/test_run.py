"""The parts of the demonstration's run that need no engine: what it writes, shows, finds and removes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.config.plan import load_deployment
from demo import run_folder, shared_memory
from demo.cluster import DemoFailed
from demo.engine_environment import EngineEnvironment
from demo.namespaces import network
from demo.progress import Progress
from demo.run import fail_if_failed
from demo.settings import DEPLOY_FILE, node_count, write_settings
from nodemanager.config import load

ENGINE = EngineEnvironment(Path("/env/bin/python"), Path("/env/bin/vllm"), "0.32.0+cpu")
PATIENCE = 10.0

# Makes a run folder with a process and shared memory that belong to it, says so, waits.
RUNNER = """
import subprocess, sys, time
from pathlib import Path
from demo import run_folder
run_folder.BASE = Path(sys.argv[1])
child = [sys.executable, "-c", sys.argv[2]]
with run_folder.run_folder(print) as folder, folder.note_shared_memory():
    process = subprocess.Popen(child, cwd=folder.home, stdout=subprocess.DEVNULL)
    while not (folder.root / run_folder.SHARED_MEMORY).exists():
        time.sleep(0.05)
    print(process.pid, flush=True)
    time.sleep(60)
"""

# Maps shared memory under one name, gives it another, as sem_open does, and does not delete it.
CHILD = """
import mmap, os, time
path = f"/dev/shm/motor_test_{os.getpid()}"
file = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
mapped = mmap.mmap(file, 4096)
os.link(f"{path}.new", path)
os.unlink(f"{path}.new")
time.sleep(60)
"""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / ".demo"
    monkeypatch.setattr(run_folder, "BASE", base)
    monkeypatch.setattr(run_folder, "LAST_LOGS", base / "last-logs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return base


def test_a_run_folder_is_gone_at_the_end(base: Path) -> None:
    with run_folder.run_folder(print) as folder:
        assert folder.root.parent == base
        assert folder.scratch.is_dir() and folder.home.is_dir() and folder.logs.is_dir()
        process = subprocess.Popen(["sleep", "60"], cwd=folder.logs)
    assert process.wait(PATIENCE) < 0
    assert not base.exists() and not folder.scratch.exists()


def test_temporary_files_get_a_short_path_where_the_repository_has_a_long_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "BASE", tmp_path / ("x" * 80))
    monkeypatch.setattr(run_folder, "LAST_LOGS", tmp_path / "logs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("y" * 80)))
    with run_folder.run_folder(print) as folder:
        assert len(str(folder.scratch)) <= run_folder.LONGEST_SCRATCH
        assert folder.scratch.is_dir()
    assert not folder.scratch.parent.exists()


def test_what_a_killed_run_left_goes_with_the_next_one(base: Path) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(base), CHILD], cwd=run_folder.ROOT, stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    pid = runner.stdout.readline().strip()
    memory = shared_memory.FOLDER / f"motor_test_{pid}"
    assert memory.exists()
    with run_folder.run_folder(print):
        assert (base / f"run-{runner.pid}").is_dir(), "a living run keeps its folder"
    runner.kill()
    runner.wait()
    said: list[str] = []
    with run_folder.run_folder(said.append):
        assert not (base / f"run-{runner.pid}").exists()
    until(lambda: not Path(f"/proc/{pid}/cwd").exists())
    assert not memory.exists()
    assert said == [f"removing what an earlier run left behind: run-{runner.pid}"]
    assert not base.exists()


def test_settings_are_the_sample_with_this_runs_addresses(base: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    with run_folder.run_folder(print) as folder, network(node_count(), print, loopback=True) as nodes:
        settings = write_settings(folder, nodes, ENGINE, model)
        written, sample = json.loads(settings.deploy.read_text()), json.loads(DEPLOY_FILE.read_text())
        controller = written["motor_controller_config"]
        assert {controller[server].pop("host") for server in ("rest", "grpc")} == {nodes.controller_address}
        assert controller.pop("allow_loopback") is True
        for server in ("rest", "grpc"):
            sample["motor_controller_config"][server].pop("host")
        sample["motor_controller_config"].pop("allow_loopback")
        assert written == sample
        load_deployment(settings.deploy)

        assert len(settings.nodes) == 3
        for node in nodes.nodes:
            config = load(settings.nodes[node.name])
            assert (config.node_id, config.address) == (node.name, node.address)
            assert config.engines["vllm"].python == str(ENGINE.python)
            root, target = config.model_roots
            name = sample["motor_engine_union_config"]["engine_config"]["model"]
            assert (root / name).resolve() == target == model, "a link, and where it leads"
            for path in (config.state_dir, config.log_dir, config.run_folder):
                assert path.is_relative_to(folder.root)


def status(group: dict[str, Any], *states: tuple[str, str, str]) -> dict[str, Any]:
    """/v1/status of one group; `states` are each member's state, stage and reason."""
    members = [
        {
            "slot": f"union-0/0/{rank}",
            "node_id": f"node-{rank + 1}",
            "node_rank": rank,
            "headless": rank > 0,
            "state": state,
            "stage": stage,
            "stage_seconds": 3.0,
            "reason": reason,
        }
        for rank, (state, stage, reason) in enumerate(states)
    ]
    nodes = [
        {"node_id": member["node_id"], "state": "assigned", "reason": "", "since_seconds": 1.0} for member in members
    ]
    whole = {"state": "assembling", "restarts": 0, "last_failure": None, **group, "members": members}
    return {"instances": [{"name": "union-0", "state": whole["state"], "groups": [whole]}], "nodes": nodes}


def event(code: str, subject: str) -> dict[str, Any]:
    return {"code": code, "subject": subject}


def test_progress_tells_every_state_once_also_those_between_two_answers() -> None:
    with network(2, print, loopback=True) as nodes:
        progress = Progress.of(nodes.nodes)

    def told(events: list[dict[str, Any]], answer: dict[str, Any]) -> list[str]:
        return [f"{line.name} {line.state} {line.stage}".strip() for line in progress.take(events, answer)]

    idle = ("none", "", "")
    assert told([event("registered", "node node-1")], status({}, idle, idle)) == ["node-1 registered"]
    assert told([], status({}, idle, idle)) == []
    events = [
        event("registered", "node node-2"),
        event("prepared", "union-0/0/1"),
        event("prepared", "union-0/0/0"),
        event("started", "union-0/0"),
    ]
    loading = ("loading", "weights", "rank 0: loading weights")
    assert told(events, status({"state": "starting"}, loading, ("starting", "", ""))) == [
        "node-2 registered",
        "node-2 prepared",
        "node-1 prepared",
        "node-1 started",
        "node-2 started",
        "node-1 loading loading weights",
    ]
    ready = ("ready", "http", "the API server answers")
    assert told([], status({"state": "ready"}, ready, ready)) == ["node-1 ready", "node-2 ready"]
    assert progress.lines["node-2"].rank == "rank 1, headless"
    failed = {"state": "backoff", "last_failure": {"slot": "union-0/0/1", "reason": "rank 1: killed"}}
    assert told([], status(failed, idle, idle)) == ["node-1 backoff", "node-2 backoff rank 1: killed"]


def test_one_restart_is_borne_and_a_second_or_motors_giving_up_is_a_failure() -> None:
    fail_if_failed(status({"state": "starting", "restarts": 1}))
    with pytest.raises(DemoFailed, match="failed 2 times"):
        fail_if_failed(status({"state": "backoff", "restarts": 2}))
    with pytest.raises(DemoFailed, match="given up"):
        fail_if_failed(status({"state": "failed", "restarts": 0}))


def test_processes_of_a_folder_are_known_by_command_environment_or_working_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    (folder / "x").mkdir(parents=True)
    (tmp_path / "run-12").mkdir()
    calls: list[dict[str, Any]] = [
        {"args": ["sh", "-c", "sleep 60; :", str(folder / "x")]},
        {"args": ["sleep", "60"], "env": {**os.environ, "TMPDIR": str(folder / "x")}},
        {"args": ["sleep", "60"], "cwd": folder},
        {"args": ["sleep", "60"], "cwd": tmp_path / "run-12"},
    ]
    started = [subprocess.Popen(**call) for call in calls]
    try:
        *ours, other = [process.pid for process in started]
        until(lambda: set(ours) <= set(run_folder.processes_of(folder)))
        assert other not in run_folder.processes_of(folder)
        assert run_folder.end_processes(folder) == []
        assert started[3].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()
