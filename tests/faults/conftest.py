"""One cluster serves all tests that leave it as they found it; a test that fails takes it with it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import invariants, measured
from tests.faults.cluster import Cluster, Make, made

GROUPS, NODES_OF_A_GROUP = 2, 2
HOSTS = GROUPS * NODES_OF_A_GROUP + 1  # one spare


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.netns)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    if outcome.get_result().failed:
        item.stash[FAILED] = True


FAILED: pytest.StashKey[bool] = pytest.StashKey()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if measured.LINES:
        terminalreporter.section("measured")
        for line in measured.table():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    missing = [name for name in ("ip", "nft", "faketime", "unshare") if not shutil.which(name, path=PATH)]
    if os.geteuid() != 0 or missing:
        pytest.fail(f"needs root and these programs, which .ci/run installs: {' '.join(missing) or 'all there'}")


PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


class Shared:
    """The standing cluster, made on first use and after a failure."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory
        self.stack = contextlib.ExitStack()
        self.cluster: Cluster | None = None

    def get(self) -> Cluster:
        if self.cluster is None:
            root = self.factory.mktemp("standing")
            cluster = self.stack.enter_context(made(root, HOSTS, NODES_OF_A_GROUP, GROUPS))
            cluster.up(HOSTS)
            self.cluster = cluster
        return self.cluster

    def drop(self) -> None:
        self.cluster = None
        self.stack.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    shared = Shared(tmp_path_factory)
    yield shared
    shared.drop()


@pytest.fixture
def cluster(shared: Shared, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two groups of two nodes and a spare, ready; checked from the outside before and after."""
    found = shared.get()
    invariants.check(found)
    yield found
    if request.node.stash.get(FAILED, False):
        shared.drop()
        return
    try:
        found.wait_settled(30.0)
        invariants.check(found)
    except BaseException:
        shared.drop()
        raise


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a cluster of its own for a test that needs other settings."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **settings: stack.enter_context(made(tmp_path, *arguments, **settings))
