"""One short completion asked of an engine's API server: the proof that it still computes.

It stands beside the stubs because both daemons ask it, and neither may import the other: a node for its own engine and
for a controller that has lost sight of one, the controller where no node can. Plain asyncio streams, because the node
manager's environment holds no HTTP client.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_ANSWER = 1 << 20  # bytes; one token needs less than a thousandth of it


@dataclass(frozen=True)
class Completion:
    """`ok`: the engine made a token. `detail` is one sentence: what came, or what came instead."""

    ok: bool
    detail: str
    seconds: float = 0.0  # from the first packet to the last


class _NoAnswerError(Exception):
    """Something answered, and it was not a token; the text says what."""


async def ask_completion(
    host: str,
    port: int,
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
    where = f"http://{_bracketed(host)}:{port}/v1/completions"
    began = time.monotonic()
    try:
        tokens = await asyncio.wait_for(_ask(host, port, model, prompt_tokens, api_key, more or {}), deadline)
    except asyncio.TimeoutError:
        return Completion(False, f"{where}: no token within {deadline:g} s", time.monotonic() - began)
    except (OSError, _NoAnswerError) as error:
        said = os.strerror(error.errno) if isinstance(error, OSError) and (error.errno or 0) > 0 else str(error)
        return Completion(False, f"{where}: {said}", time.monotonic() - began)
    seconds = time.monotonic() - began
    return Completion(True, f"{where}: {tokens} token(s) in {seconds:.2f} s", seconds)


async def _ask(host: str, port: int, model: str, prompt_tokens: int, api_key: str, more: Mapping[str, Any]) -> int:
    if not model:
        model = _first_model(await _exchange(host, port, "GET", "/v1/models", None, api_key))
    request = {
        "model": model,
        "prompt": [1] * max(1, prompt_tokens),  # token ids: no tokenizer is needed, the length is exact
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
        **more,
    }
    answer = await _exchange(host, port, "POST", "/v1/completions", request, api_key)
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


async def _exchange(host: str, port: int, method: str, path: str, body: Any, api_key: str) -> dict[str, Any]:
    """One request on a connection of its own; the answer's JSON object."""
    data = b"" if body is None else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", f"Host: {_bracketed(host)}:{port}", "Connection: close"]
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    if api_key:
        head.append(f"Authorization: Bearer {api_key}")
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + data)
        await writer.drain()
        return await _read_answer(reader)
    finally:
        writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    try:
        status = (await reader.readline()).decode("latin-1").strip()
        headers: dict[str, str] = {}
        while line := (await reader.readline()).decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        content = await _read_body(reader, headers)
    except (ValueError, asyncio.IncompleteReadError) as error:
        raise _NoAnswerError(f"not an HTTP answer: {error}") from None
    words = status.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/"):
        raise _NoAnswerError(f"expected an HTTP answer, got {status[:80]!r}")
    if words[1] != "200":
        raise _NoAnswerError(f"{' '.join(words[1:])}: {content[:200].decode(errors='replace')}")
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _NoAnswerError(f"expected a JSON object, got {content[:200]!r}")
    return answer


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """ValueError for a body that is too long or not framed as the headers say."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        content = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            _check_size(len(content) + size)
            content += await reader.readexactly(size)
            await reader.readline()
        return content
    if "content-length" in headers:
        size = int(headers["content-length"])
        _check_size(size)
        return await reader.readexactly(size)
    content = b""
    while part := await reader.read(65536):
        _check_size(len(content) + len(part))
        content += part
    return content


def _check_size(size: int) -> None:
    if size > LONGEST_ANSWER:
        raise ValueError(f"a body of {size} bytes, more than {LONGEST_ANSWER}")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
