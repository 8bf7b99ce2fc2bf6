"""The node's state folder: who it is, what it has seen, and one folder for each start of an engine.

    state_dir/
      manager.lock                       held by the running manager
      node.json                          node_id (made once) and incarnation
      slots/<instance>_<dp>_<rank>/
        newest.json                      newest epoch and generation seen, and the generation closed by a stop
        <generation>/                    made with mkdir: whoever makes it starts the engine, nobody else
          start.json  status.json  shim.log  shim.sock

Everything is written to a temporary name, fsynced and renamed. A folder that cannot be written is a
RecordError with the path and the cause; what was recorded before stays as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from engine_launch.secrets import Mask
from nodemanager.shim import START_FILE, STATUS_FILE, write_json
from nodemanager.slots import SlotKey

log = logging.getLogger(__name__)


class RecordError(Exception):
    """The state folder cannot be read or written; the text says where, why and what to do."""


class AlreadyLockedError(RecordError):
    """Another manager runs on this state folder."""


@dataclass(frozen=True)
class Newest:
    """What a slot has seen. Generations up to `closed_generation` were stopped and never start any more."""

    epoch: int = 0
    generation: int = 0
    closed_generation: int = 0


@dataclass(frozen=True)
class StartRecord:
    """Everything about one start of an engine; kept in start.json, which is also the shim's specification.

    Fields the shim reads are documented in shim.py. `env` holds the complete environment of the engine.
    """

    slot: str
    generation: int
    epoch: int
    run_id: str
    config_digest: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log_file: str
    orphan_grace: float | None
    stop_grace: float
    boot_id: str
    drain_seconds: float
    role: str
    engine: str
    engine_profile: str
    headless: bool
    api_host: str
    api_port: int  # 0 on processes without an API server
    health_path: str
    expected_workers: int
    devices: list[str]
    command_digest: str  # argv_digest of the command as it came from the controller
    argv_digest: str
    env_digest: str
    created_at: float
    address: str = ""
    master_addr: str = ""
    master_port: int = 0
    dp_rpc_port: int = 0  # 0 outside native translations
    self_fence: float = 0.0  # seconds without a controller until the engine stops; 0 = never
    umask: int = 0o022
    health: dict[str, Any] = field(default_factory=dict)  # checks.Checks; empty in records of older versions

    @property
    def key(self) -> SlotKey:
        return SlotKey.parse(self.slot)

    @cached_property
    def mask(self) -> Mask:
        """Takes this engine's secrets out of what is told about it."""
        return Mask.of(self.argv, self.env)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None if there is none or it is not JSON (an interrupted writer leaves the old
    content).
    """
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise RecordError(f"{path}: cannot read: {error.strerror}") from error
    return value if isinstance(value, dict) else None


def save_json(path: Path, value: Any) -> None:
    """Replace `path` durably. RecordError with the cause if that is not possible."""
    try:
        write_json(str(path), value)
    except OSError as error:
        raise RecordError(f"{path}: cannot write: {error.strerror}; make room or fix the permissions") from error


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """Changes with every boot of the machine; recorded pids mean nothing after it changed."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


