"""Asking the engine with the client that most users have."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from demo.cluster import DemoFailed
from demo.stopping import check_stop

QUESTION = "What is the capital of France?"
EXPECTED = "Paris"
ANSWER_SECONDS = 180.0  # the first request is slow: 20 s on two cores


@dataclass
class _Outcome:
    answer: str | None = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


def ask(url: str, question: str = QUESTION) -> str:
    """The model's answer; `url` is that of the API server. DemoFailed if there is none, StopRequested if asked."""
    outcome = _Outcome()
    # In a thread, because a request cannot be interrupted: asked to stop, we go on without its answer.
    threading.Thread(target=_ask, args=(url, question, outcome), daemon=True).start()
    deadline = time.monotonic() + ANSWER_SECONDS
    while not outcome.done.wait(0.2):
        check_stop()
        if time.monotonic() > deadline:
            raise DemoFailed(f"{url} did not answer within {ANSWER_SECONDS:g} s")
    if outcome.answer is None:
        raise DemoFailed(f"{url} gave no answer: {outcome.error}")
    return outcome.answer


def _ask(url: str, question: str, outcome: _Outcome) -> None:
    try:
        from openai import DefaultHttpxClient, OpenAI

        # No proxy: the engine is on this machine.
        with DefaultHttpxClient(trust_env=False) as transport:
            client = OpenAI(
                base_url=f"{url}/v1", api_key="none", timeout=ANSWER_SECONDS, max_retries=0, http_client=transport
            )
            model = client.models.list().data[0].id
            reply = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=32
            )
        outcome.answer = reply.choices[0].message.content or ""
    except BaseException as error:
        outcome.error = error
    finally:
        outcome.done.set()
