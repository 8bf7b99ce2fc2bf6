"""Nodes in network namespaces: they reach each other, and nothing of them stays, however their maker ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from demo import namespaces
from demo.enter import inside
from demo.namespaces import NETNS_FOLDER, NodePlace, NoNamespaces, network
from demo.subnet import free_subnet

ROOT = Path(namespaces.__file__).resolve().parent.parent
PATIENCE = 10.0

# Makes a network with a process in it, says so, waits.
MAKER = """
import subprocess, sys, time
from demo.namespaces import network
from demo.stopping import StopRequested, check_stop, stop_on_signals
try:
    with stop_on_signals(), network(2, may_fall_back=False) as made:
        subprocess.Popen([*made.nodes[0].command_prefix, "sleep", "300"], stdout=subprocess.DEVNULL)
        print("made", flush=True)
        while True:
            check_stop()
            time.sleep(0.05)
except StopRequested as stop:
    sys.exit(stop.exit_code)
"""


@pytest.fixture(scope="module")
def allowed() -> None:
    try:
        with network(1, may_fall_back=False):
            pass
    except NoNamespaces as reason:
        pytest.skip(f"no network namespaces: {reason}")


@pytest.fixture
def maker(allowed: None) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", MAKER],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    namespaces.remove_left_overs()


def names_of(pid: int) -> list[str]:
    """Namespaces and interfaces that carry the number of a process."""
    made = [path.name for path in NETNS_FOLDER.glob(f"motor-demo-{pid}-*")]
    return made + [name for _, name in socket.if_nameindex() if name.startswith(f"mot{pid}-")]


def sleepers(pid: int) -> list[int]:
    return namespaces.processes_in([path.name for path in NETNS_FOLDER.glob(f"motor-demo-{pid}-*")])


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def ask(source: NodePlace, target: NodePlace, seconds: float = 5.0) -> str:
    """Send a word over TCP from one node to another; returns the address it came from."""

    def listening() -> socket.socket:
        return socket.create_server((target.address, 0))

    def connected(address: tuple[str, int]) -> socket.socket:
        return socket.create_connection(address, seconds)

    with inside(NETNS_FOLDER / target.namespace, listening) as server:
        address = server.getsockname()
        with inside(NETNS_FOLDER / source.namespace, lambda: connected(address)) as client:
            connection, peer = server.accept()
            with connection:
                client.sendall(b"word")
                assert connection.recv(4) == b"word"
            return str(peer[0])


@pytest.mark.netns
def test_nodes_reach_each_other_and_nothing_is_left_afterwards(allowed: None) -> None:
    with network(2, may_fall_back=False) as made:
        first, second = made.nodes
        assert (made.kind, made.allow_loopback) == ("namespaces", False)
        assert ask(first, second) == first.address
        assert ask(second, first) == second.address
        shown = subprocess.run([*first.command_prefix, "ip", "-brief", "address"], capture_output=True, text=True)
        lines = {line.split("@")[0].split()[0]: line for line in shown.stdout.splitlines()}
        assert "127.0.0.1" in lines["lo"]
        assert first.address in lines[first.interface]
        assert set(lines) == {"lo", first.interface}
        assert len(names_of(os.getpid())) == 4
    assert names_of(os.getpid()) == []


@pytest.mark.netns
def test_two_networks_at_once_have_different_addresses(allowed: None) -> None:
    with network(1, may_fall_back=False) as one, network(1, may_fall_back=False) as other:
        assert {one.nodes[0].address, one.controller_address}.isdisjoint(
            {other.nodes[0].address, other.controller_address}
        )
    assert names_of(os.getpid()) == []


@pytest.mark.netns
def test_a_pulled_cable_cuts_a_node_off_until_it_is_back(allowed: None) -> None:
    with network(2, may_fall_back=False) as made:
        first, second = made.nodes
        made.set_link(second, up=False)
        with pytest.raises(OSError):
            ask(first, second, seconds=0.5)
        made.set_link(second, up=True)
        ask(first, second)


@pytest.mark.netns
def test_processes_inside_are_gone_before_their_namespace(allowed: None) -> None:
    with network(2, may_fall_back=False) as made:
        process = subprocess.Popen([*made.nodes[1].command_prefix, "sleep", "300"])
        until(lambda: namespaces.processes_in([made.nodes[1].namespace]) == [process.pid])
    assert process.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.netns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_at_any_moment_leaves_nothing(
    maker: Callable[[], subprocess.Popen[str]], number: signal.Signals
) -> None:
    for moment in ("first name", "made"):
        process = maker()
        if moment == "made":
            assert process.stdout is not None and process.stdout.readline() == "made\n"
        else:
            until(lambda pid=process.pid: names_of(pid))  # type: ignore[misc]
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
        assert names_of(process.pid) == []


@pytest.mark.netns
def test_left_overs_of_a_killed_maker_go_and_a_living_one_keeps_its_own(
    maker: Callable[[], subprocess.Popen[str]],
) -> None:
    killed, living = maker(), maker()
    for process in (killed, living):
        assert process.stdout is not None and process.stdout.readline() == "made\n"
    until(lambda: len(sleepers(killed.pid)) == 1)  # "made" may be said before the process inside has its name
    (sleeper,) = sleepers(killed.pid)
    killed.kill()
    killed.wait()
    assert len(names_of(killed.pid)) == 4
    said: list[str] = []
    with network(1, said.append, may_fall_back=False):
        assert names_of(killed.pid) == []
        until(lambda: not Path(f"/proc/{sleeper}/cwd").exists())
    assert said and all(f"motor-demo-{killed.pid}-" in line for line in said)
    assert len(names_of(living.pid)) == 4 and len(sleepers(living.pid)) == 1


@pytest.mark.netns
def test_an_empty_file_of_a_namespace_that_was_never_mounted_goes_too(allowed: None) -> None:
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    file = NETNS_FOLDER / f"motor-demo-{int(ended.stdout)}-1"
    file.touch()
    namespaces.remove_left_overs()
    assert not file.exists()


def test_without_root_the_nodes_get_loopback_addresses_and_the_log_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said: list[str] = []
    with network(3, said.append) as made:
        assert (made.kind, made.allow_loopback) == ("loopback", True)
        addresses = [made.controller_address, *(node.address for node in made.nodes)]
        assert len(set(addresses)) == 4
        for address in addresses:
            socket.create_server((address, 0)).close()
        assert all(node.command_prefix == () for node in made.nodes)
    assert said == ["no network namespaces here (only root may make them); the nodes get loopback addresses instead"]
    with pytest.raises(NoNamespaces, match="only root"), network(3, may_fall_back=False):
        pass


def test_a_subnet_avoids_addresses_and_routes_and_leaves_10_when_all_of_it_is_taken() -> None:
    assert free_subnet([], 5) == IPv4Network("10.0.5.0/24")
    assert free_subnet([IPv4Network("10.0.5.77/32"), IPv4Network("10.0.6.0/23")], 5) == IPv4Network("10.0.8.0/24")
    assert free_subnet([IPv4Network("10.0.0.0/8")], 5) == IPv4Network("172.16.5.0/24")
    with pytest.raises(LookupError):
        free_subnet([IPv4Network("0.0.0.0/0")], 5)
