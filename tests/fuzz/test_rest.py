"""REST against its own OpenAPI description: every answer is a described one, and none is a 500."""

from __future__ import annotations

import socket
from typing import Any

import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.cluster.deployment import Deployment
from tests.fuzz.profile import tried


def without_waiting(case: Any) -> Any:
    """The same case, but not one that lasts, nor one that ends what the other tests need."""
    if isinstance(case.query, dict):
        case.query.pop("follow", None)
        case.query.pop("wait_seconds", None)
    if isinstance(case.body, dict):
        if case.body.get("order") == "pause":
            case.body["order"] = "resume"
        if case.body.get("order") in ("drain", "stop", "restart", "declare-lost", "cordon"):
            case.body["target"] = "no such target"
    return case


def modes(operation: Any) -> list[GenerationMode]:
    """Cases that fit the description, and where it says anything of what is asked, cases that do not."""
    can_be_wrong = operation.body or operation.query or operation.path_parameters
    return [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if can_be_wrong else [GenerationMode.POSITIVE]


def test_every_answer_is_described(running: Deployment) -> None:
    """Without schemathesis' own pytest plug-in: that of 4.32 does not know pytest 9."""
    api = schemathesis.openapi.from_url(running.url + "/openapi.json").exclude(path="/v1/instances/stream")
    operations = [found.ok() for found in api.get_all_operations()]
    assert len(operations) >= 8
    answers: set[int] = set()
    for operation in operations:

        @given(st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes(operation))))
        @tried(15)
        def answered(case: Any) -> None:
            answers.add(without_waiting(case).call_and_validate(timeout=10).status_code)

        answered()
    assert answers >= {200, 404, 409, 422}, "sense and nonsense were both asked"


def sent(running: Deployment, content: bytes) -> bytes:
    """The first of what comes back for these bytes; empty if the connection just ends."""
    with socket.create_connection(("127.0.0.1", running.rest_port), 5) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(15)
        return connection.recv(65536)


@given(st.binary(max_size=300))
@tried(40)
def test_bytes_that_are_no_request(running: Deployment, content: bytes) -> None:
    answer = sent(running, b"GET /v1/status HTTP/1.1\r\n" + content + b"\r\n\r\n")
    assert not answer or answer.split()[1] in (b"200", b"400", b"403", b"408", b"413", b"501"), answer[:300]


@given(st.binary(max_size=200))
@tried(40)
def test_paths_that_are_none(running: Deployment, content: bytes) -> None:
    answer = sent(running, b"GET /v1/logs/" + content + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert not answer or answer.split()[1] in (b"200", b"400", b"403", b"404", b"422", b"503"), answer[:300]
