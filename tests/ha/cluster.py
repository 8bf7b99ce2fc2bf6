"""Several real controllers on one real etcd, real node managers with the scripted engine, and cables to cut."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.cluster.deployment import Deployment, PlacedNode, engine_section, free_port
from tests.ha.relay import Relay
from tests.nodemanager.places import describe_left, kill_all
from tests.store.etcd_server import EtcdCluster

LEASE = 5  # seconds: the default
CONTROLLERS = ("c1", "c2")
OBEYS = re.compile(r"obeys (\S+) of (\S+) generation (\d+): epoch (\d+) of (\S+)")


@dataclass
class Controller:
    """One controller: its file, its process, and a relay before each of its ways."""

    name: str
    file: Path
    rest_port: int
    nodes: Relay  # node managers dial this one
    etcd: list[Relay]
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    @property
    def output(self) -> Path:
        return self.file.with_suffix(".out")

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controller.main", "--config", str(self.file)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self.env},
            )

    def end(self, number: int = signal.SIGTERM, seconds: float = 10.0) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        self.process = None
        return code

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ask(self, path: str, timeout: float = 2.0) -> httpx.Response | None:
        """Its own answer, redirects not followed; None without one."""
        try:
            return httpx.get(self.url + path, timeout=timeout, trust_env=False)
        except httpx.HTTPError:
            return None

    def leads(self) -> bool:
        answer = self.ask("/readyz")
        return answer is not None and answer.status_code == 200


@dataclass(frozen=True)
class Before:
    """What must not change."""

    pids: dict[str, int]
    generation: int
    epoch: int


class Ha(Deployment):
    """One instance over two nodes, two controllers, three members of etcd."""

    def __init__(self, root: Path) -> None:
        self.etcd = EtcdCluster(root / "etcd", size=3)
        self.controllers: dict[str, Controller] = {}
        self._url = ""
        super().__init__(root, {"motor_engine_union_config": engine_section()})
        for name in CONTROLLERS:
            self._make(name)

    def _make(self, name: str) -> None:
        text = json.loads(self.file.read_text())
        rest_port, grpc_port = free_port(), free_port()
        etcd = [Relay(("127.0.0.1", int(url.rpartition(":")[2]))) for url in self.etcd.endpoints]
        nodes = Relay(("127.0.0.1", grpc_port))
        text["motor_controller_config"] |= {
            "rest": {"port": rest_port},
            "grpc": {"port": grpc_port},
            "advertise": {"grpc": nodes.address, "rest": f"http://127.0.0.1:{rest_port}"},
            "store": {
                "kind": "etcd",
                "endpoints": [f"http://{relay.address}" for relay in etcd],
                "lease_seconds": LEASE,
            },
        }
        file = self.root / f"{name}.json"
        file.write_text(json.dumps(text, indent=1))
        self.controllers[name] = Controller(name, file, rest_port, nodes, etcd)

    # -- starting ----------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Everything runs, everything is ready; c1 leads."""
        self.etcd.start()
        for controller in self.controllers.values():
            controller.start()
            self.wait_leader(30.0)
        for number in (1, 2):
            addresses = [controller.nodes.address for controller in self.controllers.values()]
            self.add_node(number, controllers=addresses).start()
            self.wait(lambda n=number: f"n{n}" in self.node_states(), f"n{number} to register", 20.0)  # type: ignore[misc]
        self.wait_ready()

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self._url

    def leaders(self) -> list[Controller]:
        return [one for one in self.controllers.values() if one.running and one.leads()]

    def leader(self) -> Controller:
        (found,) = self.leaders()
        return found

    def other(self, than: Controller) -> Controller:
        (found,) = [one for one in self.controllers.values() if one is not than]
        return found

    def wait_leader(self, seconds: float, than: Controller | None = None) -> Controller:
        """Wait for a leader, and look at the deployment through it from now on."""

        def look() -> Controller | None:
            for one in self.controllers.values():
                if one is not than and one.running and one.leads():
                    return one
            return None

        found = self.wait(look, "a controller to lead", seconds)
        assert isinstance(found, Controller)
        self._url = found.url
        return found

    def before(self) -> Before:
        self._url = self.leader().url
        status = self.status()
        return Before(
            {slot: member["pid"] for slot, member in self.members().items()},
            self.group()["generation"],
            status["epoch"],
        )

    def all_there(self) -> bool:
        """Everything is ready, every node is in sight and nothing is complained about."""
        status = self.status()
        return bool(
            status["ready"]
            and not status["stale_since"]
            and not status["problems"]
            and {node["state"] for node in status["nodes"] if node["state"] != "lost"} == {"assigned"}
        )

    def untouched(self, before: Before) -> None:
        """The same engine processes, no restart, all nodes registered."""
        assert {slot: member["pid"] for slot, member in self.members().items()} == before.pids
        self.engines_run(before)
        group = self.group()
        assert (group["generation"], group["restarts"]) == (before.generation, 0)
        states = self.node_states()
        assert (states["n1"], states["n2"]) == ("assigned", "assigned")

    def engines_run(self, before: Before) -> None:
        for slot, pid in before.pids.items():
            assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE, f"{slot} is gone"

    def obeyed(self) -> list[tuple[str, str, str, int, int, str]]:
        """(node, command, slot, generation, epoch, controller) of every command that a node obeyed, by its own log."""
        found = []
        for name, node in self.nodes.items():
            for command, slot, generation, epoch, controller in OBEYS.findall(node.output()):
                found.append((name, command, slot, int(generation), int(epoch), controller))
        return found

    def check_epochs(self) -> None:
        """Of each epoch the nodes obeyed one controller, and epochs never went back on a node."""
        controllers: dict[int, set[str]] = defaultdict(set)
        newest: dict[tuple[str, str], int] = defaultdict(int)
        for node, _, slot, _, epoch, controller in self.obeyed():
            controllers[epoch].add(controller)
            assert epoch >= newest[node, slot], f"{node} obeyed epoch {epoch} after {newest[node, slot]}"
            newest[node, slot] = epoch
        assert controllers, "the journals were found"
        assert all(len(of_epoch) == 1 for of_epoch in controllers.values()), dict(controllers)

    def story(self) -> str:
        parts = [
            f"--- {one.name}\n{one.output.read_text()[-5000:]}"
            for one in self.controllers.values()
            if one.output.exists()
        ]
        parts += [f"--- {name}\n{node.output()[-3000:]}" for name, node in self.nodes.items() if node.process]
        return "\n".join(parts)

    # -- ending ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        for one in self.controllers.values():
            if one.running and one.process is not None:
                one.process.send_signal(signal.SIGCONT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.end()
        super().close()
        for one in self.controllers.values():
            for relay in (one.nodes, *one.etcd):
                relay.close()
        self.etcd.stop()


@contextlib.contextmanager
def made(root: Path) -> Iterator[Ha]:
    """A cluster that is up; at the end nothing of it is left."""
    ha = Ha(root)
    try:
        ha.up()
        yield ha
    finally:
        try:
            ha.close()
        finally:
            left = describe_left(root)
            kill_all(root)
    assert not left, f"left behind: {left}"


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP now, SIGCONT at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def seconds_until(condition: Any, limit: float) -> float:
    """How long until it is true; AssertionError after `limit`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit:
            raise AssertionError(f"not within {limit} s")
        time.sleep(0.01)
    return time.monotonic() - began


def node(ha: Ha, name: str) -> PlacedNode:
    found = ha.nodes[name]
    assert isinstance(found, PlacedNode)
    return found
