"""Random joins, leaves, losses, crashes, reorderings and controller restarts against the rules of the design.

The invariants are checked inside the cluster after every event and after every command a node obeyed.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from controller.core.model import ENDED, MemberState, Scope
from controller.core.state import Phase
from simulator.cluster import Cluster
from simulator.nodes import SimulatedNode
from tests.core.shapes import deployment, instance, offer

# `make sim SEEDS=5000` takes more of both
WALKS = int(os.environ.get("SEEDS", "60"))
EXAMPLES = max(150, WALKS // 4)

PLANS = [
    deployment(instance(dp=1, nnodes=2)),
    deployment(instance(dp=2, nnodes=2)),
    deployment(instance(dp=2, nnodes=2, scope=Scope.INSTANCE)),
    deployment(instance(dp=2, nnodes=2, scope=Scope.INSTANCE, api_on_every_group=False)),
    deployment(instance("prefill-0", 1, 2), instance("decode-0", 2, 1)),
]


class ClusterMachine(RuleBasedStateMachine):
    """One cluster; every rule is one thing the world may do next."""

    @initialize(plan=st.sampled_from(PLANS), spares=st.integers(0, 2))
    def begin(self, plan, spares) -> None:  # type: ignore[no-untyped-def]
        self.cluster = Cluster(plan)
        self.wanted = sum(len(i.slots()) for i in plan.instances)
        for number in range(1, self.wanted + spares + 1):
            self.cluster.add_node(offer(number))

    def node(self, index: int) -> SimulatedNode:
        nodes = list(self.cluster.nodes.values())
        return nodes[index % len(nodes)]

    @rule(index=st.integers(0, 9))
    def connect(self, index: int) -> None:
        self.cluster.connect(self.node(index))

    @rule()
    def connect_all(self) -> None:
        for node in self.cluster.nodes.values():
            if node.session is None:
                self.cluster.connect(node)

    @rule(index=st.integers(0, 9), noticed=st.booleans())
    def disconnect(self, index: int, noticed: bool) -> None:
        self.cluster.disconnect(self.node(index), noticed)

    @rule(index=st.integers(0, 9))
    def restart_manager(self, index: int) -> None:
        self.cluster.restart_manager(self.node(index))

    @rule(index=st.integers(0, 9))
    def reboot(self, index: int) -> None:
        node = self.node(index)
        self.cluster.disconnect(node)
        node.reboot()

    @rule(index=st.integers(0, 9), times=st.integers(1, 3))
    def deliver_commands(self, index: int, times: int) -> None:
        for _ in range(times):
            self.cluster.deliver_command(self.node(index))

    @rule(index=st.integers(0, 9), times=st.integers(1, 3))
    def deliver_messages(self, index: int, times: int) -> None:
        for _ in range(times):
            self.cluster.deliver_message(self.node(index))

    @rule(fails=st.booleans())
    def store(self, fails: bool) -> None:
        self.cluster.store_next(fails)

    @rule(index=st.integers(0, 9))
    def engine_comes_up(self, index: int) -> None:
        node = self.node(index)
        for slot in list(node.engines):
            node.workers_up(slot, self.cluster.plan.instance(slot.instance).has_api(slot))

    @rule(index=st.integers(0, 9))
    def engine_crashes(self, index: int) -> None:
        node = self.node(index)
        for slot, engine in list(node.engines.items()):
            if engine.report.state not in ENDED:
                node.crash(slot)

    @rule(index=st.integers(0, 9), refuse=st.booleans())
    def refuse_prepare(self, index: int, refuse: bool) -> None:
        self.node(index).refuse_prepare = refuse

    @rule(index=st.integers(0, 9))
    def duplicate_command(self, index: int) -> None:
        inbox = self.node(index).inbox
        if inbox:
            inbox.append(inbox[0])

    @rule(seconds=st.sampled_from([0.1, 1.0, 8.0, 61.0, 301.0]))
    def advance(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    @rule(keep_store=st.booleans())
    def restart_controller(self, keep_store: bool) -> None:
        self.cluster.restart_controller(keep_store)

    @rule(index=st.integers(0, 9), order=st.sampled_from(["cordon", "uncordon", "drain", "declare-lost", "clean"]))
    def order_node(self, index: int, order: str) -> None:
        node = self.node(index)
        if order == "declare-lost":
            self.cluster.disconnect(node)
            node.reboot()  # an operator who says so has switched the machine off
        self.cluster.order(order, node.offer.node_id)

    @rule(index=st.integers(0, 9), order=st.sampled_from(["restart", "stop", "start"]))
    def order_scope(self, index: int, order: str) -> None:
        scopes = list(self.cluster.core.state.scopes)
        self.cluster.order(order, scopes[index % len(scopes)])

    @rule(order=st.sampled_from(["pause", "resume"]))
    def order_pause(self, order: str) -> None:
        self.cluster.order(order)

    @rule()
    def settle(self) -> None:
        self.cluster.settle(50)

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            ends_well(self.cluster)


def ends_well(cluster: Cluster) -> None:
    """Liveness: enough fitting nodes, a patient network: everything is ready, or was given up within its budget."""
    cluster.order("resume")
    for node_id in sorted(cluster.core.state.operator.cordoned):
        cluster.order("uncordon", node_id)
    for scope_id in list(cluster.core.state.scopes):
        cluster.order("start", scope_id)
    cluster.miss_heartbeats()
    for node in cluster.nodes.values():
        node.refuse_prepare = False
        cluster.connect(node)
    cluster.settle()
    foreign = any(node.foreign for node in cluster.core.state.nodes.values())
    for scope in cluster.core.state.scopes.values():
        if foreign:
            continue  # half a gang without a record waits for an operator, by rule 6
        assert scope.phase in (Phase.READY, Phase.FAILED), (
            f"{scope.scope_id} is {scope.phase.value}: {scope.reason}\n"
            + "\n".join(
                f"{line.at:.1f} {line.subject} {line.code} {line.sentence}" for line in cluster.core.state.story
            )
        )
        if scope.phase is Phase.READY:
            for slot, member in scope.members.items():
                engine = cluster.nodes[member.node_id or ""].engines[slot]
                assert engine.report.generation == scope.generation and engine.report.state is MemberState.READY


ClusterMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    derandomize=not {"SEEDS", "FUZZ"}
    & os.environ.keys(),  # the same walks in every `make test`; new ones when asked for
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestClusterMachine = ClusterMachine.TestCase


@pytest.mark.parametrize("seed", range(WALKS))
def test_random_walks(seed: int) -> None:
    """Longer walks than hypothesis takes, from a seed that the failure names."""
    rng = random.Random(seed)
    machine = ClusterMachine()
    machine.cluster = Cluster(rng.choice(PLANS))
    wanted = sum(len(i.slots()) for i in machine.cluster.plan.instances)
    for number in range(1, wanted + rng.randint(0, 2) + 1):
        machine.cluster.add_node(offer(number))
    steps = [
        (8, lambda: machine.deliver_commands(rng.randrange(9), rng.randint(1, 3))),
        (8, lambda: machine.deliver_messages(rng.randrange(9), rng.randint(1, 3))),
        (6, lambda: machine.store(rng.random() < 0.1)),
        (4, lambda: machine.connect(rng.randrange(9))),
        (2, machine.connect_all),
        (2, lambda: machine.disconnect(rng.randrange(9), rng.random() < 0.7)),
        (1, lambda: machine.restart_manager(rng.randrange(9))),
        (1, lambda: machine.reboot(rng.randrange(9))),
        (6, lambda: machine.engine_comes_up(rng.randrange(9))),
        (1, lambda: machine.engine_crashes(rng.randrange(9))),
        (1, lambda: machine.refuse_prepare(rng.randrange(9), rng.random() < 0.3)),
        (1, lambda: machine.duplicate_command(rng.randrange(9))),
        (4, lambda: machine.advance(rng.choice([0.1, 1.0, 8.0, 61.0, 301.0]))),
        (1, lambda: machine.order_node(rng.randrange(9), rng.choice(["cordon", "uncordon", "drain", "declare-lost"]))),
        (1, lambda: machine.order_scope(rng.randrange(9), rng.choice(["restart", "stop", "start", "start"]))),
        (1, lambda: machine.order_pause(rng.choice(["pause", "resume", "resume"]))),
        (1, lambda: machine.restart_controller(rng.random() < 0.7)),
    ]
    choices = [step for weight, step in steps for _ in range(weight)]
    for _ in range(600):
        rng.choice(choices)()
    ends_well(machine.cluster)
