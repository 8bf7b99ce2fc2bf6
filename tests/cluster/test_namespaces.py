"""dp 2 x nnodes 2 on four hosts with addresses of their own: what runs is what the golden plans say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from demo.namespaces import Network, network
from tests.cluster.deployment import Deployment
from tests.golden_shapes import GOLDEN, SHAPES

pytestmark = pytest.mark.netns

ENV_IN_PLAN = re.compile(r"^ {9}([A-Z][A-Z0-9_]*)=(.*)$|^  env    ([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(4, may_fall_back=False) as made:
        yield made


def golden_argv(shape: str) -> dict[str, list[str]]:
    """Slot -> command line as the golden file pins it, placeholders and all."""
    found: dict[str, list[str]] = {}
    slot = ""
    lines = iter((GOLDEN / f"{shape}.txt").read_text().splitlines())
    for line in lines:
        if head := re.match(r"(\S+/\d+/\d+): ", line):
            slot = head[1]
        if line.startswith("  argv   "):
            words = line.removeprefix("  argv   ")
            while words.endswith(" \\"):
                words = words.removesuffix("\\") + next(lines).strip()
            found[slot] = words.split()
    return found


@pytest.mark.parametrize(("shape", "devices"), [("dp2-nnodes2-replica", 4), ("dp2-nnodes2-native", 8)])
def test_four_hosts_run_what_the_golden_file_says(
    shape: str,
    devices: int,
    hosts: Network,
    deploy: Callable[..., Deployment],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    text = SHAPES[shape].read_text()
    golden_model = json.loads(text)["motor_engine_union_config"]["engine_config"]["model"]
    weights = tmp_path_factory.mktemp("weights")
    experts = {} if devices == 4 else {"num_experts": 8, "num_experts_per_tok": 2}
    (weights / "config.json").write_text(json.dumps({"architectures": ["AnyForCausalLM"], **experts}))
    d = deploy({}, places=hosts.nodes, insecure=True)
    # as text, because 0.90 has to stay 0.90 on the command line
    controller = json.loads(d.file.read_text())["motor_controller_config"]
    controller["grpc"]["host"] = "0.0.0.0"
    text = text.replace(golden_model, str(weights)).replace(
        "{", f'{{"motor_controller_config": {json.dumps(controller)},', 1
    )
    d.file.write_text(text)
    d.start_controller()
    controllers = [f"{hosts.controller_address}:{d.grpc_port}"]
    for number in range(1, 5):
        node = {"devices": {"kind": "cpu", "count": devices}, "model_roots": [str(weights)]}
        d.add_node(number, **node, controllers=controllers, insecure=True).start()
        d.wait(lambda n=number: f"n{n}" in d.node_states(), f"n{number} to register")  # type: ignore[misc]
    d.wait_ready(60)
    members = d.members()
    assert {slot: member["node_id"] for slot, member in members.items()} == {
        "union-0/0/0": "n1",
        "union-0/0/1": "n2",
        "union-0/1/0": "n3",
        "union-0/1/1": "n4",
    }, "registration order: the first of every two is node_rank 0"
    for slot, expected in golden_argv(shape).items():
        words = [word.replace(golden_model, str(weights)) for word in expected]
        for other, member in members.items():
            words = [word.replace(f"<{other}>", member["address"]) for word in words]
        got = d.argv(slot)
        assert got[got.index("serve") :] == words[1:], slot
        assert members[slot]["headless"] == ("--headless" in words)
    masters = {member["master_addr"] for member in members.values()}
    assert len(masters) == (2 if shape.endswith("replica") else 1)
    assert [e["node_id"] for e in d.get("/v1/instances")] == ["n1", "n3"]
