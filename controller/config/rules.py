"""One engine's shape: what can never start is refused before a device is touched.

The engines' own rules are in engine_launch (vllm_rules.py, vllm_context_rules.py, vllm_ascend_rules.py,
atom_rules.py); what a node's devices allow is here.
"""

from __future__ import annotations

from controller.config.engine_input import EngineInput
from controller.config.errors import Findings, Shown
from controller.config.model_files import read_model
from controller.config.rule_report import report_breaches
from controller.config.schema import Deploy
from engine_launch import vllm_ascend_rules, vllm_context_rules, vllm_rules
from engine_launch.flags import scalar_text
from engine_launch.model import ParallelShape, Role
from engine_launch.vllm_input import VllmEngine

# Engines for which vLLM's own rules hold.
_OF_VLLM = frozenset({"vllm", "vllm_ascend"})

SHARED = (*vllm_rules.SHARED, *vllm_context_rules.SHARED)
RULES = (*vllm_rules.RULES, *vllm_context_rules.RULES, *vllm_ascend_rules.RULES)

# In motor_deploy_config: devices of a node, and nodes of an instance.
DEVICE_KEYS = {Role.PREFILL: "p_pod_npu_num", Role.DECODE: "d_pod_npu_num", Role.UNION: "hybrid_pod_npu_num"}
NODE_KEYS = {
    Role.PREFILL: "single_p_instance_pod_num",
    Role.DECODE: "single_d_instance_pod_num",
    Role.UNION: "single_hybrid_instance_pod_num",
}


def check_shape(engine: EngineInput, deploy: Deploy, findings: Findings) -> None:
    """All rules over one engine section but those of ATOM alone (atom_rules.py) and of KV transfer (kv_rules.py)."""
    of_vllm = engine.profile.engine in _OF_VLLM
    report_breaches(engine, (*SHARED, *RULES) if of_vllm else SHARED, vllm_engine(engine), findings)
    _devices(engine, deploy, findings)
    notes = engine.profile.notes + (engine.profile.pcp_notes if engine.shape.pcp > 1 else ())
    for note in notes:
        findings.warning(
            (engine.section, "engine_profile"), f"{engine.profile.name}: {note}", rule="engine-profile-notes"
        )


def vllm_engine(engine: EngineInput) -> VllmEngine:
    """The section as the rules see it. Reads the model's config.json where it lies on this machine."""
    model, unread = read_model(str(engine.value("model") or ""))
    return VllmEngine(
        profile=engine.profile,
        shape=engine.shape,
        translation=engine.translation,
        wanted_translation=engine.engine.dp_translation,
        role=engine.role,
        options={name: option.value for name, option in engine.options.items()},
        env={name: scalar_text(value) for name, value in engine.engine.env.items()},
        model=model,
        model_unread=unread,
    )


def _product(shape: ParallelShape) -> str:
    ranks = f" x {shape.dp_local} data-parallel ranks" if shape.dp_local > 1 else ""
    return f"{shape.group_world * shape.dp_local} (tp {shape.tp} x pp {shape.pp} x pcp {shape.pcp}{ranks})"


def _devices(engine: EngineInput, deploy: Deploy, findings: Findings) -> None:
    shape = engine.shape
    key = DEVICE_KEYS[engine.role]
    devices: int | None = getattr(deploy, key)
    slots = shape.dp * shape.nnodes
    fewest = slots
    if devices:
        if devices < shape.workers_per_node:
            findings.error(
                ("motor_deploy_config", key),
                f"a {engine.role.value} node needs {shape.workers_per_node} devices: {_product(shape)} over "
                f"{shape.nnodes} nodes",
                got=Shown(f"{devices} devices"),
                expected=f"at least {shape.workers_per_node}",
                fix="raise nnodes, or lower a parallel size",
                rule="devices-per-node",
            )
            return
        a_node_holds = devices // max(shape.workers_per_node, 1)
        fewest = max(shape.nnodes, -(-slots // a_node_holds))
        if devices % max(shape.workers_per_node, 1):
            findings.warning(
                ("motor_deploy_config", key),
                f"{devices % shape.workers_per_node} of {devices} devices of a {engine.role.value} node stay "
                f"idle: an engine process takes {shape.workers_per_node}",
                rule="devices-idle",
            )
    key = NODE_KEYS[engine.role]
    nodes: int | None = getattr(deploy, key)
    if nodes is not None and not fewest <= nodes <= slots:
        findings.error(
            ("motor_deploy_config", key),
            f"a {engine.role.value} instance has {shape.dp} groups of {shape.nnodes} nodes",
            got=nodes,
            expected=str(slots) if fewest == slots else f"{fewest} to {slots}",
            fix="change it, data-parallel-size or nnodes; or leave it out",
            rule="nodes-per-instance",
        )
