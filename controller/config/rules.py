"""The arithmetic of one engine's shape: what can never start is refused before a device is touched.

Each rule names its source. Rules that need the model's own files (KV heads, MLA) are not here: a plan has no
model.
"""

from __future__ import annotations

from controller.config.engine_input import EngineInput
from controller.config.errors import Findings, Shown
from controller.config.schema import Deploy
from engine_launch.model import ParallelShape, Role
from engine_launch.profile import DcpRule, PcpSupport

_V2_RUNNER_ENV = "VLLM_USE_V2_MODEL_RUNNER"

# In motor_deploy_config: devices of a node, and nodes of an instance.
DEVICE_KEYS = {Role.PREFILL: "p_pod_npu_num", Role.DECODE: "d_pod_npu_num", Role.UNION: "hybrid_pod_npu_num"}
NODE_KEYS = {
    Role.PREFILL: "single_p_instance_pod_num",
    Role.DECODE: "single_d_instance_pod_num",
    Role.UNION: "single_hybrid_instance_pod_num",
}


def check_shape(engine: EngineInput, deploy: Deploy, findings: Findings) -> None:
    """All rules over one engine section."""
    _workers_fill_nodes(engine, findings)
    _multi_node(engine, findings)
    _devices(engine, deploy, findings)
    _translation(engine, findings)
    _pcp(engine, findings)
    _dcp(engine, findings)
    _interleave(engine, findings)
    notes = engine.profile.notes + (engine.profile.pcp_notes if engine.shape.pcp > 1 else ())
    for note in notes:
        findings.warning((engine.section, "engine_profile"), f"{engine.profile.name}: {note}")


def _workers_fill_nodes(engine: EngineInput, findings: Findings) -> None:
    """vLLM 0.32 arg_utils.py:2358-2372: the world has to divide evenly over its nodes."""
    shape = engine.shape
    if shape.group_world % shape.nnodes:
        divisors = ", ".join(str(n) for n in range(1, shape.group_world + 1) if shape.group_world % n == 0)
        findings.error(
            engine.path("nnodes"),
            f"a group's workers, {_product(shape)}, do not divide evenly over its nodes",
            got=Shown(f"nnodes {shape.nnodes}"),
            expected=f"one of {divisors}",
            fix="change nnodes or a parallel size",
        )
    elif not engine.profile.pcp_counts_in_nnodes and (shape.tp * shape.pp) % shape.nnodes:
        findings.error(
            engine.path("nnodes"),
            f"{engine.profile.name} leaves PCP out when it divides workers over nodes, and refuses "
            f"tp {shape.tp} x pp {shape.pp} over {shape.nnodes} nodes",
            expected="nnodes that divides tp x pp",
            fix="raise tensor-parallel-size, or use vLLM 0.30 or newer (engine_profile)",
        )


def _product(shape: ParallelShape) -> str:
    return f"{shape.group_world} (tp {shape.tp} x pp {shape.pp} x pcp {shape.pcp})"


