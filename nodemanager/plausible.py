"""Numbers and texts of a command that cannot be meant, refused before anything is done with them."""

from __future__ import annotations

from collections.abc import Iterator

from motor_rpc import control_pb2 as pb
from motor_rpc.finite import not_finite

LARGEST_PORT = 65535
#: A canary's prompt has twice the ranks of a PCP group; the text of a longer one would only cost memory here.
MOST_PROMPT_TOKENS = 100_000


def implausible(message: pb.ControllerMessage) -> str:
    """What is wrong with a number or a text of `message`, as "expected ..., got ..."; empty if nothing is."""
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
    for name, text in _for_the_kernel(message):
        if "\0" in text:  # the kernel's texts end there
            return f"expected no NUL character, got {name}: {text[:200]!r}"
    return ""


def _ports(message: pb.ControllerMessage) -> Iterator[tuple[str, int]]:
    prepare, start = message.prepare, message.start
    yield from (("prepare.ports", port) for port in prepare.ports)
    yield "prepare.master_port", prepare.master_port
    yield "start.master_port", start.master_port
    yield "start.api_port", start.api_port
    yield "start.dp_rpc_port", start.dp_rpc_port
    yield "probe_request.port", message.probe_request.port


def _for_the_kernel(message: pb.ControllerMessage) -> Iterator[tuple[str, str]]:
    """What becomes a path, a word of a command line or a variable of an environment."""
    yield "prepare.model", message.prepare.model
    yield from (("start.argv", word) for word in message.start.argv)
    for name, value in message.start.env.items():
        yield "start.env", name
        yield f"start.env.{name}", value
