"""The default store: one SQLite file, write-ahead log, every commit on the disk before it counts."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from controller.core.model import GenerationRecord, OperatorState
from controller.store.codec import decode, decode_operator, encode, encode_operator
from controller.store.file_system import mount_of
from controller.store.interface import Snapshot, Standby, StoreError, StoreLocked, Unshared

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS generation (scope_id TEXT PRIMARY KEY, record TEXT NOT NULL);
"""


Result = TypeVar("Result")


class SqliteStore(Unshared):
    """The file behind the store's interface: SQLite blocks, so one thread does all of it, in the order asked."""

    def __init__(self, path: Path, allow_network_fs: bool = False) -> None:
        self._file = SqliteFile(path, allow_network_fs)
        self._thread: ThreadPoolExecutor | None = None

    async def _do(self, work: Callable[[], Result]) -> Result:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def open(self, standby: Standby, gives_way: float = 0.0) -> Snapshot:
        return await self._do(self._file.open)

    async def put(self, records: Iterable[GenerationRecord]) -> None:
        kept = tuple(records)
        await self._do(lambda: self._file.put(kept))

    async def put_operator(self, operator: OperatorState) -> None:
        await self._do(lambda: self._file.put_operator(operator))

    async def raise_epoch(self, at_least: int) -> int:
        return await self._do(lambda: self._file.raise_epoch(at_least))

    async def close(self) -> None:
        await self._do(self._file.close)
        assert self._thread is not None
        self._thread.shutdown(wait=False)  # it has nothing left to do
        self._thread = None


class SqliteFile:
    """Blocking calls. One controller at a time: the file stays locked exclusively while it is open."""

    def __init__(self, path: Path, allow_network_fs: bool = False) -> None:
        self._path = path
        self._allow_network_fs = allow_network_fs
        self._db: sqlite3.Connection | None = None

    def open(self) -> Snapshot:
        self._check_file_system()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self._path, timeout=1.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self._path}: cannot be opened: {error}; set `store.path` in deploy.json") from error
        try:
            # EXCLUSIVE before WAL: the lock is then taken with the first write and kept, and no shared memory
            # file is needed
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise StoreError(f"{self._path}: expected journal mode wal, got {mode}; use a local file system")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.execute("INSERT OR IGNORE INTO meta VALUES ('lineage', ?)", (secrets.token_hex(16),))
            db.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', '0')")
            db.execute("UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'epoch'")
            db.execute("COMMIT")
            meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
            records = tuple(decode(row[0]) for row in db.execute("SELECT record FROM generation ORDER BY scope_id"))
            operator = decode_operator(meta["operator"]) if "operator" in meta else OperatorState()
        except sqlite3.OperationalError as error:
            db.close()
            if "locked" in str(error):
                raise StoreLocked(
                    f"{self._path}: another motor-controller holds this store; stop it first, or give this one "
                    "another `store.path`"
                ) from error
            raise StoreError(f"{self._path}: {error}") from error
        except (sqlite3.Error, ValueError) as error:
            db.close()
            raise StoreError(
                f"{self._path}: not readable as Motor's state: {error}; move it away to start with an empty store "
                "(running engines are then adopted, not restarted)"
            ) from error
        except StoreError:
            db.close()
            raise
        self._db = db
        return Snapshot(meta["lineage"], int(meta["epoch"]), records, operator)

    def _check_file_system(self) -> None:
        """Where locks or fsync do not hold, two controllers could lead, or a stored record be lost."""
        mount = mount_of(self._path)
        if mount is not None and mount.network and not self._allow_network_fs:
            raise StoreError(
                f"{self._path}: expected a local file system, {mount.point} is {mount.type} from {mount.source}, where "
                "locks and fsync cannot be relied on; set `store.path` to a local disk, or "
                "`store.allow_network_fs: true` to take the risk"
            )

    def put(self, records: Iterable[GenerationRecord]) -> None:
        rows = [(record.scope_id, encode(record)) for record in records]
        self._write("INSERT OR REPLACE INTO generation VALUES (?, ?)", rows)

    def put_operator(self, operator: OperatorState) -> None:
        self._write("INSERT OR REPLACE INTO meta VALUES ('operator', ?)", [(encode_operator(operator),)])

    def raise_epoch(self, at_least: int) -> int:
        self._write("UPDATE meta SET value = MAX(CAST(value AS INTEGER), ?) WHERE key = 'epoch'", [(at_least,)])
        assert self._db is not None
        return int(self._db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0])

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """One transaction: all rows or none."""
        if self._db is None:
            raise StoreError(f"{self._path}: the store is closed")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(statement, rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise StoreError(f"{self._path}: {error}") from error

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
