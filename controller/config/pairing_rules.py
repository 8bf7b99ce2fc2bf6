"""Prefill and decode as a pair: connector, dispatch mode, sizes, ports. The rules over one section are in kv_rules.py.

Sources: vLLM-Ascend v0.23.0 below vllm_ascend/distributed/kv_transfer; the orchestration paper's dispatch modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.config import pair_shard_rules
from controller.config.engine_input import EngineInput
from controller.config.errors import Findings, Path, Shown, did_you_mean
from controller.config.kv_rules import check_kv_object, check_kv_section
from controller.config.kv_sections import ENGINES, KvSection, pair_sizes
from controller.config.rule_report import StatedRule, report
from controller.config.schema import Deploy
from engine_launch.kv_connectors import DISPATCH_MODES, USUAL_MODE, Connector, Listens, Order
from engine_launch.kv_transfer import EXTRA, OPTION
from engine_launch.model import Role
from engine_launch.rule import RuleSeverity

ERROR, OVERRIDABLE, WARNING = RuleSeverity.ERROR, RuleSeverity.OVERRIDABLE, RuleSeverity.WARNING

MODE = StatedRule(
    "kv-dispatch-mode",
    ERROR,
    "deploy_mode is one of the field's dispatch modes.",
    "field: A co/router/dispatch.py:53-60",
)
ORDER = StatedRule(
    "kv-dispatch-order",
    ERROR,
    "The dispatch mode asks the engines in the order that the connector needs: MooncakeConnectorV1 with cpcd_separate, "
    "MooncakeLayerwiseConnector with pd_separate or cdp_separate.",
    "orchestration paper, dispatch modes; kv_p2p/mooncake_connector.py:1849",
)
NO_PAIR_MODE = StatedRule(
    "kv-dispatch-single",
    WARNING,
    "single_node dispatch makes no use of a pair.",
    "field: A co/router/dispatch.py:53-60",
)
ONE_SIDED = StatedRule(
    "kv-one-sided", ERROR, "Either both sides transfer KV or none does.", "field: J es/core/vllm/vllm_config.py:107-210"
)
NO_TRANSFER = StatedRule(
    "kv-none", WARNING, "A prefill and a decode section transfer KV.", "field: J es/core/vllm/vllm_config.py:107-210"
)
NO_PEER = StatedRule(
    "kv-peer-sizes",
    ERROR,
    "A side without its peer's section says the peer's sizes.",
    "kv_p2p/mooncake_connector.py:2070-2082",
)
PEER_ELSEWHERE = StatedRule(
    "kv-peer-elsewhere",
    WARNING,
    "A pair has both sections in one file.",
    "field: J es/core/vllm/vllm_config.py:107-210",
)
SAME = StatedRule(
    "kv-pair-connector",
    ERROR,
    "Both sides transfer by the same connector.",
    "Motor: each connector has its own protocol",
)
TP = StatedRule("kv-pair-tp", ERROR, "Prefill's tp is not below decode's.", "kv_p2p/mooncake_connector.py:1982-1986")
CP = StatedRule(
    "kv-pair-cp", ERROR, "Prefill's pcp x dcp is a multiple of decode's.", "kv_p2p/mooncake_connector.py:2723"
)
BLOCK = StatedRule(
    "kv-pair-block-size",
    ERROR,
    "One side's block size divides the other's; with context parallelism in decode prefill's divides decode's.",
    "kv_p2p/mooncake_connector.py:2647-2659",
)
DISTANCE = StatedRule(
    "kv-pair-ports",
    OVERRIDABLE,
    "First KV ports of the two sides are equal, or further apart than a prefill engine has ports, where prefill groups "
    "span nodes.",
    "kv_p2p/mooncake_connector.py:3493-3512",
    "v0.24.0rc1 does not look its peers up by its own port, v0.23.0 and v0.25.1rc1 do",
)
ONE_WORLD = StatedRule(
    "kv-pair-one-world",
    OVERRIDABLE,
    "Where several prefill groups in one world span nodes, both sides have the same first KV port.",
    "kv_p2p/mooncake_connector.py:3493-3512",
    "read in the source and not run: the difference of the ports drops the data-parallel offset",
)

RULES = (
    MODE,
    ORDER,
    NO_PAIR_MODE,
    ONE_SIDED,
    NO_TRANSFER,
    NO_PEER,
    PEER_ELSEWHERE,
    SAME,
    TP,
    CP,
    BLOCK,
    DISTANCE,
    ONE_WORLD,
    *pair_shard_rules.RULES,
)

_MODE_PATH: Path = ("motor_coordinator_config", "scheduler_config", "deploy_mode")


@dataclass(frozen=True)
class DispatchChoice:
    """How a router has to send requests to the pair, and why."""

    mode: str  # one of DISPATCH_MODES
    reason: str  # one sentence without a full stop


def check_pairing(
    engines: Sequence[EngineInput],
    sections: Mapping[str, KvSection],
    coordinator: Mapping[str, Any],
    deploy: Deploy,
    findings: Findings,
) -> DispatchChoice | None:
    """All rules over KV transfer. The dispatch mode of the pair, None where the file has no pair.

    `sections`: kv_sections.read_kv's; `coordinator`: motor_coordinator_config as written.
    """
    sizes = pair_sizes(sections.values())
    for engine in engines:
        check_kv_object(engine, findings)
    for section in sections.values():
        check_kv_section(section, sizes, deploy, findings)
    by_role = {section.engine.role: section for section in sections.values()}
    prefill, decode = by_role.get(Role.PREFILL), by_role.get(Role.DECODE)
    _check_presence(engines, by_role, findings)
    if prefill is not None and decode is not None:
        _check_pair(prefill, decode, findings)
    return _dispatch(_written_mode(coordinator, findings), [s for s in (prefill, decode) if s is not None], findings)


def _check_presence(engines: Sequence[EngineInput], by_role: Mapping[Role, KvSection], findings: Findings) -> None:
    sides = {e.role: e for e in engines if e.role is not Role.UNION and e.profile.engine in ENGINES}
    without = [role for role, engine in sides.items() if engine.value(OPTION) is None]
    if len(sides) == 2 and len(without) == 2:
        what = "prefill and decode have no kv-transfer-config: nothing carries KV from one to the other"
        report(
            findings, NO_TRANSFER, (sides[Role.DECODE].section, "engine_config"), what, fix=f'add "{OPTION}" to both'
        )
    elif len(sides) == 2 and len(without) == 1:
        engine = sides[without[0]]
        other = next(e for role, e in sides.items() if role is not without[0])
        what = f'"{OPTION}" is missing, and {other.section} has one'
        report(findings, ONE_SIDED, (engine.section, "engine_config"), what, fix="add one with the same connector")
    elif len(sides) == 1:
        for section in (by_role[role] for role in sides if role in by_role):
            _check_alone(section, findings)


def _check_alone(section: KvSection, findings: Findings) -> None:
    """A side whose peer is not in the file."""
    if section.transfer is None or section.connector is None:
        return
    role = Role.DECODE if section.engine.role is Role.PREFILL else Role.PREFILL
    connector = section.connector
    extra = section.transfer.config.get(EXTRA)
    written = extra.get(role.value) if isinstance(extra, Mapping) else None
    missing = [key for key in ("dp_size", "tp_size") if not isinstance(written, Mapping) or written.get(key) is None]
    if connector.demands_sizes and missing:
        where = (*section.path, *section.transfer.at, EXTRA)
        what = (
            f"the file has no {role.value} section to take {role.value} sizes from, and without them {connector.name} "
            f"ends with {connector.demands_sizes}"
        )
        fix = f'add the section, or "{role.value}": {{"dp_size": ..., "tp_size": ...}} here'
        report(findings, NO_PEER, where, what, expected=" and ".join(missing), fix=fix)
    else:
        what = f"the file has no {role.value} section: the peers of these engines have to run elsewhere"
        report(findings, PEER_ELSEWHERE, section.path, what)


def _check_pair(prefill: KvSection, decode: KvSection, findings: Findings) -> None:
    if prefill.transfer is None and decode.transfer is None:
        return
    one = prefill.transfer.name if prefill.transfer else "no connector that transfers"
    two = decode.transfer.name if decode.transfer else "no connector that transfers"
    connector = prefill.connector
    if one != two or connector is None:
        if all(part.connector is not None for part in (*prefill.parts, *decode.parts)):
            what = f"decode transfers by another connector than prefill ({one})"
            report(findings, SAME, (*decode.path, "kv_connector"), what, got=Shown(two), expected=one)
        return
    _check_pair_sizes(prefill, decode, connector, findings)
    _check_blocks(prefill, decode, connector, findings)
    pair_shard_rules.check_shards(prefill, decode, connector, findings)
    _check_distance(prefill, decode, connector, findings)
    _check_one_world(prefill, decode, connector, findings)


def _check_pair_sizes(prefill: KvSection, decode: KvSection, connector: Connector, findings: Findings) -> None:
    p, d = prefill.engine.shape, decode.engine.shape
    if connector.prefill_tp_not_below and p.tp < d.tp:
        what = f"is above prefill's: {connector.name} wants prefill tp {p.tp} >= decode tp {d.tp}: "
        where = decode.engine.path("tensor-parallel-size")
        what += connector.prefill_tp_not_below
        report(findings, TP, where, what, got=d.tp, expected=f"at most {p.tp}", fix="lower it, or raise prefill's")
    p_cp, d_cp = p.pcp * p.dcp, d.pcp * d.dcp
    if connector.cp_multiple and p_cp % d_cp:
        what = (
            f"prefill's pcp {p.pcp} x dcp {p.dcp} = {p_cp} is no multiple of decode's pcp {d.pcp} x dcp {d.dcp} = "
            f"{d_cp}: {connector.cp_multiple}"
        )
        wide = "decode-context-parallel-size" if d.dcp > 1 else "prefill-context-parallel-size"
        got = Shown(f"{p_cp} % {d_cp} = {p_cp % d_cp}")
        report(findings, CP, decode.engine.path(wide), what, got=got, expected="0", fix="change dcp or pcp of one side")


def _check_blocks(prefill: KvSection, decode: KvSection, connector: Connector, findings: Findings) -> None:
    """Where both block sizes are in the file. Stated for MooncakeConnectorV1 alone."""
    p, d = prefill.engine.integer("block-size"), decode.engine.integer("block-size")
    if not connector.cp_multiple or not p or not d or p == d:
        return
    p_cp = prefill.engine.shape.pcp * prefill.engine.shape.dcp
    d_cp = decode.engine.shape.pcp * decode.engine.shape.dcp
    where = decode.engine.path("block-size")
    if p % d and d % p:
        what = f"neither block size divides the other: prefill {p}, decode {d}"
        report(findings, BLOCK, where, what, got=d, expected=f"{p}, a divisor or a multiple of it")
    elif d_cp > 1 and d % p:
        what = f"with decode context parallelism {d_cp} prefill's block-size {p} has to divide decode's {d}"
        report(findings, BLOCK, where, what, got=d, expected=f"{p} or a multiple of it")
    elif d_cp > 1 and (p_cp // d_cp) % (d // p):
        what = f"prefill's pcp x dcp {p_cp} over decode's {d_cp} is no multiple of the blocks' ratio {d} / {p}"
        report(findings, BLOCK, where, what, got=d, expected=str(p))


def _check_distance(prefill: KvSection, decode: KvSection, connector: Connector, findings: Findings) -> None:
    """A decode worker looks the host of a prefill worker up by (its port - decode's own kv_port), before it tries
    prefill's: an offset that exists by chance names another host."""
    p, d = prefill.ports, decode.ports
    if connector.listens is not Listens.WORKERS or p is None or d is None or prefill.engine.shape.nnodes == 1:
        return
    for first in _first_ports(prefill):
        near = [other for other in _first_ports(decode) if 0 < abs(first - other) < prefill.world_ports]
        if near:
            what = (
                f"decode's first KV port {near[0]} is {abs(first - near[0])} from prefill's {first}, whose engine has "
                f"{prefill.world_ports} ports on {prefill.engine.shape.nnodes} nodes: decode would ask the wrong nodes"
            )
            expected = f"{first}, or at least {prefill.world_ports} away from it"
            report(
                findings, DISTANCE, decode.port_path, what, expected=expected, fix="move one kv_port, or remove both"
            )
            return


def _check_one_world(prefill: KvSection, decode: KvSection, connector: Connector, findings: Findings) -> None:
    """A prefill worker's host is looked up by a difference of ports that knows no data-parallel rank."""
    shape = prefill.engine.shape
    one_world = prefill.engine.translation.translation.one_world
    if connector.listens is not Listens.WORKERS or not one_world or shape.dp == 1 or shape.nnodes == 1:
        return
    p, d = prefill.first_port, decode.first_port
    if p is None or d is None or p == d:
        return
    what = (
        f"{shape.dp} prefill groups of {shape.nnodes} nodes in one world, and the first KV ports differ (prefill {p}, "
        f"decode {d}): decode would ask nodes of the first group for the KV of the others"
    )
    report(
        findings, ONE_WORLD, decode.port_path, what, got=d, expected=str(p),
        fix='write the same kv_port on both sides, or "dp_translation": "replica" for prefill',
    )  # fmt: skip


def _first_ports(section: KvSection) -> list[int]:
    assert section.first_port is not None, "only asked of a section with ports"
    worlds = section.worlds if section.port_step else 1
    return [section.first_port + section.port_step * world for world in range(worlds)]


def _written_mode(coordinator: Mapping[str, Any], findings: Findings) -> str | None:
    """`deploy_mode` where it is known; one that is not is reported."""
    scheduler = coordinator.get("scheduler_config") if isinstance(coordinator, Mapping) else None
    mode = scheduler.get("deploy_mode") if isinstance(scheduler, Mapping) else None
    if mode is None:
        return None
    if mode not in DISPATCH_MODES:
        expected = f"one of {', '.join(DISPATCH_MODES)}"
        hint = did_you_mean(str(mode), DISPATCH_MODES)
        report(findings, MODE, _MODE_PATH, "unknown dispatch mode", got=mode, expected=expected, fix=hint)
        return None
    return str(mode)


def _dispatch(mode: str | None, pair: list[KvSection], findings: Findings) -> DispatchChoice | None:
    connectors = [section.connector for section in pair if section.connector is not None]
    connector = connectors[0] if connectors else None
    if connector is None:
        return DispatchChoice(mode, "deploy_mode in the file") if mode and pair else None
    if mode is None:
        if connector.order is None:
            return None
        usual = USUAL_MODE[connector.order]
        return DispatchChoice(usual, f"no deploy_mode in the file: {connector.name} needs {_words(connector.order)}")
    _check_order(mode, connector, findings)
    return DispatchChoice(mode, "deploy_mode in the file")


def _check_order(mode: str, connector: Connector, findings: Findings) -> None:
    order = DISPATCH_MODES[mode]
    if order is Order.ONE_ENGINE:
        what = f"sends every request to one engine, and {connector.name} carries nothing"
        report(findings, NO_PAIR_MODE, _MODE_PATH, what, got=mode)
    elif connector.order is not None and order is not connector.order:
        fitting = " or ".join(f'"{name}"' for name, known in DISPATCH_MODES.items() if known is connector.order)
        what = (
            f"does not go with {connector.name}, which needs {_words(connector.order)}; here {_words(order)}: "
            f"{connector.wrong_order}"
        )
        report(findings, ORDER, _MODE_PATH, what, got=mode, expected=fitting, fix="change it, or the connector")


def _words(order: Order) -> str:
    return {
        Order.PREFILL_FIRST: "prefill asked first",
        Order.DECODE_FIRST: "decode asked first",
        Order.BOTH_AT_ONCE: "both asked at once",
        Order.ONE_ENGINE: "one engine asked",
    }[order]
