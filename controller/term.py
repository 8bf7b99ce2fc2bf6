"""One time of leading: from the opening of the store until it is lost, given up, or the process ends."""

from __future__ import annotations

import logging

from motor_rpc import control_pb2 as pb

from controller.api.log_streams import LogStreams
from controller.api.rest import make_app
from controller.api.sessions import NOT_LEADER, ControlServicer
from controller.api.tls import ServerTls
from controller.config.plan import LoadedDeployment
from controller.service import ControllerService
from controller.store.interface import Standby, Store, StoreError

log = logging.getLogger(__name__)


class Term:
    """Everything that belongs to one epoch. It is made anew for the next: what an earlier term believed may be old,
    and the store and the nodes' holdings tell all that is needed."""

    def __init__(self, deployment: LoadedDeployment, store: Store, tls: ServerTls | None = None) -> None:
        self.service = ControllerService(deployment, store)
        self.logs = LogStreams(self.service)
        self.streams = ControlServicer(self.service, self.logs, tls.revoked if tls else None)
        self.app = make_app(self.service, self.logs, tls, self.streams.certificates)

    async def open(self, standby: Standby, gives_way: float = 0.0) -> None:
        """Wait for the lead and take it. `gives_way`: as in `Store.open`. StoreLocked, StoreError."""
        await self.service.open(standby, gives_way)

    async def end(self, reason: str) -> None:
        """Send everybody away, and let the store go. Who leads next shows only then; nodes ask the others, or wait at
        the door of this process until it knows."""
        self.service.silence(reason)
        told = f"this controller leads no more: {reason}"
        self.logs.end(told)
        for session in list(self.service.sessions.values()):
            refused = pb.Refused(code=NOT_LEADER, reason=told, retry=True)
            session.end(pb.ControllerMessage(refused=refused), reason)
        try:
            await self.service.close(reason)
        except StoreError as error:
            log.warning("the store was not let go in order: %s; its lease runs out by itself", error)
