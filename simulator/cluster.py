"""A controller's core, its store and simulated nodes in virtual time, one message at a time."""

from __future__ import annotations

from collections import deque

from controller.core import actions as a
from controller.core import events as e
from controller.core import invariants
from controller.core.core import Core
from controller.core.model import (
    ENDED,
    DeploymentPlan,
    GenerationRecord,
    MemberState,
    NodeOffer,
    OperatorState,
    SlotKey,
)
from controller.core.state import Phase
from simulator.nodes import SimulatedNode


class Cluster:
    """Every method is one thing that can happen; `settle` lets everything happen until nothing is left to do."""

    def __init__(self, plan: DeploymentPlan, check_every_step: bool = True) -> None:
        self.plan = plan
        self.now = 0.0
        self.count = 0
        self.epoch = 1
        self.records: dict[str, GenerationRecord] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.ordered: list[SimulatedNode] = []
        self.busy: set[int] = set()  # numbers of the nodes that have said or been sent something since the last look
        self.store_queue: deque[GenerationRecord] = deque()
        self.operator = OperatorState()
        self.probes: deque[a.AskProofOfLife] = deque()
        self.answers: list[a.OperatorAnswer] = []
        self.nodes_with_taken_ports: dict[str, set[int]] = {}
        self.refusals: list[a.RefuseNode] = []
        self.check_every_step = check_every_step
        self.lineage = "lineage-1"
        self.core = Core(plan, self.epoch, self.now, self.lineage)

    # -- the machinery -----------------------------------------------------------------------------------------

    def nonce(self) -> str:
        self.count += 1
        return f"nonce-{self.count}"

    def feed(self, event: e.Event) -> None:
        for action in self.core.handle(event):
            self.perform(action)
        if self.check_every_step:
            invariants.check(self.core.state)
            self.check_world()

    def perform(self, action: a.Action) -> None:
        match action:
            case a.StoreRecord(record=record):
                self.store_queue.append(record)
            case a.RefuseNode(session=session):
                self.refusals.append(action)
                for node in self.nodes.values():
                    if node.session == session:
                        node.hang_up()
            case a.StoreOperatorState(operator=operator):
                self.operator = operator
            case a.AskProofOfLife():
                self.probes.append(action)
            case a.OperatorAnswer():
                self.answers.append(action)
            case a.CloseSession() | a.AcceptNode() | a.TellPlacement():
                pass
            case a.MemberCommand(node_id=node_id, generation=generation, slot=slot):
                if isinstance(action, a.SendPrepare | a.SendStart):
                    kept = self.records.get(self.core.state.scope_of(slot).scope_id)  # type: ignore[union-attr]
                    assert kept is not None and kept.generation >= generation, f"rule 9: {slot} {generation} not stored"
                    stale = self.core.state.nodes[node_id].stale
                    assert not stale, f"rule 5: {node_id} gets {action} before it is cleaned of {stale}"
                addressee = self.nodes.get(node_id)
                if addressee is not None and addressee.session is not None:
                    addressee.receive(action)
            case _:
                raise AssertionError(f"unknown action {action}")

    def check_world(self) -> None:
        """Rules seen from the nodes: what really runs, whatever the controller believes."""
        running: dict[tuple[SlotKey, str], str] = {}
        for node_id, node in self.nodes.items():
            for slot, engine in node.engines.items():
                if engine.report.state in ENDED:
                    continue
                key = (slot, engine.report.run_id)
                assert key not in running, f"rule 2: {key} runs on {running[key]} and {node_id}"
                running[key] = node_id
        generations: dict[tuple[SlotKey, str], set[tuple[int, str, int]]] = {}
        for node in self.nodes.values():
            for engine in node.engines.values():
                r = engine.report
                if r.state in ENDED:
                    continue
                plan = self.plan.instance(r.slot.instance)
                world = generations.setdefault((plan.world_master(r.slot), r.run_id), set())
                world.add((r.generation, r.master_addr, r.master_port))
        assert all(len(world) == 1 for world in generations.values()), f"rule 4: {generations}"

    # -- what can happen -----------------------------------------------------------------------------------------

    def add_node(self, offer: NodeOffer) -> SimulatedNode:
        node = SimulatedNode(offer, number=len(self.ordered), busy=self.busy)
        self.nodes[offer.node_id] = node
        self.ordered.append(node)
        return node

    def connect(self, node: SimulatedNode) -> None:
        """The node dials in (again). The old stream, if any, is not noticed by the controller first."""
        node.hang_up()
        node.session = f"{node.offer.node_id}-{self.nonce()}"
        self.feed(
            e.NodeRegistered(
                self.now,
                self.nonce(),
                node.session,
                self.plan.deployment_id,
                node.offer,
                node.holdings(),
                tuple(node.newest.items()),
            )
        )

    def disconnect(self, node: SimulatedNode, noticed: bool = True) -> None:
        session = node.session
        node.hang_up()
        if noticed and session is not None:
            self.feed(e.NodeDisconnected(self.now, self.nonce(), session, node.offer.node_id, "stream ended"))

    def restart_manager(self, node: SimulatedNode) -> None:
        self.disconnect(node)
        node.new_manager()
        self.connect(node)

    def order(self, order: str, target: str = "") -> a.OperatorAnswer:
        """An operator's word, and the answer."""
        self.feed(e.OperatorOrdered(self.now, self.nonce(), order, target))
        return self.answers[-1]

    def deliver_command(self, node: SimulatedNode) -> None:
        if node.inbox:
            node.obey(node.inbox.popleft(), self.nodes_with_taken_ports.get(node.offer.node_id, set()))
            if self.check_every_step:
                self.check_world()

    def deliver_message(self, node: SimulatedNode) -> None:
        if node.outbox and node.session is not None:
            kind, content = node.outbox.popleft()
            self.feed(node.event(kind, content, self.now, self.nonce()))

    def store_next(self, fails: bool = False) -> None:
        if not self.store_queue:
            return
        record = self.store_queue.popleft()
        if fails:
            self.feed(e.RecordNotStored(self.now, self.nonce(), record.scope_id, record.generation, "no space left"))
            return
        self.records[record.scope_id] = record
        self.feed(e.RecordStored(self.now, self.nonce(), record.scope_id, record.generation))

    def advance(self, seconds: float) -> None:
        """Let time pass, waking the core when it asked to be."""
        end = self.now + seconds
        while True:
            deadline = self.core.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.feed(e.DeadlinePassed(self.now, self.nonce()))
            while self.probes:
                self.answer_probe()
        self.now = end
        if seconds >= self.plan.timers.node_timeout:
            self.miss_heartbeats()

    def answer_probe(self) -> None:
        """A canary by another path: it is answered if every rank of the API server's gang runs, in sight or not."""
        probe = self.probes.popleft()
        plan = self.plan.instance(probe.slot.instance)
        gang = [slot for slot in plan.slots() if plan.world_master(slot) == plan.world_master(probe.slot)]
        running = {
            slot
            for node in self.nodes.values()
            for slot, engine in node.engines.items()
            if engine.report.generation == probe.generation and engine.report.state not in ENDED
        }
        dead = [str(slot) for slot in gang if slot not in running]
        detail = f"no answer, {dead} do not run" if dead else "answered"
        self.feed(e.ProofOfLife(self.now, self.nonce(), probe.scope_id, probe.generation, probe.slot, not dead, detail))

    def miss_heartbeats(self) -> None:
        """Streams that died unnoticed have been silent for the node timeout."""
        alive = {node.session for node in self.nodes.values()}
        for session, node_id in list(self.core.state.sessions.items()):
            if session not in alive:
                self.feed(e.NodeDisconnected(self.now, self.nonce(), session, node_id, "no heartbeat"))

    def restart_controller(self, keep_store: bool = True) -> None:
        """kill -9 and a new start: streams break, unconfirmed writes may be lost, the store is read back."""
        self.store_queue.clear()
        self.probes.clear()
        if not keep_store:
            self.records.clear()
            self.operator = OperatorState()
            self.lineage = f"lineage-{self.nonce()}"
        for node in self.nodes.values():
            node.hang_up()
        self.epoch += 1
        self.core = Core(self.plan, self.epoch, self.now, self.lineage, self.records.values(), self.operator)
        if self.check_every_step:
            invariants.check(self.core.state)

    def settle(self, rounds: int = 400) -> None:
        """Reliable network, patient time: deliver everything until the cluster is quiet."""
        for _ in range(rounds):
            busy = False
            while self.store_queue:
                self.store_next()
                busy = True
            for node in self.nodes.values():
                while node.inbox:
                    self.deliver_command(node)
                    busy = True
                for slot, engine in list(node.engines.items()):
                    if engine.report.state is MemberState.LOADING and not engine.report.workers_up:
                        node.workers_up(slot, self.plan.instance(slot.instance).has_api(slot))
                        busy = True
                while node.outbox:
                    self.deliver_message(node)
                    busy = True
            if busy:
                continue
            if all(
                scope.phase in (Phase.READY, Phase.FAILED, Phase.STOPPED) for scope in self.core.state.scopes.values()
            ):
                return
            self.advance(5.0)
            if not self.store_queue and not any(n.inbox or n.outbox for n in self.nodes.values()):
                self.advance(60.0)
