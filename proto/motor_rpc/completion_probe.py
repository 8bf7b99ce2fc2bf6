"""One short completion asked of an engine's API server: the proof that it still computes.

Both daemons ask it: a node for a controller that has lost sight of an engine's own node, and the controller where no
node can.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from motor_rpc.deadline import within
from motor_rpc.http_ask import NotHttpError, Place, Request, ask


@dataclass(frozen=True)
class Completion:
    """`ok`: the engine made a token. `detail` is one sentence: what came, or what came instead."""

    ok: bool
    detail: str
    seconds: float = 0.0  # from the first packet to the last


class _NoAnswerError(Exception):
    """Something answered, and it was not a token; the text says what."""


async def ask_completion(
    place: Place,
    model: str,
    prompt_tokens: int,
    deadline: float,
    api_key: str = "",
    more: Mapping[str, Any] | None = None,
) -> Completion:
    """Ask for one token after `prompt_tokens` tokens. Never raises for anything the server or the network does.

    `model` is the served name; empty: whatever the server lists first. `deadline` (seconds) is for all of it. `more` is
    put into the request as it is.
    """
    where = place.url("/v1/completions")
    began = time.monotonic()
    try:
        tokens = await within(deadline, _ask(place, model, prompt_tokens, api_key, more or {}))
    except asyncio.TimeoutError:
        return Completion(False, f"{where}: no token within {deadline:g} s", time.monotonic() - began)
    except (OSError, NotHttpError, _NoAnswerError) as error:
        said = os.strerror(error.errno) if isinstance(error, OSError) and (error.errno or 0) > 0 else str(error)
        return Completion(False, f"{where}: {said}", time.monotonic() - began)
    seconds = time.monotonic() - began
    return Completion(True, f"{where}: {tokens} token(s) in {seconds:.2f} s", seconds)


async def _ask(place: Place, model: str, prompt_tokens: int, api_key: str, more: Mapping[str, Any]) -> int:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if not model:
        model = _first_model(await _json(place, Request("/v1/models", headers=headers)))
    body = {
        "model": model,
        "prompt": [1] * max(1, prompt_tokens),  # token ids: no tokenizer is needed, the length is exact
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
        **more,
    }
    answer = await _json(place, Request("/v1/completions", json.dumps(body).encode(), headers))
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _NoAnswerError(f"expected choices in the answer, got {json.dumps(answer)[:200]}")
    # A draining vLLM answers 200 with `abort` and no token: nothing was computed.
    if choices[0].get("finish_reason") == "abort":
        raise _NoAnswerError("finish_reason abort: the engine is draining and computed nothing")
    usage = answer.get("usage")
    return int(usage.get("completion_tokens") or 1) if isinstance(usage, dict) else 1


def _first_model(answer: dict[str, Any]) -> str:
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise _NoAnswerError(f"/v1/models lists no model: {json.dumps(answer)[:200]}") from None


async def _json(place: Place, request: Request) -> dict[str, Any]:
    found = await ask(place, request)
    if found.status != 200:
        raise _NoAnswerError(f"{found.status} {found.reason}: {found.body[:200].decode(errors='replace')}")
    try:
        answer = json.loads(found.body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _NoAnswerError(f"expected a JSON object, got {found.body[:200]!r}")
    return answer
