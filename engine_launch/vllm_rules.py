"""What vLLM and vLLM-Ascend refuse, and what Motor refuses for them: nodes, worlds, the sizes of the model.

Context parallelism is in vllm_context_rules.py. Sources: paths without a package are below vLLM 0.32's `vllm`.
tests/vllm/test_refusals.py shows each refusal to the real vLLM 0.32; docs/oracle.md has the outcome.
"""

from __future__ import annotations

from engine_launch.model import Translation
from engine_launch.rule import Breach, Rule, RuleSeverity
from engine_launch.vllm_input import VllmEngine

ERROR, OVERRIDABLE, WARNING = RuleSeverity.ERROR, RuleSeverity.OVERRIDABLE, RuleSeverity.WARNING

TP = "tensor-parallel-size"
NATIVE = ("native_external", "native_internal")


LARGEST_LISTED = 1 << 14  # of larger numbers the divisors are not looked for: the file is no real one


def _divisors(number: int) -> str:
    if number > LARGEST_LISTED:
        return f"a divisor of {number}"
    return "one of " + ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def _nnodes(engine: VllmEngine) -> Breach | None:
    shape = engine.shape
    world = shape.group_world
    # vLLM divides dp x world by dp x nnodes: the same as this.
    if world % shape.nnodes == 0:
        return None
    return Breach(
        "nnodes",
        f"a group's workers, {world} (tp {shape.tp} x pp {shape.pp} x pcp {shape.pcp}), do not divide evenly over its "
        "nodes",
        got=f"nnodes {shape.nnodes}",
        expected=_divisors(world),
        fix="change nnodes or a parallel size",
    )


def _nnodes_without_pcp(engine: VllmEngine) -> Breach | None:
    shape = engine.shape
    if engine.profile.pcp_counts_in_nnodes or shape.group_world % shape.nnodes:
        return None
    if (shape.tp * shape.pp) % shape.nnodes == 0:
        return None
    return Breach(
        "nnodes",
        f"{engine.profile.name} leaves PCP out when it divides workers over nodes, and refuses tp {shape.tp} x "
        f"pp {shape.pp} over {shape.nnodes} nodes",
        got=f"nnodes {shape.nnodes}",
        expected="nnodes that divides tp x pp",
        fix="raise tensor-parallel-size, or use vLLM 0.30 or newer (engine_profile)",
    )


def _master_port(engine: VllmEngine) -> Breach | None:
    if engine.shape.nnodes == 1 or engine.options.get("master-port") is not None:
        return None
    return Breach(
        "master-port",
        f"nnodes is {engine.shape.nnodes} and master-port is missing",
        expected="the first port on which a group's nodes meet",
        fix='add "master-port": 7001',
    )


def _executor(engine: VllmEngine) -> Breach | None:
    executor = engine.options.get("distributed-executor-backend")
    if engine.shape.nnodes == 1 or executor in (None, "mp", "uni", "external_launcher"):
        return None
    return Breach(
        "distributed-executor-backend",
        "does not work over several nodes",
        got=f'"{executor}"',
        expected='"mp"',
        fix="remove it: Motor sets mp",
    )


def _native(engine: VllmEngine) -> Breach | None:
    if not engine.translation.refusal:
        return None
    return Breach(
        "dp_translation",
        f"{engine.wanted_translation} does not work: {engine.translation.refusal}",
        got=f'"{engine.wanted_translation}"',
        expected='"replica" or "auto"',
    )


def _native_alone(engine: VllmEngine) -> Breach | None:
    if engine.shape.dp > 1 or engine.wanted_translation not in NATIVE:
        return None
    return Breach("dp_translation", "no effect: with one group there is nothing to join")


def _native_backend(engine: VllmEngine) -> Breach | None:
    backend = engine.options.get("data-parallel-backend")
    if not engine.one_world or backend in (None, "mp"):
        return None
    return Breach(
        "data-parallel-backend",
        "does not work in one world over several nodes",
        got=f'"{backend}"',
        expected='"mp"',
        fix="remove it: mp is the default",
    )


def _ranks_in_process(engine: VllmEngine) -> Breach | None:
    asked = engine.integer("data-parallel-size-local")
    if asked is None or asked < 2 or engine.shape.dp_local == asked:
        return None
    about, total = "data-parallel-size-local", engine.shape.dp
    if engine.shape.nnodes > 1:
        what = f"a group of {engine.shape.nnodes} nodes holds one data-parallel rank"
        return Breach(about, what, expected="1", fix="remove it, or nnodes")
    return Breach(about, f"does not divide data-parallel-size {total}", expected=_divisors(total))


def _expert_model(engine: VllmEngine) -> Breach | None:
    if not engine.shape.expert_parallel or engine.model is None or engine.model.experts:
        return None
    return Breach(
        "enable-expert-parallel",
        f"the model has no experts ({engine.model.name} in its config.json)",
        fix="remove it",
    )


def _heads(engine: VllmEngine) -> Breach | None:
    heads = engine.model.heads if engine.model else None
    if heads is None or heads % engine.shape.tp == 0:
        return None
    return Breach(TP, f"does not divide the model's {heads} attention heads", expected=_divisors(heads))


