"""From StartCmdMsg to the record of a start: this node's own values filled in, everything checked against its
limits.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from motor_rpc import control_pb2 as pb

from engine_launch.command import command_digest
from engine_launch.health import model_position
from engine_launch.model import NodeLocal
from engine_launch.profile import EngineProfile
from engine_launch.profiles import UnknownProfile, resolve
from nodemanager import environment, netif
from nodemanager.bounds import OutOfBoundsError, check_argv, check_env
from nodemanager.checks import Checks
from nodemanager.config import NodeConfig
from nodemanager.engine_offer import EngineError, final_argv
from nodemanager.environment import EngineEnvironmentError, ScriptCache
from nodemanager.lease import first_grace
from nodemanager.left_overs import Owner
from nodemanager.model_check import check_model
from nodemanager.prepare import Reservation
from nodemanager.prepare_checks import check_devices
from nodemanager.records import Records, StartRecord, boot_id
from nodemanager.slots import SlotKey


class CommandRefusedError(Exception):
    """A command this node will not obey. `code` is one of CommandRefused's codes."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class StartPlace:
    """What the node adds to a start."""

    owner: Owner
    address: str
    records: Records
    scripts: ScriptCache
    leased: dict[str, SlotKey]  # devices of other slots
    reservation: Reservation | None


async def make_record(
    config: NodeConfig, message: pb.StartCmdMsg, epoch: int, place: StartPlace
) -> tuple[StartRecord, dict[str, str]]:
    """The record of this start, and the scrubbed variables. CommandRefusedError says what is wrong."""
    key = SlotKey.from_message(message.slot)
    profile = _check_command(message)
    engine = config.engines.get(message.engine)
    if engine is None:
        raise CommandRefusedError(
            "limits", f"no engine {message.engine!r} in the node file, it has: {', '.join(config.engines)}"
        )
    devices = check_devices(config, list(message.devices), place.leased)
    if not devices.ok:
        raise CommandRefusedError("limits", devices.detail)
    address = message.address or place.address
    interface = _interface(address)
    folder = place.records.folder(key, message.generation)
    marks = {
        **place.owner.marks(),
        environment.SLOT_MARK: str(key),
        environment.GENERATION_MARK: str(message.generation),
        environment.RUN_MARK: message.run_id,
    }
    try:
        check_env(config, {**message.env, **message.node_env})
        env = environment.compose(
            scripts=await place.scripts.variables(engine.env_scripts),
            command=dict(message.env),
            node=environment.node_values(message.node_env, address, interface, list(message.devices)),
            engine=engine.env,
            marks=marks,
        )
        canonical = await _with_model_path(config, list(message.argv), place.reservation)
        await check_argv(config, profile, canonical)
        argv = final_argv(engine, canonical)
    except (EngineEnvironmentError, EngineError, OutOfBoundsError) as error:
        raise CommandRefusedError("limits", str(error)) from error
    record = StartRecord(
        slot=str(key), generation=message.generation, epoch=epoch, run_id=message.run_id,
        config_digest=message.config_digest, argv=argv, env=env.values, cwd=str(folder),
        log_file=str(log_path(config, key, message.generation)),
        orphan_grace=first_grace(config.orphan_grace, message.self_fence_seconds),
        self_fence=message.self_fence_seconds, stop_grace=message.stop_grace_seconds,
        drain_seconds=message.drain_seconds, boot_id=boot_id(),
        role=message.role, engine=message.engine, engine_profile=message.engine_profile,
        headless=message.headless,
        api_host=_probe_host(message.api_host, address), api_port=message.api_port,
        health_path=message.health_path or "/health", expected_workers=message.expected_workers,
        devices=list(message.devices), command_digest=message.argv_digest,
        argv_digest=environment.digest(argv),
        env_digest=environment.digest(env.values), created_at=time.time(),
        address=address, master_addr=message.master_dp_ip, master_port=message.master_port,
        dp_rpc_port=message.dp_rpc_port, health=asdict(Checks.from_message(message)),
    )  # fmt: skip
    return record, env.scrubbed


def _interface(address: str) -> str:
    try:
        interface = netif.interface_of(address)
    except ValueError:
        raise CommandRefusedError("limits", f"address: expected a literal, got {address!r}") from None
    if interface is None:
        raise CommandRefusedError("limits", f"address: {address} is not an address of this machine")
    return interface


def _check_command(message: pb.StartCmdMsg) -> EngineProfile:
    """The command is what the controller made, and this version of Motor knows the engine: its profile."""
    try:
        node_env = {name: NodeLocal(kind) for name, kind in message.node_env.items()}
    except ValueError as error:
        raise CommandRefusedError("argv", f"node_env: {error}; is the controller newer than this node?") from error
    got = command_digest(tuple(message.argv), dict(message.env), node_env)
    if got != message.argv_digest:
        raise CommandRefusedError(
            "argv", f"argv_digest: expected {message.argv_digest or 'none'}, argv and env here have {got}"
        )
    if message.stop_grace_seconds <= 0:
        raise CommandRefusedError("limits", "stop_grace_seconds: expected more than 0")
    try:
        return resolve(message.engine_profile)
    except UnknownProfile as error:
        raise CommandRefusedError("limits", f"engine_profile: {error}") from error


async def _with_model_path(config: NodeConfig, argv: list[str], reservation: Reservation | None) -> list[str]:
    """A relative model name becomes the path where this node has it; a hub name stays."""
    position = model_position(argv)
    if position is None or argv[position].startswith("/"):
        return argv
    if reservation is not None:
        path = reservation.model_path
    else:
        found = await check_model(argv[position], config.model_roots, config.allow_hub_models)
        if not found.ok:
            raise CommandRefusedError("limits", f"model: {found.detail}")
        path = found.path
    if path:
        argv[position] = path
    return argv


def _probe_host(host: str, address: str) -> str:
    """Where the health of an API server can be asked: one that listens everywhere is asked at the data
    address.
    """
    return address if host in ("", "0.0.0.0", "::") else host.strip("[]")


def log_path(config: NodeConfig, key: SlotKey, generation: int) -> Path:
    """The log of one start. Kept when its record is dropped; only the newest few of a slot stay."""
    return config.log_dir / f"{key.folder}.{generation}.log"


def drop_old_logs(config: NodeConfig, key: SlotKey, keep: int = 5) -> None:
    """Remove all but the newest logs of a slot."""
    logs = [path for path in config.log_dir.glob(f"{key.folder}.*.log") if path.suffixes[-2][1:].isdigit()]
    for path in sorted(logs, key=lambda path: int(path.suffixes[-2][1:]))[:-keep]:
        path.unlink(missing_ok=True)