def _multi_node(engine: EngineInput, findings: Findings) -> None:
    if engine.shape.nnodes == 1:
        return
    if engine.value("master-port") is None:
        findings.error(
            engine.path("master-port"),
            f"nnodes is {engine.shape.nnodes} and master-port is missing",
            expected="the first port on which a group's nodes meet",
            fix='add "master-port": 7001',
        )
    executor = engine.value("distributed-executor-backend")
    if executor not in (None, "mp", "uni", "external_launcher"):
        # vLLM 0.32 config/parallel.py:1087-1095
        findings.error(
            engine.path("distributed-executor-backend"),
            "does not work over several nodes",
            got=executor,
            expected='"mp"',
            fix="remove it: Motor sets mp",
        )


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
            )
            return
        a_node_holds = devices // max(shape.workers_per_node, 1)
        fewest = max(shape.nnodes, -(-slots // a_node_holds))
        if devices % max(shape.workers_per_node, 1):
            findings.warning(
                ("motor_deploy_config", key),
                f"{devices % shape.workers_per_node} of {devices} devices of a {engine.role.value} node stay "
                f"idle: an engine process takes {shape.workers_per_node}",
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
        )


def _translation(engine: EngineInput, findings: Findings) -> None:
    wanted = engine.engine.dp_translation
    path = (engine.section, "dp_translation")
    if engine.translation.refusal:
        findings.error(
            path,
            f"{wanted} does not work: {engine.translation.refusal}",
            got=wanted,
            expected='"replica" or "auto"',
        )
    elif engine.shape.dp == 1 and wanted.startswith("native"):
        findings.warning(path, "no effect: with one group there is nothing to join", got=wanted)
    elif engine.translation.translation.one_world and engine.value("data-parallel-backend") not in (
        None,
        "mp",
    ):
        # vLLM 0.32 arg_utils.py:2349-2356
        findings.error(
            engine.path("data-parallel-backend"),
            "does not work in one world over several nodes",
            got=engine.value("data-parallel-backend"),
            expected='"mp"',
        )


def _pcp(engine: EngineInput, findings: Findings) -> None:
    shape, profile = engine.shape, engine.profile
    if shape.pcp == 1:
        return
    path = engine.path("prefill-context-parallel-size")
    if profile.pcp is PcpSupport.NO:
        findings.error(
            path,
            f"{profile.name} has no prefill context parallelism",
            got=shape.pcp,
            expected="1",
            fix="on Ascend set engine_profile to a vllm_ascend version; upstream has it from vllm@0.30",
        )
    elif profile.pcp is PcpSupport.V2_RUNNER:
        if str(engine.engine.env.get(_V2_RUNNER_ENV, "")) not in {"1", "true", "True"}:
            findings.error(
                path,
                f"{profile.name} refuses PCP on the V1 model runner",
                got=shape.pcp,
                expected="1",
                fix=f'set "{_V2_RUNNER_ENV}": "1" in env, or use vllm_ascend@0.24 or older',
            )
        for name, size in (
            ("pipeline-parallel-size", shape.pp),
            ("decode-context-parallel-size", shape.dcp),
        ):
            if size > 1:
                # vLLM-Ascend worker/v2/pcp_manager.py:33-53
                findings.error(
                    engine.path(name),
                    f"{profile.name} refuses this together with PCP",
                    got=size,
                    expected="1",
                )
    if engine.role is Role.DECODE:
        findings.warning(path, "PCP splits prefill work; a decode instance gains nothing from it", got=shape.pcp)


def _dcp(engine: EngineInput, findings: Findings) -> None:
    shape = engine.shape
    if shape.dcp == 1:
        return
    path = engine.path("decode-context-parallel-size")
    if shape.pcp > 1 and engine.profile.dcp_rule is DcpRule.WITH_PCP_EXACT:
        # vLLM 0.32 config/parallel.py:590-603
        legal = sorted({1, shape.pcp, shape.tp * shape.pcp})
        if shape.dcp not in legal:
            findings.error(
                path,
                f"{engine.profile.name} allows few sizes together with PCP {shape.pcp}",
                got=shape.dcp,
                expected=f"one of {', '.join(str(size) for size in legal)}",
            )
    elif shape.tp % shape.dcp:
        findings.error(
            path,
            f"does not divide tensor-parallel-size {shape.tp}",
            got=shape.dcp,
            expected="a divisor of it",
        )


def _interleave(engine: EngineInput, findings: Findings) -> None:
    """A context parallel shard is whole stripes of a block; Ascend with KV transfer wants stripe == block."""
    block, stripe = engine.integer("block-size"), engine.integer("cp-kv-cache-interleave-size")
    path = engine.path("cp-kv-cache-interleave-size")
    if stripe is not None and stripe < 1:
        findings.error(path, "is no usable size", got=stripe, expected="an integer of at least 1")
        return
    if block and stripe and block % stripe:
        findings.error(path, f"does not divide block-size {block}", got=stripe, expected=f"a divisor of {block}")
        return
    transfers = engine.value("kv-transfer-config") is not None
    if not (transfers and engine.profile.interleave_is_block_with_kv and engine.shape.pcp * engine.shape.dcp > 1):
        return
    # vLLM-Ascend v0.18.0 platform.py:483-493 to v0.25.1rc1:733-742: AssertionError otherwise.
    if block and (stripe or 1) != block:
        findings.error(
            path,
            f"{engine.profile.name} transfers KV with context parallelism only in whole blocks",
            got=Shown(str(stripe or "1 (the default)")),
            expected=f"block-size: {block}",
        )
    elif not block:
        findings.warning(
            path,
            f"{engine.profile.name} wants it equal to the block size, and block-size is not in the file",
            fix=f'add "block-size": {stripe or 128} and the same cp-kv-cache-interleave-size',
        )