def _layers(engine: VllmEngine) -> Breach | None:
    layers = engine.model.layers if engine.model else None
    if layers is None or layers >= engine.shape.pp:
        return None
    return Breach(
        "pipeline-parallel-size", f"the model has {layers} layers, fewer than stages", expected=f"at most {layers}"
    )


def _eplb(engine: VllmEngine) -> Breach | None:
    if engine.options.get("enable-eplb") is not True or engine.shape.expert_parallel:
        return None
    return Breach(
        "enable-eplb", "balances experts, and enable-expert-parallel is off", fix="add enable-expert-parallel: true"
    )


def _certificate(engine: VllmEngine) -> Breach | None:
    if engine.options.get("ssl-keyfile") is None or engine.options.get("ssl-certfile") is not None:
        return None
    return Breach(
        "ssl-certfile",
        "is missing beside ssl-keyfile",
        expected="the file of the certificate chain, on every node",
        fix="add it, or remove ssl-keyfile to serve plain http",
    )


def _fault_tolerance(engine: VllmEngine) -> Breach | None:
    if engine.options.get("enable-fault-tolerance") is not True:
        return None
    if engine.translation.translation is Translation.NATIVE_EXTERNAL:
        return None
    return Breach(
        "enable-fault-tolerance",
        f"needs data-parallel ranks with an API each in one world, and this is {engine.translation.translation.value}",
        fix='remove it, or set "dp_translation": "native_external"',
    )


# They hold for every engine.
SHARED: tuple[Rule[VllmEngine], ...] = (
    Rule(
        "dp-translation",
        ERROR,
        "Groups share one world only for mixture-of-experts models, and with PCP only in versions that allow it.",
        "engine/arg_utils.py:2415-2424; vLLM 0.26-0.29 config/parallel.py; vLLM-Ascend v0.22.1rc1-v0.24.0rc1 "
        "platform.py: _validate_parallel_config; ATOM has no world over several processes",
        _native,
    ),
    Rule(
        "dp-translation-alone",
        WARNING,
        "A native dp_translation needs several groups.",
        "config/parallel.py:547-550",
        _native_alone,
    ),
)

RULES: tuple[Rule[VllmEngine], ...] = (
    Rule(
        "vllm-nnodes",
        ERROR,
        "A group's workers (tp x pp x pcp) divide evenly over its nodes.",
        "engine/arg_utils.py:2358-2372, over the whole world; up to 0.23 an assertion",
        _nnodes,
    ),
    Rule(
        "vllm-nnodes-without-pcp",
        ERROR,
        "Before vLLM 0.30, tp x pp alone divides evenly over a group's nodes.",
        "vLLM PR #55111; vLLM 0.29 engine/arg_utils.py",
        _nnodes_without_pcp,
    ),
    Rule(
        "vllm-master-port",
        ERROR,
        "With several nodes a group, the file says on which ports they meet.",
        "engine/arg_utils.py: --master-port, 29501 by default",
        _master_port,
        stricter="the engine's one default port would be that of every group on a host, and of every restart",
    ),
    Rule(
        "vllm-executor",
        ERROR,
        "Over several nodes the executor is mp.",
        "config/parallel.py:1087-1095",
        _executor,
    ),
    Rule(
        "vllm-native-backend",
        ERROR,
        "Groups that share one world have the data-parallel backend mp.",
        "engine/arg_utils.py:2349-2356",
        _native_backend,
    ),
    Rule(
        "vllm-ranks-in-process",
        ERROR,
        "Processes hold equally many data-parallel ranks, and several only where a rank fits on one node.",
        "engine/arg_utils.py:2442-2473: with --nnodes the engine works the local size out by itself; config/"
        "parallel.py:540-545",
        _ranks_in_process,
        stricter="the engine would start, and wait without end for ranks that nobody holds",
    ),
    Rule(
        "vllm-expert-model",
        ERROR,
        "enable-expert-parallel is for models with experts.",
        "config/model.py:1485-1490",
        _expert_model,
    ),
    Rule(
        "vllm-heads",
        ERROR,
        "Tensor parallelism divides the model's attention heads.",
        "config/model.py:1544-1551",
        _heads,
    ),
    Rule(
        "vllm-pp-layers",
        OVERRIDABLE,
        "There are no more pipeline stages than layers.",
        "distributed/utils.py: get_pp_indices leaves a stage without layers",
        _layers,
        stricter="the engine starts with empty stages, which hold devices and add a hop to every token",
    ),
    Rule(
        "vllm-eplb",
        ERROR,
        "Expert load balancing needs expert parallelism.",
        "config/parallel.py:563-570",
        _eplb,
    ),
    Rule(
        "vllm-fault-tolerance",
        ERROR,
        "Fault tolerance needs one world with an API on every group.",
        "engine/arg_utils.py:2409-2414",
        _fault_tolerance,
    ),
    Rule(
        "vllm-certificate",
        ERROR,
        "A key for https comes with its certificate.",
        "uvicorn/config.py: load() asserts ssl_certfile where either is set",
        _certificate,
        stricter="the engine would load the whole model first, and end when it begins to serve",
    ),
)
