"""Before a start: can this node hold its slot? Checks, one answer for each, and a reservation while all are
good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from motor_rpc import control_pb2 as pb

from nodemanager import left_overs, machine_checks
from nodemanager import prepare_checks as checks
from nodemanager.aside import in_thread
from nodemanager.config import NodeConfig
from nodemanager.engine_offer import Versions
from nodemanager.items import Item
from nodemanager.ports import MasterListener, reach_master, taken_ports
from nodemanager.slots import SlotKey

RESERVATION_SECONDS = 60.0
DEADLINE_SECONDS = 20.0


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
        clock = machine_checks.clock(message.controller_time, self._config.limits)
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
        report = pb.PrepareReport(slot=message.slot, generation=message.generation)
        at_once = self._at_once(key, message)
        address = message.address if at_once[0].ok else ""  # else any text, and its own item says so
        items = [*at_once, clock]
        # Reserved before anything is awaited: two slots must not get one device.
        if all(item.ok for item in items):
            self._reservations[key] = reserved
        try:
            items += await self._look(key, message, report, reserved, address)
            if all(item.ok for item in items):
                items.append(await self._master(message, reserved, deadline))
            report.ok = all(item.ok for item in items)
        finally:  # also when a newer prepare or a release cancelled this one
            if not report.ok:
                reserved.close()
                if self._reservations.get(key) is reserved:
                    del self._reservations[key]
        if report.ok:
            reserved.expires_at = time.monotonic() + seconds
            asyncio.get_running_loop().call_later(seconds + 0.01, self.expire)
        report.items.extend(pb.PrepareItem(name=item.name, ok=item.ok, detail=item.detail) for item in items)
        return report

    def _at_once(self, key: SlotKey, message: pb.PrepareMsg) -> list[Item]:
        """Answers that need no wait, the address's first."""
        address = checks.address_item(message.address)
        items = [address]
        if address.ok:
            items.append(machine_checks.interface(message.address))
        devices = checks.check_devices(self._config, list(message.devices), self.leased(key))
        return [*items, devices, checks.environment_item(self._config, message.engine)]

    async def _look(
        self, key: SlotKey, message: pb.PrepareMsg, report: pb.PrepareReport, reserved: Reservation, address: str
    ) -> list[Item]:
        """Answers that need the file system, children and tools, most of them at the same time. What is found goes
        into `report` and `reserved` as well.
        """
        config = self._config
        # First, because a left-over holds ports, memory and devices.
        left = await checks.left_overs_item(self._owner, key, self._held().generations.get(key))
        taken = await self._taken_ports(message, address)
        devices = [device for device in message.devices if device in config.devices.all()]
        (engine, version), (toolkit, cann), model, files, (machine, driver) = await asyncio.gather(
            checks.engine_item(config, self._versions, message.engine, message.engine_version),
            checks.toolkit_item(config, self._versions, message.engine),
            checks.model_check(config, message),
            checks.device_files_item(config, devices),
            machine_checks.machine_items(config, devices),
        )
        report.engine_version, report.model_digest, report.driver_version = version, model.digest, driver.version
        report.toolkit_version = cann.version
        report.taken_ports.extend(sorted(taken))
        reserved.model_path = model.path
        ports = checks.ports_item(message, taken)
        return [left, engine, toolkit, Item("model", model.ok, model.detail), ports, files, *machine]

    def leased(self, key: SlotKey) -> dict[str, SlotKey]:
        """Device -> slot, of engines and reservations of all slots but `key`."""
        leased = {device: found.key for found in self._reservations.values() for device in found.devices}
        leased.update({device: slot for slot, devices in self._held().devices.items() for device in devices})
        return {device: slot for device, slot in leased.items() if slot != key}

    async def _taken_ports(self, message: pb.PrepareMsg, address: str) -> dict[int, str]:
        wanted = checks.wanted_ports(message)
        taken = await in_thread(taken_ports, wanted, address)
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
