"""Real controllers, whose REST is asked over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api.tokens import Role, Token, digest_of, new_token
from tests.cluster.conftest import deploy  # noqa: F401  a fixture of theirs
from tests.cluster.deployment import Deployment, engine_section
from tests.nodemanager.places import describe_left, kill_all

SECTIONS = {"motor_engine_prefill_config": engine_section(nnodes=1)}


class Guarded:
    """A controller with a tokens file; `read` and `operate` are tokens."""

    def __init__(self, root: Path, **access: object) -> None:
        self.read, self.operate = new_token(), new_token()
        self.tokens = root / "tokens"
        self.tokens.write_text(
            "# tokens\n"
            + "".join(
                Token(name, role, digest_of(secret)).line() + "\n"
                for name, role, secret in (("prom", Role.READ, self.read), ("alice", Role.OPERATE, self.operate))
            )
        )
        self.tokens.chmod(0o600)
        settings = {"access": {"tokens_file": "tokens", **access}}
        self.deployment = Deployment(root, SECTIONS, settings)

    @property
    def url(self) -> str:
        return self.deployment.url

    def log(self) -> str:
        return (self.deployment.root / "controller.out").read_text()

    def close(self) -> None:
        self.deployment.close()
        left = describe_left(self.deployment.root)
        kill_all(self.deployment.root)
        assert not left, f"left behind: {left}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One for the whole module: its tests change nothing for each other."""
    one = Guarded(tmp_path_factory.mktemp("guarded"))
    one.deployment.start_controller()
    yield one
    one.close()
