"""The controller's side of proof of life: whom it asks, and that every question has exactly one outcome."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from motor_rpc import control_pb2 as pb

from controller.api import prober
from controller.api.prober import Canary, Prober, canary_for
from controller.core.actions import AskProofOfLife
from controller.core.model import SlotKey
from engine_launch.model import EngineSpec, ParallelShape, Translation

SLOT = SlotKey("union-0", 0, 0)
CANARY = Canary("m", 4)


class Shell:
    """Keeps what the prober sends and says."""

    def __init__(self, connected: bool = True) -> None:
        self.connected = connected
        self.sent: list[tuple[str, pb.ProbeRequest]] = []
        self.outcomes: list[tuple[bool, str]] = []
        self.said = asyncio.Event()
        self.prober = Prober(self.send, self.done)

    def send(self, node_id: str, **body: Any) -> bool:
        self.sent.append((node_id, body["probe_request"]))
        return self.connected

    def done(self, action: AskProofOfLife, alive: bool, detail: str) -> None:
        assert action.slot == SLOT
        self.outcomes.append((alive, detail))
        self.said.set()


def question(via: str = "n2", deadline: float = 3.0) -> AskProofOfLife:
    return AskProofOfLife("union-0/0", SLOT, 7, "127.0.0.1", 9, via, deadline)


async def test_a_node_is_asked_and_its_answer_counts_once() -> None:
    shell = Shell()
    shell.prober.ask(question(), CANARY)
    ((node_id, request),) = shell.sent
    assert node_id == "n2" and (request.host, request.port) == ("127.0.0.1", 9)
    assert (request.served_model, request.prompt_tokens, request.deadline_seconds) == ("m", 4, 3.0)
    shell.prober.take("n1", pb.ProbeReport(request_id=request.request_id, ok=True))
    assert shell.outcomes == [], "only who was asked may answer"
    for _ in range(2):
        shell.prober.take("n2", pb.ProbeReport(request_id=request.request_id, ok=True, detail="1 token"))
    shell.prober.node_gone("n2", "stream ended")
    assert shell.outcomes == [(True, "asked by node n2: 1 token")]


async def test_a_node_that_goes_away_is_no_proof() -> None:
    shell = Shell()
    shell.prober.ask(question(), CANARY)
    shell.prober.node_gone("n1", "another one")
    assert shell.outcomes == []
    shell.prober.node_gone("n2", "stream ended")
    assert shell.outcomes == [(False, "asked by node n2: it went out of sight before it answered: stream ended")]


async def test_without_a_stream_and_without_an_answer(monkeypatch: Any) -> None:
    shell = Shell(connected=False)
    shell.prober.ask(question(), CANARY)
    assert shell.outcomes == [], "never from within the question"
    await asyncio.wait_for(shell.said.wait(), 2.0)
    assert shell.outcomes == [(False, "asked by node n2: it has no stream to this controller")]
    monkeypatch.setattr(prober, "REPORT_SECONDS", 0.1)
    shell = Shell()
    shell.prober.ask(question(deadline=0.1), CANARY)
    await asyncio.wait_for(shell.said.wait(), 2.0)
    assert shell.outcomes == [(False, "asked by node n2: no answer within 0.2 s")]


async def test_the_controller_asks_itself() -> None:
    async def token(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"choices": [{"text": "a"}]}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(token, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    shell = Shell()
    shell.prober.ask(AskProofOfLife("union-0/0", SLOT, 7, "127.0.0.1", port, "", 3.0), CANARY)
    await asyncio.wait_for(shell.said.wait(), 3.0)
    ((alive, detail),) = shell.outcomes
    assert alive and detail.startswith("asked by the controller: ") and "token" in detail
    assert shell.sent == []
    server.close()


def spec(model: str, **config: Any) -> EngineSpec:
    return EngineSpec(
        "vllm", "vllm@0.32", "vllm", ParallelShape(pcp=2), Translation.REPLICA, model,
        {key.replace("_", "-"): value for key, value in config.items()},
    )  # fmt: skip


def test_the_canary_of_an_engine() -> None:
    assert canary_for(spec("/models/m"), "union") == Canary("/models/m", 4)
    assert canary_for(spec("m"), "union") == Canary("", 4), "its name is the node's path: ask the server"
    assert canary_for(spec("m", served_model_name=["a", "b"], api_key="k"), "union") == Canary("a", 4, "k")
    assert canary_for(spec("/m", ssl_certfile="/c.pem"), "union") == Canary("/m", 4, tls=True)
    assert canary_for(spec("m", model_name="a"), "union").served_model == "a"
    transfer = {"kv_connector": "MooncakeLayerwiseConnector", "kv_role": "kv_consumer"}
    assert "kv_transfer_params" in canary_for(spec("m", kv_transfer_config=transfer), "decode").more
    text_only = dataclasses.replace(spec("/models/m"), engine_type="atom", profile="atom@0.1.6")
    assert len(canary_for(text_only, "union").more["prompt"].split()) == 4, "ATOM takes no token ids"
