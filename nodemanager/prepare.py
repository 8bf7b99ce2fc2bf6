"""Before a start: can this node hold its slot? Checks, one answer for each, and a reservation while all are
good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from motor_rpc import control_pb2 as pb

from nodemanager import left_overs, netif
from nodemanager.aside import in_thread
from nodemanager.config import NodeConfig
from nodemanager.engine_offer import Versions
from nodemanager.model_check import ModelCheck, check_model
from nodemanager.ports import MasterListener, reach_master, show_taken, taken_ports
from nodemanager.slots import SlotKey

RESERVATION_SECONDS = 60.0
DEADLINE_SECONDS = 20.0


@dataclass(frozen=True)
class Item:
    """One check: what was found, and on failure what was expected and what to do."""

    name: str
    ok: bool
    detail: str


@dataclass
class Reservation:
    """Devices and ports kept for one generation of a slot until it starts, is released or expires."""

    key: SlotKey
    generation: int
    epoch: int
    devices: list[str]
    ports: list[int]
    expires_at: float  # monotonic
    model_path: str = ""  # where a relative model name was found
    listener: MasterListener | None = None

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None


@dataclass
class Held:
    """What runs on this node now: devices and generation of each slot."""

    devices: Mapping[SlotKey, list[str]] = field(default_factory=dict)
    generations: Mapping[SlotKey, int] = field(default_factory=dict)


class Preparer:
    """Answers PrepareMsg and keeps the reservations."""

    def __init__(
        self, config: NodeConfig, owner: left_overs.Owner, versions: Versions, held: Callable[[], Held]
    ) -> None:
        self._config = config
        self._owner = owner
        self._versions = versions
        self._held = held
        self._reservations: dict[SlotKey, Reservation] = {}

    # --- reservations

    def reservation(self, key: SlotKey, generation: int) -> Reservation | None:
        """The live reservation of this very generation."""
        self.expire()
        found = self._reservations.get(key)
        return found if found is not None and found.generation == generation else None

    def release(self, key: SlotKey, generation: int | None = None) -> None:
        """End a slot's reservation, of a generation up to `generation` or whichever it is."""
        found = self._reservations.get(key)
        if found is not None and (generation is None or found.generation <= generation):
            found.close()
            del self._reservations[key]

    def expire(self) -> None:
        """Drop reservations whose time is over."""
        now = time.monotonic()
        for key in [key for key, found in self._reservations.items() if found.expires_at <= now]:
            self.release(key)

    def release_all(self) -> None:
        for key in list(self._reservations):
            self.release(key)

    def newer_epoch(self, epoch: int) -> None:
        """A new leader knows nothing of reservations that an older one made."""
        for key in [key for key, found in self._reservations.items() if found.epoch < epoch]:
            self.release(key)

    # --- checks

    async def prepare(self, message: pb.PrepareMsg, epoch: int) -> pb.PrepareReport:
        """Run all checks. On success the devices and ports are reserved, and a master's port answers."""
        key = SlotKey.from_message(message.slot)
        self.expire()
        self.release(key)
        deadline = message.deadline_seconds or DEADLINE_SECONDS
        seconds = message.reservation_seconds or RESERVATION_SECONDS
        reserved = Reservation(
            key,
            message.generation,
            epoch,
            list(message.devices),
            list(message.ports),
            float("inf"),
        )
        items = [self._address(message), self._devices(key, message)]
        # Reserved before anything is awaited: two slots must not get one device.
        if all(item.ok for item in items):
            self._reservations[key] = reserved
        ok = False
        try:
            items.append(await self._left_overs(key))
            engine, version = await self._engine(message)
            model = await check_model(message.model, self._config.model_roots, self._config.allow_hub_models)
            taken = await self._taken_ports(message)
            items += [engine, Item("model", model.ok, model.detail), _ports_item(message, taken)]
            if all(item.ok for item in items):
                items.append(await self._master(message, reserved, deadline))
            ok = all(item.ok for item in items)
        finally:  # also when a newer prepare or a release cancelled this one
            if not ok:
                reserved.close()
                if self._reservations.get(key) is reserved:
                    del self._reservations[key]
        if ok:
            reserved.expires_at = time.monotonic() + seconds
            asyncio.get_running_loop().call_later(seconds + 0.01, self.expire)
            reserved.model_path = model.path
        report = _report(message, items, model, version)
        report.taken_ports.extend(sorted(taken))
        return report

    def _address(self, message: pb.PrepareMsg) -> Item:
        try:
            interface = netif.interface_of(message.address)
        except ValueError:
            return Item("address", False, f"expected an address literal, got {message.address!r}")
        if interface is None:
            mine = ", ".join(address for _, address in netif.interface_addresses())
            return Item(
                "address", False, f"{message.address} is not an address of this machine, it has: {mine}; "
                "set `address` in the node file",
            )  # fmt: skip
        return Item("address", True, f"{message.address} on {interface}")

    def _devices(self, key: SlotKey, message: pb.PrepareMsg) -> Item:
        return check_devices(self._config, key, list(message.devices), self.leased(key))

    def leased(self, key: SlotKey) -> dict[str, SlotKey]:
        """Device -> slot, of engines and reservations of all slots but `key`."""
        leased = {device: found.key for found in self._reservations.values() for device in found.devices}
        leased.update({device: slot for slot, devices in self._held().devices.items() for device in devices})
        return {device: slot for device, slot in leased.items() if slot != key}

    async def _left_overs(self, key: SlotKey) -> Item:
        held = self._held().generations
        if key in held:
            return Item("left_overs", False, f"generation {held[key]} of this slot still runs; stop it first")
        # Nobody looks after this slot, so whatever bears its marks was left behind by something that broke.
        found = await in_thread(left_overs.of_slot, self._owner, str(key))
        if not found:
            return Item("left_overs", True, "none")
        if left := await left_overs.end(lambda: left_overs.of_slot(self._owner, str(key))):
            return Item("left_overs", False, f"processes of an earlier start do not die of SIGKILL: {left}")
        return Item("left_overs", True, f"ended {len(found)} process(es) of an earlier start")

    async def _engine(self, message: pb.PrepareMsg) -> tuple[Item, str]:
        engine = self._config.engines.get(message.engine)
        if engine is None:
            have = ", ".join(self._config.engines)
            detail = f"no engine {message.engine!r} in the node file, it has: {have}; add engines.{message.engine}"
            return Item("engine", False, detail), ""
        found = await self._versions.of(message.engine, engine)
        if found.error:
            return Item("engine", False, found.error), ""
        if message.engine_version and found.version != message.engine_version:
            detail = f"expected version {message.engine_version} as the rest of the group, got {found.version}"
            return Item("engine", False, detail), found.version
        return Item("engine", True, f"{message.engine} {found.version}"), found.version

    async def _taken_ports(self, message: pb.PrepareMsg) -> dict[int, str]:
        wanted = _wanted_ports(message)
        taken = await in_thread(taken_ports, wanted, message.address)
        for other in self._reservations.values():
            if other.key != SlotKey.from_message(message.slot):
                taken.update({port: f"reserved for slot {other.key}" for port in wanted if port in other.ports})
        return taken

    async def _master(self, message: pb.PrepareMsg, reserved: Reservation, deadline: float) -> Item:
        if not message.master_port:
            return Item("master", True, "not needed")
        if message.is_master:
            listener = MasterListener(message.run_id)
            try:
                await listener.listen(message.address, message.master_port)
            except OSError as error:
                return Item("master", False, f"cannot listen on port {message.master_port}: {error.strerror}")
            reserved.listener = listener
            return Item("master", True, f"listening on {message.address} port {message.master_port}")
        reached, detail = await reach_master(message.master_addr, message.master_port, message.run_id, deadline)
        return Item("master", reached, detail)


