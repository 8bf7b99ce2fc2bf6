"""Where a controller says that it is found."""

from __future__ import annotations

from typing import Any

import pytest

from controller.config.advertise_rules import Advertised
from tests.config.files import engine, file_with, load, texts

ETCD = {"kind": "etcd", "endpoints": ["http://127.0.0.1:2379"]}


def found(**controller: Any) -> Advertised:
    return load(file_with(union=engine(), controller=controller)).settings.advertised


def said(**controller: Any) -> list[str]:
    return [line for line in texts(file_with(union=engine(), controller=controller)) if "advertise" in line]


def test_the_default_is_where_it_listens() -> None:
    assert found() == Advertised("127.0.0.1:1028", "http://127.0.0.1:1026")
    six = {"host": "::1"}
    assert found(grpc=six, rest=six) == Advertised("[::1]:1028", "http://[::1]:1026")


def test_what_is_written_comes_first() -> None:
    written = {"grpc": "c1.example:1028", "rest": "http://c1.example:1026"}
    everywhere = {"host": "0.0.0.0"}
    assert found(advertise=written, grpc=everywhere, rest=everywhere, insecure=True, store=ETCD) == Advertised(
        "c1.example:1028", "http://c1.example:1026"
    )
    assert not said(advertise=written, grpc=everywhere, rest=everywhere, insecure=True, store=ETCD)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_is_none_that_a_standby_could_name(host: str) -> None:
    """A warning: each controller may be told at its start, and the file be the same for all."""
    lines = said(grpc={"host": host}, rest={"host": host}, insecure=True, store=ETCD)
    assert len(lines) == 2 and all(line.startswith("warning") for line in lines)
    assert "--advertise-grpc" in lines[0] and "MOTOR_ADVERTISE_REST" in lines[1]
    assert not said(grpc={"host": host}, rest={"host": host}, insecure=True), "nobody asks where there is no standby"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("grpc", "http://c1:1028", "host:port"),
        ("grpc", "c1", "host:port"),
        ("rest", "c1:1026", "http://host:port"),
        ("rest", "https://c1:1026", "http://host:port"),
        ("rest", "http://c1:1026/path", "http://host:port"),
        ("rest", "http://c1:1026\r\nX: y", "http://host:port"),
    ],
)
def test_what_cannot_be_dialled_is_an_error(key: str, value: str, expected: str) -> None:
    (line,) = said(advertise={key: value})
    assert line.startswith("error") and expected in line


def test_with_tls_it_is_https() -> None:
    assert Advertised("", "http://c1:1026").problems(tls=True) == [("rest", "http://c1:1026", "https://host:port")]
    assert not Advertised("[fe80::1]:1028", "https://[fe80::1]:1026").problems(tls=True)
