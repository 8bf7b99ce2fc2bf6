"""The deployments that are simulated: small ones of every kind, so that many seeds are cheap."""

from __future__ import annotations

import random
from dataclasses import replace

from controller.core.model import DeploymentPlan, InstancePlan, NodeOffer, PortRange, Scope, Timers


def instance(name: str, dp: int, nnodes: int, scope: Scope = Scope.GROUP, devices: int = 1) -> InstancePlan:
    return InstancePlan(
        name=name, role=name.split("-")[0], dp_size=dp, nnodes=nnodes, scope=scope, devices_per_slot=devices,
        engine="vllm", model="m", config_digest=f"digest-of-{name}", master_ports=PortRange(7001, 64),
        api_ports=PortRange(8000, 64), dp_rpc_ports=PortRange(29550, 64) if scope is Scope.INSTANCE else None,
    )  # fmt: skip


NATIVE_INTERNAL = replace(instance("union-0", 2, 2, Scope.INSTANCE), api_on_every_group=False)
KINDS: tuple[tuple[InstancePlan, ...], ...] = (
    (instance("union-0", 1, 2),),
    (instance("union-0", 1, 3),),
    (instance("union-0", 2, 2),),
    (instance("union-0", 2, 2, Scope.INSTANCE),),
    (NATIVE_INTERNAL,),
    (instance("prefill-0", 1, 2), instance("decode-0", 2, 1)),
    (instance("prefill-0", 1, 2), instance("prefill-1", 1, 2), instance("decode-0", 1, 1)),
    (instance("union-0", 2, 2, devices=4),),
)


def deployment(seed: int) -> tuple[DeploymentPlan, list[NodeOffer]]:
    """A deployment and its nodes, spares included, chosen by the seed."""
    rng = random.Random(f"shape-{seed}")
    kind = rng.choice(KINDS)
    fence = rng.choice([0.0, 0.0, 120.0])
    plan = DeploymentPlan("default", kind, Timers(self_fence=fence, start_unreachable_grace=rng.choice([60.0, 300.0])))
    need = max(i.devices_per_slot for i in kind)
    roomy = need > 1
    count = sum(i.dp_size * i.nnodes for i in kind) + rng.randint(0, 2)
    if roomy:
        count = max(2, count // 2)
    return plan, [offer(number, 2 * need if roomy else need) for number in range(1, count + 1)]


def offer(number: int, devices: int) -> NodeOffer:
    return NodeOffer(
        node_id=f"n{number}", incarnation=1, boot_id="boot-1", address=f"10.0.{number // 250}.{number % 250 + 1}",
        devices=tuple(str(i) for i in range(devices)), engines={"vllm": "0.32.0"},
    )  # fmt: skip
