"""One real controller with two real nodes and their engines for all that asks it nonsense."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cluster.deployment import Deployment, engine_section
from tests.nodemanager.places import describe_left, kill_all

_GONE = re.compile(r".* ExecuteBatchError raised in core .*\nTraceback .*\n(?:  .*\n)*grpc.*ExecuteBatchError: .*")


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Ready, and at the end still so; nothing unforeseen stands in its logs."""
    root = tmp_path_factory.mktemp("fuzz")
    access = {"rate_per_second": 100_000.0, "burst": 100_000}
    deployment = Deployment(root, {"motor_engine_prefill_config": engine_section(nnodes=2)}, {"access": access})
    try:
        deployment.start_controller()
        deployment.start_nodes(2)
        deployment.wait_ready()
        yield deployment
        quiet(deployment)
    finally:
        deployment.close()
        left = describe_left(root)
        kill_all(root)
    assert not left, f"left behind: {left}"


def quiet(deployment: Deployment) -> None:
    """No defect was logged, by the controller or a node."""
    said = [deployment.root / "controller.out", *(node.root / "manager.out" for node in deployment.nodes.values())]
    for file in said:
        # gRPC's own words for a peer that has gone before it was told that the stream is over.
        text = _GONE.sub("", file.read_text(errors="replace"))
        for word in ("Traceback", "internal error", "a defect", "never awaited", "never retrieved"):
            where = text.find(word)
            assert where < 0, f"{file.name}: {text[max(0, where - 1500) : where + 3000]}"
