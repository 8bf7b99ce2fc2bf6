"""The canary's state from tables, and its request against a server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from motor_rpc import control_pb2 as pb
from motor_rpc.http_ask import Place

from nodemanager.canary import CanaryState, Outcome, Target, request_of, send, target_of
from nodemanager.checks import Checks
from nodemanager.progress import Progress, sum_of_counters
from nodemanager.records import StartRecord
from tests.nodemanager import wire

CHECKS = Checks(canary=True, canary_off_reason="", canary_interval=15.0, canary_deadline=30.0, warm_up_deadline=600.0)
OK, BAD, REFUSED = Outcome(True, "answered"), Outcome(False, "HTTP 500"), Outcome(False, "HTTP 404", refused=True)


def warm(now: float = 0.0) -> CanaryState:
    """After a warm-up that was answered at `now`."""
    state = CanaryState(CHECKS, False, now)
    state.send(now)
    state.ended(OK, now)
    return state


def test_the_first_one_is_sent_at_once_and_has_its_own_deadline() -> None:
    state = CanaryState(CHECKS, False, 100.0)
    assert state.due(100.0) and not state.warm and state.word(100.0) == "waiting"
    state.send(100.0)
    assert not state.due(900.0), "one at a time"
    assert state.word(699.0) == "waiting" and state.word(701.0) == "late"
    state.ended(OK, 702.0)
    assert state.warm and state.word(702.0) == "ok" and state.deadline == 30.0


def test_it_is_sent_only_without_progress() -> None:
    state = warm(0.0)
    assert not state.due(14.9) and state.due(15.0)
    state.progressed(10.0)
    assert not state.due(24.9) and state.due(25.0)


def test_late_counts_from_its_sending_and_stays_outstanding() -> None:
    state = warm(0.0)
    state.send(20.0)
    assert (state.word(50.0), state.word(50.1)) == ("ok", "late")
    assert state.running(80.0) == 60.0
    assert not state.due(1000.0), "the late one is watched, no second one is sent"


def test_a_late_answer_clears_everything() -> None:
    state = warm(0.0)
    state.send(20.0)
    state.ended(OK, 260.0)
    assert (state.word(260.0), state.failures, state.running(260.0)) == ("ok", 0, 0.0)
    assert state.progress_at == 260.0 and state.due(275.0)


def test_counters_that_move_hold_lateness_back() -> None:
    state = warm(0.0)
    state.send(20.0)
    state.progressed(45.0)
    assert state.word(74.0) == "ok" and state.word(75.5) == "late"
    assert state.running(75.5) == 55.5


def test_bad_answers_are_late_together() -> None:
    state = warm(0.0)
    for number in range(8):
        assert state.due(20.0 + 5 * number)
        state.send(20.0 + 5 * number)
        state.ended(BAD, 20.1 + 5 * number)
        state._next_at = 20.0 + 5 * (number + 1)
    assert state.failures == 8
    assert state.word(49.0) == "ok" and state.word(55.0) == "late"
    state.send(60.0)
    state.ended(OK, 60.5)
    assert (state.word(60.5), state.failures) == ("ok", 0)


def test_an_engine_that_does_not_take_it_gets_none() -> None:
    state = CanaryState(CHECKS, False, 0.0)
    state.send(0.0)
    state.ended(REFUSED, 0.1)
    assert state.warm and state.word(1.0) == "off" and "HTTP 404" in state.off
    assert not state.due(1e6) and not state.late(1e6)


def test_a_warm_one_is_never_turned_off() -> None:
    state = warm(0.0)
    state.send(20.0)
    state.ended(REFUSED, 20.1)
    assert not state.off and state.failures == 1


def test_turned_off_is_said() -> None:
    state = CanaryState(Checks(canary=False, canary_off_reason="enable_virtual_inference is false"), False, 0.0)
    assert state.warm and not state.due(1e6)
    assert (state.word(0.0), state.off) == ("off", "enable_virtual_inference is false")


def test_an_adopted_engine_is_not_warmed_up_again() -> None:
    state = CanaryState(CHECKS, True, 50.0)
    assert state.warm and not state.due(64.0) and state.due(65.0)
    assert state.word(50.0) == "waiting", "nothing is proved yet"


def test_names_of_two_managers_never_meet() -> None:
    names = {CanaryState(CHECKS, False, 0.0).send(0.0)[0] for _ in range(20)}
    assert len(names) == 20 and all(name.startswith("motor-canary-") for name in names)


# --- the request


def test_request() -> None:
    target = Target(Place("127.0.0.1", 1), "m", 8, api_key="secret")
    request = request_of(target, "motor-canary-a-3", 3)
    body = json.loads(request.body or b"")
    assert body == {"model": "m", "prompt": [4] * 8, "max_tokens": 1, "temperature": 0}
    assert request.headers == {"X-Request-Id": "motor-canary-a-3", "Authorization": "Bearer secret"}
    assert json.loads(request_of(target, "x", 4).body or b"")["prompt"] != body["prompt"], "no cached prefix answers it"


def record(words: str, **fields: Any) -> StartRecord:
    values: dict[str, Any] = {
        **dict.fromkeys((f.name for f in dataclasses.fields(StartRecord)), ""),
        "slot": "decode-0/0/0", "argv": words.split(), "env": {}, "api_host": "10.0.0.1", "api_port": 8000,
        "role": "decode", "health": {},
    }  # fmt: skip
    return StartRecord(**{**values, **fields})


def test_target_comes_from_the_final_command_line() -> None:
    checks = Checks(served_model="m", prompt_tokens=8)
    target = target_of(record("vllm serve /models/m --api-key a b --port 8000"), checks)
    assert target == Target(Place("10.0.0.1", 8000), "/models/m", 8, "a")
    assert target_of(record("vllm serve /m", env={"VLLM_API_KEY": "k"}), checks).api_key == "k"
    layerwise = """vllm serve /m --kv-transfer-config {"kv_connector":"MooncakeLayerwiseConnector"}"""
    assert target_of(record(layerwise), checks).kv_transfer_params
    assert target_of(record(layerwise, role="prefill"), checks).kv_transfer_params is None


def test_settings_survive_the_record_and_other_versions() -> None:
    sent = pb.StartCmdMsg(health=wire.health(canary_interval_seconds=7))
    checks = Checks.from_message(sent)
    assert (checks.canary, checks.canary_interval, checks.served_model) == (True, 7.0, "tiny")
    stored = json.loads(json.dumps(dataclasses.asdict(checks)))
    assert Checks.from_record({**stored, "from_a_newer_version": 1}) == checks
    older = Checks.from_message(pb.StartCmdMsg())
    assert older == Checks.from_record({}) and not older.canary and "sent no health settings" in older.canary_off_reason
    empty = Checks.from_message(pb.StartCmdMsg(health=pb.HealthSettings(canary=True)))
    assert empty.canary and empty.canary_deadline == 30.0, "a zero is what an older controller did not send"


def test_layerwise_decode_form() -> None:
    params = {"do_remote_decode": False, "do_remote_prefill": True, "do_virtual": True}
    request = request_of(Target(Place("h", 1), "m", 2, kv_transfer_params=params), "n", 1)
    assert json.loads(request.body or b"")["kv_transfer_params"] == params


@contextlib.asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[tuple[Place, list[bytes]]]:
    """Answers every connection with these bytes."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    one = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Place("127.0.0.1", one.sockets[0].getsockname()[1]), seen
    finally:
        one.close()


