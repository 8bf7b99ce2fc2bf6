"""Fixed KV ports by connector: how many a world takes, which a slot opens, and that no two slots share one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from engine_launch.kv_connectors import CONNECTORS, Listens
from engine_launch.kv_ports import slot_ports, world_ports
from engine_launch.model import ParallelShape, Role, Translation

REPLICA, EXTERNAL, INTERNAL = Translation.REPLICA, Translation.NATIVE_EXTERNAL, Translation.NATIVE_INTERNAL
PCP2 = ParallelShape(tp=2, pcp=2, nnodes=2)
LOCAL2 = ParallelShape(tp=2, dp=2, dp_local=2)

# (connector, role, shape, translation, dp_rank, node_rank, ports with 100 as first, ports of the world)
TABLE = [
    ("MooncakeConnectorV1", Role.PREFILL, PCP2, REPLICA, 0, 0, (100, 101), 4),
    ("MooncakeConnectorV1", Role.PREFILL, PCP2, REPLICA, 0, 1, (102, 103), 4),
    ("MooncakeConnectorV1", Role.DECODE, ParallelShape(tp=2, dp=3), REPLICA, 2, 0, (100, 101), 2),
    ("MooncakeConnectorV1", Role.DECODE, ParallelShape(tp=2, dp=3), EXTERNAL, 2, 0, (104, 105), 6),
    ("MooncakeConnectorV1", Role.PREFILL, ParallelShape(tp=2, pp=2, nnodes=2, dp=2), INTERNAL, 1, 1, (106, 107), 8),
    ("MooncakeHybridConnector", Role.DECODE, ParallelShape(tp=2), REPLICA, 0, 0, (100, 101), 2),
    ("MooncakeLayerwiseConnector", Role.PREFILL, ParallelShape(tp=2), REPLICA, 0, 0, (), 0),
    ("MooncakeLayerwiseConnector", Role.DECODE, ParallelShape(tp=2, dp=2), EXTERNAL, 1, 0, (102, 103), 4),
    # Pipeline stages on two nodes listen at the same ports, each on its own node.
    ("MooncakeLayerwiseConnector", Role.DECODE, ParallelShape(tp=2, pp=2, nnodes=2), REPLICA, 0, 1, (100, 101), 2),
    ("NixlConnector", Role.PREFILL, ParallelShape(tp=2, nnodes=2), REPLICA, 0, 0, (100,), 1),
    ("NixlConnector", Role.PREFILL, ParallelShape(tp=2, nnodes=2), REPLICA, 0, 1, (), 1),
    ("NixlConnector", Role.DECODE, ParallelShape(tp=2, dp=4), INTERNAL, 3, 0, (103,), 4),
    ("MooncakeConnector", Role.PREFILL, ParallelShape(tp=2), REPLICA, 0, 0, (100,), 1),
    ("MooncakeConnector", Role.DECODE, ParallelShape(tp=2), REPLICA, 0, 0, (), 0),
    ("MooncakeConnector", Role.PREFILL, ParallelShape(tp=2, dp=2), INTERNAL, 1, 0, (), 1),
    ("MooncakeConnector", Role.PREFILL, ParallelShape(tp=2, dp=2), EXTERNAL, 1, 0, (100,), 1),
    ("AscendStoreConnector", Role.PREFILL, ParallelShape(tp=2), REPLICA, 0, 0, (), 0),
    # Two processes with two data-parallel ranks each.
    ("MooncakeConnectorV1", Role.DECODE, LOCAL2, INTERNAL, 1, 0, (104, 105, 106, 107), 8),
    ("MooncakeConnectorV1", Role.DECODE, LOCAL2, REPLICA, 1, 0, (100, 101, 102, 103), 4),
    ("MooncakeLayerwiseConnector", Role.DECODE, replace(LOCAL2, pp=2), EXTERNAL, 1, 0, (104, 105, 106, 107), 8),
    ("NixlConnector", Role.DECODE, LOCAL2, INTERNAL, 1, 0, (102, 103), 4),
]


@pytest.mark.parametrize(("name", "role", "shape", "translation", "dp", "node", "ports", "count"), TABLE)
def test_ports_of_a_slot(
    name: str,
    role: Role,
    shape: ParallelShape,
    translation: Translation,
    dp: int,
    node: int,
    ports: tuple[int, ...],
    count: int,
) -> None:
    connector = CONNECTORS[name]
    assert slot_ports(connector, role, 100, shape, translation, dp, node) == ports
    assert world_ports(connector, role, shape, translation) == count


@pytest.mark.parametrize("name", [n for n, c in CONNECTORS.items() if c.listens in (Listens.WORKERS, Listens.MASTERS)])
@pytest.mark.parametrize("translation", [REPLICA, EXTERNAL, INTERNAL])
def test_slots_of_one_world_fill_its_range_without_a_common_port(name: str, translation: Translation) -> None:
    connector, shape = CONNECTORS[name], ParallelShape(tp=4, pcp=2, nnodes=2, dp=3)
    groups = range(3) if translation.one_world else range(1)
    slots = itertools.product(groups, range(2))
    taken = [port for g, n in slots for port in slot_ports(connector, Role.PREFILL, 1, shape, translation, g, n)]
    assert sorted(taken) == list(range(1, 1 + world_ports(connector, Role.PREFILL, shape, translation)))
