"""Fixed ports of KV transfer (vLLM-Ascend v0.23.0 mooncake_connector.py:1651-1657, 2030-2038)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine_launch.flags import Option
from engine_launch.model import ParallelShape, Translation

# Connectors that listen at kv_port + the worker's rank in its engine's world.
_RANKED = frozenset({"MooncakeConnectorV1"})


def kv_port_base(options: Iterable[Option]) -> int | None:
    """`kv_port` of a connector whose workers listen at fixed ports; None without one."""
    for option in options:
        if option.name != "kv-transfer-config" or not isinstance(option.value, Mapping):
            continue
        port = str(option.value.get("kv_port"))
        if option.value.get("kv_connector") in _RANKED and port.isdigit():
            return int(port)
    return None


def kv_port_count(shape: ParallelShape, translation: Translation) -> int:
    """Ports that one engine world takes from the base on: one for each of its workers."""
    return shape.group_world * (shape.dp if translation.one_world else 1)


def kv_ports(
    base: int | None, shape: ParallelShape, translation: Translation, dp_rank: int, node_rank: int
) -> tuple[int, ...]:
    """The ports that one slot's workers bind; none without a base."""
    if base is None:
        return ()
    first = base + node_rank * shape.workers_per_node
    if translation.one_world:
        first += dp_rank * shape.group_world
    return tuple(range(first, first + shape.workers_per_node))
