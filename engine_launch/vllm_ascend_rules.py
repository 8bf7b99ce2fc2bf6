"""What vLLM-Ascend refuses by itself, beside context parallelism (vllm_context_rules.py).

Sources: paths are below vLLM-Ascend's `vllm_ascend`. What was run, and what was read: docs/oracle.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine_launch.model import Role
from engine_launch.profile import PcpSupport
from engine_launch.rule import Breach, Rule, RuleSeverity
from engine_launch.vllm_input import V2_RUNNER_ENV, VllmEngine

TP = "tensor-parallel-size"
PP = "pipeline-parallel-size"
FLASHCOMM_ENV = "VLLM_ASCEND_ENABLE_FLASHCOMM1"
BLOCKING_ENV = "ASCEND_LAUNCH_BLOCKING"


def _context_parallel_v2(engine: VllmEngine) -> Breach | None:
    if not _within(engine, (0, 21), (0, 25)) or not engine.context_parallel or not engine.v2_runner:
        return None
    if engine.pcp and engine.profile.pcp is PcpSupport.NO:  # vllm-pcp-missing says so
        return None
    about = "prefill-context-parallel-size" if engine.pcp else "decode-context-parallel-size"
    return Breach(
        about,
        f"{engine.profile.name} has no context parallelism on the V2 model runner",
        expected="1",
        fix=f"remove {V2_RUNNER_ENV} from env",
    )


def _mtp_stages(engine: VllmEngine) -> Breach | None:
    method = (engine.speculative_method or "").lower()
    if engine.shape.pp == 1 or "mtp" not in method:
        return None
    deepseek = method == "deepseek_mtp" or (engine.model is not None and engine.model.model_type.startswith("deepseek"))
    if _within(engine, (0, 14), (0, 21)) and deepseek:
        what = f"{engine.profile.name} has no pipeline stages for DeepSeek's MTP"
    elif _within(engine, (0, 22), (0, 23)) and not (engine.transfers_kv and engine.role is Role.PREFILL):
        what = f"{engine.profile.name} has MTP with pipeline stages only on the prefill side of a pair"
    else:
        return None
    return Breach(PP, what, expected="1", fix="remove speculative-config, or the stages")


def _flashcomm_tp(engine: VllmEngine) -> Breach | None:
    if not _within(engine, (0, 18)) or not _flashcomm(engine) or engine.shape.tp > 1:
        return None
    return Breach(TP, f"{FLASHCOMM_ENV} splits the work of tensor parallelism", expected="at least 2")


def _flashcomm_experts(engine: VllmEngine) -> Breach | None:
    if not engine.ascend or not _flashcomm(engine) or engine.shape.expert_parallel:
        return None
    if engine.model is None or not engine.model.experts:
        return None
    return Breach(
        "enable-expert-parallel",
        f"with {FLASHCOMM_ENV} a model with experts needs it",
        fix=f"add it or remove {FLASHCOMM_ENV}",
    )


def _blocking_graphs(engine: VllmEngine) -> Breach | None:
    if not engine.ascend or engine.env.get(BLOCKING_ENV) != "1" or not engine.cuda_graphs:
        return None
    fix = f'add "enforce-eager": true, or remove {BLOCKING_ENV} from env'
    return Breach("enforce-eager", f"graphs are captured, and {BLOCKING_ENV} is 1", fix=fix)


def _flashcomm(engine: VllmEngine) -> bool:
    config = engine.options.get("additional-config")
    if _within(engine, (0, 23)) and isinstance(config, Mapping) and "enable_flashcomm1" in config:
        return bool(config["enable_flashcomm1"])
    return engine.env.get(FLASHCOMM_ENV, "0").strip() not in ("", "0")


def _within(engine: VllmEngine, first: tuple[int, int], last: tuple[int, int] | None = None) -> bool:
    if not engine.ascend:
        return False
    version = tuple(int(part) for part in engine.profile.version.split("."))
    return version >= first and (last is None or version <= last)


RULES: tuple[Rule[VllmEngine], ...] = (
    Rule(
        "ascend-cp-runner",
        RuleSeverity.ERROR,
        "vLLM-Ascend up to 0.25 has PCP and DCP on the V1 model runner only.",
        "v0.21.0rc1 worker/v2/model_runner.py:69, v0.23.0 :70, v0.25.1rc1 :69; vLLM 0.23 config/vllm.py:1996 for PCP",
        _context_parallel_v2,
    ),
    Rule(
        "ascend-mtp-stages",
        RuleSeverity.ERROR,
        "On vLLM-Ascend 0.22 and 0.23 MTP goes with pipeline stages on a prefill side only, and from 0.14 to 0.21 "
        "DeepSeek's goes with none.",
        "v0.22.1rc1 platform.py:442, v0.23.0 :444; vLLM 0.14 to 0.21 config/speculative.py verifies the draft "
        "model, and models/deepseek_mtp.py has no SupportsPP",
        _mtp_stages,
    ),
    Rule(
        "ascend-flashcomm-tp",
        RuleSeverity.ERROR,
        "FlashComm1 needs tensor parallelism.",
        "v0.18.0 platform.py:511, v0.23.0 :765, and on to v0.26.0rc1",
        _flashcomm_tp,
    ),
    Rule(
        "ascend-flashcomm-experts",
        RuleSeverity.ERROR,
        "FlashComm1 of a model with experts needs expert parallelism.",
        "v0.18.0 platform.py:515, v0.23.0 :769, and on to v0.26.0rc1; v0.12.0rc1 as well",
        _flashcomm_experts,
    ),
    Rule(
        "ascend-blocking-graphs",
        RuleSeverity.ERROR,
        "Graphs and ASCEND_LAUNCH_BLOCKING exclude each other.",
        "v0.12.0rc1 platform.py:277, v0.23.0 :652, and on to v0.26.0rc1",
        _blocking_graphs,
    ),
)
