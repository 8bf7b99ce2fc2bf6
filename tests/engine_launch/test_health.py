"""What health checks need to know of a command line."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine_launch.health import (
    canary_prompt_tokens,
    served_model,
    served_name_of,
    virtual_transfer_params,
    words_of,
)
from engine_launch.profiles import PROFILES


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, "/m"), ("", "/m"), ([], "/m"), ("a", "a"), (["a", "b"], "a"), (("a",), "a")],
)
def test_served_model(given: Any, expected: str) -> None:
    assert served_model(given, "/m") == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("vllm serve /m --served-model-name a b --port 1", "a"),
        ("vllm serve /m --served-model-name=a", "a"),
        ("python -m vllm.entrypoints.cli.main serve /models/m --tensor-parallel-size 2", "/models/m"),
        ("vllm serve --model /m", "otherwise"),
        ("engine", "otherwise"),
        ("vllm serve", "otherwise"),
    ],
)
def test_served_name_of_a_final_command_line(argv: str, expected: str) -> None:
    assert served_name_of(argv.split(), "otherwise") == expected


def test_words_of() -> None:
    argv = ["vllm", "serve", "--api-key", "a", "b", "--port", "1", "--api-key=c"]
    assert words_of(argv[:-1], "--api-key") == ["a", "b"]
    assert words_of(argv, "--api-key") == ["c"], "the last one counts"
    assert words_of(argv, "--nothing") == words_of(["--port"], "--port") == []


@pytest.mark.parametrize(("pcp", "tokens"), [(1, 2), (2, 4), (8, 16)])
def test_prompt_is_long_enough_for_every_rank(pcp: int, tokens: int) -> None:
    assert canary_prompt_tokens(pcp) == tokens


LAYERWISE = '{"kv_connector": "MooncakeLayerwiseConnector", "kv_role": "kv_consumer"}'


@pytest.mark.parametrize(
    ("config", "role", "wanted"),
    [
        (LAYERWISE, "decode", True),
        (LAYERWISE, "prefill", False),
        ('{"kv_connector": "MooncakeConnectorV1"}', "decode", False),
        ("{", "decode", False),
        ("[]", "decode", False),
        ("", "decode", False),
    ],
)
def test_only_a_layerwise_decode_engine_needs_transfer_params(config: str, role: str, wanted: bool) -> None:
    argv = ["vllm", "serve", "/m", *(["--kv-transfer-config", config] if config else [])]
    params = virtual_transfer_params(argv, role)
    assert (params == {"do_remote_decode": False, "do_remote_prefill": True, "do_virtual": True}) is wanted


def test_every_profile_knows_signs_of_life() -> None:
    line = "INFO 12-01 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds."
    for profile in PROFILES.values():
        assert profile.metrics_path.startswith("/")
        for warning in profile.warning_patterns:
            re.compile(warning.pattern)
        if profile.engine.startswith("vllm"):
            assert any(re.search(warning.pattern, line) for warning in profile.warning_patterns)
            assert "vllm:iteration_tokens_total_count" in profile.progress_counters