class Records:
    """The state folder of one manager. Opening it takes the lock and counts the incarnation up."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.slots_dir = state_dir / "slots"
        self._lock: int | None = None
        self._newest: dict[SlotKey, Newest] = {}
        self._persisted: dict[SlotKey, Newest] = {}
        self._writing = threading.Lock()

    # --- identity

    def make_folders(self) -> None:
        try:
            self.slots_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(
                f"state_dir {self.state_dir}: cannot make it: {error.strerror}; "
                "create it for this user or set `state_dir` in the node file"
            ) from error

    def lock(self) -> None:
        """Take the folder for this process; AlreadyLockedError names the process that has it."""
        path = self.state_dir / "manager.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise RecordError(f"{path}: cannot open: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise AlreadyLockedError(
                f"{path}: another motor-nodemanager (pid {holder or 'unknown'}) runs on this state_dir; "
                "stop it, or give this one a state_dir of its own"
            ) from None
        self._lock = descriptor
        with contextlib.suppress(OSError):  # only a courtesy to readers; a full disk must not matter
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def identity(self, configured_node_id: str | None) -> tuple[str, int]:
        """(node_id, incarnation): the id from the node file, else the one made at the first start; the
        incarnation is one more than at the last start.
        """
        path = self.state_dir / "node.json"
        known = read_json(path) or {}
        made = known.get("node_id") or f"{socket.gethostname()}-{secrets.token_hex(3)}"
        incarnation = int(known.get("incarnation", 0)) + 1
        try:
            save_json(path, {"node_id": made, "incarnation": incarnation})
        except RecordError as error:
            if not known:
                raise
            # Running engines must be adopted also when the disk is full.
            log.error("%s; going on with incarnation %d", error, incarnation)
        return configured_node_id or made, incarnation

    # --- what a slot has seen

    def newest(self, key: SlotKey) -> Newest:
        if key not in self._newest:
            stored = read_json(self.slots_dir / key.folder / "newest.json") or {}
            self._newest[key] = Newest(**{name: int(stored.get(name, 0)) for name in asdict(Newest())})
            self._persisted[key] = self._newest[key]
        return self._newest[key]

    def seen(self) -> list[tuple[SlotKey, Newest]]:
        """What this node has ever obeyed, of every slot it has a folder of."""
        keys = set(self._newest)
        for folder in self.slots_dir.iterdir():
            instance, _, ranks = folder.name.rpartition("_")
            instance, _, dp_rank = instance.rpartition("_")
            if instance and dp_rank.isdigit() and ranks.isdigit():
                keys.add(SlotKey(instance, int(dp_rank), int(ranks)))
        return [(key, newest) for key in sorted(keys) if (newest := self.newest(key)).generation]

    def note(self, key: SlotKey, epoch: int, generation: int, closed: bool = False) -> None:
        """Remember the newest of a slot, in memory; `persist` puts it on disk."""
        old = self.newest(key)
        self._newest[key] = Newest(
            epoch=max(old.epoch, epoch),
            generation=max(old.generation, generation),
            closed_generation=max(old.closed_generation, generation if closed else 0),
        )

    def persist(self, key: SlotKey) -> None:
        """What was noted of a slot, durable when this returns; no command counts before. RecordError if it cannot
        be.
        """
        with self._writing:  # a prepare and the stop that cancels it come here at the same time
            newest = self.newest(key)
            if self._persisted.get(key) == newest:
                return
            folder = self.slots_dir / key.folder
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise RecordError(f"{folder}: cannot make it: {error.strerror}") from error
            save_json(folder / "newest.json", asdict(newest))
            self._persisted[key] = newest

    # --- starts

    def folder(self, key: SlotKey, generation: int) -> Path:
        return self.slots_dir / key.folder / str(generation)

    def create(self, record: StartRecord) -> Path:
        """Make the generation's folder and write start.json, both durable before this returns.

        FileExistsError if this generation was started before. RecordError if it cannot be written; then
        nothing is left behind, so that the same start may be tried again.
        """
        folder = self.folder(record.key, record.generation)
        try:
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise
        except OSError as error:
            raise RecordError(f"{folder}: cannot make it: {error.strerror}; make room or fix permissions") from error
        try:
            save_json(folder / START_FILE, asdict(record))
            sync_folder(folder.parent)
        except (RecordError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise RecordError(str(error)) from error
        return folder

    def load(self, folder: Path) -> StartRecord | None:
        """The record of a generation folder; None if the start never got that far."""
        stored = read_json(folder / START_FILE)
        if stored is None:
            return None
        known = {entry.name for entry in fields(StartRecord)}
        try:  # a newer version may have added fields; they do not matter to this one
            return StartRecord(**{name: value for name, value in stored.items() if name in known})
        except TypeError as error:
            raise RecordError(f"{folder / START_FILE}: written by another version of Motor: {error}") from error

    def status(self, folder: Path) -> dict[str, Any]:
        """What the shim recorded; empty if it never did."""
        return read_json(folder / STATUS_FILE) or {}

    def generations(self, key: SlotKey | None = None) -> Iterator[Path]:
        """Generation folders, oldest generation first, of one slot or of all."""
        slot_folders = [self.slots_dir / key.folder] if key else sorted(self.slots_dir.iterdir())
        for slot_folder in slot_folders:
            if slot_folder.is_dir():
                yield from sorted(
                    (f for f in slot_folder.iterdir() if f.name.isdigit() and f.is_dir()),
                    key=lambda f: int(f.name),
                )

    def forget(self, key: SlotKey, generation: int) -> None:
        """Drop a generation's folder. What the slot has seen stays, so that old commands stay refused."""
        shutil.rmtree(self.folder(key, generation), ignore_errors=True)
