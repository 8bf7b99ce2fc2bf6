"""Is this machine fit for an engine now? One item for each thing that engines are known to fail without."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Mapping

import psutil

from nodemanager import device_memory, netif
from nodemanager.config import NodeConfig
from nodemanager.drivers import Driver, driver_version
from nodemanager.file_child import FileError, room
from nodemanager.items import Item, warning
from nodemanager.limits import MIB, Limits

SHM = "/dev/shm"
UNLIMITED = resource.RLIM_INFINITY


async def machine_items(config: NodeConfig, devices: list[str]) -> tuple[list[Item], Driver]:
    """Memory, disks, limits, devices and their driver. `devices` are the slot's."""
    limits = config.limits
    *items, (driver_item, driver) = await asyncio.gather(
        shared_memory(limits),
        disk(config),
        free_devices(config, devices),
        _driver(config.devices.kind, limits),
    )
    items.append(memory(limits, max(1, len(devices))))
    return [*items, memlock(config.devices.kind, limits), open_files(limits), driver_item], driver


def memory(limits: Limits, workers: int) -> Item:
    """Too little is a warning: what counts as available is an estimate, and engines differ by a factor of a hundred."""
    wanted = limits.memory_per_worker_mb * workers
    available = psutil.virtual_memory().available / MIB
    found = f"{available:.0f} MB available"
    if available < wanted:
        return warning(
            "memory",
            f"{found}, expected {wanted:.0f} ({limits.memory_per_worker_mb:g} for each of {workers} worker(s)); "
            "end what else runs here, or change limits.memory_per_worker_mb",
        )
    return Item("memory", True, found)


async def shared_memory(limits: Limits) -> Item:
    """Workers of one node talk through /dev/shm; where it is full they die of SIGBUS in the middle of a request."""
    try:
        found = await room(SHM, limits.file_seconds)
    except FileError as error:
        return Item("shm", False, f"expected {limits.shm_mb:g} MB free in {SHM}, got: {error}; mount a tmpfs there")
    detail = f"{found.free // MIB} MB of {found.size // MIB} free in {SHM}"
    if found.free < limits.shm_mb * MIB:
        return Item(
            "shm", False, f"{detail}, expected {limits.shm_mb:g}; delete what was left there, or make it larger "
            f"(mount -o remount,size=16G {SHM}; a container: --shm-size or --ipc=host)",
        )  # fmt: skip
    return Item("shm", True, detail)


async def disk(config: NodeConfig) -> Item:
    """Room for the records of a start and for the engine's log."""
    wanted, seconds = config.limits.disk_mb, config.limits.file_seconds
    said, ok = [], True
    for key, path in (("state_dir", config.state_dir), ("log_dir", config.log_dir)):
        try:
            found = await room(str(path), seconds)
        except FileError as error:
            ok = False
            said.append(f"{key}: {error}")
            continue
        short = found.free < wanted * MIB
        ok = ok and not short
        said.append(f"{key} {path}: {found.free // MIB} MB free" + (f", expected {wanted:g}" if short else ""))
    text = "; ".join(said)
    return Item("disk", ok, text if ok else f"{text}; make room, or put it on another disk in the node file")


async def free_devices(config: NodeConfig, devices: list[str]) -> Item:
    """Memory in use on the slot's devices belongs to something that an engine would have to share with."""
    kind, limits = config.devices.kind, config.limits
    if kind == "cpu" or not devices:
        return Item("device_memory", True, "none needed")
    idle = device_memory.idle_bytes(kind, limits.device_memory_mb)
    found = await device_memory.occupied(kind, devices, idle)
    if found:
        return Item(
            "device_memory",
            False,
            f"{'; '.join(map(str, found))}, expected at most {idle // MIB} MB; end what uses it, or change "
            "limits.device_memory_mb",
        )
    return Item("device_memory", True, "free, as far as is known")


async def _driver(kind: str, limits: Limits) -> tuple[Item, Driver]:
    found = await driver_version(kind, limits.file_seconds)
    if kind == "cpu" or found.version:
        return Item("driver", True, f"{found.version} ({found.detail})" if found.version else found.detail), found
    return warning("driver", f"version {found.detail}"), found


def memlock(kind: str, limits: Limits) -> Item:
    """Transport between devices pins memory. The engine gets this manager's hard limit (see shim.py)."""
    if kind == "cpu":
        return Item("memlock", True, "none needed")
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if hard == UNLIMITED or hard >= limits.memlock_mb * MIB:
        return Item("memlock", True, "unlimited" if hard == UNLIMITED else f"{hard // MIB} MB")
    return Item(
        "memlock", False, f"expected unlimited or at least {limits.memlock_mb:g} MB of locked memory, got "
        f"{hard / MIB:g}; set LimitMEMLOCK=infinity in the unit (a container: --ulimit memlock=-1)",
    )  # fmt: skip


def open_files(limits: Limits) -> Item:
    """The engine gets this manager's hard limit, up to the shim's own bound (see shim.py)."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == UNLIMITED or hard >= limits.open_files:
        return Item("open_files", True, "unlimited" if hard == UNLIMITED else f"{hard}")
    return Item(
        "open_files", False, f"expected at least {limits.open_files} open files, got {hard}; set "
        "LimitNOFILE=65536 in the unit (a container: --ulimit nofile=65536)",
    )  # fmt: skip


def interface(address: str) -> Item:
    """Whether the interface of the data address is up and has a carrier."""
    try:
        name = netif.interface_of(address)
    except ValueError:
        name = None
    if name is None:
        return Item("interface", False, f"no interface has {address}")
    state = interface_states().get(name)
    if state is None:
        return warning("interface", f"{name}: its state is unknown")
    if not state:
        return Item("interface", False, f"{name} ({address}) is down; plug the cable in, or `ip link set {name} up`")
    return Item("interface", True, f"{name} is up")


def interface_states() -> Mapping[str, bool]:
    """Name -> up and running."""
    try:
        return {name: found.isup for name, found in psutil.net_if_stats().items()}
    except OSError:
        return {}


def clock(controller_time: float, limits: Limits, now: float | None = None) -> Item:
    """`controller_time` and `now` (default: this moment) are Unix times."""
    if not controller_time:
        return Item("clock", True, "the controller did not say what time it is")
    skew = (time.time() if now is None else now) - controller_time
    found = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the controller's clock"
    if abs(skew) > limits.clock_skew:
        return Item("clock", False, f"{found}, expected at most {limits.clock_skew:g}; let chrony or ntpd set it")
    if abs(skew) > limits.clock_skew_warning:
        return warning("clock", f"{found}; logs of the nodes cannot be compared; let chrony or ntpd set it")
    return Item("clock", True, found)
