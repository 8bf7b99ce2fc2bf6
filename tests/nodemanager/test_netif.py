"""The data address: where it comes from, and what is refused."""

from __future__ import annotations

import socket

import psutil
import pytest

from nodemanager import netif
from nodemanager.netif import AddressError, data_address

CONTROLLER = [("127.0.0.1", 1028)]


def outside() -> tuple[str, str]:
    """(interface, address) of this machine that others could reach."""
    for name, address in netif.interface_addresses():
        if not address.startswith("127.") and ":" not in address and not address.startswith("169.254."):
            return name, address
    pytest.skip("this machine has only loopback")


def test_literal_and_its_interface() -> None:
    name, address = outside()
    assert data_address(address, CONTROLLER, False) == address
    assert netif.interface_of(address) == name


def test_interface_name_and_cidr() -> None:
    name, address = outside()
    assert data_address(name, CONTROLLER, False) == address
    assert data_address(f"{address}/32", CONTROLLER, False) == address


def test_default_is_the_source_towards_the_controller() -> None:
    assert data_address(None, CONTROLLER, True) == "127.0.0.1"
    with pytest.raises(AddressError, match=r"loopback.*allow_loopback"):
        data_address(None, CONTROLLER, False)


def test_loopback_aliases_belong_to_lo() -> None:
    assert netif.interface_of("127.0.0.1") == netif.interface_of("127.3.2.1") == "lo"
    assert data_address("127.0.0.7", CONTROLLER, True) == "127.0.0.7"


def test_foreign_addresses_are_named() -> None:
    with pytest.raises(AddressError, match=r"203\.0\.113\.1 is not an address of this machine; it has: .*127"):
        data_address("203.0.113.1", CONTROLLER, False)
    with pytest.raises(AddressError, match="no address of this machine is in it"):
        data_address("203.0.113.0/24", CONTROLLER, False)
    with pytest.raises(AddressError, match="neither a literal nor an interface"):
        data_address("eth77", CONTROLLER, False)


def test_link_local_is_refused_always(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = psutil.net_if_addrs()
    address = type(next(iter(entry.values()))[0])(socket.AF_INET6, "fe80::1%eth9", None, None, None)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth9": [address]})
    with pytest.raises(AddressError, match="link-local"):
        data_address("eth9", CONTROLLER, True)


def test_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(next(iter(psutil.net_if_addrs().values()))[0])
    addresses = {"eth9": [kind(socket.AF_INET6, "2001:db8::5", None, None, None)]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    assert data_address("2001:db8::/32", CONTROLLER, False) == "2001:db8::5"
    assert data_address("[2001:db8:0::5]", CONTROLLER, False) == "2001:db8::5"
    assert netif.interface_of("2001:db8::5") == "eth9"
    assert netif.bracketed("2001:db8::5") == "[2001:db8::5]" and netif.bracketed("10.0.0.1") == "10.0.0.1"
