"""docs/security.md names tests, limits and keys that exist."""

from __future__ import annotations

import re
from pathlib import Path

from controller.api import guard, limits, log_streams, pace, sessions, wire
from controller.config import load, text, yaml_text
from controller.config.controller_rules import AccessSettings
from engine_launch.guarded import guarded_env
from nodemanager import plausible

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/security.md").read_text()


def test_the_tests_that_it_names_exist() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)(?:::(\w+))?`", DOCUMENT)
    assert len(named) > 8
    for file, function in named:
        assert f"def {function}" in (ROOT / file).read_text(), (file, function)


def test_the_limits_that_it_states_are_the_codes() -> None:
    for stated in (
        f"{limits.PER_CLIENT} of an address, {limits.IN_ALL} in all",
        f"{guard.PER_CLIENT} of an address, {guard.IN_ALL:,} in all",
        f"{guard.HEAD_BYTES >> 10} kB, {guard.HEAD_SECONDS:.0f} s",
        f"`access.max_body_bytes`, {limits.BODY_SECONDS:.0f} s",
        f"a node does not read | {sessions.QUEUED_MESSAGES} |",
        f"{pace.MESSAGES_AT_ONCE:,} at once, then {pace.MESSAGES_PER_SECOND} a second",
        f"2^{wire.LARGEST_COUNT.bit_length() - 1}",
        f"ports up to {plausible.LARGEST_PORT}, prompts up to {plausible.MOST_PROMPT_TOKENS:,} tokens",
        f"{log_streams.QUEUED_CHUNKS} chunks",
        f"{load.LARGEST >> 20} MB, {text.DEEPEST} levels, {yaml_text._MOST:,} values",
    ):
        assert stated in DOCUMENT, stated
    for name in AccessSettings.__dataclass_fields__:
        assert name in DOCUMENT, name


def test_the_names_that_it_calls_refused_are() -> None:
    names = ["LD_X", "PYTHONX", "PERLX", "VLLM_NCCL_SO_PATH", "NCCL_NET_PLUGIN", "CUDA_INJECTION64_PATH", "TMPDIR"]
    assert len(guarded_env(names)) == len(names)
