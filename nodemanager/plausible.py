"""Numbers of a command that cannot be meant, refused before anything is done with them."""

from __future__ import annotations

from collections.abc import Iterator

from motor_rpc import control_pb2 as pb
from motor_rpc.finite import not_finite

LARGEST_PORT = 65535
#: A canary's prompt has twice the ranks of a PCP group; the text of a longer one would only cost memory here.
MOST_PROMPT_TOKENS = 100_000


def implausible(message: pb.ControllerMessage) -> str:
    """What is wrong with a number of `message`, as "expected ..., got ..."; empty if nothing is."""
    if found := not_finite(message):
        return f"expected a finite number, got {found}"
    for name, port in _ports(message):
        if port > LARGEST_PORT:
            return f"expected a port up to {LARGEST_PORT}, got {name}: {port}"
    for name, tokens in (
        ("probe_request.prompt_tokens", message.probe_request.prompt_tokens),
        ("start.health.canary_prompt_tokens", message.start.health.canary_prompt_tokens),
    ):
        if tokens > MOST_PROMPT_TOKENS:
            return f"expected at most {MOST_PROMPT_TOKENS} tokens, got {name}: {tokens}"
    return ""


def _ports(message: pb.ControllerMessage) -> Iterator[tuple[str, int]]:
    prepare, start = message.prepare, message.start
    yield from (("prepare.ports", port) for port in prepare.ports)
    yield "prepare.master_port", prepare.master_port
    yield "start.master_port", start.master_port
    yield "start.api_port", start.api_port
    yield "start.dp_rpc_port", start.dp_rpc_port
    yield "probe_request.port", message.probe_request.port
