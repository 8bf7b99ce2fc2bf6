"""What a node is told about the health checks of an engine: plain values, no I/O.

The canary is a one-token request with a deadline of our own: `/health` stays 200 and the counters stand still when
a rank of an engine is frozen, and only a request finds that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SERVED_MODEL_FLAG = "--served-model-name"
API_KEY_FLAG = "--api-key"
MODEL_FLAG = "--model"
KV_TRANSFER_FLAG = "--kv-transfer-config"
CERTIFICATE_FLAG = "--ssl-certfile"  # with it the API server speaks TLS only

# A layerwise decode engine starts nothing for a request without these (facts of the field: its own virtual
# inference sends them). The connector's name and the consumer's role say that an engine is one.
LAYERWISE_CONNECTORS = ("MooncakeLayerwiseConnector",)
LAYERWISE_PARAMS: Mapping[str, bool] = {"do_remote_decode": False, "do_remote_prefill": True, "do_virtual": True}


@dataclass(frozen=True)
class HealthChecks:
    """Settings of one engine's checks; times in seconds. Defaults are the settings' own."""

    canary: bool = True
    canary_off_reason: str = ""
    canary_interval: float = 15.0  # without progress for so long, a canary is sent
    canary_deadline: float = 30.0  # later than this is late
    warm_up_deadline: float = 600.0  # of the first canary, before ready
    usage_threshold: float = 3.0  # percent; a device below it is flat
    sample_interval: float = 5.0
    collector_timeout: float = 5.0


def served_model(given: Any, model: str) -> str:
    """The name that requests use: the first of `served-model-name` (text or a list), else the model itself."""
    if given and isinstance(given, Sequence):
        return given if isinstance(given, str) else str(given[0])
    return model


def canary_prompt_tokens(pcp: int) -> int:
    """PCP cuts a prompt into 2 x pcp pieces; with at least so many tokens every rank computes."""
    return max(2, 2 * pcp)


def canary_prompt(number: int, tokens: int, text: bool) -> list[int] | str:
    """The prompt of canary `number`, at least `tokens` long, another one each time so that no prefix cache answers.

    Token ids need no tokenizer, and every vocabulary has the first 64. `text` is for engines that take no ids: a number
    and its space are one token or more.
    """
    word = 1 + number % 64
    return f"{word} " * tokens if text else [word] * tokens


def words_of(argv: Sequence[str], flag: str) -> list[str]:
    """Values of `flag` on a command line, as `--flag a b` or `--flag=a`; of the last one where it stands twice."""
    found: list[str] = []
    for index, word in enumerate(argv):
        if word == flag:
            found = list(_until_flag(argv[index + 1 :]))
        elif word.startswith(flag + "="):
            found = [word.partition("=")[2]]
    return found


def speaks_tls(argv: Sequence[str]) -> bool:
    """Does an engine with this command line serve https?"""
    return bool(words_of(argv, CERTIFICATE_FLAG))


def _until_flag(words: Iterable[str]) -> Iterable[str]:
    for word in words:
        if word.startswith("--"):
            return
        yield word


def served_name_of(argv: Sequence[str], otherwise: str) -> str:
    """The name an engine with this final command line answers to: a node may have put a path for a model's name."""
    if names := words_of(argv, SERVED_MODEL_FLAG):
        return names[0]
    position = model_position(argv)
    return otherwise if position is None else argv[position]


def model_position(argv: Sequence[str]) -> int | None:
    """Where the model stands in a command line that Motor made: `vllm serve MODEL`, `python -m ... --model MODEL`."""
    for word in ("serve", MODEL_FLAG):
        if word in argv:
            position = argv.index(word) + 1
            return position if position < len(argv) and not argv[position].startswith("-") else None
    return None


def virtual_transfer_params(argv: Sequence[str], role: str) -> dict[str, bool] | None:
    """kv_transfer_params of the canary: only a layerwise decode engine needs any."""
    if role != "decode" or not (words := words_of(argv, KV_TRANSFER_FLAG)):
        return None
    try:
        config = json.loads(words[0])
    except ValueError:
        return None
    # Each text in it, so that a connector inside a MultiConnector is found as well.
    names = set(_texts_at("kv_connector", config))
    return dict(LAYERWISE_PARAMS) if names.intersection(LAYERWISE_CONNECTORS) else None


def _texts_at(key: str, value: Any) -> Iterable[str]:
    """Every text that stands under `key`, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key and isinstance(inner, str):
                yield inner
            yield from _texts_at(key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_at(key, inner)
