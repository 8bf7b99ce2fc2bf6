"""The parent of an engine: starts it, reaps every descendant, records the end, and ends the tree when told.

Run as `python -I shim.py GENERATION_FOLDER`. The folder holds `start.json`:

    argv, env, cwd     what is executed, completely (nothing is inherited)
    log_file           gets the engine's stdout and stderr, appended
    orphan_grace       seconds without a renewed lease until the engine is stopped; null = never
    self_fence         over 0: that grace is so short because an engine that no controller reaches has to end
    stop_grace, drain_seconds   their sum: seconds from SIGTERM to SIGKILL when the shim itself stops the engine
    boot_id            copied into the status

The shim writes `status.json` (what it knows, replaced atomically), `shim.log`, and listens on `shim.sock`
for managers. Lines of JSON on the socket: {"op": "renew", "orphan_grace": 600.0, "why": "orphan_grace"},
{"op": "status"}, {"op": "stop", "grace": 20.0, "mode": "planned"|"failure", "by": "...", "reason": "..."}. It answers
and pushes the status with an `event`: status, stopping, exit (main process ended), reaped (no descendant is left, and
that is on disk).

The launching process stays until the engine was started: exit code 0, or 1 with the reason on stderr.

It survives its manager: own session, no shared pipes. Only the standard library and no threads, and every
import at the top, because the package may be upgraded while a shim runs.
"""

# Plain os calls, because pathlib would cost every shim memory and start-up time.
# ruff: noqa: PTH104, PTH108, PTH120, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from typing import Any

START_FILE = "start.json"
STATUS_FILE = "status.json"
SOCKET_FILE = "shim.sock"
LOG_FILE = "shim.log"

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

SWEEP_SECONDS = (0.01, 0.5)  # between two passes over /proc while killing: first, longest
FROZEN_SECONDS = 10.0  # a wake-up this late means the shim itself was stopped or the machine suspended
LONGEST_WAIT_SECONDS = 3600.0
OPEN_FILES = 65536  # more makes programs slow that close every descriptor there could be
SELF_FENCE = "self_fence"


def log(text: str) -> None:
    """One line into shim.log; a full disk must not end the shim."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
    with contextlib.suppress(OSError):
        os.write(2, f"{stamp} {text}\n".encode())


def prctl(option: int, value: int) -> bool:
    """Linux prctl(2); False where it is refused or absent."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def write_json(path: str, value: Any) -> None:
    """Replace `path` so that a reader, or a crash at any moment, finds the old or the new content. OSError if
    full.
    """
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        data = json.dumps(value, indent=1).encode()
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def process_stat(pid: int) -> tuple[int, int, str] | None:
    """(parent pid, start time in clock ticks since boot, state letter) from /proc; None if there is no such
    process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19]), fields[0].decode()
    except (OSError, IndexError, ValueError):
        return None


def descendants(root: int) -> list[tuple[int, int]]:
    """(pid, start time) of every process below `root`, zombies left out."""
    children: dict[int, list[tuple[int, int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = process_stat(int(name))
            if stat is not None:
                children.setdefault(stat[0], []).append((int(name), stat[1], stat[2]))
    found: list[tuple[int, int]] = []
    waiting = [root]
    while waiting:
        for pid, started, state in children.get(waiting.pop(), []):
            waiting.append(pid)
            if state not in "ZX":
                found.append((pid, started))
    return found


def send_signal(pid: int, started: int, number: int) -> None:
    """Signal exactly this process: a pid that was reused between the scan and the signal is left alone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # kernel older than 5.3
        with contextlib.suppress(OSError):
            os.kill(pid, number)
        return
    try:
        stat = process_stat(pid)
        if stat is not None and stat[1] == started:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def raise_limits() -> None:
    """Soft limits up to the hard ones: a service or a shell has 1,024 open files and 8 MiB of locked memory, an engine
    with many connections or with memory pinned for its devices needs more.
    """
    for kind, bound in ((resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY)):
        soft, hard = resource.getrlimit(kind)
        target = min(bound, hard) if resource.RLIM_INFINITY not in (bound, hard) else max(bound, hard)
        if soft != resource.RLIM_INFINITY and (target == resource.RLIM_INFINITY or soft < target):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (target, hard))


class StartError(Exception):
    """The engine's program could not be executed."""


