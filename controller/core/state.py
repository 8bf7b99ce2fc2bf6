"""Everything the core remembers. Only the modules beside this one change it, and only inside `Core.handle`."""

from __future__ import annotations

import bisect
import hashlib
import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from controller.core.actions import Action
from controller.core.events import StoryLine
from controller.core.model import (
    DeploymentPlan,
    GenerationRecord,
    InstancePlan,
    MemberReport,
    MemberState,
    NodeOffer,
    OperatorState,
    Placement,
    Scope,
    SlotKey,
)
from controller.core.ports import PortLedger

STORY_LENGTH = 10_000


class Phase(str, Enum):
    """Where a restart scope stands."""

    ASSEMBLING = "assembling"  # slots to fill, or ports to find
    STORING = "storing"  # the record is on its way to the store; nothing has been sent
    PREPARING = "preparing"  # nodes check and reserve
    STARTING = "starting"  # started, not every member is ready
    READY = "ready"
    STOPPING = "stopping"  # every member is being stopped and has to confirm
    BACKOFF = "backoff"  # all stopped; the next generation starts when the wait is over
    FAILED = "failed"  # given up; kept for diagnosis
    STOPPED = "stopped"  # by an operator, who will start it again


#: phases in which a member process may exist on a node
MAY_RUN = frozenset({Phase.PREPARING, Phase.STARTING, Phase.READY, Phase.STOPPING})


class AfterStop(str, Enum):
    """What follows when every member has confirmed its end."""

    BACKOFF = "backoff"  # a failure: wait, within the budget
    RESTART = "restart"  # asked for: at once, with a fresh budget
    STOPPED = "stopped"  # asked for: stay down


@dataclass
class Refusal:
    """A node that would not take a slot, and until when it is not asked again."""

    until: float
    backoff: float
    reason: str


@dataclass
class NodeState:
    offer: NodeOffer
    session: str | None  # None while no stream is open
    order: int  # counts registrations: the default filling order
    connected_since: float
    unreachable_since: float | None = None
    unreachable_cause: str = ""
    leases: dict[str, SlotKey] = field(default_factory=dict)  # device name -> slot
    slots: set[SlotKey] = field(default_factory=set)
    refusals: dict[SlotKey, Refusal] = field(default_factory=dict)
    foreign: dict[SlotKey, MemberReport] = field(default_factory=dict)  # engines nobody here has asked for
    claimed: set[str] = field(default_factory=set)  # scopes whose `claims` may name this node
    stale: dict[SlotKey, int] = field(default_factory=dict)  # generations being cleaned off this node
    quarantined: dict[SlotKey, str] = field(default_factory=dict)  # devices that did not become free, and why
    looked_at: bool = True  # False while its holdings are compared: nothing is placed on it before that is done
    declared_lost: bool = False  # an operator has said that nothing runs there any more
    told: tuple[str, str, tuple[SlotKey, ...]] | None = None  # the placement it was told last

    @property
    def connected(self) -> bool:
        return self.session is not None

    def free_devices(self) -> list[str]:
        return [name for name in self.offer.devices if name not in self.leases]


@dataclass
class Member:
    """One slot of a scope in its current generation."""

    slot: SlotKey
    node_id: str | None = None
    devices: tuple[str, ...] = ()
    vacant_since: float = 0.0
    placement: Placement | None = None  # fixed by the generation's record
    prepared: bool = False
    #: model digest, versions of engine, driver and toolkit, as prepare found them
    found: tuple[str, str, str, str] = ("", "", "", "")
    report: MemberReport | None = None
    reported_at: float = 0.0
    group_ready_told: bool = False

    @property
    def state(self) -> MemberState:
        if self.report is not None:
            return self.report.state
        return MemberState.PREPARED if self.prepared else MemberState.NONE


@dataclass
class Evidence:
    """Why a generation ended: the first failing member, with its own last words."""

    slot: SlotKey | None
    node_id: str
    at: float
    generation: int
    reason: str
    failure_class: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    last_log_lines: tuple[str, ...] = ()
    final: bool = True  # False: may be over by itself when a pause ends, so it is looked at again then


@dataclass
class ProofState:
    """What is known of an API server whose gang has a member out of sight."""

    asked_at: float
    alive_at: float | None = None  # last proof
    failing_since: float | None = None
    detail: str = ""


