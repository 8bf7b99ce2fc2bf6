"""A deployment with no hardware: generation 1 of every slot on imaginary nodes, as values.

Each imaginary node is a host of its own and is called like its slot, `<prefill-0/0/1>`. A real generation
takes ports by the same ledger and ranges: they differ only where slots share a host or a restart moved on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.config.plan import Choices, LoadedDeployment
from controller.config.port_rules import EPHEMERAL
from controller.core.model import InstancePlan, SlotKey
from controller.core.ports import PortLedger
from engine_launch.command import build_command
from engine_launch.kv_transfer import instance_ports
from engine_launch.model import Assignment, EngineCommand, EngineSpec, Role

NODE_LOCAL = "<node>"
RUN_ID = "<run>"  # new with each start; it stands in a KV transfer's engine_id


@dataclass(frozen=True)
class SlotRendering:
    """One slot's process. `ports` has a name for each fixed port: master, dp_rpc, api, kv."""

    slot: SlotKey
    assignment: Assignment
    command: EngineCommand
    ports: Mapping[int, str]

    @property
    def env(self) -> dict[str, str]:
        """The whole environment by name; what only the node knows reads `<node>`."""
        return dict(sorted({**self.command.env, **dict.fromkeys(self.command.node_env, NODE_LOCAL)}.items()))


@dataclass(frozen=True)
class InstanceRendering:
    plan: InstancePlan
    spec: EngineSpec
    choices: Choices
    slots: tuple[SlotRendering, ...]


@dataclass(frozen=True)
class FirewallRule:
    """What has to get through to `on`. `ports` is a port, a range, or several, all TCP."""

    on: str
    ports: str
    source: str
    purpose: str


@dataclass(frozen=True)
class PlanRendering:
    file: str
    deployment_id: str
    instances: tuple[InstanceRendering, ...]
    firewall: tuple[FirewallRule, ...]

    @property
    def slots(self) -> int:
        return sum(len(instance.slots) for instance in self.instances)

    @property
    def devices(self) -> int:
        return sum(len(instance.slots) * instance.plan.devices_per_slot for instance in self.instances)


def render_plan(loaded: LoadedDeployment) -> PlanRendering:
    """Generation 1 of the whole deployment."""
    ledger = PortLedger()
    instances = tuple(
        _render_instance(plan, loaded.engines[plan.name], loaded.choices[plan.name], ledger)
        for plan in loaded.plan.instances
    )
    rules = _controller_rules(loaded)
    for instance in instances:
        rules += _instance_rules(instance)
    return PlanRendering(loaded.file, loaded.plan.deployment_id, instances, tuple(rules))


def placeholder(slot: SlotKey) -> str:
    """The name of the imaginary node that fills `slot`, and its address."""
    return f"<{slot}>"


def _render_instance(plan: InstancePlan, spec: EngineSpec, choices: Choices, ledger: PortLedger) -> InstanceRendering:
    worlds: dict[SlotKey, tuple[int, int | None]] = {}
    slots = []
    for slot in plan.slots():
        master = plan.world_master(slot)
        if master not in worlds:
            worlds[master] = _world_ports(plan, master, ledger)
        slots.append(_render_slot(plan, spec, slot, worlds[master], ledger))
    return InstanceRendering(plan, spec, choices, tuple(slots))


def _world_ports(plan: InstancePlan, master: SlotKey, ledger: PortLedger) -> tuple[int, int | None]:
    host = placeholder(master)
    master_port = ledger.take(host, str(master), plan.master_ports)
    dp_rpc_port = ledger.take(host, str(master), plan.dp_rpc_ports) if plan.dp_rpc_ports else None
    assert master_port is not None, f"{host} is new and the range {plan.master_ports} is not empty"
    return master_port, dp_rpc_port


def _render_slot(
    plan: InstancePlan, spec: EngineSpec, slot: SlotKey, world: tuple[int, int | None], ledger: PortLedger
) -> SlotRendering:
    master_port, dp_rpc_port = world
    node = placeholder(slot)
    assignment = Assignment(
        instance=plan.name,
        role=Role(plan.role),
        dp_rank=slot.dp_rank,
        node_rank=slot.node_rank,
        address=node,
        master_addr=placeholder(plan.world_master(slot)),
        master_port=master_port,
        api_port=ledger.take(node, str(slot), plan.api_ports) if plan.has_api(slot) else None,
        dp_rpc_port=dp_rpc_port,
        run_id=RUN_ID,
    )
    command = build_command(spec, assignment)
    names = {assignment.master_port: "master", assignment.dp_rpc_port: "dp_rpc", assignment.api_port: "api"}
    return SlotRendering(slot, assignment, command, {port: names.get(port, "kv") for port in command.ports})


def _controller_rules(loaded: LoadedDeployment) -> list[FirewallRule]:
    settings = loaded.settings
    return [
        FirewallRule("controller", str(settings.grpc.port), "all nodes", "node managers dial in"),
        FirewallRule("controller", str(settings.rest.port), "operators, routers", "REST, metrics"),
    ]


def _instance_rules(instance: InstanceRendering) -> list[FirewallRule]:
    plan, spec = instance.plan, instance.spec
    members = "nodes of the instance" if spec.translation.one_world else "nodes of the same group"
    masters = f"{plan.name} masters"
    rules = [FirewallRule(masters, str(plan.api_ports), "routers, clients, controller", "API, health")]
    if spec.shape.nnodes > 1 or spec.translation.one_world:
        rules.append(FirewallRule(masters, str(plan.master_ports), members, "rendezvous"))
        if plan.dp_rpc_ports:
            rules.append(FirewallRule(masters, str(plan.dp_rpc_ports), members, "data-parallel handshake"))
        ephemeral = f"{EPHEMERAL[0]}-{EPHEMERAL[-1]}"
        rules.append(FirewallRule(f"{plan.name} nodes", ephemeral, members, "broadcast queues, Gloo, NCCL or HCCL"))
    kv = instance_ports(spec, Role(plan.role), spec.options)
    if kv is not None:
        ports = str(kv[0]) if kv[0] == kv[1] else f"{kv[0]}-{kv[1]}"
        rules.append(FirewallRule(f"{plan.name} nodes", ports, "nodes of the other role", "KV transfer"))
    return rules