def start_engine(spec: dict[str, Any], log_descriptor: int) -> int:
    """Fork and execute the engine in a session of its own; its pid. StartError if it could not be executed.

    A plain fork is safe here because this process has no threads.
    """
    argv, env = spec["argv"], spec["env"]
    failure_read, failure_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        step = "prepare the process"
        try:
            signal.set_wakeup_fd(-1)
            # Handlers fall back to the default at exec, ignored signals would stay ignored: those that Python
            # ignores, and those that were ignored in the shell or by nohup where the manager was started.
            for number in signal.valid_signals():
                if signal.getsignal(number) is signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            os.setsid()
            # If the shim is killed while no manager runs, the engine at least gets an orderly SIGTERM.
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(127)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log_descriptor, 1)
            os.dup2(log_descriptor, 2)
            os.umask(spec.get("umask", 0o022))
            raise_limits()
            step = f"change to the folder {spec['cwd']}"
            os.chdir(spec["cwd"])
            step = f"execute {argv[0]}"
            os.execvpe(argv[0], argv, env)
        except BaseException as error:
            os.write(failure_write, f"cannot {step}: {error}".encode())
        finally:
            os._exit(127)
    os.close(failure_write)
    with os.fdopen(failure_read, "rb") as pipe:
        failure = pipe.read().decode(errors="replace")
    if failure:
        os.waitpid(pid, 0)
        raise StartError(failure)
    return pid