def http(status: str, body: Any, chunked: bool = False) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if chunked:
        parts = b"".join(b"%x\r\n%s\r\n" % (len(data[i : i + 7]), data[i : i + 7]) for i in range(0, len(data), 7))
        return f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + parts + b"0\r\n\r\n"
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


TOKEN = {"choices": [{"text": "a", "finish_reason": "length"}]}


@pytest.mark.parametrize(
    ("answer", "ok", "refused", "detail"),
    [
        (http("200 OK", TOKEN), True, False, "answered"),
        (http("200 OK", TOKEN, chunked=True), True, False, "answered"),
        (http("200 OK", {"choices": [{"text": "", "finish_reason": "abort"}]}), False, False, "draining"),
        (http("200 OK", {"choices": []}), False, False, "no completion"),
        (http("200 OK", b"[1]"), False, False, "no completion"),
        (http("500 Internal Server Error", {"error": "EngineDeadError"}), False, False, "HTTP 500"),
        (http("503 Service Unavailable", b""), False, False, "HTTP 503"),
        (http("429 Too Many Requests", b""), False, False, "HTTP 429"),
        (http("404 Not Found", {"detail": "Not Found"}), False, True, "HTTP 404"),
        (http("401 Unauthorized", {"error": "Unauthorized"}), False, True, "HTTP 401"),
        (b"", False, False, "connection was closed"),
        (b"SSH-2.0-OpenSSH\r\n", False, False, "no status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", False, False, "at most"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab", False, False, "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", False, False, "not an HTTP answer"),
    ],
)
async def test_answers(answer: bytes, ok: bool, refused: bool, detail: str) -> None:
    async with server(answer) as (place, seen):
        outcome = await send(Target(place, "m", 2), "motor-canary-x-1", 1)
    assert (outcome.ok, outcome.refused) == (ok, refused)
    assert detail in outcome.detail
    assert b"X-Request-Id: motor-canary-x-1" in seen[0]


async def test_nobody_listens() -> None:
    outcome = await send(Target(Place("127.0.0.1", 1), "m", 2), "n", 1)
    assert not outcome.ok and outcome.detail == "Connection refused"


# --- progress

METRICS = b"""# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="a {b} c"} 12.0
vllm:generation_tokens_total{engine="1",model_name="tiny"} 3.0
vllm:generation_tokens_created{engine="0",model_name="tiny"} 1.7e+09
vllm:iteration_tokens_total_count{engine="0"} 7.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 5.0
vllm:prompt_tokens_total 1e3
"""
NAMES = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count")


@pytest.mark.parametrize(
    ("text", "total"),
    [
        (METRICS, 1022.0),
        (b"", None),
        (b"# nothing of it\nother 1\n", None),
        (b"vllm:prompt_tokens_total{engine=", None),
        (b"vllm:prompt_tokens_total{} garbage\n", None),
        (b"vllm:prompt_tokens_total{} 5 1700000000\n", 5.0),
    ],
)
def test_counters(text: bytes, total: float | None) -> None:
    assert sum_of_counters(text, NAMES) == total


async def test_only_a_change_is_progress() -> None:
    async with server(http("200 OK", METRICS)) as (place, _):
        progress = Progress(place, "/metrics", NAMES)
        assert [await progress.moved(5.0) for _ in range(3)] == [False, False, False]
        progress._last = 1.0
        assert await progress.moved(5.0)
    assert not await progress.moved(5.0), "a server that is gone is no progress"


def test_an_engine_that_takes_no_token_ids_gets_text() -> None:
    argv = "python -m atom.entrypoints.openai_server --model /m"
    target = target_of(record(argv, engine_profile="atom@0.1.6"), dataclasses.replace(CHECKS, prompt_tokens=4))
    prompts = [json.loads(request_of(target, "x", number).body or b"")["prompt"] for number in (1, 2)]
    assert all(len(prompt.split()) == 4 for prompt in prompts) and prompts[0] != prompts[1]
