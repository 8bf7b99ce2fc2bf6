"""Several machines on one: network namespaces with an address each, joined by a switch.

    this machine              motor-demo-PID-sK (the switch)             motor-demo-PID-I (one node)
    10.x.y.1 on motPID-K ---- uplink -+- bridge -+- node-1 ------------- eth0, 10.x.y.11
                                                 +- node-2 ------------- eth0 of the next one, 10.x.y.12

The bridge has a namespace of its own because bridged packets pass the firewall of the namespace they are in,
and Docker's drops them. Deleting the namespaces deletes everything else with them.

PID is the process that made them. It holds an abstract socket of that name, which ends with it however it
ends: what carries the PID of a process without that socket is a left-over, and the next maker deletes it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from demo.cache import Log, print_progress
from demo.enter import inside
from demo.stopping import check_stop
from demo.subnet import PREFIX_LENGTH, free_subnet, used_networks

NETNS_FOLDER = Path("/run/netns")
INTERFACE = "eth0"
FIRST_HOST = 11  # last part of the first node's address
MOST_NODES = 200
COMMAND_SECONDS = 20.0
KILL_SECONDS = 10.0
CONNECT_SECONDS = 3.0

_NAMESPACE = re.compile(r"motor-demo-(\d+)-s?\d+\Z")
_UPLINK = re.compile(r"mot(\d+)-\d+\Z")  # an interface's name has at most 15 characters
_numbers = itertools.count(1)
_owner: socket.socket | None = None


class CleanUpFailed(Exception):
    """Something of a network could not be deleted; the text names it."""


class NoNamespaces(Exception):
    """Namespaces cannot be made or do not work here; the text says why."""


@dataclass(frozen=True)
class NodePlace:
    """Where one node lives. Programs of the node are started with `command_prefix` before them.

    `link` is the switch's end of its cable, an interface in the namespace `Network.switch`: what tc does there
    (`tc -n SWITCH qdisc ... dev LINK`) happens to all that this node receives.
    """

    name: str
    address: str
    interface: str
    command_prefix: tuple[str, ...] = ()
    namespace: str = ""
    link: str = ""


@dataclass(frozen=True)
class Network:
    """Nodes that reach each other and this machine. On loopback there are no cables to pull."""

    kind: Literal["namespaces", "loopback"]
    controller_address: str
    nodes: tuple[NodePlace, ...]
    switch: str = ""

    @property
    def allow_loopback(self) -> bool:
        """Whether nodes have to be told that loopback addresses are fine."""
        return self.kind == "loopback"

    def set_link(self, node: NodePlace, up: bool) -> None:
        """Pull a node's cable or put it back. NoNamespaces on loopback."""
        _run(_ip(), "-n", self.switch, "link", "set", node.link, "up" if up else "down")


@contextlib.contextmanager
def network(
    count: int, log: Log = print_progress, loopback: bool = False, may_fall_back: bool = True
) -> Iterator[Network]:
    """`count` nodes, gone at the end together with every process in them.

    Where namespaces are not allowed, or with `loopback`, the nodes are addresses of this machine's loopback;
    `log` is told why. Raises NoNamespaces if not `may_fall_back`, and StopRequested when asked to stop.
    """
    if not 0 < count <= MOST_NODES:
        raise ValueError(f"expected 1 to {MOST_NODES} nodes, got {count}")
    with contextlib.ExitStack() as stack:
        made = None
        if not loopback:
            try:
                made = stack.enter_context(_namespaces(count, log))
            except NoNamespaces as error:
                if not may_fall_back:
                    raise
                log(f"no network namespaces here ({error}); the nodes get loopback addresses instead")
        yield made or _loopback(count)


def _loopback(count: int) -> Network:
    # The kernel answers on all of 127/8; the middle of the address keeps two runs apart.
    second, third = 64 + (os.getpid() >> 8) % 64, os.getpid() % 256
    nodes = [NodePlace(f"node-{i + 1}", f"127.{second}.{third}.{FIRST_HOST + i}", "lo") for i in range(count)]
    return Network("loopback", f"127.{second}.{third}.1", tuple(nodes))


@contextlib.contextmanager
def _namespaces(count: int, log: Log) -> Iterator[Network]:
    if sys.platform != "linux":
        raise NoNamespaces("only Linux has them")
    if os.geteuid() != 0:
        raise NoNamespaces("only root may make them")
    _claim()
    pid, number = os.getpid(), next(_numbers)
    switch, uplink = f"motor-demo-{pid}-s{number}", f"mot{pid}-{number}"
    names = [f"motor-demo-{pid}-{next(_numbers)}" for _ in range(count)]
    try:
        with _only_maker():
            remove_left_overs(log)
            subnet = _build(switch, uplink, names)
        made = _described(subnet, switch, names)
        _check(made)
        yield made
    finally:
        _remove([*names, switch], [uplink])


def _claim() -> None:
    """Mark this process as one that may own namespaces."""
    global _owner
    if _owner is None:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.bind(_owner_name(os.getpid()))
        except OSError as error:
            held.close()
            raise NoNamespaces(f"another container's process {os.getpid()} runs a demo on this network") from error
        _owner = held


def _owner_name(pid: int) -> str:
    return f"\0motor-demo-{pid}"


