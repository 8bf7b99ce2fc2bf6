"""One cluster serves all tests that leave it as they found it; a test that fails takes it with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ha import measured
from tests.ha.cluster import Ha, made

FAILED: pytest.StashKey[bool] = pytest.StashKey()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    if outcome.get_result().failed:
        item.stash[FAILED] = True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if measured.LINES:
        terminalreporter.section("failover")
        for line in measured.LINES:
            terminalreporter.write_line(line)


class Standing:
    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory
        self.stack = contextlib.ExitStack()
        self.ha: Ha | None = None

    def get(self) -> Ha:
        if self.ha is None:
            self.ha = self.stack.enter_context(made(self.factory.mktemp("ha")))
        return self.ha

    def drop(self) -> None:
        self.ha = None
        self.stack.close()


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    standing = Standing(tmp_path_factory)
    yield standing
    standing.drop()


@pytest.fixture
def ha(standing: Standing, request: pytest.FixtureRequest) -> Iterator[Ha]:
    """Two controllers, one of which leads, three members of etcd, two nodes with a gang that is ready. At the end all
    of it has to be there again, and no epoch may have had two masters."""
    found = standing.get()
    yield found
    try:
        if request.node.stash.get(FAILED, False):
            raise AssertionError("the test has failed already")
        for controller in found.controllers.values():
            if not controller.running:
                controller.start()
        found.wait_leader(30.0)
        found.wait(found.all_there, "everything to be there again", 30.0)
        found.wait(
            lambda: all(one.ask("/livez") for one in found.controllers.values()), "both controllers to answer", 20.0
        )
        found.check_epochs()
    except BaseException:
        standing.drop()
        if not request.node.stash.get(FAILED, False):
            raise
