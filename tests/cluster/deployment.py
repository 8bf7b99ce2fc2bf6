"""A real controller and real node managers as processes, with the scripted engine in vLLM's place."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from demo.namespaces import NodePlace
from tests.nodemanager.places import Node

# Below the kernel's ephemeral range, so that no outgoing connection takes them; each test process has its own part.
_next_port = itertools.count(20_000 + (os.getpid() * 97) % 11_000)


def free_port(size: int = 1) -> int:
    """The first of `size` ports that nothing listens on now."""
    while True:
        ports = [next(_next_port) for _ in range(size)]
        if all(_is_free(port) for port in ports):
            return ports[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def engine_section(nnodes: int = 2, dp: int = 1, **more: Any) -> dict[str, Any]:
    config = {
        "model": "tiny",
        "tensor_parallel_size": nnodes,
        "data_parallel_size": dp,
        "nnodes": nnodes,
        "master-port": free_port(64),
        "port": free_port(64),
    }
    return {"engine_type": "vllm", "engine_profile": "vllm@0.32", "engine_config": {**config, **more}}


@dataclass
class PlacedNode(Node):
    """A node whose manager runs behind a command prefix, such as `ip netns exec NAME`."""

    prefix: tuple[str, ...] = ()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.root / "manager.out").open("ab") as output:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "nodemanager.main", "--config", str(self.file), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process


@dataclass
class Deployment:
    """One controller and its nodes on loopback addresses 127.0.1.1, .2, ... Everything lies below `root`."""

    root: Path
    sections: dict[str, Any]
    controller_settings: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    controller: subprocess.Popen[bytes] | None = None
    places: tuple[NodePlace, ...] = ()  # namespaces; empty: loopback addresses

    def __post_init__(self) -> None:
        self.rest_port, self.grpc_port = free_port(), free_port()
        self.file = self.root / "deploy.json"
        settings: dict[str, Any] = {
            "allow_loopback": True,
            "rest": {"port": self.rest_port},
            "grpc": {"port": self.grpc_port},
            "store": {"kind": "sqlite", "path": str(self.root / "controller.sqlite3")},
            "timers": {"heartbeat_interval": 0.5, "node_timeout": 3.0, "restart_backoff": 0.3, "stop_grace": 5.0},
        }
        self.grpc_port = self.controller_settings.get("grpc", {}).get("port", self.grpc_port)
        settings["timers"] |= self.controller_settings.pop("timers", {})
        sections = {"motor_controller_config": {**settings, **self.controller_settings}, **self.sections}
        self.file.write_text(json.dumps(sections, indent=1))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    def start_process(self) -> None:
        """As `start_controller`, without waiting for an answer: nobody may be able to have one."""
        with (self.root / "controller.out").open("ab") as output:
            self.controller = subprocess.Popen(
                [sys.executable, "-m", "controller.main", "--config", str(self.file)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_controller(self) -> None:
        self.start_process()
        self.wait(lambda: self.get("/healthz") is not None, "the controller to answer", 20.0)

    def end_controller(self, number: int = signal.SIGTERM) -> int:
        assert self.controller is not None
        self.controller.send_signal(number)
        code = self.controller.wait(10)
        self.controller = None
        return code

    def add_node(self, number: int, **settings: Any) -> Node:
        """A node whose manager is not started yet."""
        behaviour = {"control": str(self.root / f"control-n{number}")}
        place = self.places[number - 1] if self.places else None
        address = place.address if place else f"127.0.1.{number}"
        node = PlacedNode(
            self.root / f"n{number}",
            self.grpc_port,
            {"address": address, "devices": {"kind": "cpu", "count": 1}, **settings},
            behaviour,
        )
        if place is not None:
            node.prefix = place.command_prefix
        (self.root / f"control-n{number}").mkdir(exist_ok=True)
        self.nodes[f"n{number}"] = node
        return node

    def start_nodes(self, count: int) -> None:
        """Start nodes one by one, so that the registration order is their number."""
        for number in range(1, count + 1):
            self.add_node(number).start()
            self.wait(lambda n=number: f"n{n}" in self.node_states(), f"n{number} to register", 20.0)  # type: ignore[misc]

    def behave(self, number: int, **behaviour: Any) -> None:
        """Tell the next engine start on node `number` how to behave."""
        (self.root / f"control-n{number}" / "all.json").write_text(json.dumps(behaviour))

    # -- looking -----------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """JSON or text of a GET; None while there is no answer."""
        try:
            answer = httpx.get(self.url + path, timeout=10.0, trust_env=False)
        except httpx.HTTPError:
            return None
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    def status(self) -> dict[str, Any]:
        answer = self.get("/v1/status")
        assert isinstance(answer, dict), "the controller does not answer"
        return answer

    def node_states(self) -> dict[str, str]:
        return {node["node_id"]: node["state"] for node in (self.get("/v1/nodes") or [])}

    def members(self) -> dict[str, dict[str, Any]]:
        return {
            member["slot"]: member
            for instance in self.status()["instances"]
            for group in instance["groups"]
            for member in group["members"]
        }

    def group(self, index: int = 0, instance: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["instances"][instance]["groups"][index]
        return found

    def events(self, subject: str = "") -> list[dict[str, Any]]:
        answer = self.get(f"/v1/events?limit=1000&subject={subject}")
        return list(answer["events"])

    def argv(self, slot: str) -> list[str]:
        """The command line of a slot's engine as /proc shows it."""
        member = self.members()[slot]
        return Path(f"/proc/{member['pid']}/cmdline").read_bytes().decode().split("\0")[:-1]

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
        """Wait until `condition` is true; the failure shows the status."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if found := condition():
                    return found
            except (AssertionError, KeyError, IndexError, TypeError):
                pass
            if self.controller is not None and self.controller.poll() is not None:
                raise AssertionError(f"the controller ended with {self.controller.returncode}\n{self.story()}")
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds} s for {what}\n{self.story()}")

    def wait_ready(self, seconds: float = 40.0) -> None:
        self.wait(lambda: self.status()["ready"], "every instance to be ready", seconds)

    def story(self) -> str:
        parts = [(self.root / "controller.out").read_text()[-6000:]]
        parts += [f"--- {name}\n{node.output()[-3000:]}" for name, node in self.nodes.items() if node.process]
        return "\n".join(parts)

    # -- ending ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End everything; engines through their shims."""
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGTERM)
        for node in self.nodes.values():
            if node.process is not None:
                node.process.wait(10)
        stops = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "nodemanager.main",
                    "--config",
                    str(node.file),
                    "stop",
                    "--engines",
                    "--grace",
                    "3",
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for node in self.nodes.values()
        ]
        for stop in stops:
            stop.wait(30)
        if self.controller is not None and self.controller.poll() is None:
            os.kill(self.controller.pid, signal.SIGTERM)
            self.controller.wait(10)
