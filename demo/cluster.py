"""One controller and its node managers as processes: started, watched, and ended in order."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demo.cache import Log
from demo.namespaces import Network
from demo.run_folder import RunFolder
from demo.settings import Settings

MANAGER_SECONDS = 10.0  # from SIGTERM to SIGKILL of a daemon
ENGINE_SECONDS = 60.0  # for `stop --engines`; after that everything is killed
HURRIED_GRACE = 5.0  # seconds an engine gets when the run was interrupted

_PR_SET_PDEATHSIG = 1


class DemoFailed(Exception):
    """The demonstration did not do what it is for; the text says what happened."""


@dataclass
class Daemon:
    """A running daemon and the file with what it printed."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    def last_lines(self, count: int = 15) -> list[str]:
        with contextlib.suppress(OSError):
            return self.output.read_text(errors="replace").splitlines()[-count:]
        return []


@dataclass
class Cluster:
    """The daemons of one run. Call `stop` in a `finally`, whatever happened before."""

    folder: RunFolder
    network: Network
    settings: Settings
    controller: Daemon | None = None
    managers: list[Daemon] = field(default_factory=list)

    def start(self) -> None:
        """Start the controller; does not wait for it."""
        self.controller = self._start("controller", "controller.main", "--config", str(self.settings.deploy))

    def start_next_manager(self, registered: set[str]) -> None:
        """Start one node's manager, if there is one left and those before it are among the `registered`.

        One after the other, because the order of registration decides the ranks: node-1 becomes the master.
        """
        number = len(self.managers)
        if number < len(self.network.nodes) and all(manager.name in registered for manager in self.managers):
            node = self.network.nodes[number]
            file = str(self.settings.nodes[node.name])
            prefix = self._prefix(node.command_prefix)
            self.managers.append(self._start(node.name, "nodemanager.main", "--config", file, prefix=prefix))

    def check(self) -> None:
        """DemoFailed if a daemon has ended."""
        for daemon in [self.controller, *self.managers]:
            if daemon is not None and (code := daemon.process.poll()) is not None:
                lines = "\n".join(f"  | {line}" for line in daemon.last_lines())
                raise DemoFailed(f"{daemon.name} ended by itself with code {code}; its last lines:\n{lines}")

    def stop(self, log: Log, hurry: bool) -> None:
        """End managers, engines and controller. Takes about 15 s, with `hurry` about 6; never raises."""
        if self.controller is None:
            return
        try:
            # Managers first: they let go of their engines, and a manager that runs reports failures to a
            # controller that starts the engines again.
            log("ending the node managers; engines go on under their shims")
            _end(self.managers)
            log("stopping the engines" + ("" if hurry else " (a headless rank takes 13 s to end)"))
            self._stop_engines(log, hurry)
            log("ending the controller")
            _end([self.controller])
        except OSError as error:
            log(f"not everything ended in order ({error}); what is left is killed")

    def _stop_engines(self, log: Log, hurry: bool) -> None:
        grace = ["--grace", str(HURRIED_GRACE)] if hurry else []
        stops = [
            self._start(
                f"stop-{node.name}", "nodemanager.main", "stop", "--engines", *grace,
                "--config", str(self.settings.nodes[node.name]), prefix=node.command_prefix,
            )
            for node in self.network.nodes
        ]  # fmt: skip
        deadline = time.monotonic() + ENGINE_SECONDS
        for stop in stops:
            try:
                code = stop.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                stop.process.kill()
                code = stop.process.wait()
            if code != 0:
                log(f"{stop.name} did not end its engine in order, what is left is killed: {stop.last_lines(3)}")

    def _prefix(self, prefix: Sequence[str]) -> Sequence[str]:
        if not prefix:
            return ()
        # Each node gets a /dev/shm of its own, as machines have; it goes with the node's last process. `ip netns
        # exec` has given the process its own view of the file system, so nothing else sees the mount.
        return (*prefix, "sh", "-c", 'mount -t tmpfs -o mode=1777 shm /dev/shm && exec "$@"', "sh")

    def _start(self, name: str, module: str, *arguments: str, prefix: Sequence[str] = ()) -> Daemon:
        output = self.folder.logs / f"{name}.log"
        with output.open("ab") as file:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *arguments],
                cwd=self.folder.root,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends the others in order
                preexec_fn=_end_with(os.getpid()),
            )
        return Daemon(name, process, output)


def _end(daemons: Sequence[Daemon]) -> None:
    """SIGTERM to all at once, SIGKILL to those that take too long; all are reaped afterwards."""
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + MANAGER_SECONDS
    for daemon in daemons:
        try:
            daemon.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            daemon.process.kill()
            daemon.process.wait()


def _end_with(parent: int) -> Callable[[], None]:
    """Run in the child: have the kernel send SIGTERM when this process is killed, so that engines are not
    looked after for ever by managers that nobody knows of.
    """
    libc = ctypes.CDLL(None)

    def set_parent_death_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return set_parent_death_signal
