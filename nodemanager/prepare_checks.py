"""The items of a prepare that are about the slot: address, devices, engine, left-overs, ports, master."""

from __future__ import annotations

from collections.abc import Mapping

from motor_rpc import control_pb2 as pb

from engine_launch.model_facts import ModelKind
from engine_launch.model_need import ModelNeed
from nodemanager import environment, left_overs, netif
from nodemanager.aside import in_thread
from nodemanager.config import NodeConfig
from nodemanager.drivers import Driver, cann_version
from nodemanager.engine_offer import Versions
from nodemanager.environment import EngineEnvironmentError
from nodemanager.file_child import FileError, exists
from nodemanager.items import Item, warning
from nodemanager.model_check import ModelCheck, check_model
from nodemanager.ports import show_taken
from nodemanager.slots import SlotKey


def address_item(address: str) -> Item:
    try:
        interface = netif.interface_of(address)
    except ValueError:
        return Item("address", False, f"expected an address literal, got {address!r}")
    if interface is None:
        mine = ", ".join(address for _, address in netif.interface_addresses())
        return Item(
            "address", False, f"{address} is not an address of this machine, it has: {mine}; "
            "set `address` in the node file",
        )  # fmt: skip
    return Item("address", True, f"{address} on {interface}")


def check_devices(config: NodeConfig, wanted: list[str], leased: Mapping[str, SlotKey]) -> Item:
    """Are the devices this node's, and not leased to other slots?"""
    have = config.devices.all()
    if unknown := [device for device in wanted if device not in have]:
        detail = f"no device {', '.join(unknown)} here, the node file has: {', '.join(have) or 'none'}"
        return Item("devices", False, f"{detail}; change `devices` there")
    if taken := [f"{device} (slot {leased[device]})" for device in wanted if device in leased]:
        return Item("devices", False, f"leased already: {', '.join(taken)}")
    return Item("devices", True, f"{' '.join(wanted) or 'none needed'}; {len(have)} in the node file")


async def device_files_item(config: NodeConfig, wanted: list[str]) -> Item:
    """Are the devices there?"""
    paths = [path for device in wanted if (path := config.devices.file_of(device)) is not None]
    try:
        missing = [path for path in paths if not await exists(path, config.limits.file_seconds)]
    except FileError as error:
        return Item("device_files", False, f"{error}; is the driver in trouble? see dmesg")
    if missing:
        detail = f"not there: {', '.join(missing)}; is the driver loaded, the container given it?"
        return Item("device_files", False, detail)
    return Item("device_files", True, " ".join(paths) or "none needed")


async def left_overs_item(owner: left_overs.Owner, key: SlotKey, running: int | None) -> Item:
    """`running` is the generation of this slot that somebody looks after; then nothing is touched."""
    if running is not None:
        return Item("left_overs", False, f"generation {running} of this slot still runs; stop it first")
    # Nobody looks after this slot, so whatever bears its marks was left behind by something that broke.
    found = await in_thread(left_overs.of_slot, owner, str(key))
    if not found:
        return Item("left_overs", True, "none")
    if left := await left_overs.end(lambda: left_overs.of_slot(owner, str(key))):
        return Item("left_overs", False, f"processes of an earlier start do not die of SIGKILL: {left}")
    return Item("left_overs", True, f"ended {len(found)} process(es) of an earlier start")


async def engine_item(config: NodeConfig, versions: Versions, name: str, expected: str) -> tuple[Item, str]:
    """The item and the version found; `expected` is the group's version, empty = any."""
    engine = config.engines.get(name)
    if engine is None:
        have = ", ".join(config.engines)
        return Item("engine", False, f"no engine {name!r} in the node file, it has: {have}; add engines.{name}"), ""
    found = await versions.of(name, engine)
    if found.error:
        return Item("engine", False, found.error), ""
    if change := versions.change(name, found):
        return Item("engine", False, f"{change}; the node registers again, and is asked anew"), str(found)
    if expected and found.version != expected:
        detail = f"expected version {expected} as the rest of the group, got {found.version}; install the same"
        return Item("engine", False, detail), str(found)
    return Item("engine", True, f"{name} {found}"), str(found)


def environment_item(config: NodeConfig, name: str) -> Item:
    """What of the manager's own environment the engine will not get, and a rank table that it will."""
    said = []
    if names := environment.left_out():
        said.append(f"not passed on from the manager's environment: {', '.join(names)}; clear its unit or shell")
    engine = config.engines.get(name)
    if engine is not None and (names := environment.rank_table(engine.env)):
        said.append(f"passed on as the node file says: {', '.join(names)}; Motor makes no rank table and checks none")
    return warning("environment", "; ".join(said)) if said else Item("environment", True, "nothing to leave out")


async def toolkit_item(config: NodeConfig, versions: Versions, name: str) -> tuple[Item, Driver]:
    """CANN as the engine will find it. Not knowing its version refuses nothing."""
    engine = config.engines.get(name)
    if config.devices.kind != "ascend" or engine is None:
        return Item("toolkit", True, "none needed"), Driver("", "none needed")
    try:
        env = await versions.environment(engine)
    except EngineEnvironmentError as error:
        return warning("toolkit", f"CANN: {error}"), Driver("", str(error))
    found = await cann_version(env, config.limits.file_seconds)
    if found.version:
        return Item("toolkit", True, f"CANN {found.version} ({found.detail})"), found
    return warning("toolkit", f"version of CANN {found.detail}"), found


async def model_check(config: NodeConfig, message: pb.PrepareMsg) -> ModelCheck:
    """Is the model there, and of the kind that the engine is right for?"""
    need = None
    if message.HasField("model_kind"):
        asked = message.model_kind
        kind = ModelKind(asked.name, frozenset(asked.model_types), frozenset(asked.architectures))
        need = ModelNeed(kind, asked.reason)
    roots, seconds = config.model_roots, config.limits.file_seconds
    return await check_model(message.model, roots, config.allow_hub_models, seconds, need)


def wanted_ports(message: pb.PrepareMsg) -> list[int]:
    ports = set(message.ports) | ({message.master_port} if message.is_master else set())
    return sorted(port for port in ports if port)


def ports_item(message: pb.PrepareMsg, taken: Mapping[int, str]) -> Item:
    if taken:
        return Item("ports", False, f"taken: {show_taken(taken)}; end that process or change port_ranges")
    return Item("ports", True, f"free: {' '.join(map(str, wanted_ports(message))) or 'none needed'}")