def _owner_lives(pid: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(_owner_name(pid))
        except OSError:
            return True
        return False


@contextlib.contextmanager
def _only_maker() -> Iterator[None]:
    """One at a time looks for a free subnet and takes it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mutex:
        while True:
            try:
                mutex.bind("\0motor-demo-maker")
                break
            except OSError:
                check_stop()
                time.sleep(0.05)
        yield


def _build(switch: str, uplink: str, names: list[str]) -> IPv4Network:
    """Make the switch, then the nodes; returns the subnet they are in."""
    ip = _ip()
    try:
        subnet = free_subnet(used_networks(ip), os.getpid())
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        raise NoNamespaces(str(error)) from error
    _add_namespace(switch)
    _run(ip, "-n", switch, "link", "add", "bridge", "type", "bridge")
    _run(ip, "-n", switch, "link", "set", "bridge", "up")
    _run(ip, "link", "add", uplink, "type", "veth", "peer", "name", "uplink", "netns", switch)
    _run(ip, "-n", switch, "link", "set", "uplink", "master", "bridge", "up")
    _run(ip, "address", "add", f"{subnet[1]}/{PREFIX_LENGTH}", "dev", uplink)
    _run(ip, "link", "set", uplink, "up")
    for index, name in enumerate(names):
        check_stop()
        link = f"node-{index + 1}"
        _add_namespace(name)
        _run(ip, "-n", switch, "link", "add", link, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _run(ip, "-n", switch, "link", "set", link, "master", "bridge", "up")
        _run(ip, "-n", name, "address", "add", f"{subnet[FIRST_HOST + index]}/{PREFIX_LENGTH}", "dev", INTERFACE)
        _run(ip, "-n", name, "link", "set", INTERFACE, "up")
    return subnet


def _add_namespace(name: str) -> None:
    _run(_ip(), "netns", "add", name)
    _run(_ip(), "-n", name, "link", "set", "lo", "up")


def _described(subnet: IPv4Network, switch: str, names: list[str]) -> Network:
    prefix = (_ip(), "netns", "exec")
    nodes = []
    for index, name in enumerate(names):
        address, link = str(subnet[FIRST_HOST + index]), f"node-{index + 1}"
        nodes.append(NodePlace(link, address, INTERFACE, (*prefix, name), namespace=name, link=link))
    return Network("namespaces", str(subnet[1]), tuple(nodes), switch)


def _check(made: Network) -> None:
    """Start a program and connect the way the daemons and engines will. NoNamespaces where that fails."""
    _run(*made.nodes[0].command_prefix, "true")
    host = "", made.controller_address
    places = [(node.namespace, node.address) for node in made.nodes]
    for source, target in [*((place, host) for place in places), (host, places[0]), (places[-1], places[0])]:
        with _socket(source[0]) as client, _socket(target[0]) as server:
            try:
                server.bind((target[1], 0))
                server.listen(1)
                client.settimeout(CONNECT_SECONDS)
                client.connect(server.getsockname())
            except OSError as error:
                raise NoNamespaces(
                    f"{source[1]} cannot connect to {target[1]}: {error}; does a firewall drop it?"
                ) from error


def _socket(namespace: str) -> socket.socket:
    """A TCP socket of a namespace; "" is this process's own."""
    return inside(NETNS_FOLDER / namespace, socket.socket) if namespace else socket.socket()


def remove_left_overs(log: Log = print_progress) -> None:
    """Delete what killed processes left: namespaces, the processes in them, interfaces."""
    folder = NETNS_FOLDER.iterdir() if NETNS_FOLDER.is_dir() else ()
    namespaces = sorted(path.name for path in folder if _is_left_over(_NAMESPACE, path.name))
    links = sorted(name for _, name in socket.if_nameindex() if _is_left_over(_UPLINK, name))
    if namespaces or links:
        log(f"deleting what an earlier run left behind: {' '.join([*namespaces, *links])}")
        _remove(namespaces, links)


def _is_left_over(pattern: re.Pattern[str], name: str) -> bool:
    match = pattern.match(name)
    return match is not None and not _owner_lives(int(match[1]))


def _remove(namespaces: list[str], links: list[str]) -> None:
    """Delete these as far as they exist, in any state; one that cannot be deleted keeps none of the others."""
    failures = []
    existing = [name for name in namespaces if (NETNS_FOLDER / name).exists()]
    if left := _end_processes(existing):
        failures.append(f"processes {left} do not die")
    for link in links:
        # Deleted with its namespace too, but only some time after that.
        if any(name == link for _, name in socket.if_nameindex()):
            with contextlib.suppress(NoNamespaces):
                _run(_ip(), "link", "delete", link)
    for name in existing:
        path = NETNS_FOLDER / name
        try:
            _run(_ip(), "netns", "delete", name)
        except NoNamespaces as error:
            # Killed between making the file and mounting the namespace on it, `ip` leaves an empty file.
            with contextlib.suppress(OSError):
                path.unlink()
            if path.exists():
                failures.append(str(error))
    if failures:
        raise CleanUpFailed(f"not everything could be deleted: {'; '.join(failures)}")


def _end_processes(namespaces: list[str]) -> list[int]:
    """SIGKILL what is in the namespaces until nothing is; the pids that are left after KILL_SECONDS."""
    deadline = time.monotonic() + KILL_SECONDS
    while left := processes_in(namespaces):
        if time.monotonic() > deadline:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return left


def processes_in(namespaces: list[str]) -> list[int]:
    """Pids of the processes in these namespaces; of ended but unreaped ones none."""
    wanted = {_identity(NETNS_FOLDER / name) for name in namespaces} - {None}
    if not wanted:
        return []
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and _identity(Path(f"/proc/{pid}/ns/net")) in wanted]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _ip() -> str:
    path = shutil.which("ip", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        raise NoNamespaces("the program `ip` is missing; Debian's package iproute2 has it")
    return path


def _run(*command: str) -> None:
    """One call of ip. Its own session, so that Ctrl-C does not cut it short."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, start_new_session=True, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NoNamespaces(f"`{' '.join(command)}`: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NoNamespaces(f"`{' '.join(command)}`: {said}")
