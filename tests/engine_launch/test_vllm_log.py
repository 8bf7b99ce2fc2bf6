"""Stage markers and fatal patterns against lines of a real vLLM."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine_launch.vllm_log import ASCEND_FATAL_PATTERNS, FATAL_PATTERNS, HANG_WARNING, STAGES, WORKER_STAGE

LOGS = Path(__file__).parent.parent / "fixtures" / "vllm_logs"


def stages_in(log: str) -> list[str]:
    """The stages in the order in which the log reaches them; a stage never goes back."""
    order = [marker.stage for marker in STAGES]
    reached: list[str] = []
    for line in (LOGS / log).read_text().splitlines():
        for marker in STAGES:
            further = not reached or order.index(marker.stage) > order.index(reached[-1])
            if further and re.search(marker.pattern, line):
                reached.append(marker.stage)
    return reached


def test_a_master_goes_through_all_stages() -> None:
    assert stages_in("master_tp3_0.32.0.log") == [marker.stage for marker in STAGES]


def test_a_follower_gets_as_far_as_its_workers() -> None:
    reached = stages_in("follower_tp3_0.32.0.log")
    assert reached == ["config", "engine", "rendezvous", "joined", "weights", "kv_cache"]


@pytest.mark.parametrize(("log", "rank"), [("master_tp3_0.32.0.log", "0"), ("follower_tp3_0.32.0.log", "1")])
def test_each_worker_says_once_that_it_has_joined(log: str, rank: str) -> None:
    pattern = next(marker.pattern for marker in STAGES if marker.stage == WORKER_STAGE)
    found = [match for line in (LOGS / log).read_text().splitlines() if (match := re.search(pattern, line))]
    assert [match["rank"] for match in found] == [rank]
    assert found[0]["world"] == "3"


@pytest.mark.parametrize("log", ["master_tp3_0.32.0.log", "follower_tp3_0.32.0.log"])
def test_a_good_start_matches_no_fatal_pattern(log: str) -> None:
    for line in (LOGS / log).read_text().splitlines():
        assert not [p.meaning for p in FATAL_PATTERNS + ASCEND_FATAL_PATTERNS if re.search(p.pattern, line)], line


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("ERROR [multiproc_executor.py:333] Worker proc VllmWorker-1 died unexpectedly (exit code: -9)", "group"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen. EADDRINUSE", "port"),
        ("OSError: [Errno 98] Address already in use", "port"),
        ("OSError: [Errno 99] Cannot assign requested address", "port"),
        ("ValueError: Invalid data-parallel launch options: `--nnodes 3` must evenly divide", "configuration"),
        ("ValueError: Non-MoE models do not support external data parallel mode.", "configuration"),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig", "configuration"),
        ("vllm serve: error: unrecognized arguments: --fo", "configuration"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "transient"),
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", "group"),
        ("TimeoutError: RPC call to execute_model timed out.", "group"),
        ("EI0006: Getting socket times out.", "group"),
    ],
)
def test_the_first_match_gives_the_class(line: str, failure_class: str) -> None:
    found = [p for p in FATAL_PATTERNS + ASCEND_FATAL_PATTERNS if re.search(p.pattern, line)]
    assert found and found[0].failure_class == failure_class


def test_the_hang_warning_is_not_fatal() -> None:
    line = "INFO [shm_broadcast.py:501] No available shared memory broadcast block found in 60 seconds."
    assert re.search(HANG_WARNING, line)
    assert not [p for p in FATAL_PATTERNS if re.search(p.pattern, line)]
