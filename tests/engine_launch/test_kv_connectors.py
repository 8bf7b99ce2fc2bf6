"""The table of connectors: what the papers say of them, and that no entry contradicts itself."""

from __future__ import annotations

import pytest

from engine_launch.kv_connectors import (
    CONNECTORS,
    DISPATCH_MODES,
    KV_PORT,
    USUAL_MODE,
    Connector,
    Kind,
    Listens,
    Order,
    fits_role,
)
from engine_launch.model import Role


@pytest.mark.parametrize(
    ("connector", "mode", "fits"),
    [
        ("MooncakeConnectorV1", "cpcd_separate", True),
        ("MooncakeConnectorV1", "pd_separate", False),
        ("MooncakeConnectorV1", "cdp_separate", False),
        ("MooncakeLayerwiseConnector", "cpcd_separate", False),
        ("MooncakeLayerwiseConnector", "pd_separate", True),
        ("MooncakeLayerwiseConnector", "cdp_separate", True),
        ("NixlConnector", "cpcd_separate", True),
        ("NixlConnector", "cdp_separate", False),
        ("MooncakeHybridConnector", "cpcd_separate", True),
    ],
)
def test_connector_and_dispatch_mode(connector: str, mode: str, fits: bool) -> None:
    assert (CONNECTORS[connector].order is DISPATCH_MODES[mode]) is fits


def test_the_mode_that_stands_for_an_order_has_that_order() -> None:
    assert {order: DISPATCH_MODES[mode] for order, mode in USUAL_MODE.items()} == {order: order for order in Order}


@pytest.mark.parametrize("connector", CONNECTORS.values(), ids=lambda c: c.name)
def test_an_entry_is_whole(connector: Connector) -> None:
    assert connector.order is None or connector.wrong_order
    assert connector.context_parallel == (not connector.no_context_parallel)
    assert not connector.demands_sizes or connector.reads_sizes
    assert connector.port_setting == KV_PORT or connector.first_port is not None
    if connector.kind is not Kind.TRANSFER:
        assert connector.listens is Listens.NOBODY and connector.order is None and connector.both_roles


@pytest.mark.parametrize(
    ("kv_role", "role", "connector", "fits"),
    [
        ("kv_producer", Role.PREFILL, "MooncakeConnectorV1", True),
        ("kv_consumer", Role.PREFILL, "MooncakeConnectorV1", False),
        ("kv_both", Role.PREFILL, "MooncakeConnectorV1", False),
        ("kv_both", Role.DECODE, "NixlConnector", True),
        ("kv_producer", Role.DECODE, "NixlConnector", False),
        ("kv_both", Role.DECODE, "AscendStoreConnector", True),
        ("kv_producer", Role.UNION, "AscendStoreConnector", True),
        ("kv_both", Role.PREFILL, "SomebodysConnector", True),
        ("producer", Role.PREFILL, "NixlConnector", False),
        ("producer", Role.UNION, "NixlConnector", False),
    ],
)
def test_kv_role(kv_role: str, role: Role, connector: str, fits: bool) -> None:
    assert fits_role(kv_role, role, CONNECTORS.get(connector)) is fits
