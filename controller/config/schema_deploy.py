"""motor_deploy_config: how many instances of each role, on what machines, with which ports."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.config.schema_section import FIELD, Count, Instances, Range, Section, key


class PortRanges(Section):
    """Ports of one role. A restart takes the next master port: ranges are longer than one start needs."""

    master: Range | None = key(
        None,
        "Ports on which the nodes of a group meet: [first, last].",
        unit="port",
        unset="[master-port, master-port + 63]",
    )
    api: Range | None = key(
        None, "Ports of the engines' APIs: [first, last].", unit="port", unset="[port, port + 63], from 8000"
    )
    dp_rpc: Range | None = key(
        None,
        "Ports of the data-parallel handshake where groups share one world: [first, last].",
        unit="port",
        unset="[data-parallel-rpc-port, + 63], else from 29550",
    )


class RolePortRanges(Section):
    """Port ranges by role. One ledger for each host keeps what it hands out apart."""

    prefill: PortRanges = key(PortRanges(), "Ports of prefill instances.")
    decode: PortRanges = key(PortRanges(), "Ports of decode instances.")
    union: PortRanges = key(PortRanges(), "Ports of union instances.")


def _instances(role: str) -> str:
    return f"Number of {role} instances."


def _devices(role: str) -> str:
    return f"Devices of one node of a {role} instance; checked against what an engine process takes."


def _nodes(role: str) -> str:
    return f"Nodes of one {role} instance; checked against data-parallel-size x nnodes."


_ONE = "1 where the engine section is present"
_ENOUGH = "nodes are taken to have enough"
_ALL = "not checked"


class Deploy(Section):
    """How many instances of each role, and on what machines. `hybrid` is the field's word for union."""

    deployment_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = key(
        "default", "Name of the deployment; every message carries it, and a node of another one is refused."
    )
    p_instances_num: Instances | None = key(None, _instances("prefill"), source=FIELD, unset=_ONE)
    d_instances_num: Instances | None = key(None, _instances("decode"), source=FIELD, unset=_ONE)
    hybrid_instances_num: Instances | None = key(None, _instances("union"), source=FIELD, unset=_ONE)
    p_pod_npu_num: Count | None = key(None, _devices("prefill"), source=FIELD, unit="devices", unset=_ENOUGH)
    d_pod_npu_num: Count | None = key(None, _devices("decode"), source=FIELD, unit="devices", unset=_ENOUGH)
    hybrid_pod_npu_num: Count | None = key(None, _devices("union"), source=FIELD, unit="devices", unset=_ENOUGH)
    single_p_instance_pod_num: Count | None = key(None, _nodes("prefill"), source=FIELD, unit="nodes", unset=_ALL)
    single_d_instance_pod_num: Count | None = key(None, _nodes("decode"), source=FIELD, unit="nodes", unset=_ALL)
    single_hybrid_instance_pod_num: Count | None = key(None, _nodes("union"), source=FIELD, unit="nodes", unset=_ALL)
    port_ranges: RolePortRanges = key(RolePortRanges(), "Ports by role and use; all TCP.")
