from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.etcd_server import EtcdCluster


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member for all tests that do not harm it; each test takes a deployment id of its own."""
    yield from _running(EtcdCluster(tmp_path_factory.mktemp("etcd")))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three members of the test's own."""
    yield from _running(EtcdCluster(tmp_path / "etcd", 3))


def _running(cluster: EtcdCluster) -> Iterator[EtcdCluster]:
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
