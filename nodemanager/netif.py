"""The node's data address: the one engines get, and the interface that carries it."""

from __future__ import annotations

import ipaddress
import os
import socket

import psutil

FORBIDDEN_HINT = "set `address` in the node file (a literal, an interface name or a CIDR), or `allow_loopback: true`"


class AddressError(Exception):
    """No usable data address; the text says what was looked for, what was found and what to do."""


def interface_addresses() -> list[tuple[str, str]]:
    """(interface, address) of this host, IPv4 before IPv6, without scope suffixes."""
    found = []
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                found.append((name, entry.address.partition("%")[0]))
    return sorted(found, key=lambda item: ":" in item[1])


def interface_of(address: str) -> str | None:
    """Name of the interface that carries `address`; None if it is not an address of this host."""
    wanted = ipaddress.ip_address(address)
    for name, candidate in interface_addresses():
        if ipaddress.ip_address(candidate) == wanted:
            return name
    if wanted.version == 4 and wanted.is_loopback:
        # The kernel answers on all of 127/8, which the interface list does not show.
        return next((name for name, candidate in interface_addresses() if candidate == "127.0.0.1"), None)
    return None


def check_usable(address: str, allow_loopback: bool) -> str:
    """`address`, or AddressError if other machines cannot reach it."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified or parsed.is_multicast:
        raise AddressError(f"address {address} is not the address of one machine; {FORBIDDEN_HINT}")
    if parsed.is_loopback and not allow_loopback:
        raise AddressError(f"address {address} is loopback, other nodes cannot reach it; {FORBIDDEN_HINT}")
    if parsed.is_link_local:
        raise AddressError(f"address {address} is link-local, engines cannot use it; {FORBIDDEN_HINT}")
    return address


def source_address(host: str, port: int) -> str:
    """The address this machine uses towards `host`: what a connection to it would have as its source.

    No packet is sent: connecting a datagram socket only asks the routing table.
    """
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise AddressError(f"controller {host}: cannot resolve the name: {error}") from error
    failure: OSError | None = None
    for family, kind, protocol, _, target in candidates:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError as error:
            failure = error
    raise AddressError(f"controller {host}: no route to it: {failure}")


def data_address(configured: str | None, controllers: list[tuple[str, int]], allow_loopback: bool) -> str:
    """The data address by the node file, else the source address towards the first controller with a route.

    AddressError says why there is none.
    """
    if configured is None:
        reasons = []
        for host, port in controllers:
            try:
                return check_usable(source_address(host, port), allow_loopback)
            except AddressError as error:
                reasons.append(str(error))
        raise AddressError("; ".join(reasons) or f"no controller is configured; {FORBIDDEN_HINT}")
    try:
        literal = str(ipaddress.ip_address(configured.strip("[]")))
    except ValueError:
        pass
    else:
        if interface_of(literal) is None:
            mine = ", ".join(address for _, address in interface_addresses())
            raise AddressError(f"address {literal} is not an address of this machine; it has: {mine}")
        return check_usable(literal, allow_loopback)
    return _first_usable(_matching(configured), configured, allow_loopback)


def _matching(configured: str) -> list[str]:
    """Addresses of the interface, or in the network, that `configured` names."""
    if "/" in configured:
        try:
            network = ipaddress.ip_network(configured, strict=False)
        except ValueError as error:
            raise AddressError(f"address {configured!r}: not a CIDR: {error}") from error
        return [a for _, a in interface_addresses() if ipaddress.ip_address(a) in network]
    matching = [address for name, address in interface_addresses() if name == configured]
    if not matching:
        names = ", ".join(sorted({name for name, _ in interface_addresses()}))
        raise AddressError(f"address {configured!r}: neither a literal nor an interface with an address ({names})")
    return matching


def _first_usable(candidates: list[str], configured: str, allow_loopback: bool) -> str:
    reasons = []
    for address in candidates:
        try:
            return check_usable(address, allow_loopback)
        except AddressError as error:
            reasons.append(str(error))
    mine = ", ".join(address for _, address in interface_addresses())
    raise AddressError(
        f"address {configured!r}: " + ("; ".join(reasons) or f"no address of this machine is in it; it has: {mine}")
    )


def network_error(error: OSError) -> str:
    """What went wrong, without asyncio's own words around it."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def bracketed(address: str) -> str:
    """`address` as it stands in a URL."""
    return f"[{address}]" if ":" in address else address