class Shim:
    """One engine and the managers connected to this shim.

    `status` is what goes to disk and over the socket. Its `state` walks running -> stopping -> exited ->
    reaped (stopping only when somebody asked).
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.clients: dict[socket.socket, bytes] = {}
        self.selector = selectors.DefaultSelector()
        self.lease_grace: float | None = spec.get("orphan_grace")
        self.lease_why = SELF_FENCE if spec.get("self_fence") else "orphan_grace"
        self.renewed_at = time.monotonic()
        self.half_alarmed = False
        self.kill_at: float | None = None
        self.next_sweep: float | None = None
        self.sweep_seconds = SWEEP_SECONDS[0]
        self.main_ended = False
        self.childless = False
        self.unsaved = False
        self.sigterm = False
        own = process_stat(os.getpid())
        self.status: dict[str, Any] = {
            "state": "starting",
            "shim_pid": os.getpid(),
            "shim_start": own[1] if own else 0,
            "boot_id": spec.get("boot_id", ""),
            "engine_pid": 0,
            "engine_start": 0,
            "started_at": time.time(),
            "exit_code": None,
            "exit_signal": None,
            "start_error": None,
            "ended_at": None,
            "stop": None,
            "killed": False,
            "left": [],
        }

    # --- set-up

    def listen(self) -> None:
        """Bind the socket. The working folder is the generation folder and the name relative, because a
        socket's path is limited to 108 bytes and a state folder may be longer than that.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET_FILE)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(SOCKET_FILE)
        self.listener.listen(8)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        self.wake = wake_read
        self.selector.register(wake_read, selectors.EVENT_READ)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Caught, not ignored: an ignored signal would be inherited by the engine over exec.
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, self.note_sigterm)

    def note_sigterm(self, *_: Any) -> None:
        """Only a note: the handler runs between any two instructions of the loop, which then acts on it."""
        self.sigterm = True

    def start(self) -> None:
        """Start the engine, or record why that was not possible."""
        log_descriptor = os.open(self.spec["log_file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        write_json(STATUS_FILE, self.status)  # fails here, before the fork, if the disk is full
        try:
            pid = start_engine(self.spec, log_descriptor)
        except StartError as error:
            self.main_ended = True
            self.status.update(state="exited", start_error=str(error), ended_at=time.time())
        else:
            stat = process_stat(pid)
            self.status.update(state="running", engine_pid=pid, engine_start=stat[1] if stat else 0)
        finally:
            os.close(log_descriptor)
        self.save()

    # --- what changes the state

    def stop(self, grace: float, mode: str, by: str, reason: str) -> None:
        """SIGTERM to the main process now, SIGKILL to the tree after `grace` seconds; a later call may
        shorten it.
        """
        deadline = time.monotonic() + max(0.0, grace)
        first = self.kill_at is None
        self.kill_at = deadline if self.kill_at is None else min(self.kill_at, deadline)
        if self.main_ended:
            return
        if first:
            log(f"stop asked by {by} ({mode}: {reason}), SIGKILL after {grace:g} s")
            self.status.update(state="stopping", stop={"mode": mode, "by": by, "reason": reason, "at": time.time()})
            send_signal(self.status["engine_pid"], self.status["engine_start"], signal.SIGTERM)
            self.push("stopping")
            self.save()

    def own_grace(self) -> float:
        """Time for requests to finish, and for the processes to end after that."""
        return float(self.spec.get("drain_seconds", 0.0) + self.spec["stop_grace"])

    def reap(self) -> None:
        """Collect every ended child. As subreaper, no child left means no descendant left."""
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                self.childless = False
                return
            if pid == self.status["engine_pid"] and not self.main_ended:
                self.main_process_ended(raw)

    def main_process_ended(self, raw: int) -> None:
        """Tell the managers first: an fsync on a busy disk takes longer than they may wait."""
        self.main_ended = True
        if os.WIFSIGNALED(raw):
            self.status["exit_signal"] = os.WTERMSIG(raw)
        else:
            self.status["exit_code"] = os.WEXITSTATUS(raw)
        self.status.update(state="exited", ended_at=time.time())
        self.push("exit")
        log(f"engine ended: exit code {self.status['exit_code']}, signal {self.status['exit_signal']}")
        self.save()
        self.next_sweep = time.monotonic()

    def sweep(self, now: float) -> None:
        """SIGKILL everything below this process; called again until nothing is left, because processes may
        fork while they are being killed.
        """
        left = descendants(os.getpid())
        if left and not self.status["killed"]:
            self.status["killed"] = True
            log(f"SIGKILL to {len(left)} process(es): {' '.join(str(pid) for pid, _ in left[:20])}")
        for pid, started in left:
            send_signal(pid, started, signal.SIGKILL)
        self.status["left"] = [pid for pid, _ in left[:100]]
        self.sweep_seconds = min(self.sweep_seconds * 2, SWEEP_SECONDS[1])
        self.next_sweep = now + self.sweep_seconds

    def tick(self) -> bool:
        """Act on what is due; True when everything is over and recorded."""
        self.reap()
        if self.main_ended and self.childless:
            if self.status["state"] != "reaped":
                self.status.update(state="reaped", left=[])
                self.save()
                if not self.unsaved:
                    self.push("reaped")
            elif self.unsaved:
                self.save()
                if not self.unsaved:
                    self.push("reaped")
            return not self.unsaved
        now = time.monotonic()
        if self.unsaved:
            self.save()
        if self.sigterm:
            self.sigterm = False
            self.stop(self.own_grace(), "planned", "shim", "the shim got SIGTERM")
        self.check_lease(now)
        if self.kill_at is not None and now >= self.kill_at and self.next_sweep is None:
            log("the grace is over")
            self.next_sweep = now
        if self.next_sweep is not None and now >= self.next_sweep:
            self.sweep(now)
        return False

    def check_lease(self, now: float) -> None:
        if self.lease_grace is None or self.kill_at is not None:
            return
        silent = now - self.renewed_at
        if silent >= self.lease_grace:
            log(f"ALARM: no manager renewed the lease for {silent:.0f} s: stopping the engine")
            reason = f"{self.unheard()} for {silent:.0f} s ({self.lease_why})"
            if self.lease_why == SELF_FENCE:  # the controller counts on it: no time for requests to finish
                self.stop(float(self.spec["stop_grace"]), "failure", "shim", reason)
            else:
                self.stop(self.own_grace(), "planned", "shim", reason)
        elif silent >= self.lease_grace / 2 and not self.half_alarmed:
            self.half_alarmed = True
            log(
                f"ALARM: no manager renewed the lease for {silent:.0f} s; "
                f"the engine will be stopped after {self.lease_grace:g} s ({self.lease_why})"
            )

    def unheard(self) -> str:
        return "no manager that hears a controller" if self.lease_why == SELF_FENCE else "no manager"

    def renew(self) -> None:
        self.renewed_at = time.monotonic()
        self.half_alarmed = False

    def save(self) -> None:
        """Write the status file; when the disk is full, stay alive and try again each second."""
        try:
            write_json(STATUS_FILE, self.status)
            self.unsaved = False
        except OSError as error:
            if not self.unsaved:
                log(f"cannot write {STATUS_FILE}: {error}; trying again")
            self.unsaved = True

    # --- managers

    def push(self, event: str, only: socket.socket | None = None) -> None:
        """Send the status to all managers. One that does not read loses its connection, not our time."""
        line = json.dumps({"event": event, **self.status}).encode() + b"\n"
        for client in [only] if only is not None else list(self.clients):
            try:
                if client.send(line) != len(line):
                    raise BlockingIOError
            except OSError:
                self.drop(client)

    def drop(self, client: socket.socket) -> None:
        if self.clients.pop(client, None) is not None:
            self.selector.unregister(client)
            client.close()

    def accept(self) -> None:
        try:
            client, _ = self.listener.accept()
        except OSError:
            return
        client.setblocking(False)
        self.clients[client] = b""
        self.selector.register(client, selectors.EVENT_READ)
        self.push("status", client)

    def receive(self, client: socket.socket) -> None:
        try:
            data = client.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(client)
            return
        *lines, rest = (self.clients[client] + data).split(b"\n")
        self.clients[client] = rest
        for line in lines:
            try:
                self.command(client, json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log(f"not understood: {line[:200]!r}: {error!r}")

    def command(self, client: socket.socket, message: dict[str, Any]) -> None:
        op = message["op"]
        if op == "renew":
            if "orphan_grace" in message:  # the manager's setting may have changed since the start
                grace = message["orphan_grace"]
                self.lease_grace = None if grace is None else float(grace)
                self.lease_why = str(message.get("why", "orphan_grace"))
            self.renew()
        elif op == "status":
            self.push("status", client)
        elif op == "stop":
            self.stop(
                float(message.get("grace", self.spec["stop_grace"])),
                str(message.get("mode", "planned")),
                str(message.get("by", "manager")),
                str(message.get("reason", "")),
            )
        else:
            log(f"unknown op {op!r}: expected renew, status or stop")

    # --- the loop

    def wait_seconds(self) -> float:
        """Until the next thing that is due; everything else wakes the selector."""
        now = time.monotonic()
        due = [now + LONGEST_WAIT_SECONDS]
        if self.next_sweep is not None:
            due.append(self.next_sweep)
        elif self.kill_at is not None and not self.main_ended:
            due.append(self.kill_at)
        if self.unsaved:
            due.append(now + 1.0)
        if self.lease_grace is not None and self.kill_at is None and not self.main_ended:
            due.append(self.renewed_at + (self.lease_grace if self.half_alarmed else self.lease_grace / 2))
        return max(0.0, min(due) - now)

    def run(self) -> None:
        while not self.tick():
            wait = self.wait_seconds()
            asleep_at = time.monotonic()
            ready = self.selector.select(wait)
            late = time.monotonic() - asleep_at - wait
            if late > FROZEN_SECONDS and self.lease_why != SELF_FENCE:
                # Whatever froze this process froze the manager too: it gets its chance to renew first. Not with a
                # fence: meanwhile a controller may have started another engine.
                self.renewed_at += late
            for key, _ in ready:
                if key.fileobj is self.listener:
                    self.accept()
                elif key.fd == self.wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake, 4096)
                elif isinstance(key.fileobj, socket.socket):
                    self.receive(key.fileobj)
        log("everything reaped and recorded")
        with contextlib.suppress(OSError):
            os.unlink(SOCKET_FILE)


def daemon(folder: str, ready: int) -> None:
    """The shim proper: reports to the launcher over `ready`, then serves until everything is reaped."""
    os.setsid()
    os.umask(0o077)
    with open(START_FILE, encoding="utf-8") as file:
        spec = json.load(file)
    null = os.open(os.devnull, os.O_RDWR)
    output = os.open(LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    shim = Shim(folder, spec)
    if not prctl(PR_SET_CHILD_SUBREAPER, 1):
        raise OSError(errno.ENOSYS, "prctl(PR_SET_CHILD_SUBREAPER) refused; Linux 3.4 or newer is needed")
    shim.listen()
    shim.start()
    with contextlib.suppress(BrokenPipeError):  # the launcher was killed; the engine runs all the same
        os.write(ready, b"ok")
    os.close(ready)
    shim.run()


def main(folder: str) -> int:
    """Fork the shim and wait until it started the engine, so that the caller learns of every refusal."""
    os.chdir(folder)
    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        try:
            os.close(ready_read)
            daemon(folder, ready_write)
            os._exit(0)
        except BaseException as error:
            log(f"shim failed: {error!r}")
            with contextlib.suppress(OSError):
                os.write(ready_write, f"{error}".encode())
            os._exit(1)
    os.close(ready_write)
    with os.fdopen(ready_read, "rb") as pipe:
        answer = pipe.read()
    if answer == b"ok":
        return 0
    sys.stderr.write(answer.decode(errors="replace") or "the shim ended without a word; see shim.log")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