@dataclass
class ScopeState:
    """One restart scope: a group, or a whole instance whose groups share one engine world."""

    scope_id: str
    plan: InstancePlan
    members: dict[SlotKey, Member]
    phase: Phase = Phase.ASSEMBLING
    since: float = 0.0
    reason: str = ""
    generation: int = 0
    run_id: str = ""
    config_digest: str = ""
    record: GenerationRecord | None = None
    recovered: bool = False  # the record is from a previous controller and not every member has been seen
    vacant: set[SlotKey] = field(default_factory=set)  # no node
    away: set[SlotKey] = field(default_factory=set)  # the slot's node has no stream
    unprepared: set[SlotKey] = field(default_factory=set)
    unready: set[SlotKey] = field(default_factory=set)
    unstopped: set[SlotKey] = field(default_factory=set)
    stop_confirmed: int = 0  # members that said "stopped" in this stop; one is proof that the gang is dead
    restart_times: list[float] = field(default_factory=list)  # within the window; their number is what is used up
    retry_at: float = 0.0
    evidence: Evidence | None = None
    last_master_port: int = 0
    after_stop: AfterStop = AfterStop.BACKOFF
    stop_mode: str = "failure"  # failure: everyone at once; planned: masters drain first
    stop_told: set[SlotKey] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)  # nodes that give up their slots when the stop is done
    was_ready: bool = False  # this generation has been ready once
    verdict: Evidence | None = None  # a failure found while paused
    claims: dict[SlotKey, tuple[str, MemberReport]] = field(default_factory=dict)  # holdings without a record
    adopted_run_ids: tuple[str, ...] = ()
    proof: dict[SlotKey, ProofState] = field(default_factory=dict)  # API servers that are asked by another path

    @property
    def restarts(self) -> int:
        """Restarts used up within the window and since the last stable run."""
        return len(self.restart_times)

    def group_of(self, slot: SlotKey) -> Iterable[Member]:
        """The members of `slot`'s group, itself among them, by node_rank. Asked for each node that comes."""
        if self.plan.scope is Scope.GROUP:
            return self.members.values()
        return [self.members[SlotKey(*slot[:2], rank)] for rank in range(self.plan.nnodes)]


@dataclass
class InstanceState:
    plan: InstancePlan
    scopes: dict[str, ScopeState]
    generation: int = 0  # grows with each start of any scope
    started: bool = False  # the first start has happened: rule 1 asks for the scope's slots only
    incomplete: set[str] = field(default_factory=set)  # scopes with a slot not filled by a live node
    missing_since: float = 0.0
    alarmed: bool = False  # the assembly time-out has been said


def scope_id_of(plan: InstancePlan, dp_rank: int) -> str:
    """`prefill-0` where the whole instance restarts together, else `prefill-0/1`."""
    return plan.name if plan.scope is Scope.INSTANCE else f"{plan.name}/{dp_rank}"


