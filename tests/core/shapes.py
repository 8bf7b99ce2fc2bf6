"""Small deployments and nodes for the tests of the core."""

from __future__ import annotations

from controller.core.model import DeploymentPlan, InstancePlan, NodeOffer, PortRange, Scope, Timers


def instance(
    name: str = "prefill-0",
    dp: int = 2,
    nnodes: int = 2,
    scope: Scope = Scope.GROUP,
    devices: int = 1,
    **more: object,
) -> InstancePlan:
    return InstancePlan(
        name=name,
        role=name.split("-")[0],
        dp_size=dp,
        nnodes=nnodes,
        scope=scope,
        devices_per_slot=devices,
        engine="vllm",
        model="m",
        config_digest=f"digest-of-{name}",
        master_ports=PortRange(7001, 64),
        api_ports=PortRange(8000, 64),
        dp_rpc_ports=PortRange(29550, 64) if scope is Scope.INSTANCE else None,
        **more,  # type: ignore[arg-type]
    )


def deployment(*instances: InstancePlan, **timers: float) -> DeploymentPlan:
    return DeploymentPlan("default", instances or (instance(),), Timers(**timers))  # type: ignore[arg-type]


def offer(number: int, devices: int = 1, **more: object) -> NodeOffer:
    values: dict[str, object] = {
        "node_id": f"n{number}",
        "incarnation": 1,
        "boot_id": "boot-1",
        "address": f"10.0.0.{number}",
        "devices": tuple(str(i) for i in range(devices)),
        "engines": {"vllm": "0.32.0"},
    }
    return NodeOffer(**{**values, **more})  # type: ignore[arg-type]
