"""What operators order: pause, cordon, drain, restart, stop, start, declare-lost, clean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.core import assembly, placement, starting, stopping
from controller.core.actions import OperatorAnswer, SendStop, StoreOperatorState
from controller.core.events import OperatorOrdered
from controller.core.model import OperatorState
from controller.core.state import AfterStop, CoreState, NodeState, Phase, ScopeState


class Refused(Exception):
    """An order that cannot be carried out; the message is for the operator."""


def ordered(s: CoreState, event: OperatorOrdered) -> None:
    """Carry out an order and answer it."""
    order = ORDERS.get(event.order)
    try:
        if order is None:
            raise Refused(f"unknown order '{event.order}'; known: {', '.join(sorted(ORDERS))}")
        sentence = order(s, event)
    except Refused as refused:
        s.emit(OperatorAnswer(False, str(refused)))
        return
    subject = f"node {event.target}" if event.order in NODE_ORDERS else event.target or "deployment"
    s.say(subject, f"order_{event.order}", sentence)
    s.emit(OperatorAnswer(True, sentence))


def load(s: CoreState, operator: OperatorState) -> None:
    """What was ordered before this controller started stays ordered."""
    s.operator = operator
    for scope_id in sorted(operator.stopped):
        scope = s.scopes.get(scope_id)
        if scope is not None and scope.phase is Phase.ASSEMBLING:
            s.enter(scope, Phase.STOPPED, "stopped", "stopped by an operator; `motorctl start` brings it back")


def _keep(s: CoreState, operator: OperatorState) -> None:
    if operator != s.operator:
        s.operator = operator
        s.emit(StoreOperatorState(operator))


def _node(s: CoreState, event: OperatorOrdered) -> NodeState:
    node = s.nodes.get(event.target)
    if node is None:
        raise Refused(f"no node '{event.target}'; known: {', '.join(s.nodes) or 'none'}")
    return node


def _scopes(s: CoreState, target: str) -> list[ScopeState]:
    """The scopes of an instance, or the one scope named."""
    if target in s.instances:
        return list(s.instances[target].scopes.values())
    if target in s.scopes:
        return [s.scopes[target]]
    known = ", ".join([*s.instances, *(scope for scope in s.scopes if scope not in s.instances)])
    hint = ""
    instance = s.instances.get(target.partition("/")[0])
    if instance is not None and instance.plan.name in instance.scopes:
        hint = f" (the groups of {instance.plan.name} share one engine world and restart together)"
    raise Refused(f"no instance or group '{target}'{hint}; known: {known}")


def pause(s: CoreState, event: OperatorOrdered) -> str:
    _keep(s, replace(s.operator, paused=event.reason or "by an operator"))
    return "paused: no automatic start, stop or restart; verdicts are only logged"


def resume(s: CoreState, event: OperatorOrdered) -> str:
    if not s.operator.paused:
        raise Refused("not paused")
    _keep(s, replace(s.operator, paused=""))
    for node in s.nodes.values():
        for slot, generation in sorted(node.stale.items()):
            if node.connected:
                grace = s.plan.timers.stop_grace
                s.emit(SendStop(node.offer.node_id, slot, generation, "failure", "its generation is over", grace))
    for scope in s.scopes.values():
        stopping.verdict_after_pause(s, scope)
        starting.settle_readiness(s, scope, min(scope.members.values(), key=lambda member: member.slot))
        stopping.retry(s, scope)
        assembly.try_start(s, scope)
    return "resumed"


def cordon(s: CoreState, event: OperatorOrdered) -> str:
    node = _node(s, event)
    _keep(s, replace(s.operator, cordoned=s.operator.cordoned | {event.target}))
    assembly.tell_placement(s, node)
    return f"node {event.target} gets no new slots; what it fills stays"


def uncordon(s: CoreState, event: OperatorOrdered) -> str:
    node = s.nodes.get(event.target)
    if event.target not in s.operator.cordoned and not (node and node.quarantined):
        raise Refused(f"node {event.target} is not cordoned")
    if node is not None:
        node.quarantined.clear()
    _keep(s, replace(s.operator, cordoned=s.operator.cordoned - {event.target}))
    if node is not None:
        assembly.node_has_room(s, node)
    return f"node {event.target} may fill slots again"


def drain(s: CoreState, event: OperatorOrdered) -> str:
    """Cordon, stop the scopes the node is part of in order, and fill its slots from spares."""
    node = _node(s, event)
    _keep(s, replace(s.operator, cordoned=s.operator.cordoned | {event.target}))
    scopes = {scope.scope_id: scope for slot in node.slots if (scope := s.scope_of(slot)) is not None}
    for scope in scopes.values():
        scope.leaving.add(event.target)
        _end(s, scope, AfterStop.RESTART, f"node {event.target} is drained")
    assembly.tell_placement(s, node)
    if not scopes:
        return f"node {event.target} is cordoned and fills no slot"
    return f"draining node {event.target}: stopping {', '.join(sorted(scopes))}, then other nodes take its slots"


def restart(s: CoreState, event: OperatorOrdered) -> str:
    scopes = _scopes(s, event.target)
    if held := [scope.scope_id for scope in scopes if scope.scope_id in s.operator.stopped]:
        raise Refused(f"{', '.join(held)} was stopped by an operator; use `motorctl start`")
    for scope in scopes:
        _end(s, scope, AfterStop.RESTART, event.reason or "restart asked for by an operator")
    return f"restarting {', '.join(scope.scope_id for scope in scopes)} with a fresh budget"


def stop(s: CoreState, event: OperatorOrdered) -> str:
    scopes = _scopes(s, event.target)
    names = {scope.scope_id for scope in scopes}
    _keep(s, replace(s.operator, stopped=s.operator.stopped | names))
    for scope in scopes:
        _end(s, scope, AfterStop.STOPPED, event.reason or "stop asked for by an operator")
    return f"stopping {', '.join(sorted(names))}; `motorctl start` brings it back"


def start(s: CoreState, event: OperatorOrdered) -> str:
    scopes = [scope for scope in _scopes(s, event.target) if scope.scope_id in s.operator.stopped]
    if not scopes:
        raise Refused(f"{event.target} was not stopped by an operator")
    _keep(s, replace(s.operator, stopped=s.operator.stopped - {scope.scope_id for scope in scopes}))
    for scope in scopes:
        if scope.phase is Phase.STOPPED:
            stopping.restart_now(s, scope, "started again by an operator")
        else:
            stopping.escalate(s, scope, AfterStop.RESTART, "started again by an operator")
    return f"starting {', '.join(scope.scope_id for scope in scopes)}"


def declare_lost(s: CoreState, event: OperatorOrdered) -> str:
    """The operator vouches that nothing runs on an unreachable node any more (rule 5)."""
    node = _node(s, event)
    if node.connected:
        raise Refused(f"node {event.target} is connected; use `motorctl drain {event.target}`")
    node.declared_lost = True
    for slot in sorted(node.slots):
        scope = s.scope_of(slot)
        if scope is None:
            continue
        if scope.phase in (Phase.PREPARING, Phase.STARTING, Phase.READY):
            stopping.fail(s, scope, slot, event.target, f"node {event.target} was declared lost", None)
            stopping.check_stopped(s, scope)
        elif scope.phase is Phase.STOPPING:
            stopping.check_stopped(s, scope)
        elif scope.phase is not Phase.STORING:
            placement.unseat(s, scope, slot, "lost", f"node {event.target} was declared lost")
            assembly.refill(s, scope)
            assembly.try_start(s, scope)
    return f"node {event.target} counts as dead until it returns"


def clean(s: CoreState, event: OperatorOrdered) -> str:
    """End the foreign engines of a node, now that an operator has said so."""
    node = _node(s, event)
    if not node.connected:
        raise Refused(f"node {event.target} has no stream; it can be cleaned when it is back")
    if not node.foreign:
        raise Refused(f"node {event.target} holds no foreign engine")
    names = ", ".join(f"{slot} generation {held.generation}" for slot, held in sorted(node.foreign.items()))
    for slot, held in sorted(node.foreign.items()):
        grace = s.plan.timers.stop_grace
        s.emit(SendStop(event.target, slot, held.generation, "failure", "cleaned by an operator", grace))
    return f"stopping foreign engines on node {event.target}: {names}"


def _end(s: CoreState, scope: ScopeState, after: AfterStop, reason: str) -> None:
    """Bring a scope down in order, from wherever it is, and on to what follows."""
    if scope.phase in (Phase.STARTING, Phase.READY, Phase.PREPARING):
        stopping.begin_stop(s, scope, "planned", after, reason)
    elif scope.phase is Phase.STOPPING:
        stopping.escalate(s, scope, after, reason)
    else:  # nothing runs; a record on its way to the store is overtaken by the next one
        stopping.leave(s, scope)
        if after is AfterStop.RESTART:
            stopping.restart_now(s, scope, reason)
        else:
            stopping.rest(s, scope, reason)


ORDERS: dict[str, Callable[[CoreState, OperatorOrdered], str]] = {
    "pause": pause,
    "resume": resume,
    "cordon": cordon,
    "uncordon": uncordon,
    "drain": drain,
    "restart": restart,
    "stop": stop,
    "start": start,
    "declare-lost": declare_lost,
    "clean": clean,
}
NODE_ORDERS = frozenset({"cordon", "uncordon", "drain", "declare-lost", "clean"})
