"""kv_transfer_config: what Motor fills in, and where it stands.

Filling adds what is absent and touches nothing else: keys keep their order and their values, with one exception. A
`kv_port` in the file is the first port of the section's first engine world, and later worlds get later ports.

Every process of an engine world gets the same kv_transfer_config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_launch.flags import Option
from engine_launch.kv_connectors import CONNECTORS, KV_PORT, KV_ROLES, Connector, Kind
from engine_launch.kv_ports import slot_ports, world_ports
from engine_launch.model import Assignment, EngineSpec, KvPlan, KvSizes, NodeLocal, ParallelShape, Role, Translation

OPTION = "kv-transfer-config"
EXTRA = "kv_connector_extra_config"
INNER = "connectors"  # of EXTRA, in a MultiConnector

_RUN_LETTERS = 8  # of the run id: enough that no two runs of one group agree


@dataclass(frozen=True)
class Part:
    """One connector's configuration: the whole, or one of a MultiConnector's."""

    at: tuple[str | int, ...]  # where it stands below kv-transfer-config
    config: Mapping[str, Any]
    name: str
    connector: Connector | None  # None: Motor does not know it


@dataclass(frozen=True)
class KvFilling:
    """What KV transfer adds to one process's command."""

    options: Sequence[Option]
    env: Mapping[str, str] = field(default_factory=dict)
    node_env: Mapping[str, NodeLocal] = field(default_factory=dict)
    ports: tuple[int, ...] = ()


def transfer_config(options: Sequence[Option]) -> Mapping[str, Any] | None:
    """kv_transfer_config as the operator wrote it; None without one that is an object."""
    value = next((option.value for option in options if option.name == OPTION), None)
    return value if isinstance(value, Mapping) else None


def parts_of(config: Mapping[str, Any]) -> tuple[Part, ...]:
    """The connectors that work: the one of `config`, or those inside a MultiConnector. What is no object is left
    out."""
    whole = _part((), config)
    if whole.connector is None or whole.connector.kind is not Kind.MULTI:
        return (whole,)
    extra = config.get(EXTRA)
    inner = extra.get(INNER) if isinstance(extra, Mapping) else None
    if not isinstance(inner, (list, tuple)):
        return ()
    return tuple(_part((EXTRA, INNER, i), item) for i, item in enumerate(inner) if isinstance(item, Mapping))


def transfer_part(config: Mapping[str, Any]) -> Part | None:
    """The connector that carries KV from prefill to decode; None where there are stores only."""
    parts = parts_of(config)
    return next((part for part in parts if part.connector and part.connector.kind is Kind.TRANSFER), None)


def sizes_of(shape: ParallelShape, translation: Translation) -> KvSizes:
    """Sizes of one engine world."""
    dp = shape.dp_local * (shape.dp if translation.one_world else 1)
    return KvSizes(dp, shape.tp, shape.pp, shape.pcp, shape.dcp)


def engine_id(assignment: Assignment, shape: ParallelShape, translation: Translation) -> str:
    """One for each engine world and start.

    A decode engine keeps the memory addresses it once got from an engine_id (vLLM-Ascend v0.23.0
    mooncake_connector.py:792-806): an engine that starts again under its old one would be read at addresses that are
    gone. In one world vLLM adds `_dp<rank>` itself (vLLM 0.32 v1/engine/core.py:1417-1422).
    """
    group = f"g{assignment.dp_rank}" if shape.dp > 1 and not translation.one_world else ""
    return "-".join(filter(None, (assignment.instance, group, _short(assignment.run_id))))


def written_port(part: Part, env: Mapping[str, str]) -> int | None:
    """The first port as the file says; None where it says none, or nothing usable."""
    if part.connector is None or not part.connector.port_setting:
        return None
    setting = part.connector.port_setting
    text = str(part.config.get(KV_PORT) if setting == KV_PORT else env.get(setting)).strip()
    return int(text) if text.isdigit() else None


def fill_transfer(spec: EngineSpec, assignment: Assignment, options: Sequence[Option]) -> KvFilling:
    """Options with a complete kv_transfer_config, and what else the connectors need."""
    config = transfer_config(options)
    if config is None:
        return KvFilling(options)
    transfer = transfer_part(config)
    plan = spec.kv
    first = _first_port(spec, assignment, transfer)
    ports: tuple[int, ...] = ()
    if transfer and transfer.connector and first is not None:
        ports = slot_ports(
            transfer.connector,
            assignment.role,
            first,
            spec.shape,
            spec.translation,
            assignment.dp_rank,
            assignment.node_rank,
        )
    if plan is None:
        return KvFilling(options, ports=ports)
    filled = _Filler(plan, assignment, first, engine_id(assignment, spec.shape, spec.translation)).whole(config)
    changed = [dataclasses.replace(o, value=filled) if o.name == OPTION else o for o in options]
    known = [part.connector for part in parts_of(config) if part.connector is not None]
    env = {name: value for connector in known for name, value in connector.env.items() if name not in spec.env}
    for connector in known:
        if connector.port_setting != KV_PORT and first is not None:
            env[connector.port_setting] = str(first)
    hosts = {connector.host_env for connector in known if connector.host_env}
    return KvFilling(changed, env, dict.fromkeys(sorted(hosts), NodeLocal.ADDRESS), ports)


