"""Several controllers, redirects and pictures that are old, against real sockets."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from motorctl.client import MAX_REDIRECTS, ControllerError, ControllerRefused, _next, get, post
from tests.nodemanager.places import free_port


class Server:
    """Answers every request in one way, and keeps what came."""

    def __init__(self) -> None:
        self.code, self.body, self.headers = 200, {"who": ""}, {}  # type: int, dict[str, Any], dict[str, str]
        self.seen: list[tuple[str, str, bytes]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.seen.append((self.command, self.path, body))
                text = json.dumps(outer.body).encode()
                self.send_response(outer.code)
                for name, value in {**outer.headers, "Content-Length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def sends_to(self, address: str) -> None:
        self.code, self.headers = 307, {"Location": f"http://{address}/v1/orders"}

    def knows_nobody(self) -> None:
        self.code, self.body = 503, {"error": "no controller leads", "fix": "wait", "leader": ""}

    def is_old(self, who: str) -> None:
        self.body, self.headers = {"who": who}, {"Motor-Stale-Since": "yesterday"}


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    made = (Server(), Server())
    yield made
    for one in made:
        one.http.shutdown()
        one.http.server_close()


def test_an_order_follows_with_its_body(servers: tuple[Server, Server]) -> None:
    standby, leader = servers
    standby.sends_to(leader.address)
    leader.body = {"done": "yes"}
    assert post(standby.address, "/v1/orders", {"order": "pause"}) == {"done": "yes"}
    assert leader.seen == [("POST", "/v1/orders", b'{"order": "pause"}')]


def test_the_next_one_is_asked_where_one_does_not_answer_or_knows_nobody(servers: tuple[Server, Server]) -> None:
    first, second = servers
    second.body = {"who": "second"}
    assert get(f"127.0.0.1:{free_port()}, {second.address}", "/v1/status") == {"who": "second"}
    first.knows_nobody()
    assert get(f"{first.address},{second.address}", "/v1/status") == {"who": "second"}
    second.knows_nobody()
    with pytest.raises(ControllerRefused, match="no controller leads"):
        get(f"{first.address},{second.address}", "/v1/status")


def test_a_refusal_of_the_leader_is_the_answer(servers: tuple[Server, Server]) -> None:
    first, second = servers
    first.code, first.body = 409, {"error": "n9 is not cordoned"}
    with pytest.raises(ControllerRefused, match="n9 is not cordoned"):
        post(f"{first.address},{second.address}", "/v1/orders", {})
    assert not second.seen


def test_an_old_picture_is_the_last_resort(servers: tuple[Server, Server]) -> None:
    first, second = servers
    first.is_old("first")
    second.body = {"who": "second"}
    assert get(f"{first.address},{second.address}", "/v1/status") == {"who": "second"}
    second.knows_nobody()
    assert get(f"{first.address},{second.address}", "/v1/status") == {"who": "first"}


def test_two_that_name_each_other_are_no_loop(servers: tuple[Server, Server]) -> None:
    first, second = servers
    first.sends_to(second.address)
    second.sends_to(first.address)
    with pytest.raises(ControllerError, match="do not agree on who leads"):
        get(first.address, "/v1/status")
    assert len(first.seen) + len(second.seen) == MAX_REDIRECTS


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/", "/v1/status", ""])
def test_only_an_address_is_followed(servers: tuple[Server, Server], location: str) -> None:
    first, _ = servers
    first.code, first.headers = 307, {"Location": location}
    with pytest.raises(ControllerError, match="no address"):
        get(first.address, "/v1/status")


def test_nobody_is_led_out_of_tls() -> None:
    with pytest.raises(ControllerError, match="which has no TLS"):
        _next("https://10.0.0.1:1026/v1/status", "http://10.0.0.2:1026/v1/status")


def test_an_order_that_may_have_arrived_is_not_given_twice(servers: tuple[Server, Server]) -> None:
    """The first one takes it and hangs up: it may have been carried out."""
    first, second = servers
    first.http.RequestHandlerClass.do_POST = lambda handler: handler.rfile.read(2)  # type: ignore[attr-defined]
    with pytest.raises(ControllerError, match="may have arrived"):
        post(f"{first.address},{second.address}", "/v1/orders", {})
    assert not second.seen


def test_no_address_at_all() -> None:
    with pytest.raises(ControllerError, match="expected an address"):
        get(" , ", "/v1/status")
