"""Virtual time: the production core over a network that delays, loses, duplicates and cuts, with nodes that crash,
engines that crash, hang or start slowly, and a controller that is killed. One seed, one world, always the same."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from controller.core import actions as a
from controller.core import events as e
from controller.core import invariants
from controller.core.model import ENDED, RUNNING, DeploymentPlan, Liveness, MemberState, NodeOffer, SlotKey
from controller.core.state import Phase
from simulator.cluster import Cluster
from simulator.nodes import SimulatedNode

FULL_CHECK_EVERY = 10_000  # events; in between only what an event touched is checked
FAULT_SECONDS = 1200.0
QUIET_SECONDS = 4 * 3600.0
STAGES = ("process", "config", "engine", "rendezvous", "joined", "weights", "kv_cache")


@dataclass
class Rates:
    """How often things go wrong: mean seconds between two of a kind, over the whole cluster."""

    engine_crash: float = 150.0
    engine_hang: float = 600.0
    node_crash: float = 300.0
    cut: float = 150.0  # a node's network, for a while
    manager_restart: float = 300.0
    controller_crash: float = 300.0
    store_lost: float = 0.1  # of the controller's crashes
    clock_jump: float = 900.0
    order: float = 300.0
    bad_start: float = 0.15  # share of engine starts that crash or never come up
    duplicate: float = 0.02
    store_failure: float = 0.03


class World(Cluster):
    """A cluster in which everything happens by itself, at its time."""

    def __init__(self, plan: DeploymentPlan, offers: list[NodeOffer], seed: int, rates: Rates | None = None) -> None:
        self.random = random.Random(seed)
        self.rates = rates or Rates()
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.order_count = 0
        self.calm = False
        self.steps = 0
        self.check_every = 1  # events
        self.touched: set[str] = set()
        self.down: set[str] = set()  # nodes without power or network
        super().__init__(plan, check_every_step=False)
        for offered in offers:
            node = self.add_node(offered)
            self.later(self.random.uniform(0, 30), lambda n=node: self.dial(n))  # type: ignore[misc]
        for rate, fault in (
            (self.rates.engine_crash, self.crash_engine),
            (self.rates.engine_hang, self.hang_engine),
            (self.rates.node_crash, self.crash_node),
            (self.rates.cut, self.cut_node),
            (self.rates.manager_restart, self.bounce_manager),
            (self.rates.controller_crash, self.crash_controller),
            (self.rates.clock_jump, self.jump),
            (self.rates.order, self.random_order),
        ):
            self.again(rate, fault)

    # -- time ------------------------------------------------------------------------------------------------------

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.order_count += 1
        heapq.heappush(self.agenda, (self.now + seconds, self.order_count, what))

    def again(self, mean_seconds: float, fault: Callable[[], None]) -> None:
        """A fault that keeps coming, until the calm."""

        def strike() -> None:
            if not self.calm:
                fault()
                self.again(mean_seconds, fault)

        self.later(self.random.expovariate(1 / mean_seconds), strike)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until `until` or until `done`."""
        while not done():
            deadline = self.core.next_deadline()
            agenda_at = self.agenda[0][0] if self.agenda else None
            if agenda_at is None and deadline is None:
                break
            if deadline is not None and (agenda_at is None or deadline <= agenda_at):
                if deadline > until:
                    break
                self.now = max(self.now, deadline)
                self.feed(e.DeadlinePassed(self.now, self.nonce()))
            else:
                assert agenda_at is not None
                if agenda_at > until:
                    break
                self.now = max(self.now, agenda_at)
                heapq.heappop(self.agenda)[2]()
        self.now = max(self.now, min(until, self.now))

    # -- messages --------------------------------------------------------------------------------------------------

    def feed(self, event: e.Event) -> None:
        self.touched = set()
        actions = self.core.handle(event)
        self._touch(event)
        for action in actions:
            self.perform(action)
        self.steps += 1
        if self.steps % FULL_CHECK_EVERY == 0:
            invariants.check(self.core.state)
        elif self.steps % self.check_every == 0:
            invariants.check_scopes(self.core.state, self.touched)
        self.pump()

    def _touch(self, event: e.Event) -> None:
        node_id = getattr(event, "node_id", "") or getattr(getattr(event, "offer", None), "node_id", "")
        node = self.core.state.nodes.get(node_id)
        if node is not None:
            for slot in node.slots:
                scope = self.core.state.scope_of(slot)
                if scope is not None:
                    self.touched.add(scope.scope_id)
        if scope_id := getattr(event, "scope_id", ""):
            self.touched.add(scope_id)

    def perform(self, action: a.Action) -> None:
        if isinstance(action, a.MemberCommand):
            scope = self.core.state.scope_of(action.slot)
            if scope is not None:
                self.touched.add(scope.scope_id)
        super().perform(action)
        if isinstance(action, a.StoreRecord):
            self.later(self.random.uniform(0.001, 0.2), lambda: self.store_next(self.fails_to_store()))
        elif isinstance(action, a.AskProofOfLife):
            self.later(self.random.uniform(0.05, action.deadline), self.answer_if_asked)
        elif isinstance(action, a.RefuseNode) and action.retry:
            for node in self.nodes.values():
                if node.session is None and node.offer.node_id not in self.down:
                    self.later(self.random.uniform(1, 10), lambda n=node: self.dial(n))  # type: ignore[misc]

    def fails_to_store(self) -> bool:
        return not self.calm and self.random.random() < self.rates.store_failure

    def answer_if_asked(self) -> None:
        if self.probes:
            self.answer_probe()

    def pump(self) -> None:
        """Every message that is under way and has no arrival yet gets one; a stream keeps its order."""
        if not self.busy:
            return
        busy = sorted(self.busy)
        self.busy.clear()
        for node in (self.ordered[number] for number in busy):
            if node.session is None:
                continue
            while node.underway_in < len(node.inbox):
                node.underway_in += 1
                node.arrival_in = max(node.arrival_in, self.now + self.random.expovariate(1 / 0.01))
                self.later(node.arrival_in - self.now, lambda n=node, s=node.session: self.arrive_in(n, s))  # type: ignore[misc]
            while node.underway_out < len(node.outbox):
                node.underway_out += 1
                node.arrival_out = max(node.arrival_out, self.now + self.random.expovariate(1 / 0.01))
                self.later(node.arrival_out - self.now, lambda n=node, s=node.session: self.arrive_out(n, s))  # type: ignore[misc]

    def arrive_in(self, node: SimulatedNode, session: str) -> None:
        if node.session != session or not node.inbox:
            return
        node.underway_in -= 1
        command = node.inbox[0]
        starts = len(node.starts)
        self.deliver_command(node)
        if not self.calm and self.random.random() < self.rates.duplicate:
            node.obey(command)
        if len(node.starts) > starts:
            self.plan_life(node, node.starts[-1].slot, node.starts[-1].generation)
        self.pump()

    def arrive_out(self, node: SimulatedNode, session: str) -> None:
        if node.session != session or not node.outbox:
            return
        node.underway_out -= 1
        kind, content = node.outbox[0]
        self.deliver_message(node)
        if not self.calm and node.session == session and self.random.random() < self.rates.duplicate:
            self.feed(node.event(kind, content, self.now, self.nonce()))

    def dial(self, node: SimulatedNode) -> None:
        if node.session is None and node.offer.node_id not in self.down:
            self.connect(node)
            self.pump()

    # -- the life of an engine -----------------------------------------------------------------------------------------

    def plan_life(self, node: SimulatedNode, slot: SlotKey, generation: int) -> None:
        """How a start goes: mostly well, sometimes it crashes or never comes up."""
        luck = self.random.random()
        if not self.calm and luck < self.rates.bad_start / 2:
            self.later(self.random.uniform(1, 60), lambda: self.end(node, slot, generation))
            return
        steps = len(STAGES) if self.calm or luck > self.rates.bad_start else self.random.randrange(len(STAGES) - 1)
        at = 0.0
        for name in STAGES[:steps]:
            at += self.random.uniform(0.5, 20)
            self.later(at, lambda name=name: self.stage(node, slot, generation, name))  # type: ignore[misc]
        if steps == len(STAGES):
            self.later(at + 1, lambda: self.up(node, slot, generation))

    def alive(self, node: SimulatedNode, slot: SlotKey, generation: int) -> bool:
        engine = node.engines.get(slot)
        return engine is not None and engine.report.generation == generation and engine.report.state in RUNNING

    def stage(self, node: SimulatedNode, slot: SlotKey, generation: int, name: str) -> None:
        if self.alive(node, slot, generation) and node.engines[slot].report.state is MemberState.LOADING:
            node.change(slot, stage=name)
            self.pump()

    def up(self, node: SimulatedNode, slot: SlotKey, generation: int) -> None:
        """Up once its peers are: an engine meets the others at the rendezvous."""
        if not self.alive(node, slot, generation):
            return
        node.workers_up(slot, self.plan.instance(slot.instance).has_api(slot))
        self.pump()

    def end(self, node: SimulatedNode, slot: SlotKey, generation: int) -> None:
        if self.alive(node, slot, generation):
            node.change(
                slot, state=MemberState.FAILED, reason="the engine exited", exit_code=self.random.choice([0, 1]),
                failure_class=self.random.choice(["", "transient", "group", "port"]),
            )  # fmt: skip
            self.pump()

    # -- faults --------------------------------------------------------------------------------------------------------

    def pick(self) -> SimulatedNode:
        return self.random.choice(list(self.nodes.values()))

    def running(self) -> list[tuple[SimulatedNode, SlotKey, int]]:
        return [
            (node, slot, engine.report.generation)
            for node in self.nodes.values()
            for slot, engine in node.engines.items()
            if engine.report.state not in ENDED
        ]

    def crash_engine(self) -> None:
        if running := self.running():
            self.end(*self.random.choice(running))

    def hang_engine(self) -> None:
        """A rank freezes: its devices are flat and its gang's canary is late, told again and again. One that fails
        its health check as well is not ready any more."""
        ready = [one for one in self.running() if one[0].engines[one[1]].report.state is MemberState.READY]
        if ready:
            node, slot, generation = self.random.choice(ready)
            if self.random.random() < 0.5:
                node.change(slot, state=MemberState.LOADING, workers_seen=1, workers_expected=1)
            self.tell_hang(node, slot, generation, 0)

    def tell_hang(self, node: SimulatedNode, slot: SlotKey, generation: int, samples: int) -> None:
        if not self.alive(node, slot, generation):
            return
        node.change(slot, liveness=Liveness(devices="flat", flat_samples=samples, devices_detail="device 0 at 0 %"))
        for other, held, gen in self.running():
            plan = self.plan.instance(held.instance)
            if plan.has_api(held) and plan.world_master(held) == plan.world_master(slot) and gen == generation:
                late = Liveness(canary="late", canary_running=30.0 + 5 * samples, progress=40.0, devices="busy")
                if held == slot:
                    late = replace(late, devices="flat", flat_samples=samples)
                other.change(held, liveness=late)
        self.pump()
        self.later(5.0, lambda: self.tell_hang(node, slot, generation, samples + 1))

    def crash_node(self) -> None:
        """Power off, noticed by missing heartbeats or by the broken stream; on again after a while."""
        node = self.pick()
        self.leave(node, self.random.random() < 0.5)
        node.reboot()
        self.return_after(node, self.random.choice([20.0, 200.0, 900.0]))

    def cut_node(self) -> None:
        node = self.pick()
        self.leave(node, self.random.random() < 0.5)
        self.return_after(node, self.random.choice([1.0, 15.0, 120.0, 600.0]))

    def leave(self, node: SimulatedNode, noticed: bool) -> None:
        self.down.add(node.offer.node_id)
        self.disconnect(node, noticed)
        self.later(self.plan.timers.node_timeout, self.miss_heartbeats)

    def return_after(self, node: SimulatedNode, seconds: float) -> None:
        def back() -> None:
            self.down.discard(node.offer.node_id)
            self.dial(node)

        self.later(seconds, back)

    def bounce_manager(self) -> None:
        node = self.pick()
        if node.offer.node_id not in self.down:
            self.restart_manager(node)
            self.pump()

    def crash_controller(self) -> None:
        self.restart_controller(keep_store=self.random.random() > self.rates.store_lost)
        for node in self.nodes.values():
            if node.offer.node_id not in self.down:
                self.later(self.random.uniform(0.1, 5), lambda n=node: self.dial(n))  # type: ignore[misc]

    def jump(self) -> None:
        """The controller's process was stopped for a while: its timers are late, and the streams it had are gone."""
        self.now += self.random.choice([30.0, 400.0])
        self.feed(e.DeadlinePassed(self.now, self.nonce()))

    def random_order(self) -> None:
        scope_id = self.random.choice(list(self.core.state.scopes))
        node_id = self.random.choice(list(self.nodes))
        order, target = self.random.choice(
            [("restart", scope_id), ("stop", scope_id), ("drain", node_id), ("cordon", node_id), ("pause", "")]
        )
        self.order(order, target)
        undo = {"stop": "start", "drain": "uncordon", "cordon": "uncordon", "pause": "resume"}.get(order)
        if undo:
            self.later(self.random.uniform(10, 200), lambda: self.undo(undo, target))

    def undo(self, order: str, target: str) -> None:
        self.order(order, target)

    # -- the end -------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults; everything that was cut is joined again, and operators set right what they ordered."""
        self.calm = True
        self.down.clear()
        self.miss_heartbeats()
        for node in self.nodes.values():
            self.dial(node)
        self.order("resume")
        for node_id in sorted(self.core.state.operator.cordoned):
            self.order("uncordon", node_id)
        for node_id, held in self.core.state.nodes.items():
            if held.foreign:
                self.order("clean", node_id)
        for scope_id, scope in self.core.state.scopes.items():
            self.order("start", scope_id)
            if scope.phase is Phase.FAILED:
                self.order("restart", scope_id)

    def all_ready(self) -> bool:
        return all(scope.phase is Phase.READY and not scope.away for scope in self.core.state.scopes.values())


def live(plan: DeploymentPlan, offers: list[NodeOffer], seed: int, rates: Rates | None = None) -> World:
    """One world through its faults to the calm: everything has to become ready. AssertionError names the rule."""
    world = World(plan, offers, seed, rates)
    world.run(FAULT_SECONDS)
    settle(world)
    return world


def settle(world: World) -> None:
    """The end of all faults. AssertionError when something does not become ready."""
    world.heal()
    end = world.now + QUIET_SECONDS
    for _ in range(8):  # what failed in the last fault's wake is restarted as an operator would
        world.run(min(end, world.now + QUIET_SECONDS / 8), world.all_ready)
        if world.all_ready():
            break
        world.heal()
    invariants.check(world.core.state)
    stuck = {
        i: f"{s.phase.value}: {s.reason}" for i, s in world.core.state.scopes.items() if s.phase is not Phase.READY
    }
    assert not stuck, f"not ready after {QUIET_SECONDS:.0f} quiet seconds: {stuck}"
    for scope in world.core.state.scopes.values():
        for slot, member in scope.members.items():
            held = world.nodes[member.node_id or ""].engines[slot].report
            assert held.generation == scope.generation, f"{slot}: node holds {held.generation}, not {scope.generation}"