def instance_ports(spec: EngineSpec, role: Role, options: Sequence[Option]) -> tuple[int, int] | None:
    """First and last fixed port of an instance's KV transfer, over all its engine worlds; None without any."""
    config = transfer_config(options)
    transfer = transfer_part(config) if config is not None else None
    if transfer is None or transfer.connector is None or spec.kv is None or spec.kv.first_port is None:
        return None
    count = world_ports(transfer.connector, role, spec.shape, spec.translation)
    worlds = 1 if spec.translation.one_world else spec.shape.dp
    first = spec.kv.first_port + spec.kv.port_step * spec.kv.first_world
    return (first, first + spec.kv.port_step * (worlds - 1) + count - 1) if count else None


def _first_port(spec: EngineSpec, assignment: Assignment, transfer: Part | None) -> int | None:
    """Of this slot's engine world."""
    if transfer is None:
        return None
    if spec.kv is None:
        return written_port(transfer, spec.env)
    if spec.kv.first_port is None:
        return None
    world = spec.kv.first_world + (0 if spec.translation.one_world else assignment.dp_rank)
    return spec.kv.first_port + spec.kv.port_step * world


@dataclass(frozen=True)
class _Filler:
    plan: KvPlan
    assignment: Assignment
    first_port: int | None
    engine_id: str

    def whole(self, config: Mapping[str, Any]) -> dict[str, Any]:
        part = _part((), config)
        filled = self._single(part)
        # Not inside a MultiConnector: its connectors inherit it, and vLLM 0.32 v1/multi_connector.py:236-240 passes
        # one of their own twice (TypeError).
        # A written one goes: every engine of the section would have it, and keep it over a restart.
        filled["engine_id"] = self.engine_id
        extra = config.get(EXTRA)
        if part.connector and part.connector.kind is Kind.MULTI and isinstance(extra, Mapping):
            inner = extra.get(INNER)
            if isinstance(inner, (list, tuple)):
                items = [self._single(_part((), x)) if isinstance(x, Mapping) else x for x in inner]
                filled[EXTRA] = {**extra, INNER: items}
        return filled

    def _single(self, part: Part) -> dict[str, Any]:
        config = dict(part.config)
        _put(config, "kv_role", KV_ROLES[self.assignment.role])
        connector = part.connector
        if connector is None:
            return config
        is_transfer = connector.kind is Kind.TRANSFER
        if is_transfer and connector.port_setting == KV_PORT and self.first_port is not None:
            as_text = isinstance(config.get(KV_PORT), str)
            config[KV_PORT] = str(self.first_port) if as_text else self.first_port
        extra = config.get(EXTRA)
        if extra is None or isinstance(extra, Mapping):
            filled = self._extra(connector, dict(extra or {}))
            if filled != (extra or {}):
                config[EXTRA] = filled
        return config

    def _extra(self, connector: Connector, extra: dict[str, Any]) -> dict[str, Any]:
        if connector.reads_sizes:
            for role, sizes in self.plan.sizes.items():
                written = extra.get(role.value)
                if written is None or isinstance(written, Mapping):
                    side = dict(written or {})
                    for name, size in dataclasses.asdict(sizes).items():
                        _put(side, name, size)
                    extra[role.value] = side
        if connector.rpc_key and not any(extra.get(key) is not None for key in RPC_KEYS):
            # A name, and no port that anyone opens. The world's master port is its own on the host.
            extra[connector.rpc_key] = str(self.assignment.master_port)
        return extra


# Either is read, the first one first (vLLM-Ascend v0.23.0 kv_pool/ascend_store/pool_scheduler.py:1153-1156).
RPC_KEYS = ("lookup_rpc_port", "mooncake_rpc_port")


def _part(at: tuple[str | int, ...], config: Mapping[str, Any]) -> Part:
    name = str(config.get("kv_connector") or "")
    return Part(at, config, name, CONNECTORS.get(name))


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    if config.get(key) is None:
        config[key] = value


def _short(run_id: str) -> str:
    return run_id if run_id.startswith("<") else run_id[:_RUN_LETTERS]
