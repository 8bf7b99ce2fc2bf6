"""The shared store: several controllers, one etcd, one of them leads."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace

from motor_rpc import etcd_wire_pb2 as wire

from controller.core.model import GenerationRecord, OperatorState
from controller.store import etcd_calls as calls
from controller.store.codec import decode, decode_operator, encode, encode_operator
from controller.store.etcd_client import EtcdClient
from controller.store.etcd_election import Term, pay, stand
from controller.store.etcd_errors import EtcdError, EtcdUnavailable
from controller.store.etcd_layout import FORMAT, Keys, Written, folder_of, join, split
from controller.store.etcd_settings import EtcdSettings
from controller.store.etcd_watch import follow
from controller.store.etcd_writer import OPERATIONS, Writer, batches
from controller.store.interface import Leader, Snapshot, Standby, StoreError

log = logging.getLogger(__name__)

LOSES_WRITES = ("3.5.0", "3.5.1", "3.5.2")  # etcd-io/etcd#13766: a member killed under load may lose commits


class EtcdStore:
    """`me`: how this controller is reached; its epoch is filled in. Can be opened again after `close`."""

    def __init__(self, settings: EtcdSettings, deployment_id: str, me: Leader) -> None:
        self._settings = settings
        self._keys = Keys.of(settings.prefix, deployment_id)
        self._me = me
        self._client: EtcdClient | None = None
        self._term: Term | None = None
        self._writer: Writer | None = None
        self._writing = asyncio.Lock()
        self._epoch = 0
        self._count = 0  # of writes in parts
        self._folders: dict[bytes, list[bytes]] = {}  # head -> where parts of it lie: named by it, or perhaps
        self._litter: list[bytes] = []  # folders that no head names
        self._owed: set[int] = set()  # leases of terms that are over, not given back yet

    # -- taking and letting go -------------------------------------------------------------------------------------

    async def open(self, standby: Standby, gives_way: float = 0.0) -> Snapshot:
        self._client = client = EtcdClient(self._settings)
        try:
            while True:
                term = await self._campaign(client, standby, gives_way)
                try:
                    return await self._take_over(client, term)
                except EtcdUnavailable as error:
                    log.warning("elected, and etcd answers no more: %s", error)
                except StoreError:
                    if term.holds_until() > -math.inf:
                        raise
                    log.warning("elected, and deposed before this controller could begin: %s", await term.lost())
                await term.end()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        term, client = self._term, self._client
        self._term = self._writer = self._client = None
        if term is not None:
            await term.end()
        if client is not None:
            await client.close()

    def holds_until(self) -> float:
        return self._term.holds_until() if self._term is not None else -math.inf

    async def lost(self) -> str:
        if self._term is None:
            raise StoreError("etcd: this store is not open")
        return await self._term.lost()

    def trouble(self) -> str:
        return self._client.trouble if self._client is not None else ""

    async def _campaign(self, client: EtcdClient, standby: Standby, gives_way: float) -> Term:
        """Wait until the key is free, and be the one who takes it."""
        not_before = time.monotonic() + gives_way
        said = _Said(standby)
        said.tell(None)
        waits = False
        while True:
            async with aclosing(follow(client, self._keys.leader, self._settings.lease_seconds)) as states:
                async for seen in states:
                    if seen is None and not waits:
                        log.error("waiting for etcd: %s", client.trouble)
                    waits = seen is None
                    leader = _leader(seen.kv) if seen is not None else None
                    said.tell(leader)
                    if seen is None:
                        continue
                    await pay(client, self._owed)
                    if seen.kv is not None:
                        if leader is None or leader.controller_id != self._me.controller_id:
                            not_before = -math.inf  # somebody has taken what was left to others
                        continue
                    if time.monotonic() < not_before:
                        break  # and look again: no change tells that nobody wants it
                    try:
                        term = await stand(client, self._keys.leader, self._leader_text(0), self._owed)
                    except EtcdUnavailable as error:
                        log.warning("the election is repeated: %s", error)
                        break
                    if term is not None:
                        self._term = term  # from here on `close` ends it, also if this open is given up
                        return term
            await asyncio.sleep(0.05)

    async def _take_over(self, client: EtcdClient, term: Term) -> Snapshot:
        """Read what there is, and count the epoch up. Nobody else writes from here on."""
        found = await client.list(self._keys.root.encode(), self._settings.lease_seconds)
        stored = {kv.key: kv.value for kv in found}
        self._writer = Writer(client, term, {kv.key: kv.mod_revision for kv in found})
        records, operator = self._read(stored)
        lineage = stored.get(self._keys.lineage, b"").decode() or secrets.token_hex(16)
        self._epoch = int(stored.get(self._keys.epoch, b"0")) + 1
        self._count = 0
        puts = {self._keys.epoch: str(self._epoch).encode()}
        if self._keys.lineage not in stored:
            puts[self._keys.lineage] = lineage.encode()
        if self._keys.format not in stored:
            puts[self._keys.format] = str(FORMAT).encode()
        await self._writer.commit(puts, leader=self._leader_text(self._epoch))
        await self._sweep()
        await _warn_of_version(client)
        return Snapshot(lineage, self._epoch, records, operator)

    def _read(self, stored: Mapping[bytes, bytes]) -> tuple[tuple[GenerationRecord, ...], OperatorState]:
        """StoreError for what this program does not understand."""
        where = f"etcd {self._keys.root}"
        version = stored.get(self._keys.format, str(FORMAT).encode()).decode(errors="replace")
        if version != str(FORMAT):
            raise StoreError(
                f"{where}format: expected {FORMAT}, got {version}; run the newer motor-controller that wrote it"
            )
        heads = [key for key in stored if key.startswith(self._keys.generations) or key == self._keys.operator]
        try:
            int(stored.get(self._keys.epoch, b"0"))
            texts = {key: join(stored[key], stored) for key in heads}
            operator = decode_operator(texts.pop(self._keys.operator)) if self._keys.operator in texts else None
            records = tuple(decode(text) for _, text in sorted(texts.items()))
            self._folders = {key: [folder] for key in heads if (folder := folder_of(stored[key])) is not None}
        except (ValueError, KeyError) as error:
            raise StoreError(
                f"{where}: not readable as Motor's state: {error}; move it away (etcdctl del --prefix {where[5:]}) to "
                "start with an empty store (running engines are then adopted, not restarted)"
            ) from error
        named = {folder for folders in self._folders.values() for folder in folders}
        lying = {key.rpartition(b"/")[0] + b"/" for key in stored if key.startswith(self._keys.parts)}
        self._litter = sorted(lying - named)
        return records, operator or OperatorState()

    # -- writing ---------------------------------------------------------------------------------------------------

    async def put(self, records: Iterable[GenerationRecord]) -> None:
        await self._keep({self._keys.generation(record.scope_id): encode(record) for record in records})

    async def put_operator(self, operator: OperatorState) -> None:
        await self._keep({self._keys.operator: encode_operator(operator)})

    async def raise_epoch(self, at_least: int) -> int:
        async with self._writing:
            if at_least > self._epoch:
                puts = {self._keys.epoch: str(at_least).encode()}
                await self._writer_now().commit(puts, leader=self._leader_text(at_least))
                self._epoch = at_least
            return self._epoch

    async def _keep(self, texts: Mapping[bytes, str]) -> None:
        async with self._writing:
            writer = self._writer_now()
            writes = {head: self._split(head, text) for head, text in texts.items()}
            # 1: the parts, under names of their own; what is there already is not touched
            parts = [(head, key, value) for head, w in writes.items() for key, value in w.parts.items()]
            for chunk in batches(parts):
                heads = list(dict.fromkeys(head for head, _, _ in chunk))
                await writer.prepare({key: value for _, key, value in chunk}, heads)
            # 2: the heads; from here on the new texts count, and the parts of the old ones are gone
            for batch in batches(list(writes), OPERATIONS // 2):
                replaced = {head: self._replaced(head, writes[head]) for head in batch}
                removed = [folders[0] for folders in replaced.values() if folders]
                await writer.commit({head: writes[head].head for head in batch}, removed)
                for head in batch:
                    self._litter.extend(replaced[head][1:])
                    self._folders[head] = [f for f in self._folders.get(head, ()) if f not in replaced[head]]
            await self._sweep()

    def _split(self, head: bytes, text: str) -> Written:
        self._count += 1
        folder = self._keys.part_folder(head, self._epoch, self._count)
        written = split(text, folder)
        if written.parts:
            self._folders.setdefault(head, []).append(folder)
        return written

    def _replaced(self, head: bytes, written: Written) -> list[bytes]:
        """Where the parts of earlier writes of `head` lie: of the one it names now, and of those that failed."""
        own = folder_of(written.head)
        return [folder for folder in self._folders.get(head, ()) if folder != own]

    async def _sweep(self) -> None:
        """Delete parts that no head names: of writes that failed, or were not finished before a crash. All that was
        asked for is stored, so a failure waits for the next time."""
        try:
            for batch in batches(self._litter):
                await self._writer_now().remove(batch)
                self._litter = self._litter[len(batch) :]
        except StoreError as error:
            log.warning("parts of unfinished writes are still in etcd, and deleted with the next write: %s", error)

    def _writer_now(self) -> Writer:
        if self._writer is None:
            raise StoreError("etcd: this store is not open")
        return self._writer

    def _leader_text(self, epoch: int) -> bytes:
        return json.dumps(asdict(replace(self._me, epoch=epoch))).encode()


class _Said:
    """Tells who leads, once per change."""

    def __init__(self, standby: Standby) -> None:
        self._standby = standby
        self._last: Leader | None = None
        self._first = True

    def tell(self, leader: Leader | None) -> None:
        if self._first or leader != self._last:
            self._first, self._last = False, leader
            self._standby(leader)


def _leader(kv: wire.KeyValue | None) -> Leader | None:
    """What a leader's key says; None for no key, or one that another program has written."""
    if kv is None:
        return None
    try:
        value = json.loads(kv.value)
        return Leader(str(value["controller_id"]), str(value["grpc"]), str(value["rest"]), int(value["epoch"]))
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s is not a leader's key: %r: %r", kv.key, error, kv.value[:200])
        return None


async def _warn_of_version(client: EtcdClient) -> None:
    try:
        status = await client.call(calls.STATUS, wire.StatusRequest(), client.settings.request_seconds)
    except EtcdError as error:
        log.info("etcd does not say its version: %s", error)
        return
    if status.version in LOSES_WRITES:
        log.warning("etcd %s can lose stored state when a member is killed; use 3.5.3 or newer", status.version)
