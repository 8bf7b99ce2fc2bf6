"""Packets that do not arrive: dropped by nftables where they come in.

netem would do it too, but it is a module that many kernels lack; nftables is everywhere.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from typing import Literal

from tests.faults.cluster import Cluster

TABLE = "motor_faults"
RULES = """
table netdev {table} {{
  chain drops {{
    type filter hook ingress device "{device}" priority 0;
    {match} drop;
  }}
}}
"""


@contextlib.contextmanager
def dropping(
    cluster: Cluster, node: str, what: Literal["to_node", "from_node", "both"], percent: int = 100, peer: str = ""
) -> Iterator[None]:
    """Lose so many of the packets that the node receives or sends. They vanish: nobody is told. `peer`: only those from
    and to this address."""
    place = cluster.place_of(node)
    ends = {"to_node": (place.namespace, place.interface), "from_node": (cluster.hosts.switch, place.link)}
    chosen = ends if what == "both" else {what: ends[what]}
    sides = {"to_node": f"ip saddr {peer}", "from_node": f"ip daddr {peer}"}
    some = f"numgen random mod 100 < {percent}" if percent < 100 else ""
    with contextlib.ExitStack() as stack:
        for side, (namespace, device) in chosen.items():
            match = f"{sides[side] if peer else ''} {some}"
            _nft(namespace, RULES.format(table=TABLE, device=device, match=match))
            stack.callback(_nft, namespace, f"delete table netdev {TABLE}\n")
        yield


def _nft(namespace: str, text: str) -> None:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    subprocess.run(
        ["ip", "netns", "exec", namespace, "nft", "-f", "-"],
        input=text.encode(),
        env={**os.environ, "PATH": path},
        check=True,
        timeout=20,
    )
