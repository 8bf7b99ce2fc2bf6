"""Stages and failures from log lines, on logs recorded from vLLM 0.32.0 (TP=3 over 3 nodes, CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_launch.profiles import resolve
from nodemanager.stages import LAST_LINES, StageTracker

LOGS = Path(__file__).parent.parent / "fixtures" / "vllm_logs"


def tracker() -> StageTracker:
    profile = resolve("vllm@0.32")
    return StageTracker(profile.stages, profile.fatal_patterns, profile.worker_stage, 100.0)


def walk(name: str) -> tuple[StageTracker, list[str]]:
    """Feed a recorded log, one line a second; the stages in the order they were entered."""
    follower = tracker()
    seen = []
    for number, line in enumerate((LOGS / name).read_text().splitlines()):
        if follower.feed(line, 100.0 + number):
            seen.append(follower.stage)
    return follower, seen


def test_stages_of_a_recorded_master() -> None:
    followed, seen = walk("master_tp3_0.32.0.log")
    assert seen == [s for s in ("process", "config", "engine", "rendezvous", "joined", "weights", "kv_cache",
                                "warm_up", "http") if s in seen]  # fmt: skip
    assert {"engine", "rendezvous", "joined", "weights", "kv_cache", "http"} <= set(seen)
    assert followed.stage == "http" and followed.past_rendezvous


def test_stages_of_a_recorded_follower() -> None:
    followed, seen = walk("follower_tp3_0.32.0.log")
    assert seen == ["config", "engine", "rendezvous", "joined", "weights", "kv_cache"]
    assert followed.fatal is None and followed.past_rendezvous


def test_a_stage_never_goes_back() -> None:
    followed = tracker()
    assert followed.feed("world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://h:1 backend=gloo", 101.0)
    assert not followed.feed("Resolved architecture: LlamaForCausalLM", 102.0)
    assert (followed.stage, followed.since) == ("rendezvous", 101.0)


def test_what_people_read() -> None:
    followed = tracker()
    assert followed.describe(2, 103.0) == "rank 2: waiting for the engine's first line 3 s"
    followed.feed("world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://h:1 backend=gloo", 105.0)
    assert followed.describe(2, 200.4) == "rank 2: waiting for rendezvous 95 s"


@pytest.mark.parametrize(
    ("lines", "failure_class", "first"),
    [
        (["DistNetworkError ... EADDRINUSE", "RuntimeError: Engine core initialization failed."], "port", 0),
        (["Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"], "group", 0),
        (["EngineCore failed to start.", "ValueError: PCP needs MLA"], "configuration", 1),
        (["EngineDeadError: first", "EngineDeadError: second"], "group", 0),
        (["INFO nothing special"], None, 0),
    ],
)
def test_the_line_that_decides(lines: list[str], failure_class: str | None, first: int) -> None:
    followed = tracker()
    for line in lines:
        followed.feed(line, 101.0)
    if failure_class is None:
        assert followed.fatal is None
    else:
        assert followed.fatal is not None
        assert (followed.fatal.failure_class, followed.fatal.line) == (failure_class, lines[first])


def test_an_unknown_profile_tells_no_stage() -> None:
    followed = StageTracker((), (), "", 0.0)
    assert not followed.feed("rank 0 in world size 2 is assigned as ...", 1.0)
    assert followed.stage == "" and not followed.past_rendezvous


def test_evidence_is_bounded() -> None:
    followed = tracker()
    for number in range(200):
        followed.feed(f"{number} " + "x" * 5000, 101.0)
    assert len(followed.lines) == LAST_LINES and max(map(len, followed.lines)) <= 2000
