"""An address range that nothing on this machine uses."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Any

PREFIX_LENGTH = 24
# 10/8 first; the others for machines whose routes cover all of it. 198.18/15 is kept for tests of networks.
POOLS = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15")))


def used_networks(ip: str) -> list[IPv4Network]:
    """What this machine's addresses and routes cover, its default routes left out; `ip` is the program.

    OSError or subprocess.SubprocessError where it cannot be asked.
    """
    addresses = _ask(ip, "address", "show")
    routes = _ask(ip, "route", "show", "table", "all")
    texts = [f"{a['local']}/{a['prefixlen']}" for link in addresses for a in link.get("addr_info", ()) if "local" in a]
    texts += [route["dst"] for route in routes if route.get("dst", "default") != "default"]
    return [IPv4Network(text, strict=False) for text in texts]


def _ask(ip: str, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [ip, "-json", "-4", *arguments], check=True, capture_output=True, text=True, timeout=20, start_new_session=True
    )
    entries = json.loads(done.stdout or "[]")
    return [entry for entry in entries if entry]


def free_subnet(used: Iterable[IPv4Network], start: int) -> IPv4Network:
    """A /24 that overlaps none of `used`; `start` varies the choice. LookupError if there is none."""
    taken = list(used)
    for pool in POOLS:
        count = 2 ** (PREFIX_LENGTH - pool.prefixlen)
        for number in itertools.islice(itertools.count(start), min(count, 1000)):
            first = int(pool.network_address) + (number % count) * 2 ** (32 - PREFIX_LENGTH)
            candidate = IPv4Network((first, PREFIX_LENGTH))
            if not any(candidate.overlaps(network) for network in taken):
                return candidate
    raise LookupError("every private address range overlaps an address or a route of this machine")
