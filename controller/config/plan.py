"""deploy.json -> the deployment as the controller runs it; `load_deployment` is the door to this package."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.config.atom_rules import check_atom
from controller.config.controller_rules import Settings, read_settings, read_timers
from controller.config.engine_input import EngineInput, read_engine
from controller.config.env_rules import read_env
from controller.config.errors import Findings, Problem, Severity, Shown
from controller.config.flag_rules import check_options, drain_of
from controller.config.health_rules import check_health, hang_settings, health_checks
from controller.config.kv_sections import KvSection, read_kv
from controller.config.load import Document, read_document
from controller.config.override_rules import read_override, report_unused
from controller.config.pairing_rules import DispatchChoice, check_pairing
from controller.config.port_rules import RolePorts, read_ports
from controller.config.rule_list import RULES
from controller.config.rules import check_shape
from controller.config.schema import Deploy
from controller.config.schema_check import Sections, check_schema
from controller.config.vocabulary import ENGINE_SECTIONS
from controller.core.model import DeploymentPlan, InstancePlan, Scope
from engine_launch.model import EngineSpec, KvPlan, Role, Translation
from engine_launch.override import Override
from engine_launch.profiles import ProfileChoice
from engine_launch.translation import TranslationChoice

MOST_DEVICES = 4096  # of one node
MOST_SLOTS = 100_000  # ten times the largest cluster that was measured; what is planned is held in memory

INSTANCE_KEYS = {
    Role.PREFILL: "p_instances_num",
    Role.DECODE: "d_instances_num",
    Role.UNION: "hybrid_instances_num",
}


@dataclass(frozen=True)
class LoadedDeployment:
    """A valid file. `engines` and `choices` have one entry for each instance of the plan."""

    file: str
    plan: DeploymentPlan
    engines: Mapping[str, EngineSpec]
    choices: Mapping[str, Choices]
    settings: Settings
    warnings: tuple[Problem, ...]
    coordinator: Mapping[str, Any]  # motor_coordinator_config as written
    dispatch: DispatchChoice | None  # how a router has to send requests; None without a prefill/decode pair
    document: Document  # what it was made from


@dataclass(frozen=True)
class Choices:
    """What Motor chose for an instance, and why."""

    profile: ProfileChoice
    translation: TranslationChoice
    dispatch: DispatchChoice | None = None  # of the pair that it is a side of


def load_deployment(path: Path | str) -> LoadedDeployment:
    """Read and check a deployment file. ConfigError with all errors at once."""
    return deployment_from(read_document(path))


def deployment_from(document: Document) -> LoadedDeployment:
    """As `load_deployment`, from a document that was read already."""
    findings = document.findings()
    sections = check_schema(document, findings)
    _check_roles(sections, findings)
    settings = read_settings(sections.controller, Path(document.file).parent, findings)
    inputs = [read_engine(section, engine, findings) for section, engine in sections.engines.items()]
    instances: list[InstancePlan] = []
    engines: dict[str, EngineSpec] = {}
    choices: dict[str, Choices] = {}
    overrides = {engine.section: read_override(engine, RULES, findings) for engine in inputs}
    coordinator = document.data.get("motor_coordinator_config", {})
    counts = {engine.section: len(_instance_names(engine.role, sections.deploy)) for engine in inputs}
    kv = read_kv(inputs, counts, sections.deploy)
    dispatch = check_pairing(inputs, kv, coordinator, sections.deploy, findings)
    ports = read_ports(inputs, sections.deploy, sections.controller, kv, findings)
    for engine in inputs:
        check_shape(engine, sections.deploy, findings)
        check_atom(engine, findings)
        check_options(engine, findings)
        check_health(engine, sections.controller.timers, findings)
        spec = _engine_spec(engine, read_env(engine, findings), overrides[engine.section])
        report_unused(engine, findings)
        kv_plans = _kv_plans(kv, engine, counts[engine.section])
        digest = section_digest(document.data[engine.section], kv_plans[0])
        for name, kv_plan in zip(_instance_names(engine.role, sections.deploy), kv_plans, strict=True):
            instances.append(_instance_plan(name, engine, spec, ports[engine.section], digest))
            engines[name] = dataclasses.replace(spec, kv=kv_plan)
            choices[name] = Choices(engine.choice, engine.translation, dispatch if engine.section in kv else None)
    drains = {engine.section: drain_of(engine, findings) for engine in inputs}
    slots = sum(instance.dp_size * instance.nnodes for instance in instances)
    devices = max((instance.devices_per_slot for instance in instances), default=0)
    if slots > MOST_SLOTS or devices > MOST_DEVICES:
        findings.error(
            (),
            "asks for more than any cluster has",
            got=Shown(f"{slots} slots (instances x dp_size x nnodes) of {devices} devices"),
            expected=f"at most {MOST_SLOTS} slots of at most {MOST_DEVICES} devices",
            fix="look for a number with digits too many",
            rule="slots-most",
        )
    timers = read_timers(sections.controller.timers, drains, findings, slots)
    findings.raise_errors()
    plan = DeploymentPlan(
        deployment_id=sections.deploy.deployment_id,
        instances=tuple(instances),
        timers=timers,
        allow_loopback=sections.controller.allow_loopback,
    )
    warnings = tuple(p for p in findings.problems if p.severity is Severity.WARNING)
    return LoadedDeployment(document.file, plan, engines, choices, settings, warnings, coordinator, dispatch, document)


def section_digest(section: Mapping[str, Any], kv: KvPlan | None = None) -> str:
    """16 hex digits that change with anything that reaches an engine: equal digests mean equal engines.

    Other health checks are no other engine: they hold from the next start on, and running engines stay. What a KV
    transfer takes from the other section (`kv`, of the section's first instance) reaches an engine too.
    """
    content = {key: value for key, value in section.items() if key != "health_check_config"}
    if kv is not None:
        content["kv transfer"] = dataclasses.asdict(kv)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_roles(sections: Sections, findings: Findings) -> None:
    present = {ENGINE_SECTIONS[section] for section in sections.engines}
    if not present and not findings.has_errors():
        findings.error(
            (), "no engine section", expected=f"at least one of {', '.join(ENGINE_SECTIONS)}", rule="section-engine"
        )
    for role, key in INSTANCE_KEYS.items():
        if getattr(sections.deploy, key) is not None and role.value not in present:
            section = next(name for name, value in ENGINE_SECTIONS.items() if value == role.value)
            findings.error(
                ("motor_deploy_config", key),
                f"asks for {role.value} instances, and {section} is missing",
                got=getattr(sections.deploy, key),
                fix="add the section or remove the key",
                rule="section-instances",
            )


def _instance_names(role: Role, deploy: Deploy) -> list[str]:
    count: int = getattr(deploy, INSTANCE_KEYS[role]) or 1
    return [f"{role.value}-{number}" for number in range(count)]


def _kv_plans(kv: Mapping[str, KvSection], engine: EngineInput, count: int) -> list[KvPlan | None]:
    section = kv.get(engine.section)
    return [section.plan(number, kv.values()) if section else None for number in range(count)]


def _engine_spec(engine: EngineInput, env: dict[str, str], override: Override) -> EngineSpec:
    return EngineSpec(
        engine_type=engine.engine.engine_type,
        profile=engine.profile.name,
        engine=engine.engine.engine or engine.engine.engine_type,
        shape=engine.shape,
        translation=engine.translation.translation,
        model=str(engine.value("model")),
        engine_config=engine.engine.engine_config,
        env=env,
        extra_args=tuple(engine.engine.extra_args),
        health=health_checks(engine.engine.health_check_config),
        override=override,
    )


def _instance_plan(name: str, engine: EngineInput, spec: EngineSpec, ports: RolePorts, digest: str) -> InstancePlan:
    return InstancePlan(
        name=name,
        role=engine.role.value,
        dp_size=spec.shape.dp,
        nnodes=spec.shape.nnodes,
        scope=Scope.INSTANCE if spec.translation.one_world else Scope.GROUP,
        devices_per_slot=spec.shape.workers_per_node,
        engine=spec.engine,
        model=spec.model,
        config_digest=digest,
        master_ports=ports.master,
        api_ports=ports.api,
        dp_rpc_ports=ports.dp_rpc,
        api_on_every_group=spec.translation is not Translation.NATIVE_INTERNAL,
        # A profile that was only assumed follows the nodes (reported_profiles.py); one that the file pins fits its own.
        engine_versions=() if engine.choice.assumed else (engine.profile.version,),
        engine_profile=engine.profile.name,
        profile_reason=f"assumed: {engine.choice.reason}" if engine.choice.assumed else engine.choice.reason,
        hang=hang_settings(engine.engine.health_check_config),
        api_scheme="https" if engine.value("ssl-certfile") else "http",
    )
