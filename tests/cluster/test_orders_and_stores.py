"""Ports that strangers hold, stores that were emptied, and operators' orders, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import httpx

from tests.cluster.deployment import Deployment, engine_section


def test_a_strangers_port_means_the_next_port_and_is_named(deploy: Callable[..., Deployment]) -> None:
    section = engine_section()
    ports = [section["engine_config"]["master-port"], section["engine_config"]["port"]]
    held = [socket.socket() for _ in ports]
    for stranger, port in zip(held, ports, strict=True):
        stranger.bind(("0.0.0.0", port))
        stranger.listen()
    d = deploy({"motor_engine_union_config": section})
    d.start_controller()
    d.start_nodes(2)
    d.wait_ready()
    for stranger in held:
        stranger.close()
    member = d.members()["union-0/0/0"]
    assert (member["master_port"], member["api_port"]) == (ports[0] + 1, ports[1] + 1)
    (line,) = [e["sentence"] for e in d.events("union-0/0") if e["code"] == "port_taken"]
    assert str(ports[0]) in line and f"pid {os.getpid()}" in line
    assert d.group()["restarts"] == 0


def test_emptied_store_adopts_the_running_gang_with_a_higher_epoch(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_controller()
    d.start_nodes(2)
    d.wait_ready()
    d.end_controller()
    d.start_controller()
    d.wait_ready()
    before = {slot: member["pid"] for slot, member in d.members().items()}
    d.end_controller(signal.SIGKILL)
    for path in d.root.glob("controller.sqlite3*"):
        path.unlink()
    d.start_controller()
    d.wait_ready()
    assert {slot: member["pid"] for slot, member in d.members().items()} == before
    assert any(e["code"] == "adopted" for e in d.events("union-0/0"))
    # ... and it can still give orders, because it continues above what the nodes have seen
    order(d, "restart", "union-0")
    d.wait(lambda: d.group()["generation"] == 2, "the restart")
    d.wait_ready()


def test_with_a_store_of_its_own_it_is_never_a_standby(deploy: Callable[..., Deployment]) -> None:
    """Its very first answer is a leader's."""
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_process()
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline
        try:
            answer = httpx.get(d.url + "/v1/status", trust_env=False)
        except httpx.TransportError:
            continue
        assert answer.status_code == 200, answer.text
        return


def order(d: Deployment, *words: str) -> str:
    command = [sys.executable, "-m", "motorctl.main", words[0], "--controller", d.url, *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_drain_stop_start_and_pause_through_motorctl(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": engine_section()})
    d.start_controller()
    d.start_nodes(3)
    d.wait_ready()
    assert "draining node n2" in order(d, "drain", "n2")
    d.wait(lambda: d.members()["union-0/0/1"]["node_id"] == "n3", "the spare to take the slot")
    d.wait_ready()
    assert d.group()["restarts"] == 0
    order(d, "stop", "union-0")
    d.wait(lambda: d.group()["state"] == "stopped", "the stop")
    assert d.get("/v1/instances") == []
    order(d, "pause", "--reason", "new switches")
    assert "paused: new switches" in d.status()["summary"]
    order(d, "start", "union-0")
    order(d, "resume")
    d.wait_ready()
    refused = subprocess.run(
        [sys.executable, "-m", "motorctl.main", "uncordon", "--controller", d.url, "n9"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert refused.returncode == 1 and "n9 is not cordoned" in refused.stderr
