"""Proof of life by another path: a canary sent by a node of the gang, or by the controller itself (rule 7)."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from motor_rpc import control_pb2 as pb
from motor_rpc.completion_probe import ask_completion
from motor_rpc.http_ask import Place

from controller.core import actions as a
from engine_launch.health import (
    KV_TRANSFER_FLAG,
    canary_prompt,
    canary_prompt_tokens,
    served_model,
    virtual_transfer_params,
)
from engine_launch.model import EngineSpec
from engine_launch.profiles import takes_text_only

log = logging.getLogger(__name__)

REPORT_SECONDS = 5.0  # over the canary's deadline: a node's answer is late after that


@dataclass(frozen=True)
class Canary:
    """What to send: the model as the API server calls it, and how long the prompt is."""

    served_model: str  # empty: whatever the server lists
    prompt_tokens: int
    api_key: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)  # what the engine needs beside that
    tls: bool = False


class Send(Protocol):
    """Sends one message to a node; False if it has no stream."""

    def __call__(self, node_id: str, **body: Any) -> bool: ...


def canary_for(spec: EngineSpec, role: str) -> Canary:
    """The first served name, else the model as the engine gets it.

    A relative model name is replaced by a path on the node, and with it the served name: then the server is asked.
    """
    options = {option.name: option.value for option in spec.options}
    transfer = options.get("kv-transfer-config")
    words = [KV_TRANSFER_FLAG, transfer if isinstance(transfer, str) else json.dumps(transfer)]
    more: dict[str, Any] = {"kv_transfer_params": params} if (params := virtual_transfer_params(words, role)) else {}
    if takes_text_only(spec.profile):
        more["prompt"] = canary_prompt(0, canary_prompt_tokens(spec.shape.pcp), text=True)
    return Canary(
        served_model(options.get("served-model-name"), spec.model if spec.model.startswith("/") else ""),
        canary_prompt_tokens(spec.shape.pcp),
        _first(options.get("api-key")) or spec.env.get("VLLM_API_KEY", ""),
        more,
        "ssl-certfile" in options,
    )


def _first(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return str(value[0]) if value else ""
    return str(value or "")


@dataclass
class _Asked:
    """One canary under way at a node."""

    action: a.AskProofOfLife
    timer: asyncio.TimerHandle


class Prober:
    """Does AskProofOfLife. `done` hears each outcome exactly once."""

    def __init__(self, send: Send, done: Callable[[a.AskProofOfLife, bool, str], None]) -> None:
        self._send = send
        self._done = done
        self._asked: dict[str, _Asked] = {}
        self._own: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)

    def ask(self, action: a.AskProofOfLife, canary: Canary) -> None:
        """Start it; the outcome comes later, never from within this call."""
        if not action.via_node:
            task = asyncio.create_task(self._ask_myself(action, canary), name=f"proof of life of {action.slot}")
            self._own.add(task)
            task.add_done_callback(self._own.discard)
            return
        request_id = f"p{next(self._numbers)}"
        loop = asyncio.get_running_loop()
        late = action.deadline + REPORT_SECONDS
        timer = loop.call_later(late, self._end, request_id, False, f"no answer within {late:g} s")
        self._asked[request_id] = _Asked(action, timer)
        request = pb.ProbeRequest(
            request_id=request_id,
            host=action.host,
            port=action.port,
            served_model=canary.served_model,
            prompt_tokens=canary.prompt_tokens,
            deadline_seconds=action.deadline,
            tls=canary.tls,
        )
        if not self._send(action.via_node, probe_request=request):
            loop.call_soon(self._end, request_id, False, "it has no stream to this controller")

    def take(self, node_id: str, report: pb.ProbeReport) -> None:
        """A node's answer; one that is late, or not this node's to give, is ignored."""
        asked = self._asked.get(report.request_id)
        if asked is None or asked.action.via_node != node_id:
            log.info("node %s answered probe %s, which nobody waits for", node_id, report.request_id)
            return
        self._end(report.request_id, report.ok, report.detail)

    def node_gone(self, node_id: str, cause: str) -> None:
        """The node that was asked is out of sight itself."""
        for request_id in [key for key, asked in self._asked.items() if asked.action.via_node == node_id]:
            self._end(request_id, False, f"it went out of sight before it answered: {cause}")

    def close(self) -> None:
        """Drop what is under way; nobody hears of it."""
        for asked in self._asked.values():
            asked.timer.cancel()
        self._asked.clear()
        for task in self._own:
            task.cancel()

    def _end(self, request_id: str, alive: bool, detail: str) -> None:
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return
        asked.timer.cancel()
        self._done(asked.action, alive, f"asked by node {asked.action.via_node}: {detail}")

    async def _ask_myself(self, action: a.AskProofOfLife, canary: Canary) -> None:
        place = Place(action.host, action.port, canary.tls)
        found = await ask_completion(
            place, canary.served_model, canary.prompt_tokens, action.deadline, canary.api_key, canary.more
        )
        self._done(action, found.ok, f"asked by the controller: {found.detail}")
