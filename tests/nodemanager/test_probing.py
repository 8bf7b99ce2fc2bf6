"""Proof of life: one token asked of an API server, by the shared client and by a node for the controller."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from motor_rpc import control_pb2 as pb
from motor_rpc.completion_probe import ask_completion
from motor_rpc.http_ask import Place

from nodemanager.probing import probe
from tests.nodemanager import wire
from tests.nodemanager.manager import direct
from tests.nodemanager.places import free_port
from tests.nodemanager.test_canary import record

TOKEN = {"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}


@dataclass
class Server:
    """Answers each path with the raw bytes it was given, and keeps the requests."""

    port: int
    answers: dict[str, bytes]
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


def answer(body: Any, status: str = "200 OK") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


@contextlib.asynccontextmanager
async def serve(**answers: bytes | None) -> AsyncIterator[Server]:
    """`completions` and `models` are the paths; None never answers."""
    here = Server(0, {f"/v1/{name}": data for name, data in answers.items() if data is not None})

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, path, _ = (await reader.readline()).decode().split(" ")
        headers: dict[str, str] = {}
        while line := (await reader.readline()).decode().strip():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        here.requests.append((path, headers, json.loads(data or b"null")))
        if path in here.answers:
            writer.write(here.answers[path])
        else:
            await reader.read()  # until the other side gives up
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()


async def test_a_token_is_proof() -> None:
    async with serve(completions=answer(TOKEN)) as server:
        found = await ask_completion(
            Place("127.0.0.1", server.port), "m", 4, 5.0, "key", {"kv_transfer_params": {"a": 1}}
        )
        assert found.ok and "1 token(s) in" in found.detail, found
        ((path, headers, body),) = server.requests
        assert path == "/v1/completions" and headers["authorization"] == "Bearer key"
        assert body == {
            "model": "m", "prompt": [1, 1, 1, 1], "max_tokens": 1, "temperature": 0, "stream": False,
            "kv_transfer_params": {"a": 1},
        }  # fmt: skip


async def test_an_unknown_name_is_asked_for() -> None:
    models = answer({"data": [{"id": "/models/tiny"}]})
    async with serve(completions=answer(TOKEN), models=models) as server:
        assert (await ask_completion(Place("127.0.0.1", server.port), "", 2, 5.0)).ok
        assert [path for path, _, _ in server.requests] == ["/v1/models", "/v1/completions"]
        assert server.requests[1][2]["model"] == "/models/tiny"


async def test_a_chunked_answer_is_read() -> None:
    data = json.dumps(TOKEN).encode()
    parts = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, data[:10], len(data) - 10, data[10:])
    async with serve(completions=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + parts) as server:
        assert (await ask_completion(Place("127.0.0.1", server.port), "m", 2, 5.0)).ok


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (answer({"error": "no such model"}, "404 Not Found"), '404 Not Found: {"error": "no such model"}'),
        (answer({"choices": [{"finish_reason": "abort"}]}), "draining and computed nothing"),
        (answer({"choices": []}), "expected choices"),
        (answer(b"[1]"), "expected a JSON object"),
        (b"SSH-2.0-OpenSSH\r\n", "not an HTTP answer: no status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n", "a body of 999999999 bytes"),
        (b"", "not an HTTP answer: the connection was closed"),
        (None, "no token within 0.3 s"),
    ],
)
async def test_what_is_no_proof(data: bytes | None, words: str) -> None:
    async with serve(completions=data) as server:
        found = await ask_completion(Place("127.0.0.1", server.port), "m", 2, 0.3)
        assert not found.ok and words in found.detail, found
        assert f"http://127.0.0.1:{server.port}/v1/completions: " in found.detail


async def test_nobody_listens() -> None:
    found = await ask_completion(Place("127.0.0.1", free_port()), "m", 2, 1.0)
    assert not found.ok and "Connection refused" in found.detail


async def test_a_node_asks_for_the_controller(place: Path) -> None:
    api = free_port()
    async with direct(place) as one:
        await one.command(start=wire.start(wire.slot(), "tiny", 0, api))
        await one.state("ready")
        request = pb.ProbeRequest(request_id="p1", host="127.0.0.1", port=api, prompt_tokens=2, deadline_seconds=3.0)
        await one.command(probe_request=request)
        report = await one.answer("probe_report")
        assert report.request_id == "p1" and report.ok and "token(s)" in report.detail
        request.port, request.request_id = free_port(), "p2"
        await one.command(probe_request=request)
        report = await one.answer("probe_report")
        assert report.request_id == "p2" and not report.ok and "Connection refused" in report.detail
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
        await one.state("stopped")


async def test_the_key_is_the_one_of_the_nodes_own_engine(place: Path) -> None:
    async with direct(place) as one, serve(completions=answer(TOKEN)) as server:
        start = wire.start(wire.slot(), "tiny", 0, free_port(), env={"VLLM_API_KEY": "secret"})
        await one.command(start=start)
        await one.state("ready")
        request = pb.ProbeRequest(request_id="p1", host="127.0.0.1", port=server.port, served_model="m")
        await one.command(probe_request=request)
        assert (await one.answer("probe_report")).ok
        assert server.requests[0][1]["authorization"] == "Bearer secret"
        await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
        await one.state("stopped")


async def test_an_engine_that_takes_no_token_ids_is_asked_with_text() -> None:
    async with serve(completions=answer(TOKEN)) as server:
        own = record("python -m atom.entrypoints.openai_server --model /m", engine_profile="atom@0.1.6")
        own = dataclasses.replace(own, api_host="127.0.0.1")
        request = pb.ProbeRequest(host="127.0.0.1", port=server.port, served_model="m", prompt_tokens=3)
        assert (await probe(request, [own])).ok
        assert len(server.requests[0][2]["prompt"].split()) == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": ""}, "expected a host, got ''"),
        ({"host": "", "tls": True}, "expected a host, got ''"),
        ({"host": "x" * 64}, "not an address of an API server"),
        ({"host": "127.0.0.1", "port": 65536}, "not an address of an API server"),
        ({"host": ".", "tls": True}, "not an address of an API server"),
    ],
)
async def test_a_place_that_cannot_exist_is_answered(fields: dict[str, Any], words: str) -> None:
    report = await probe(pb.ProbeRequest(request_id="p1", **fields), [])
    assert report.request_id == "p1" and not report.ok and words in report.detail, report.detail
