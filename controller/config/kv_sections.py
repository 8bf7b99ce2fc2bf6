"""The KV transfer of each engine section as rules and plan see it: connectors, engine worlds, ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controller.config.engine_input import EngineInput
from controller.config.errors import Path
from controller.config.rules import DEVICE_KEYS
from controller.config.schema import Deploy
from controller.core.model import PortRange
from engine_launch.kv_connectors import KV_PORT, Connector
from engine_launch.kv_ports import world_ports
from engine_launch.kv_transfer import OPTION, Part, parts_of, sizes_of, transfer_part, written_port
from engine_launch.model import KvPlan, KvSizes, Role

# Engines whose kv_transfer_config is vLLM's. ATOM has the flag too, with connectors of its own.
ENGINES = frozenset({"vllm", "vllm_ascend"})

# Where a role's ports lie when the file says nothing: below Ascend-direct's range (20000), the kernel's (32768) and
# HCCL's (60000), and apart, so that a role that grows does not move the other. 14579 is vLLM's own default
# (vllm/config/kv_transfer.py:69).
_FIRST_PORTS = {Role.PREFILL: 14579, Role.DECODE: 17000, Role.UNION: 18500}
HIGHEST = 65535

# A range of ports that has a first one in the file is taken to be this long (port_rules.py).
_USUAL_SIZE = 64


@dataclass(frozen=True)
class KvSection:
    """An engine section that has a kv_transfer_config."""

    engine: EngineInput
    config: Mapping[str, Any]
    parts: tuple[Part, ...]  # the connectors that work: several in a MultiConnector
    transfer: Part | None  # the one that carries KV from prefill to decode
    worlds: int  # engine worlds over all instances
    sizes: KvSizes
    sharing: bool  # two of its worlds, if it has so many, may meet on one host
    first_port: int | None  # of the first world
    world_ports: int  # fixed ports of one world
    given: bool  # the file says where the ports begin

    @property
    def path(self) -> Path:
        return self.engine.path(OPTION)

    @property
    def connector(self) -> Connector | None:
        return self.transfer.connector if self.transfer else None

    @property
    def port_step(self) -> int:
        return self.world_ports if self.sharing else 0

    @property
    def ports(self) -> PortRange | None:
        """Of all worlds."""
        if self.first_port is None or not self.world_ports:
            return None
        return PortRange(self.first_port, self.port_step * (self.worlds - 1) + self.world_ports)

    @property
    def port_path(self) -> Path:
        """Where the file says, or could say, where the ports begin."""
        connector = self.connector
        if self.transfer is None or connector is None:
            return self.path
        if connector.port_setting == KV_PORT:
            return (*self.path, *self.transfer.at, KV_PORT)
        return (self.engine.section, "env", connector.port_setting)

    def plan(self, number: int, sections: Iterable[KvSection]) -> KvPlan:
        """For instance `number` of the section; `sections` are all of the file."""
        shape, translation = self.engine.shape, self.engine.translation.translation
        return KvPlan(
            sizes=pair_sizes(sections),
            first_port=self.first_port,
            port_step=self.port_step,
            first_world=number * (1 if translation.one_world else shape.dp),
        )


def read_kv(engines: Sequence[EngineInput], instances: Mapping[str, int], deploy: Deploy) -> dict[str, KvSection]:
    """By engine section, those that have a kv_transfer_config that is an object. `instances` by section."""
    found: dict[str, KvSection] = {}
    for engine in engines:
        config = engine.value(OPTION)
        if engine.profile.engine in ENGINES and isinstance(config, Mapping):
            found[engine.section] = _section(engine, config, instances[engine.section], deploy)
    taken = [*_fixed_ranges(engines, deploy), *(section.ports for section in found.values())]
    for name, section in found.items():
        if section.world_ports and section.first_port is None:
            found[name] = _placed(section, [ports for ports in taken if ports is not None])
            taken.append(found[name].ports)
    return found


def pair_sizes(sections: Iterable[KvSection]) -> dict[Role, KvSizes]:
    """Sizes of the two sides of a pair, prefill first."""
    by_role = {section.engine.role: section.sizes for section in sections}
    return {role: by_role[role] for role in (Role.PREFILL, Role.DECODE) if role in by_role}


def _section(engine: EngineInput, config: Mapping[str, Any], instances: int, deploy: Deploy) -> KvSection:
    shape, translation = engine.shape, engine.translation.translation
    worlds = instances * (1 if translation.one_world else shape.dp)
    transfer = transfer_part(config)
    connector = transfer.connector if transfer else None
    count = world_ports(connector, engine.role, shape, translation) if connector else 0
    env = {name: str(value) for name, value in engine.engine.env.items()}
    written = written_port(transfer, env) if transfer else None
    return KvSection(
        engine=engine,
        config=config,
        parts=parts_of(config),
        transfer=transfer,
        worlds=worlds,
        sizes=sizes_of(shape, translation),
        sharing=_may_share(engine, deploy),
        first_port=written if count else None,
        world_ports=count,
        given=written is not None,
    )


def _may_share(engine: EngineInput, deploy: Deploy) -> bool:
    """True where a node may hold two engine processes of the section: unless the file says that it has too few
    devices."""
    devices: int | None = getattr(deploy, DEVICE_KEYS[engine.role])
    return devices is None or devices >= 2 * max(engine.shape.workers_per_node, 1)


def _placed(section: KvSection, taken: list[PortRange]) -> KvSection:
    """The section with its first port: the first place from the usual one on that is free."""
    connector = section.connector
    assert connector is not None, "a section without a known connector opens no ports"
    first = usual = connector.first_port or _FIRST_PORTS[section.engine.role]
    size = section.port_step * (section.worlds - 1) + section.world_ports
    while first + size - 1 <= HIGHEST:
        in_the_way = next((t for t in taken if first < t.first + t.size and t.first < first + size), None)
        if in_the_way is None:
            return replace(section, first_port=first)
        first = in_the_way.first + in_the_way.size
    return replace(section, first_port=usual)  # the rules say that it does not fit


def _fixed_ranges(engines: Sequence[EngineInput], deploy: Deploy) -> list[PortRange]:
    """What the file says of other ports."""
    found: list[PortRange] = []
    for engine in engines:
        for option in engine.profile.form.port_options.values():
            if (first := engine.integer(option)) is not None:
                found.append(PortRange(first, _USUAL_SIZE))
        ranges = getattr(deploy.port_ranges, engine.role.value)
        for given in (ranges.master, ranges.api, ranges.dp_rpc):
            if given is not None:
                found.append(PortRange(given[0], max(given[1] - given[0] + 1, 1)))
    return found
