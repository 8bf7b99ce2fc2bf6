"""Port ranges of all engine sections: what the file fixes, what defaults to, and that different uses never meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.config.engine_input import EngineInput
from controller.config.errors import Findings, Path, Shown, dotted
from controller.config.kv_sections import KvSection
from controller.config.schema import Controller, Deploy
from controller.core.model import PortRange
from engine_launch.profile import PortKind

LOWEST, HIGHEST = 1024, 65535
DEFAULT_SIZE = 64

# kind -> first port by default. 29550: vLLM 0.32 engine/arg_utils.py:2518-2522.
_KINDS = {"master": 7001, "api": 8000, "dp_rpc": 29550}

# The kernel hands ports of this range to outgoing connections (net.ipv4.ip_local_port_range, Linux default).
EPHEMERAL = range(32768, 61000)


@dataclass(frozen=True)
class RolePorts:
    """The ranges that all instances of one role draw from; one ledger per host keeps them apart."""

    master: PortRange
    api: PortRange
    dp_rpc: PortRange | None  # only where groups share one world, or the engine wants one anyway


@dataclass(frozen=True)
class _Range:
    """One use of ports. `exact`: its end is fixed too; else it gives way to what begins inside it."""

    kind: str
    section: str
    path: Path
    ports: PortRange
    exact: bool


def read_ports(
    engines: Sequence[EngineInput],
    deploy: Deploy,
    controller: Controller,
    kv: Mapping[str, KvSection],
    findings: Findings,
) -> dict[str, RolePorts]:
    """Ranges by engine section. Ranges that nobody set lie where nothing else is: 8000, 8064, 8128 and so on."""
    others = [*_controller_ranges(controller), *(item for section in kv.values() for item in _kv_range(section))]
    fixed: dict[tuple[str, str], _Range] = {}
    for engine, kind in _wanted(engines):
        if (item := _fixed(engine, kind, deploy, findings)) is not None:
            fixed[engine.section, kind] = item
    for key, item in fixed.items():
        fixed[key] = _trimmed(item, [*others, *fixed.values()])
    _check_overlaps([*fixed.values(), *others], findings)
    ranges = dict(fixed)
    for engine, kind in _wanted(engines):
        if (engine.section, kind) not in ranges:
            ranges[engine.section, kind] = _default(engine, kind, [*others, *ranges.values()], findings)
    for item in [*ranges.values(), *others]:
        _check_ephemeral(item, findings)
    return {
        engine.section: RolePorts(
            master=ranges[engine.section, "master"].ports,
            api=ranges[engine.section, "api"].ports,
            dp_rpc=ranges[engine.section, "dp_rpc"].ports if (engine.section, "dp_rpc") in ranges else None,
        )
        for engine in engines
    }


def _wanted(engines: Iterable[EngineInput]) -> list[tuple[EngineInput, str]]:
    return [(engine, kind) for engine in engines for kind in _KINDS if kind != "dp_rpc" or _has_dp_rpc(engine)]


def _has_dp_rpc(engine: EngineInput) -> bool:
    return engine.translation.translation.one_world or PortKind.DP_RPC in engine.profile.form.port_env.values()


def _option(engine: EngineInput, kind: str) -> str:
    """The option that gives the first port of a kind."""
    return engine.profile.form.port_options[PortKind(kind)]


def _fixed(engine: EngineInput, kind: str, deploy: Deploy, findings: Findings) -> _Range | None:
    """What the file says: a range in port_ranges, or a first port in engine_config; None without either."""
    option = _option(engine, kind)
    base = _first_port(option, engine, findings)
    given: list[int] | None = getattr(getattr(deploy.port_ranges, engine.role.value), kind)
    if given is None:
        if base is None:
            return None
        return _Range(kind, engine.section, engine.path(option), _up_to_top(base), exact=False)
    path: Path = ("motor_deploy_config", "port_ranges", engine.role.value, kind)
    first, last = given
    if not LOWEST <= first <= last <= HIGHEST:
        expected = f"[first, last] with {LOWEST} <= first <= last <= {HIGHEST}"
        findings.error(
            path, "is no range of ports", got=Shown(f"[{first}, {last}]"), expected=expected, rule="port-range"
        )
        return None
    if base is not None and not first <= base <= last:
        what = f"lies outside {dotted(path)}"
        findings.error(engine.path(option), what, got=base, expected=f"{first} to {last}", rule="port-range")
    return _Range(kind, engine.section, path, PortRange(first, last - first + 1), exact=True)


def _first_port(option: str, engine: EngineInput, findings: Findings) -> int | None:
    value = engine.value(option)
    if value is None:
        return None
    port = engine.integer(option)
    if port is not None and LOWEST <= port <= HIGHEST:
        return port
    expected = f"an integer from {LOWEST} to {HIGHEST}"
    findings.error(engine.path(option), "is no usable port", got=value, expected=expected, rule="port-usable")
    return None


def _default(engine: EngineInput, kind: str, taken: list[_Range], findings: Findings) -> _Range:
    option, preferred = _option(engine, kind), _KINDS[kind]
    path: Path = (engine.section, "engine_config")
    for first in (*range(preferred, HIGHEST - DEFAULT_SIZE, DEFAULT_SIZE), None):
        if first is None:
            findings.error(
                path, f"no {DEFAULT_SIZE} ports are left for {kind}", fix=f'set "{option}"', rule="port-space"
            )
        elif not any(overlap(_up_to_top(first), item.ports) for item in taken):
            return _Range(kind, engine.section, path, _up_to_top(first), exact=True)
    return _Range(kind, engine.section, path, _up_to_top(preferred), exact=True)


def _up_to_top(first: int) -> PortRange:
    return PortRange(first, min(DEFAULT_SIZE, HIGHEST - first + 1))


def _trimmed(item: _Range, others: Iterable[_Range]) -> _Range:
    """A range of default length ends before another use begins: master-port 7990 and port 8000 both work."""
    size = item.ports.size
    for other in others:
        inside = item.ports.first < other.ports.first < item.ports.first + size
        if inside and not item.exact and other.kind != item.kind:
            size = other.ports.first - item.ports.first
    return replace(item, ports=PortRange(item.ports.first, size))


def _kv_range(section: KvSection) -> list[_Range]:
    """The ports of a KV connector, of all engine worlds of the section: they follow from the first and cannot move."""
    if section.ports is None:
        return []
    return [_Range("kv", section.engine.section, section.port_path, section.ports, exact=True)]


def _controller_ranges(controller: Controller) -> list[_Range]:
    section = "motor_controller_config"
    listeners = {"rest": controller.rest.port, "grpc": controller.grpc.port}
    return [
        _Range(f"controller {name}", section, (section, name, "port"), PortRange(port, 1), exact=True)
        for name, port in listeners.items()
    ]


def _check_overlaps(ranges: list[_Range], findings: Findings) -> None:
    """Ranges of one kind may overlap between roles, since the ledger keeps them apart; KV ports are in no ledger."""
    for one, two in itertools.combinations(ranges, 2):
        if not overlap(one.ports, two.ports):
            continue
        what = f"{one.kind} ports {one.ports} of {one.section} overlap {two.kind} ports {two.ports} of {two.section}"
        if one.kind != two.kind:
            fix = "move one of them, or set both in motor_deploy_config.port_ranges"
            findings.error(one.path, what, expected="ranges without a common port", fix=fix, rule="port-overlap")
        elif one.kind == "kv":
            findings.warning(
                one.path, f"{what}: on one host they would collide", fix="move one kv_port", rule="port-kv-overlap"
            )


def _check_ephemeral(item: _Range, findings: Findings) -> None:
    if overlap(item.ports, PortRange(EPHEMERAL.start, len(EPHEMERAL))):
        findings.warning(
            item.path,
            f"{item.kind} ports {item.ports} lie in the kernel's ephemeral range "
            f"{EPHEMERAL[0]}-{EPHEMERAL[-1]}: an outgoing connection may hold one when the engine wants it",
            fix=f"on every node: sysctl net.ipv4.ip_local_reserved_ports={item.ports}",
            rule="port-ephemeral",
        )


def overlap(one: PortRange, two: PortRange) -> bool:
    """True where the ranges share a port."""
    return one.first < two.first + two.size and two.first < one.first + one.size
