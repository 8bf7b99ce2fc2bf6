"""Where node streams come in: to the term while this process leads, else on to the leader."""

from __future__ import annotations

import time
from typing import Any

import grpc
from motor_rpc import control_pb2_grpc

from controller.api.sessions import NOT_LEADER, first_message, refuse
from controller.leadership import Leadership

#: A node waits 10 s for the answer to its registration.
HOLD_SECONDS = 5.0


class NodeDoor(control_pb2_grpc.ControlServicer):
    """Sends nodes on, and lets them wait here while nobody leads: an election then costs no round of retries."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    async def Session(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        first = await first_message(context)
        if first is None:
            return
        who = self._leadership
        deadline = time.monotonic() + HOLD_SECONDS
        while who.term is None and (who.leader is None or who.leader.grpc == first.tried_controller):
            # The leader that the node has tried may be dead, or deposed, and its lease not over: do not send it back.
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await who.change(left)
        if who.term is not None:
            await who.term.streams.serve(first, context)
        else:
            leader = who.leader.grpc if who.leader is not None else ""
            await refuse(context, NOT_LEADER, who.describe(), retry=True, leader=leader)
