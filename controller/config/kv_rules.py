"""The rules over one engine section's KV transfer. Those over a pair of sections are in pairing_rules.py.

Sources: vLLM-Ascend v0.23.0 below vllm_ascend/distributed/kv_transfer, vLLM 0.32 below vllm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from controller.config.engine_input import EngineInput, is_integer
from controller.config.errors import Findings, Path, Shown, did_you_mean
from controller.config.kv_sections import ENGINES, HIGHEST, KvSection
from controller.config.rule_report import StatedRule, report
from controller.config.rules import DEVICE_KEYS
from controller.config.schema import Deploy
from engine_launch.kv_connectors import CONNECTORS, KV_PORT, KV_ROLES, Connector, Kind, Listens, fits_role
from engine_launch.kv_transfer import EXTRA, INNER, OPTION, Part
from engine_launch.model import KvSizes, Role
from engine_launch.rule import RuleSeverity

ERROR, OVERRIDABLE, WARNING = RuleSeverity.ERROR, RuleSeverity.OVERRIDABLE, RuleSeverity.WARNING

OBJECT = StatedRule("kv-object", ERROR, "kv-transfer-config is one object: Motor completes it.", "Motor")
NO_NAME = StatedRule(
    "kv-connector-name", ERROR, "Every connector has a name.", "vLLM kv_connector/factory.py: Connector name is not set"
)
MISSPELT = StatedRule(
    "kv-connector-misspelt",
    ERROR,
    "A connector's name is one that the engine registers.",
    "vLLM kv_connector/factory.py:128: Unsupported connector type",
)
UNKNOWN = StatedRule("kv-connector-unknown", WARNING, "A connector unknown to Motor is passed on unchecked.", "Motor")
OTHER_ENGINE = StatedRule(
    "kv-connector-engine",
    ERROR,
    "An engine has the connector.",
    "vLLM-Ascend __init__.py, vLLM kv_connector/factory.py: what each registers",
)
ASSUMED_ENGINE = StatedRule(
    "kv-connector-assumed-engine", WARNING, "The assumed engine profile has the connector.", "as kv-connector-engine"
)
KV_ROLE = StatedRule(
    "kv-role",
    ERROR,
    "kv_role says what the section is: kv_producer, kv_consumer, or kv_both where the connector knows that.",
    "vLLM config/kv_transfer.py:106-116; kv_p2p/mooncake_connector.py:2429-2465: kv_both would only receive",
)
MULTI = StatedRule(
    "kv-multi",
    ERROR,
    "A MultiConnector has connectors, none of them a MultiConnector, and at most one that transfers.",
    "vLLM v1/multi_connector.py:232; ascend_multi_connector.py: Only one connector can produce KV transfer params",
)
CONTEXT_PARALLEL = StatedRule(
    "kv-context-parallel",
    OVERRIDABLE,
    "MooncakeLayerwiseConnector and MooncakeHybridConnector go with neither PCP nor DCP.",
    "orchestration paper, dispatch modes; kv_p2p/mooncake_layerwise_connector.py:1496",
)
PCP_WITH_PP = StatedRule(
    "kv-pcp-with-pp",
    ERROR,
    "MooncakeConnectorV1 takes PCP or pipeline stages, not both.",
    "kv_p2p/mooncake_connector.py:2004",
)
DECODE_PP = StatedRule(
    "kv-decode-pp", ERROR, "A decode engine has one pipeline stage.", "kv_p2p/mooncake_connector.py:2085"
)
UNION = StatedRule(
    "kv-union", ERROR, "A union engine has no connector that needs a pair.", "kv_p2p/mooncake_connector.py:2070-2082"
)
SIZES = StatedRule(
    "kv-sizes",
    ERROR,
    "Sizes in kv_connector_extra_config are those of the sections; dp_size is 1 where each group is its own engine.",
    "kv_p2p/mooncake_connector.py:2066-2086",
)
ENGINE_ID = StatedRule(
    "kv-engine-id",
    ERROR,
    "A connector inside a MultiConnector has no engine_id of its own.",
    "vLLM v1/multi_connector.py:236-240",
)
OWN_ENGINE_ID = StatedRule(
    "kv-engine-id-own",
    WARNING,
    "Motor gives each engine an engine_id of its own, new with each start; a written one is replaced.",
    "kv_p2p/mooncake_connector.py:792-806, 1376",
)
PORT = StatedRule("kv-port", ERROR, "Every worker's KV port is a port.", "kv_p2p/mooncake_connector.py:2030-2038")
ASCEND_DIRECT = StatedRule(
    "kv-port-ascend-direct",
    WARNING,
    "KV ports keep out of the range in which Ascend-direct takes ports at random.",
    "vLLM-Ascend docs pd_disaggregation_mooncake_multi_node.md:231-241 (PR #6455)",
)
HCCL = StatedRule("kv-port-hccl", WARNING, "KV ports keep out of HCCL's range.", "HCCL_IF_BASE_PORT, 60000 by default")
HOST = StatedRule("kv-host", WARNING, "Each node fills in its own address for KV transfer.", "vLLM envs.py:233")

RULES = (
    OBJECT,
    NO_NAME,
    MISSPELT,
    UNKNOWN,
    OTHER_ENGINE,
    ASSUMED_ENGINE,
    KV_ROLE,
    MULTI,
    CONTEXT_PARALLEL,
    PCP_WITH_PP,
    DECODE_PP,
    UNION,
    SIZES,
    ENGINE_ID,
    OWN_ENGINE_ID,
    PORT,
    ASCEND_DIRECT,
    HCCL,
    HOST,
)

_ASCEND_DIRECT_FIRST = 20000
_ASCEND_DIRECT_A_DEVICE = 1000
_HCCL_FIRST = 60000


def check_kv_object(engine: EngineInput, findings: Findings) -> None:
    """What could not even be read: text instead of an object, or a dotted key."""
    if engine.profile.engine not in ENGINES:
        return
    value = engine.value(OPTION)
    if value is not None and not isinstance(value, Mapping):
        report(findings, OBJECT, engine.path(OPTION), "is no object", got=value, expected="an object, without quotes")
    for name, option in engine.options.items():
        if name.startswith(f"{OPTION}."):
            where = (engine.section, "engine_config", option.spelled)
            report(findings, OBJECT, where, "is one key of it alone", expected=f'one object, "{OPTION}"')


def check_kv_section(section: KvSection, sizes: Mapping[Role, KvSizes], deploy: Deploy, findings: Findings) -> None:
    """All rules over one section. `sizes`: what Motor would fill in for each side of the pair."""
    _check_multi(section, findings)
    for part in _all_parts(section):
        _check_name(section, part, findings)
        _check_role(section, part, findings)
        if part.connector is not None:
            _check_shape(section, part.connector, findings)
            _check_sizes(section, part, part.connector, sizes, findings)
    _check_engine_id(section, findings)
    _check_ports(section, deploy, findings)
    connector = section.connector
    if connector and connector.host_env in section.engine.engine.env:
        where = (section.engine.section, "env", connector.host_env)
        report(findings, HOST, where, "is one value for all nodes", fix="remove it: each node fills in its address")


def _all_parts(section: KvSection) -> tuple[Part, ...]:
    """The connectors that work, and the MultiConnector around them."""
    name = str(section.config.get("kv_connector") or "")
    connector = CONNECTORS.get(name)
    if connector is None or connector.kind is not Kind.MULTI:
        return section.parts
    return (Part((), section.config, name, connector), *section.parts)


def _where(section: KvSection, part: Part, *keys: str | int) -> Path:
    return (*section.path, *part.at, *keys)


def _check_name(section: KvSection, part: Part, findings: Findings) -> None:
    where = _where(section, part, "kv_connector")
    engine = section.engine
    if not part.name:
        report(
            findings, NO_NAME, where, "the connector has no name", fix=f'add "kv_connector": one of {_names(engine)}'
        )
    elif part.connector is None:
        hint = "" if part.config.get("kv_connector_module_path") else did_you_mean(part.name, CONNECTORS)
        rule = MISSPELT if hint else UNKNOWN
        what = (
            "no engine has this connector" if hint else "Motor does not know it: only kv_role and engine_id are filled"
        )
        report(findings, rule, where, what, got=part.name, fix=hint)
    elif part.connector.engine not in (None, engine.profile.engine):
        rule = ASSUMED_ENGINE if engine.choice.assumed else OTHER_ENGINE
        what = f"{engine.profile.name} has no such connector"
        fix = f"set engine_profile to a {part.connector.engine} version" if engine.choice.assumed else ""
        report(findings, rule, where, what, got=part.name, expected=f"one of {_names(engine)}", fix=fix)


def _names(engine: EngineInput) -> str:
    own = [c.name for c in CONNECTORS.values() if c.kind is Kind.TRANSFER and c.engine in (None, engine.profile.engine)]
    return ", ".join(own)


def _check_role(section: KvSection, part: Part, findings: Findings) -> None:
    written = part.config.get("kv_role")
    role = section.engine.role
    if written is None or fits_role(str(written), role, part.connector):
        return
    what = f"contradicts {section.engine.section}, whose engines are {_side(role)}"
    if written == "kv_both":
        what = f"{part.name} does not send with kv_both"
    expected = f'"{KV_ROLES[role]}"'
    report(
        findings, KV_ROLE, _where(section, part, "kv_role"), what, got=written, expected=expected, fix="or remove it"
    )


def _side(role: Role) -> str:
    return {Role.PREFILL: "producers", Role.DECODE: "consumers", Role.UNION: "both"}[role]


def _check_multi(section: KvSection, findings: Findings) -> None:
    name = str(section.config.get("kv_connector") or "")
    if name != "MultiConnector":
        return
    extra = section.config.get(EXTRA)
    inner = extra.get(INNER) if isinstance(extra, Mapping) else None
    where: Path = (*section.path, EXTRA, INNER)
    if not isinstance(inner, (list, tuple)) or not inner or not all(isinstance(item, Mapping) for item in inner):
        report(findings, MULTI, where, "a MultiConnector needs the connectors in it", expected="a list of objects")
    for part in section.parts:
        if part.connector is not None and part.connector.kind is Kind.MULTI:
            report(findings, MULTI, _where(section, part), "a MultiConnector inside a MultiConnector", got=Shown(name))
        if part.config.get("engine_id") is not None:
            what = "the engine passes it twice to KVTransferConfig (TypeError): connectors inherit it"
            report(findings, ENGINE_ID, _where(section, part, "engine_id"), what, fix="remove it")
    transfers = [part for part in section.parts if part.connector and part.connector.kind is Kind.TRANSFER]
    if len(transfers) > 1:
        names = " and ".join(part.name for part in transfers)
        what = "only one connector may carry KV from prefill to decode"
        report(findings, MULTI, where, what, got=Shown(names), expected="one of them")


def _check_shape(section: KvSection, connector: Connector, findings: Findings) -> None:
    engine, shape = section.engine, section.engine.shape
    if not connector.context_parallel and shape.pcp * shape.dcp > 1:
        wide = "prefill-context-parallel-size" if shape.pcp > 1 else "decode-context-parallel-size"
        report(
            findings,
            CONTEXT_PARALLEL,
            engine.path(wide),
            f"{connector.name} does not go with context parallelism: {connector.no_context_parallel}",
            got=Shown(f"pcp {shape.pcp}, dcp {shape.dcp}"),
            expected="1",
            fix='use "MooncakeConnectorV1" with "deploy_mode": "cpcd_separate"',
        )
    if connector.pcp_with_pp and shape.pcp > 1 and shape.pp > 1:
        what = f"{connector.name} takes PCP or pipeline stages, not both: {connector.pcp_with_pp}"
        got = Shown(f"pcp {shape.pcp}, pp {shape.pp}")
        report(findings, PCP_WITH_PP, engine.path("pipeline-parallel-size"), what, got=got, expected="1")
    if engine.role is Role.DECODE and shape.pp > 1:
        reason = connector.decode_pp
        if connector.listens is Listens.CONSUMERS and shape.workers_per_node > shape.tp * shape.pcp:
            reason = (
                "workers of two stages on one node listen at one port "
                "(vLLM-Ascend v0.23.0 kv_p2p/mooncake_layerwise_connector.py:1164-1169)"
            )
        if reason:
            what = f"{connector.name} does not go with pipeline stages on the decode side: {reason}"
            report(findings, DECODE_PP, engine.path("pipeline-parallel-size"), what, got=shape.pp, expected="1")
    if engine.role is Role.UNION and connector.demands_sizes:
        what = f"{connector.name} carries KV between a prefill and a decode engine: {connector.demands_sizes}"
        report(findings, UNION, section.path, what, expected="a store connector, or none")


def _check_sizes(
    section: KvSection, part: Part, connector: Connector, sizes: Mapping[Role, KvSizes], findings: Findings
) -> None:
    extra = part.config.get(EXTRA)
    where = _where(section, part, EXTRA)
    if extra is not None and not isinstance(extra, Mapping):
        report(findings, OBJECT, where, "is no object", got=extra, expected="an object")
        return
    if not connector.reads_sizes:
        return
    for role, computed in sizes.items():
        written = (extra or {}).get(role.value)
        if written is None:
            continue
        if not isinstance(written, Mapping):
            report(findings, OBJECT, (*where, role.value), "is no object", got=written, expected="an object")
            continue
        for name, size in dataclasses.asdict(computed).items():
            value = written.get(name)
            if value is not None and not (is_integer(value) and value == size):
                _report_size(section, (*where, role.value, name), role, value, size, findings)


def _report_size(section: KvSection, path: Path, role: Role, value: Any, size: int, findings: Findings) -> None:
    what = f"contradicts the {role.value} section"
    if path[-1] == "dp_size" and size == 1:
        what = f"each {role.value} group is an engine of its own, whose world has one data-parallel rank"
    report(findings, SIZES, path, what, got=value, expected=str(size), fix="remove it: Motor fills it in")


def _check_engine_id(section: KvSection, findings: Findings) -> None:
    written = section.config.get("engine_id")
    if written is None:
        return
    what = (
        "is replaced: each engine gets its own, new with each start, since peers keep the memory addresses that they "
        "once got from an engine_id"
    )
    report(findings, OWN_ENGINE_ID, (*section.path, "engine_id"), what, got=written, fix="remove it")


def _check_ports(section: KvSection, deploy: Deploy, findings: Findings) -> None:
    connector, transfer = section.connector, section.transfer
    if connector is None or transfer is None or not section.world_ports:
        return
    setting = connector.port_setting
    values = transfer.config if setting == KV_PORT else section.engine.engine.env
    written, ports = values.get(setting), section.ports
    if written is not None and not section.given:
        report(findings, PORT, section.port_path, "is no usable port", got=written, expected="a number of a port")
        return
    if ports is None:
        return
    if not 1024 <= ports.first <= ports.first + ports.size - 1 <= HIGHEST:
        _report_misfit(section, ports.first, ports.size, findings)
    elif section.engine.profile.engine == "vllm_ascend":
        _check_ascend_ranges(section, ports.first, ports.size, deploy, findings)


def _report_misfit(section: KvSection, first: int, size: int, findings: Findings) -> None:
    several = bool(section.port_step) and section.worlds > 1
    worlds = f"{section.worlds} engines x " if several else ""
    what = f"{worlds}{section.world_ports} KV ports from {first} on do not fit"
    fix = "move the first port"
    if several:
        key = DEVICE_KEYS[section.engine.role]
        fix += f"; or set motor_deploy_config.{key}: with one engine a node all engines take the same ports"
    report(findings, PORT, section.port_path, what, expected=f"ports from 1024 to {HIGHEST}", fix=fix)


def _check_ascend_ranges(section: KvSection, first: int, size: int, deploy: Deploy, findings: Findings) -> None:
    """On both ranges ports are taken at random or by other settings: a collision is possible, and not certain."""
    if section.connector is None or section.connector.port_setting != KV_PORT:
        return
    last = first + size - 1
    devices = getattr(deploy, DEVICE_KEYS[section.engine.role]) or section.engine.shape.workers_per_node
    direct = range(_ASCEND_DIRECT_FIRST, _ASCEND_DIRECT_FIRST + devices * _ASCEND_DIRECT_A_DEVICE)
    if first < direct.stop and last >= direct.start:
        what = (
            f"KV ports {first}-{last} meet {direct.start}-{direct.stop - 1}, where Ascend-direct takes ports at random "
            f"on a node of {devices} devices: a start may fail with `Address already in use`"
        )
        fix = f'remove "{KV_PORT}": Motor finds a place below {direct.start}; or begin at {direct.stop} or later'
        report(findings, ASCEND_DIRECT, section.port_path, what, fix=fix)
    if last >= _hccl_first(section.engine):
        what = f"KV ports {first}-{last} reach into HCCL's range, {_hccl_first(section.engine)} and up"
        report(findings, HCCL, section.port_path, what, fix="move the first port down")


def _hccl_first(engine: EngineInput) -> int:
    text = str(engine.engine.env.get("HCCL_IF_BASE_PORT", "")).strip()
    return int(text) if text.isdigit() else _HCCL_FIRST