def check_devices(config: NodeConfig, key: SlotKey, wanted: list[str], leased: Mapping[str, SlotKey]) -> Item:
    """Are the devices this node's, there, and free for `key`?"""
    have = config.devices.all()
    if unknown := [device for device in wanted if device not in have]:
        detail = f"no device {', '.join(unknown)} here, the node file has: {', '.join(have) or 'none'}"
        return Item("devices", False, f"{detail}; change `devices` there")
    if taken := [f"{device} (slot {leased[device]})" for device in wanted if device in leased]:
        return Item("devices", False, f"leased already: {', '.join(taken)}")
    if missing := [path for device in wanted if (path := _device_file(config.devices.kind, device)) is not None]:
        return Item(
            "devices",
            False,
            f"not there: {', '.join(missing)}; is the driver loaded, the container given it?",
        )
    return Item("devices", True, " ".join(wanted) or "none needed")


def _device_file(kind: str, device: str) -> str | None:
    """The device file that should exist and does not; only for devices that are called by number."""
    pattern = {"nvidia": "/dev/nvidia{}", "ascend": "/dev/davinci{}"}.get(kind)
    if pattern is None or not device.isdigit():
        return None
    path = pattern.format(device)
    return None if Path(path).exists() else path


def _report(message: pb.PrepareMsg, items: list[Item], model: ModelCheck, version: str) -> pb.PrepareReport:
    return pb.PrepareReport(
        slot=message.slot,
        generation=message.generation,
        ok=all(item.ok for item in items),
        items=[pb.PrepareItem(name=item.name, ok=item.ok, detail=item.detail) for item in items],
        model_digest=model.digest,
        engine_version=version,
    )


def _wanted_ports(message: pb.PrepareMsg) -> list[int]:
    ports = set(message.ports) | ({message.master_port} if message.is_master else set())
    return sorted(port for port in ports if port)


def _ports_item(message: pb.PrepareMsg, taken: Mapping[int, str]) -> Item:
    if taken:
        return Item("ports", False, f"taken: {show_taken(taken)}; end that process or change port_ranges")
    return Item("ports", True, f"free: {' '.join(map(str, _wanted_ports(message))) or 'none needed'}")
