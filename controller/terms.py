"""The life of a controller that may lead more than once: stand by, lead, stand by again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from motor_rpc.sd_notify import notify

from controller.leadership import Leadership
from controller.store.interface import Leader, StoreError, StoreLocked
from controller.term import Term

log = logging.getLogger("controller")

#: after a planned hand-over, for a standby to take the lead before this process asks for it again
GIVES_WAY_SECONDS = 1.0
#: before a store that could not be opened is tried again
STORE_AGAIN_SECONDS = 2.0

T = TypeVar("T")


async def run_terms(
    leadership: Leadership, make_term: Callable[[], Term], stop: asyncio.Event, first: Term | None = None
) -> None:
    """Lead, and stand by in between, until `stop`. `first` is a term that is open already. StoreLocked, StoreError if
    the store cannot be opened for the first time; later that is tried again."""
    term, led, gives_way = first, first is not None, 0.0
    while not stop.is_set():
        if term is None:
            term = await _stand_by(leadership, make_term, stop, patient=led, gives_way=gives_way)
            if term is None:
                return
        led = True
        leadership.begin(term)
        _say(leadership)
        await _unless(stop, term.service.until_over())
        reason = term.service.over or "this controller is ending"
        log.log(logging.INFO if stop.is_set() else logging.WARNING, "leads no more: %s; engines keep running", reason)
        leadership.end(reason)
        if not stop.is_set():
            _say(leadership)
        await term.end(reason)
        gives_way = GIVES_WAY_SECONDS if term.service.stepped_down else 0.0
        term = None


async def _stand_by(
    leadership: Leadership, make_term: Callable[[], Term], stop: asyncio.Event, patient: bool, gives_way: float
) -> Term | None:
    """The next term, once it is this process's turn; None when told to stop."""

    def told(leader: Leader | None) -> None:
        before = leadership.describe()
        leadership.told(leader)
        if leadership.describe() != before:
            _say(leadership)

    while not stop.is_set():
        term = make_term()
        leadership.store_trouble = term.service.store_trouble
        try:
            if await _unless(stop, _opened(term, told, gives_way)):
                return term
            await term.end("this controller is ending")
        except StoreLocked:
            raise
        except StoreError as error:
            if not patient:
                raise
            log.error("%s", error)
            leadership.failed(str(error))
            await _unless(stop, asyncio.sleep(STORE_AGAIN_SECONDS))
    return None


async def _opened(term: Term, told: Callable[[Leader | None], None], gives_way: float) -> bool:
    await term.open(told, gives_way)
    return True


def _say(leadership: Leadership) -> None:
    log.info("%s", leadership.describe())
    notify(f"STATUS={leadership.describe()}")


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The outcome of `work`; None if `stop` comes first, then it is cancelled."""
    task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, stopping):
            one.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
