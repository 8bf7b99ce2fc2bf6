"""The canary: a one-token request to the node's own API server, with a deadline of ours.

An engine whose follower is frozen answers /health with 200 and shows no request in flight; only a request finds it.
The canary is late when nothing has proved life for the deadline: neither its own answer nor a counter that moved. A
late one is not taken back. It stays outstanding and is watched, because one huge step may hold it up for minutes,
and its late answer clears everything.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from motor_rpc.http_ask import NotHttpError, Place, Request, ask

from engine_launch.health import (
    API_KEY_FLAG,
    canary_prompt,
    served_name_of,
    speaks_tls,
    virtual_transfer_params,
    words_of,
)
from engine_launch.profiles import takes_text_only
from nodemanager.checks import Checks
from nodemanager.netif import network_error
from nodemanager.records import StartRecord

PATH = "/v1/completions"
REQUEST_PREFIX = "motor-canary-"  # of X-Request-Id: tells canaries from requests in an engine's log and traces
RETRY_SECONDS = 5.0  # after a bad answer
WARM_UP_RETRY_SECONDS = 1.0

# Answers that say the request is wrong, not the engine: the canary is turned off then, and says so. 408 and 429
# are of a busy engine.
_BUSY_STATUS = frozenset({408, 429})


@dataclass(frozen=True)
class Target:
    """What is asked, and of whom."""

    place: Place
    model: str
    prompt_tokens: int
    api_key: str = ""
    kv_transfer_params: Mapping[str, Any] | None = None  # layerwise decode only
    text: bool = False  # an engine that takes no token ids


@dataclass(frozen=True)
class Outcome:
    """`ok`: a token came. `refused`: the engine will never take this request. `detail` is one clause."""

    ok: bool
    detail: str
    refused: bool = False


def api_of(record: StartRecord) -> Place:
    """Where this start's API server listens, and whether with TLS."""
    return Place(record.api_host, record.api_port, speaks_tls(record.argv))


def target_of(record: StartRecord, checks: Checks) -> Target:
    """From the final command line, which alone says what an engine answers to."""
    keys = words_of(record.argv, API_KEY_FLAG)
    return Target(
        place=api_of(record),
        model=served_name_of(record.argv, checks.served_model),
        prompt_tokens=checks.prompt_tokens,
        api_key=keys[0] if keys else record.env.get("VLLM_API_KEY", ""),
        kv_transfer_params=virtual_transfer_params(record.argv, record.role),
        text=takes_text_only(record.engine_profile),
    )


def request_of(target: Target, name: str, number: int) -> Request:
    """One token after a prompt of the wanted length."""
    body: dict[str, Any] = {
        "model": target.model,
        "prompt": canary_prompt(number, target.prompt_tokens, target.text),
        "max_tokens": 1,
        "temperature": 0,
    }
    if target.kv_transfer_params is not None:
        body["kv_transfer_params"] = dict(target.kv_transfer_params)
    headers = {"X-Request-Id": name}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    return Request(PATH, json.dumps(body).encode(), headers)


async def send(target: Target, name: str, number: int) -> Outcome:
    """Ask once and wait without a limit: who calls watches the time. Never raises for what a server does."""
    try:
        answer = await ask(target.place, request_of(target, name, number))
    except OSError as error:
        return Outcome(False, network_error(error))
    except NotHttpError as error:
        return Outcome(False, str(error))
    if answer.status == 200:
        return _judge(answer.body)
    said = answer.body[:200].decode(errors="replace").strip()
    refused = 400 <= answer.status < 500 and answer.status not in _BUSY_STATUS
    return Outcome(False, f"HTTP {answer.status} {said}".strip(), refused)


def _judge(body: bytes) -> Outcome:
    try:
        choices = json.loads(body)["choices"]
        reason = choices[0].get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        return Outcome(False, f"no completion in the answer: {body[:200].decode(errors='replace')}")
    if reason == "abort":  # vLLM while it drains: 200 and no token
        return Outcome(False, "aborted: the engine is draining")
    return Outcome(True, "answered")


class CanaryState:
    """What is known of one API server's canaries. Pure: times come from outside, on the monotonic clock.

    `warm`: an answer has come once, so the engine is past its first, slow request. Before that the warm-up deadline
    holds, and afterwards the canary's own.
    """

    def __init__(self, checks: Checks, warm: bool, now: float) -> None:
        self._checks = checks
        self.warm = warm or not checks.canary
        self.off = "" if checks.canary else checks.canary_off_reason or "turned off"
        self.outstanding_since: float | None = None
        self.asking_since: float | None = None  # the first canary since the last good answer
        self.progress_at: float | None = None
        self.failures = 0  # in a row
        self.sent = 0
        self.answered = 0
        self.failed = 0
        self.last = ""
        self.why = ""  # of the last bad answer
        self._next_at = now if not self.warm else now + checks.canary_interval
        self._prefix = f"{REQUEST_PREFIX}{secrets.token_hex(3)}-"  # ids of two managers must not meet in an engine

    @property
    def deadline(self) -> float:
        return self._checks.canary_deadline if self.warm else self._checks.warm_up_deadline

    def due(self, now: float) -> bool:
        return not self.off and self.outstanding_since is None and now >= self._next_at

    def send(self, now: float) -> tuple[str, int]:
        """Begin one: (its request id, its number)."""
        self.sent += 1
        self.outstanding_since = now
        if self.asking_since is None:
            self.asking_since = now
        return f"{self._prefix}{self.sent}", self.sent

    def ended(self, outcome: Outcome, now: float) -> None:
        """The one outstanding came back, in time or late."""
        took = now - (self.outstanding_since if self.outstanding_since is not None else now)
        self.outstanding_since = None
        self.last = f"canary {self.sent}: {outcome.detail} after {took:.1f} s"
        if outcome.ok:
            self.answered += 1
            self.failures = 0
            self.asking_since = None
            self.warm = True
            self.progressed(now)
            return
        self.failed += 1
        self.failures += 1
        self.why = outcome.detail
        if outcome.refused and not self.warm:
            self.off = f"the engine does not take it: {outcome.detail}"
            self.warm = True
            self.asking_since = None
        self._next_at = now + (RETRY_SECONDS if self.warm else WARM_UP_RETRY_SECONDS)

    def progressed(self, now: float) -> None:
        """Something else proved that the engine computes."""
        self.progress_at = now
        self._next_at = max(self._next_at, now + self._checks.canary_interval)

    def running(self, now: float) -> float:
        """Seconds since the first canary without a good answer was sent; 0 with none."""
        return now - self.asking_since if self.asking_since is not None else 0.0

    def late(self, now: float) -> bool:
        """No proof of life for the deadline, and asked for it all that time."""
        if self.asking_since is None or self.off:
            return False
        since = max(self.asking_since, self.progress_at if self.progress_at is not None else self.asking_since)
        return now - since > self.deadline

    def word(self, now: float) -> str:
        """off | waiting | ok | late, as reports have it."""
        if self.off:
            return "off"
        if self.late(now):
            return "late"
        return "ok" if self.progress_at is not None else "waiting"
