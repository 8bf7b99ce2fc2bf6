"""Fixed ports of KV transfer: how many an engine world takes, and which of them one slot opens."""

from __future__ import annotations

from engine_launch.kv_connectors import Connector, Listens
from engine_launch.model import ParallelShape, Role, Translation


def world_ports(connector: Connector, role: Role, shape: ParallelShape, translation: Translation) -> int:
    """Ports that one engine world takes from its first port on, over all of its nodes; 0: it opens none."""
    groups = shape.dp if translation.one_world else 1
    return groups * _group_ports(connector, role, shape) if _spread(connector) else _group_ports(connector, role, shape)


def slot_ports(
    connector: Connector,
    role: Role,
    first: int,
    shape: ParallelShape,
    translation: Translation,
    dp_rank: int,
    node_rank: int,
) -> tuple[int, ...]:
    """The ports that one slot's processes bind, where its world's first port is `first`. In rising order."""
    count = _group_ports(connector, role, shape)
    if not count:
        return ()
    group = first + (dp_rank * count if translation.one_world and _spread(connector) else 0)
    if connector.listens in (Listens.WORKERS, Listens.CONSUMERS):
        # Workers of a rank are numbered PP x PCP x TP, and a node has them in a row (vLLM 0.32
        # distributed/parallel_state.py:2126-2141). CONSUMERS leaves the pipeline stage out of the number.
        workers = range(node_rank * shape.workers_per_node, (node_rank + 1) * shape.workers_per_node)
        each = count // shape.dp_local
        places = (divmod(worker, shape.group_world) for worker in workers)
        return tuple(sorted({group + rank * each + worker % each for rank, worker in places}))
    if node_rank or (connector.listens is Listens.PRODUCER_MASTER and _is_internal_follower(translation, dp_rank)):
        return ()
    return tuple(range(group, group + count))


def _group_ports(connector: Connector, role: Role, shape: ParallelShape) -> int:
    """Of a group, which may hold several data-parallel ranks in one process."""
    if connector.listens is Listens.WORKERS:
        return shape.dp_local * shape.group_world
    if connector.listens is Listens.CONSUMERS:
        return 0 if role is Role.PREFILL else shape.dp_local * shape.tp * shape.pcp
    if connector.listens is Listens.PRODUCER_MASTER:
        return 0 if role is Role.DECODE else 1
    return shape.dp_local if connector.listens is Listens.MASTERS else 0


def _spread(connector: Connector) -> bool:
    """True where the groups of one world have ports of their own."""
    return connector.listens is not Listens.PRODUCER_MASTER


def _is_internal_follower(translation: Translation, dp_rank: int) -> bool:
    return translation is Translation.NATIVE_INTERNAL and dp_rank > 0