class CoreState:
    """The deployment's state, plus the outbox and the clock of the event in hand."""

    def __init__(self, plan: DeploymentPlan, epoch: int, now: float, lineage: str) -> None:
        self.plan = plan
        self.epoch = epoch
        self.lineage = lineage
        self.now = now
        self.nonce = ""
        self.nodes: dict[str, NodeState] = {}
        self.sessions: dict[str, str] = {}  # open stream -> node_id
        self.registrations = 0
        self.ledger = PortLedger()
        self.operator = OperatorState()
        self.instances: dict[str, InstanceState] = {}
        self.scopes: dict[str, ScopeState] = {}
        self._by_slot: dict[SlotKey, ScopeState] = {}
        self.story: deque[StoryLine] = deque(maxlen=STORY_LENGTH)
        self.story_count = 0
        #: how often a scope has become ready or ceased to be, and the latter alone: what routers are told changes then
        self.inventory_changes = self.inventory_losses = 0
        self.last_line: dict[str, StoryLine] = {}  # newest line of each subject
        self.actions: list[Action] = []
        self.timers: list[tuple[float, int, str, str]] = []
        self.timer_count = 0
        #: vacant slots of each instance, a heap that may hold filled ones
        self.vacancies: dict[str, list[SlotKey]] = {}
        #: by role: instances with something in `vacancies`, as places in `plan.instances`, sorted. A node is compared
        #: with these alone, not with thousands that are full.
        self.open: dict[str, list[int]] = {}
        self.place = {instance_plan.name: place for place, instance_plan in enumerate(plan.instances)}
        #: instances that ask the same of a node: thousands are mostly of one or two kinds
        self.kinds: dict[tuple[object, ...], list[InstancePlan]] = {}
        #: connected nodes with a free device, as (registration order, node_id), sorted
        self.with_room: list[tuple[int, str]] = []
        for instance_plan in plan.instances:
            instance = InstanceState(instance_plan, {}, missing_since=now)
            self.instances[instance_plan.name] = instance
            self.vacancies[instance_plan.name] = instance_plan.slots()  # sorted, so already a heap
            self.open.setdefault(instance_plan.role, []).append(self.place[instance_plan.name])
            self.kinds.setdefault(instance_plan.asks(), []).append(instance_plan)
            for dp_rank in range(instance_plan.dp_size):
                scope_id = scope_id_of(instance_plan, dp_rank)
                if scope_id in instance.scopes:
                    continue
                slots = instance_plan.scope_slots(dp_rank)
                scope = ScopeState(
                    scope_id,
                    instance_plan,
                    {slot: Member(slot, vacant_since=now) for slot in slots},
                    since=now,
                    config_digest=instance_plan.config_digest,
                    vacant=set(slots),
                )
                instance.scopes[scope_id] = scope
                self._by_slot.update(dict.fromkeys(slots, scope))
                instance.incomplete.add(scope_id)
                self.scopes[scope_id] = scope

    # -- the outbox ---------------------------------------------------------------------------------------------

    def emit(self, action: Action) -> None:
        self.actions.append(action)

    def say(self, subject: str, code: str, sentence: str, **fields: str) -> None:
        """Keep a decision with its reason. The same line again says nothing new and is not kept."""
        last = self.last_line.get(subject)
        if last is not None and last.code == code and last.sentence == sentence:
            return
        self.story_count += 1
        line = StoryLine(self.story_count, self.now, subject, code, sentence, fields)
        self.story.append(line)
        self.last_line[subject] = line

    def arm(self, when: float, kind: str, key: str) -> None:
        """Ask to be woken. Timers are never cancelled: what they find decides whether they still mean anything."""
        self.timer_count += 1
        heapq.heappush(self.timers, (when, self.timer_count, kind, key))

    # -- randomness from the event's nonce ------------------------------------------------------------------------

    def derive(self, *parts: str | int) -> str:
        """16 hex characters that depend on this event's nonce and on `parts` alone."""
        text = "|".join([self.nonce, *map(str, parts)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def run_id(self, scope_id: str, generation: int) -> str:
        """A generation's run id. It comes from the store's own random lineage, so that any engine of any generation
        this store has ever started is recognised, and one started from another store (emptied since) never is."""
        return hashlib.sha256(f"{self.lineage}|{scope_id}|{generation}".encode()).hexdigest()[:16]

    def jitter(self, *parts: str | int) -> float:
        """A factor in [0.8, 1.2)."""
        return 0.8 + 0.4 * int(self.derive("jitter", *parts), 16) / 2**64

    # -- look-ups ---------------------------------------------------------------------------------------------------

    def scope_of(self, slot: SlotKey) -> ScopeState | None:
        """The scope that holds `slot`, or None for a slot this deployment does not have."""
        return self._by_slot.get(slot)

    def node_of(self, slot: SlotKey) -> NodeState | None:
        scope = self._by_slot.get(slot)
        node_id = scope.members[slot].node_id if scope else None
        return self.nodes.get(node_id) if node_id else None

    def plans_with_vacancies(self, role: str) -> Iterator[InstancePlan]:
        """In the file's order; of one role, or of all where it is empty. They may be filled while this goes on."""
        of_role = [self.open.get(role, [])] if role else list(self.open.values())
        place = -1
        while True:
            later = [at[i] for at in of_role if (i := bisect.bisect_right(at, place)) < len(at)]
            if not later:
                return
            place = min(later)
            yield self.plan.instances[place]

    def filled(self, plan: InstancePlan) -> None:
        """Nothing is left in the instance's `vacancies`."""
        places, place = self.open[plan.role], self.place[plan.name]
        index = bisect.bisect_left(places, place)
        if index < len(places) and places[index] == place:
            del places[index]

    def vacated(self, plan: InstancePlan) -> None:
        """Something was put into the instance's `vacancies`."""
        places, place = self.open[plan.role], self.place[plan.name]
        index = bisect.bisect_left(places, place)
        if index == len(places) or places[index] != place:
            places.insert(index, place)

    def leave_queue(self, node: NodeState) -> None:
        """Take a node out of `with_room`; its registration order is about to change."""
        entry = (node.order, node.offer.node_id)
        index = bisect.bisect_left(self.with_room, entry)
        if index < len(self.with_room) and self.with_room[index] == entry:
            del self.with_room[index]

    def note_room(self, node: NodeState) -> None:
        """Keep `with_room` true after this node's leases, its connection or what it holds has changed. Nodes that still
        hold something of their own are no use: thousands may, when the store was lost."""
        entry = (node.order, node.offer.node_id)
        index = bisect.bisect_left(self.with_room, entry)
        present = index < len(self.with_room) and self.with_room[index] == entry
        has_room = node.connected and not node.foreign and not node.stale and len(node.leases) < len(node.offer.devices)
        if has_room and not present:
            self.with_room.insert(index, entry)
        elif present and not has_room:
            del self.with_room[index]

    def enter(self, scope: ScopeState, phase: Phase, code: str, reason: str) -> None:
        """Change a scope's phase and say why."""
        if Phase.READY in (phase, scope.phase) and phase is not scope.phase:
            self.inventory_changes += 1
            self.inventory_losses += scope.phase is Phase.READY
        scope.phase = phase
        scope.since = self.now
        scope.reason = reason
        self.say(scope.scope_id, code, reason, phase=phase.value, generation=str(scope.generation))
