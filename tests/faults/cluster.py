"""Real daemons on hosts of their own, and everything a fault needs: who runs where, and ways to hurt it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from demo.namespaces import Network, NodePlace, network
from tests.cluster.deployment import Deployment, PlacedNode, engine_section, free_port
from tests.faults import measured
from tests.nodemanager.places import describe_left, kill_all, marked

INSTANCE = "union-0"
NODE_TIMEOUT = 3.0
CANARY_DEADLINE = 4.0
STOP_GRACE = 3.0
STARTED_AGAIN = 12.0  # at most, from the last end of a gang; less than the manager waits for a shim that does not kill

TIMERS = {
    "heartbeat_interval": 0.5,
    "node_timeout": NODE_TIMEOUT,
    "restart_backoff": 0.2,
    "restart_backoff_max": 0.5,
    "max_restarts": 10_000,  # faults are many here, and none of them is the engine's own
    "refusal_backoff": 1.0,
    "refusal_backoff_max": 2.0,
    "stop_grace": STOP_GRACE,
    "load_idle_limit": 20.0,
}
HEALTH = {
    "canary_interval": 1.0,
    "canary_deadline": CANARY_DEADLINE,
    "sample_interval": 1.0,
    "max_failure_count": 3,
    "health_collector_timeout": 2.0,
    "hang_after_unknown": 10.0,
    "warm_up_deadline": 60.0,
}


@dataclass(frozen=True)
class Before:
    """What was true when a fault began."""

    at: float  # wall clock, as events have it
    pids: dict[str, int]
    generations: tuple[int, ...]
    restarts: tuple[int, ...]
    events: int


@dataclass
class Cluster:
    """A deployment over hosts, and its processes."""

    d: Deployment
    hosts: Network
    started: list[str] = field(default_factory=list)

    # -- starting and ending -----------------------------------------------------------------------------------

    def start(self, count: int, **settings: Any) -> None:
        """The controller and the managers of the first `count` hosts."""
        self.d.start_controller()
        for number in range(1, count + 1):
            self.add(number, **settings)
        for name in self.started:
            self.d.wait(lambda n=name: n in self.d.node_states(), f"{name} to register", 30.0)  # type: ignore[misc]

    def add(self, number: int, prefix: tuple[str, ...] = (), **settings: Any) -> str:
        """A node with a manager. `prefix` stands between the host's own prefix and the command."""
        controllers = [f"{self.hosts.controller_address}:{self.d.grpc_port}"]
        node = self.d.add_node(number, controllers=controllers, insecure=True, **settings)
        assert isinstance(node, PlacedNode)
        node.prefix = (*node.prefix, *prefix)
        node.start()
        name = f"n{number}"
        self.started.append(name)
        return name

    def up(self, count: int, **settings: Any) -> None:
        self.start(count, **settings)
        self.wait_settled(90.0)

    def close(self) -> None:
        for process in marked(self.d.root):
            with contextlib.suppress(psutil.Error):
                process.resume()  # what a failed test left frozen could not end
        self.d.close()

    # -- who is who --------------------------------------------------------------------------------------------

    def node_of(self, slot: str) -> str:
        return str(self.d.members()[slot]["node_id"])

    def place_of(self, node: str) -> NodePlace:
        return self.hosts.nodes[int(node[1:]) - 1]

    def manager(self, node: str) -> int:
        process = self.d.nodes[node].process
        assert process is not None
        return process.pid

    def controller(self) -> int:
        assert self.d.controller is not None
        return self.d.controller.pid

    def engine(self, slot: str) -> int:
        return int(self.d.members()[slot]["pid"])

    def worker(self, slot: str) -> int:
        """The engine's first worker process."""
        children = psutil.Process(self.engine(slot)).children()
        return next(child.pid for child in children if "VLLM::Worker" in " ".join(child.cmdline()))

    def shim(self, slot: str) -> int:
        found = psutil.Process(self.engine(slot)).parent()
        assert found is not None and any(word.endswith("shim.py") for word in found.cmdline())
        return found.pid

    def shim_record(self, slot: str, generation: int, node: str) -> dict[str, Any]:
        """What the shim of a start has written down; {} if nothing."""
        folder = self.d.nodes[node].state_dir / "slots" / slot.replace("/", "_") / str(generation)
        try:
            found: dict[str, Any] = json.loads((folder / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    # -- what is true ------------------------------------------------------------------------------------------

    def groups(self) -> list[dict[str, Any]]:
        return list(self.d.status()["instances"][0]["groups"])

    def before(self) -> Before:
        groups = self.groups()
        events = self.d.events()
        return Before(
            at=time.time(),
            pids={m["slot"]: m["pid"] for group in groups for m in group["members"]},
            generations=tuple(group["generation"] for group in groups),
            restarts=tuple(group["restarts"] for group in groups),
            events=events[-1]["sequence"] if events else 0,
        )

    def events_since(self, before: Before, subject: str = "") -> list[dict[str, Any]]:
        return [event for event in self.d.events(subject) if event["sequence"] > before.events]

    def codes_since(self, before: Before) -> set[str]:
        return {event["code"] for event in self.events_since(before)}

    def settled(self) -> bool:
        """Everything is ready, in sight, and nothing is complained about."""
        status = self.d.status()
        return bool(status["ready"] and not status["problems"]) and all(
            node["state"] in ("assigned", "spare") for node in status["nodes"]
        )

    def wait_settled(self, seconds: float = 60.0) -> None:
        self.d.wait(self.settled, "everything to be ready and in sight", seconds)

    def answers(self, group: int = 0) -> bool:
        """One request to the group's API server, from a host of the deployment."""
        member = self.d.members()[f"{INSTANCE}/{group}/0"]
        url = f"http://{member['address']}:{member['api_port']}/v1/completions"
        return self.ask(url).wait(30) == 0

    def ask(self, url: str, seconds: float = 20.0) -> subprocess.Popen[bytes]:
        """A request under way; its process ends with 0 if it is answered."""
        python = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], b'{}'), timeout=float(sys.argv[2]))"
        host = self.hosts.nodes[-1]
        return subprocess.Popen(
            [*host.command_prefix, "python3", "-c", python, url, str(seconds)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    # -- doing harm --------------------------------------------------------------------------------------------

    def restart_manager(self, node: str) -> None:
        """What systemd does after a manager's death."""
        process = self.d.nodes[node].process
        if process is not None:
            process.wait(10)
        self.d.nodes[node].start()

    def restart_controller(self) -> None:
        if self.d.controller is not None:
            self.d.controller.wait(10)
            self.d.controller = None
        self.d.start_controller()

    @contextlib.contextmanager
    def frozen(self, pid: int) -> Iterator[None]:
        """SIGSTOP now, SIGCONT at the end if it still lives."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def unplugged(self, node: str) -> Iterator[None]:
        """The node's cable is pulled."""
        self.hosts.set_link(self.place_of(node), up=False)
        try:
            yield
        finally:
            self.hosts.set_link(self.place_of(node), up=True)

    def behave(self, node: str, **behaviour: Any) -> None:
        self.d.behave(int(node[1:]), **behaviour)

    # -- what has to come of it --------------------------------------------------------------------------------

    def expect_restart(
        self,
        fault: str,
        before: Before,
        group: int = 0,
        seconds: float = 30.0,
        blamed: str = "",
        words: str = "",
        settle: bool = True,
        told_bound: bool = True,
    ) -> None:
        """The group, and no other, starts once more and is ready; every member was told to stop within 5 s.

        `settle`: no node may be out of sight at the end. `told_bound`: all shims can hear.
        """
        failed = self.d.wait(
            lambda: [e for e in self.events_since(before, f"{INSTANCE}/{group}") if e["code"] == "failed"],
            f"the failure of group {group} to be seen", seconds,
        )[0]  # fmt: skip
        seen = wall(failed) - before.at
        told = self._told_after(before, group, wall(failed)) if told_bound else None
        left = seconds - (time.time() - before.at)
        self.d.wait(lambda: self.groups()[group]["generation"] > before.generations[group], "a next generation", left)
        left = max(5.0, seconds - (time.time() - before.at))
        if settle:
            self.wait_settled(left)
        else:
            self.d.wait(lambda: self.groups()[group]["state"] == "ready", f"group {group} to be ready again", left)
        repaired = time.time() - before.at
        measured.note(fault, seen, told, repaired)
        found = self.groups()[group]
        if blamed:
            assert failed["subject"] == blamed, f"{blamed} was hurt, {failed['subject']} is blamed"
        assert words in failed["sentence"], failed["sentence"]
        assert found["restarts"] == before.restarts[group] + 1, "one fault, one restart"
        self.untouched(before, 1 - group)

    def _told_after(self, before: Before, group: int, failed_at: float) -> float:
        """Seconds from the failure to the last SIGTERM that a shim of the group sent for it; asserts the bound."""
        generation = max(1, before.generations[group])
        pids = {slot: pid for slot, pid in before.pids.items() if slot.startswith(f"{INSTANCE}/{group}/")}
        deadline, told = time.monotonic() + 5.0, 0.0
        waiting = dict(pids)
        while waiting and time.monotonic() < deadline:
            for slot, pid in list(waiting.items()):
                for node in self.d.nodes:
                    stop = self.shim_record(slot, generation, node).get("stop")
                    if stop and stop["mode"] == "failure":
                        told = max(told, stop["at"] - failed_at)
                        del waiting[slot]
                        break
                else:
                    if not runs(pid):
                        del waiting[slot]
            time.sleep(0.02)
        return told if not waiting else float("nan")

    def expect_nothing(self, fault: str, before: Before) -> None:
        """No engine was restarted; everything is ready, in sight and answering."""
        self.wait_settled(30.0)
        measured.note(fault, None, None, None)
        for group in range(len(before.generations)):
            self.untouched(before, group)
            assert self.answers(group)

    def untouched(self, before: Before, group: int) -> None:
        """This group's engines are the same processes as before."""
        if group >= len(before.generations):
            return
        found = self.groups()[group]
        assert found["generation"] == before.generations[group]
        assert {m["slot"]: m["pid"] for m in found["members"]} == {
            slot: pid for slot, pid in before.pids.items() if slot.startswith(f"{INSTANCE}/{group}/")
        }
        assert all(runs(m["pid"]) for m in found["members"])


def wall(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def runs(pid: int) -> bool:
    """A process that is there and not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


Make = Callable[..., Cluster]


@contextlib.contextmanager
def made(
    root: Path,
    hosts: int,
    nnodes: int = 2,
    dp: int = 1,
    timers: dict[str, float] | None = None,
    health: dict[str, Any] | None = None,
) -> Iterator[Cluster]:
    """A cluster of so many hosts on which nothing runs yet; at the end nothing of it is left."""
    with network(hosts, log=lambda _: None, may_fall_back=False) as net:
        section = {**engine_section(nnodes=nnodes, dp=dp), "health_check_config": {**HEALTH, **(health or {})}}
        settings: dict[str, Any] = {
            "insecure": True,
            "grpc": {"host": "0.0.0.0", "port": free_port()},
            "timers": {**TIMERS, **(timers or {})},
        }
        d = Deployment(root, {"motor_engine_union_config": section}, settings, places=net.nodes)
        cluster = Cluster(d, net)
        for number in range(1, hosts + 1):
            (root / f"control-n{number}").mkdir()
        try:
            yield cluster
        finally:
            try:
                cluster.close()
            finally:
                left = describe_left(root)
                kill_all(root)
    assert not left, f"left behind: {left}"
    assert str(root) not in Path("/proc/self/mounts").read_text(), "a mount is left behind"
