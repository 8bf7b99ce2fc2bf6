"""From deploy.json to ready, with real processes, sockets and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import httpx

from tests.cluster.deployment import Deployment, engine_section


def test_two_nodes_come_up_and_the_inventory_has_the_master_only(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_controller()
    d.start_nodes(1)
    assert "waiting" in d.status()["problems"][0] and "node_rank 1 of group 0" in d.status()["problems"][0]
    assert d.get("/v1/instances") == []
    d.add_node(2).start()
    d.wait_ready()
    (endpoint,) = d.get("/v1/instances")
    assert endpoint["node_id"] == "n1"
    assert httpx.get(endpoint["url"] + "/v1/models", trust_env=False).status_code == 200
    assert "--headless" in d.argv("union-0/0/1") and "--headless" not in d.argv("union-0/0/0")
    local = d.nodes["n2"].local_status()
    assert local["status"] == "normal"


def test_status_events_and_logs_through_motorctl(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_controller()
    d.start_nodes(2)
    d.wait_ready()

    def motorctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "motorctl.main", arguments[0], "--controller", d.url, *arguments[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    table = motorctl("status")
    assert table.returncode == 0 and "1 of 1 instances ready" in table.stdout and "headless" in table.stdout
    assert json.loads(motorctl("status", "-o", "json").stdout)["ready"] is True
    assert "is ready after" in motorctl("events", "union-0").stdout
    assert "Starting vLLM server" in motorctl("logs", "union-0/0/0").stdout
    assert "distributed_init_method" in motorctl("logs", "union-0/0/1", "-n", "500").stdout
    wrong = motorctl("logs", "union-0/0/7")
    assert wrong.returncode == 1 and "neither a node nor a slot" in wrong.stderr
    away = subprocess.run(
        [sys.executable, "-m", "motorctl.main", "status", "--controller", "http://127.0.0.1:9"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert away.returncode == 3 and "Is motor-controller running there?" in away.stderr


def test_dead_follower_restarts_its_gang_only(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section(dp=2)})
    d.start_controller()
    d.start_nodes(4)
    d.wait_ready()
    before = d.members()
    os.kill(before["union-0/0/1"]["pid"], signal.SIGKILL)
    d.wait(lambda: d.group(0)["generation"] == 3, "the gang's next generation")
    d.wait_ready()
    after = d.members()
    assert after["union-0/1/0"]["pid"] == before["union-0/1/0"]["pid"]
    assert after["union-0/0/0"]["pid"] != before["union-0/0/0"]["pid"]
    assert after["union-0/0/0"]["master_port"] > before["union-0/0/0"]["master_port"]
    failure = d.group(0)["last_failure"]
    assert failure["slot"] == "union-0/0/1" and failure["exit_signal"] == 9


def test_exit_code_zero_is_a_failure_and_the_budget_ends(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()}, timers={
        "heartbeat_interval": 0.5, "node_timeout": 3.0, "restart_backoff": 0.1, "max_restarts": 2, "stop_grace": 5.0,
    })  # fmt: skip
    d.start_controller()
    for number in (1, 2):
        d.add_node(number)
    d.behave(2, exit_after=[0.1, 0])
    for node in d.nodes.values():
        node.start()
    d.wait(lambda: d.group()["state"] == "failed", "the budget to end", 60.0)
    group = d.group()
    assert group["restarts"] == 2 and group["generation"] == 3
    assert group["last_failure"]["exit_code"] == 0
    assert "all 2 restarts within 60 min are used up" in group["reason"]
    assert group["last_failure"]["last_log_lines"]


def test_controller_kill_and_restart_adopts_running_engines(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_controller()
    d.start_nodes(2)
    d.wait_ready()
    before = {slot: member["pid"] for slot, member in d.members().items()}
    d.end_controller(signal.SIGKILL)
    d.start_controller()
    d.wait_ready()
    assert {slot: member["pid"] for slot, member in d.members().items()} == before
    assert d.status()["epoch"] == 2
    assert d.group()["generation"] == 1


def test_killed_manager_is_replaced_and_its_engine_adopted(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_controller()
    d.start_nodes(2)
    d.wait_ready()
    before = d.members()["union-0/0/1"]["pid"]
    d.nodes["n2"].end(signal.SIGKILL)
    d.wait(lambda: d.node_states()["n2"] == "unreachable", "n2 to be out of sight")
    assert d.group()["state"] == "ready", "losing sight is not failure"
    d.nodes["n2"].start()
    d.wait(lambda: d.node_states()["n2"] == "assigned", "n2 to be back")
    d.wait_ready()
    assert d.members()["union-0/0/1"]["pid"] == before
    assert d.group()["generation"] == 1


def test_second_controller_on_the_store_exits(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_controller()
    second = subprocess.run(
        [sys.executable, "-m", "controller.main", "--config", str(d.file)], capture_output=True, text=True, timeout=30
    )
    assert second.returncode == 3 and "another motor-controller holds this store" in second.stderr


def test_roles_and_spares(deploy: Callable[..., Deployment]) -> None:
    d = deploy({
        "motor_engine_prefill_config": engine_section(),
        "motor_engine_decode_config": engine_section(nnodes=1),
    })  # fmt: skip
    d.start_controller()
    d.add_node(1, role="decode").start()
    d.wait(lambda: "n1" in d.node_states(), "n1")
    for number in (2, 3, 4):
        d.add_node(number).start()
        d.wait(lambda n=number: f"n{n}" in d.node_states(), f"n{number}")  # type: ignore[misc]
    d.wait_ready()
    placed = {slot: member["node_id"] for slot, member in d.members().items()}
    assert placed == {"prefill-0/0/0": "n2", "prefill-0/0/1": "n3", "decode-0/0/0": "n1"}
    assert d.node_states()["n4"] == "spare"
    assert {e["role"] for e in d.get("/v1/instances")} == {"prefill", "decode"}


def test_inventory_stream_follows_the_gang(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_controller()
    with httpx.stream("GET", d.url + "/v1/instances/stream", timeout=40.0, trust_env=False) as stream:
        told = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        assert next(told) == []
        d.start_nodes(2)
        (endpoint,) = next(told)
        assert endpoint["node_id"] == "n1"
        os.kill(d.members()["union-0/0/1"]["pid"], signal.SIGKILL)
        assert next(told) == [], "out of it at once, not after a timeout"
        (again,) = next(told)
        assert again["generation"] == endpoint["generation"] + 1
