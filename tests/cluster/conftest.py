from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.namespaces import NodePlace
from tests.cluster.deployment import Deployment
from tests.nodemanager.places import describe_left, kill_all


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Makes deployments; ends them, and fails the test if one leaves a process behind."""
    made: list[Deployment] = []

    def make(sections: dict[str, Any], places: tuple[NodePlace, ...] = (), **settings: Any) -> Deployment:
        deployment = Deployment(tmp_path, sections, settings, places=places)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()
    left = describe_left(tmp_path)
    kill_all(tmp_path)
    assert not left, f"left behind: {left}"
