"""Settings with which an ATOM engine starts and serves badly: warnings and reasons. Sources as in atom_rules.py."""

from __future__ import annotations

from engine_launch.atom_input import DEFAULT_BATCHED_TOKENS, DEFAULT_PREFILL_CHUNK, AtomEngine
from engine_launch.atom_rules import PCP, TBO
from engine_launch.model import Role
from engine_launch.rule import Breach, Rule, RuleSeverity

BATCHED = "max-num-batched-tokens"
CHUNKED = "enable-chunked-prefill"
GUIDE_BATCHED_TOKENS = 131072


def _chunked_prefill(engine: AtomEngine) -> Breach | None:
    chunk = engine.integer("attn-prefill-chunk-size") or DEFAULT_PREFILL_CHUNK
    if not (engine.pcp and engine.chunked_prefill) or chunk > DEFAULT_PREFILL_CHUNK:
        return None
    overlap = ", and TBO fewer than the two whole prompts it needs" if engine.tbo_works else ""
    return Breach(
        CHUNKED,
        f"chunked prefill cuts long prompts over several steps: PCP gets fewer tokens of each to split{overlap}",
        fix=f'add "{CHUNKED}": false, or a larger attn-prefill-chunk-size',
    )


def _batched_tokens(engine: AtomEngine) -> Breach | None:
    if not engine.pcp:
        return None
    prompts = 2 if engine.tbo_works else 1
    longest, budget = engine.integer("max-model-len"), engine.batched_tokens
    wanted = longest * prompts if longest else GUIDE_BATCHED_TOKENS
    if budget >= wanted or (not longest and budget != DEFAULT_BATCHED_TOKENS):
        return None
    fits = budget // prompts
    if engine.chunked_prefill:
        what = f"prompts above {fits} tokens take several steps, and PCP splits each step for itself"
    else:
        # model_engine/scheduler.py:1023-1040
        what = f"without chunked prefill a prompt above {budget} tokens is rejected"
        if prompts > 1:
            what += f", and TBO overlaps two prompts of up to {fits} only"
    whose = f"{prompts} x max-model-len {longest}" if prompts > 1 and longest else f"max-model-len {longest}"
    expected = f"at least {wanted}, {whose}" if longest else f"as long as a prompt, {prompts}x; the guide has {wanted}"
    return Breach(BATCHED, what, got=str(budget), expected=expected.replace(", 1x", ""))


def _decode_role(engine: AtomEngine) -> Breach | None:
    if not engine.pcp or engine.role is not Role.DECODE:
        return None
    return Breach(
        PCP,
        "PCP splits prefill only: its ranks repeat all decoding, and the time for a token may grow",
        expected="1",
        fix="use tensor and expert parallelism",
    )


def _tbo_hardware(engine: AtomEngine) -> Breach | None:
    if not (engine.pcp and engine.tbo_works):
        return None
    return Breach(
        TBO,
        "its gain depends on the device: on MI308 almost none over PCP alone (there tp 4 x pcp 2 is better), on MI355 "
        "a speed-up; ATOM before 21 July 2026 (0.1.6rc0) refuses it with PCP",
        fix="compare it with the same tp 1 without TBO: `motorctl bench-command`",
    )


def _load_balance(engine: AtomEngine) -> Breach | None:
    if engine.data_parallel or engine.dp_attention or engine.options.get("dp-load-balance") is None:
        return None
    return Breach("dp-load-balance", "has no effect with one data-parallel rank", fix="remove it")


_W = RuleSeverity.WARNING

ADVICE: tuple[Rule[AtomEngine], ...] = (
    Rule(
        "atom-pcp-chunked-prefill",
        _W,
        "With PCP, chunked prefill is off or its chunk large.",
        "guide, tuning for long sequences",
        _chunked_prefill,
    ),
    Rule(
        "atom-pcp-batched-tokens",
        _W,
        "With PCP, max-num-batched-tokens holds the longest prompt; twice with TBO.",
        "guide, tuning for long sequences; model_engine/scheduler.py:1007-1031",
        _batched_tokens,
    ),
    Rule("atom-pcp-decode", _W, "PCP is not for roles that mostly decode.", "guide, when to use PCP", _decode_role),
    Rule(
        "atom-tbo-hardware",
        _W,
        "TBO with PCP pays on MI355 and hardly on MI308.",
        "guide, PCP + TBO; PR #1553",
        _tbo_hardware,
    ),
    Rule(
        "atom-dp-load-balance",
        _W,
        "dp-load-balance needs several data-parallel ranks.",
        "model_engine/arg_utils.py:245",
        _load_balance,
    ),
)
