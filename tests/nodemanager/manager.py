"""A NodeManager inside the test's own process, for tests of commands; its engines are real processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from motor_rpc import control_pb2 as pb

from nodemanager.config import load
from nodemanager.records import Records
from nodemanager.service import NodeManager
from tests.nodemanager.places import Node, until


class Direct:
    """Sends commands without a wire and keeps what the manager would send up."""

    def __init__(self, node: Node) -> None:
        config = load(node.file)
        config.log_dir.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.records = Records(config.state_dir)
        self.records.make_folders()
        node_id, incarnation = self.records.identity(config.node_id)
        self.manager = NodeManager(config, self.records, node_id, incarnation)
        self.manager.address = "127.0.0.1"
        self.sent: list[pb.NodeMessage] = []
        self.manager.link.send = self._keep  # type: ignore[method-assign]
        self.manager.logs._send = self._keep

    def _keep(self, message: pb.NodeMessage) -> bool:
        self.sent.append(message)
        return True

    async def command(self, epoch: int = 1, deployment_id: str = "default", **body: Any) -> None:
        await self.manager.handle(pb.ControllerMessage(epoch=epoch, deployment_id=deployment_id, **body))

    async def answer(self, kind: str, seconds: float = 8.0) -> Any:
        """The first message of this kind, which is taken out."""
        found = await until(lambda: [m for m in self.sent if m.WhichOneof("body") == kind], seconds, kind)
        self.sent.remove(found[0])
        return getattr(found[0], kind)

    async def state(self, state: str, seconds: float = 8.0, rank: int | None = None) -> pb.SlotReport:
        """The first report of this state, of one rank or of any; reports of other slots come in between."""
        number = pb.EngineState.Value(f"ENGINE_STATE_{state.upper()}")

        def reports() -> list[pb.SlotReport]:
            told = [m.slot_report for m in self.sent if m.slot_report.state == number]
            return [report for report in told if rank is None or report.slot.node_rank == rank]

        return (await until(reports, seconds, state))[0]


@contextlib.asynccontextmanager
async def direct(place: Path, **settings: Any) -> AsyncIterator[Direct]:
    """A manager below `place`; engines that still run at the end are the test's to stop."""
    one = Direct(Node(place / "n0", 1, settings=settings))
    try:
        yield one
    finally:
        one.manager.detach()
