"""Values the core decides about: the deployment as planned, nodes as offered, members as reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

CONFIG_DIGEST_NONE = ""


class SlotKey(NamedTuple):  # and no dataclass: it is hashed and compared some forty times for each registration
    """One place to fill. `node_rank` counts within the group; `str()` is what operators type and read."""

    instance: str
    dp_rank: int
    node_rank: int

    def __str__(self) -> str:
        return f"{self.instance}/{self.dp_rank}/{self.node_rank}"

    @staticmethod
    def parse(text: str) -> SlotKey:
        """Read `instance/dp_rank/node_rank`; ValueError if it is not that."""
        instance, dp_rank, node_rank = text.split("/")
        return SlotKey(instance, int(dp_rank), int(node_rank))


@dataclass(frozen=True)
class PortRange:
    """`size` consecutive ports from `first`."""

    first: int
    size: int

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(self.first, self.first + self.size))

    def __str__(self) -> str:
        return f"{self.first}-{self.first + self.size - 1}"


class Scope(str, Enum):
    """What restarts together when one member fails."""

    GROUP = "group"
    INSTANCE = "instance"


@dataclass(frozen=True)
class HangSettings:
    """When a silent engine counts as hung; seconds. The names of the peers' settings are kept in deploy.json."""

    canary: bool = True
    canary_deadline: float = 30.0  # a one-token request later than this is late
    max_failure_count: int = 6  # flat samples in a row of one rank while the canary is late
    collective_deadlock_after: float = 300.0  # all ranks busy without memory traffic for so long
    hang_after_unknown: float = 300.0  # no telemetry and no progress for so long
    enforce: bool = True  # False: verdicts are only logged


@dataclass(frozen=True)
class InstancePlan:
    """One instance: `dp_size` groups of `nnodes` slots."""

    name: str
    role: str
    dp_size: int
    nnodes: int
    scope: Scope
    devices_per_slot: int
    engine: str  # name in a node's `engines`
    model: str
    config_digest: str
    master_ports: PortRange
    api_ports: PortRange
    dp_rpc_ports: PortRange | None  # native translations only
    api_on_every_group: bool = True  # False: native_internal, one API server for the whole instance
    engine_versions: tuple[str, ...] = ()  # version prefixes that fit the profile; empty = any
    engine_profile: str = ""  # the profile that the plan was made with, "vllm@0.32"
    profile_reason: str = ""  # why this one; one sentence without a full stop
    hang: HangSettings = HangSettings()
    api_scheme: str = "http"  # or https: how the engine's API servers speak

    def asks(self) -> tuple[object, ...]:
        """What a node has to be to fit, its obstacles apart: everything that `placement.misfit` looks at."""
        return (
            self.role, self.engine, self.engine_versions, self.engine_profile, self.devices_per_slot, self.nnodes,
            self.model,
        )  # fmt: skip

    def slots(self) -> list[SlotKey]:
        return [SlotKey(self.name, g, r) for g in range(self.dp_size) for r in range(self.nnodes)]

    def scope_slots(self, dp_rank: int) -> list[SlotKey]:
        """All slots that start and stop together with group `dp_rank`."""
        if self.scope is Scope.INSTANCE:
            return self.slots()
        return [SlotKey(self.name, dp_rank, r) for r in range(self.nnodes)]

    def world_master(self, slot: SlotKey) -> SlotKey:
        """The slot whose address is the master address of `slot`'s engine world."""
        return SlotKey(self.name, 0 if self.scope is Scope.INSTANCE else slot.dp_rank, 0)

    def api_server(self, slot: SlotKey) -> SlotKey:
        """The slot whose API server answers for `slot`."""
        return SlotKey(self.name, slot.dp_rank if self.api_on_every_group else 0, 0)

    def has_api(self, slot: SlotKey) -> bool:
        return slot.node_rank == 0 and (self.api_on_every_group or slot.dp_rank == 0)


@dataclass(frozen=True)
class Timers:
    """Durations in seconds; every one is a setting of deploy.json."""

    heartbeat_interval: float = 2.0
    node_timeout: float = 7.0  # max(6, 3 x interval) + 1
    prepare_timeout: float = 60.0
    refusal_backoff: float = 30.0
    refusal_backoff_max: float = 300.0
    port_blocked_for: float = 300.0  # a port that something else holds is not tried again for so long
    restart_backoff: float = 2.0
    restart_backoff_max: float = 60.0
    max_restarts: int = 5
    restart_window: float = 3600.0  # max_restarts are counted within this time
    stable_after: float = 600.0  # running this long clears the restart count
    stop_grace: float = 20.0  # SIGTERM to SIGKILL in a failure stop
    stop_timeout: float = 60.0  # after this an unconfirmed stop is sent again
    start_unreachable_grace: float = 300.0
    start_timeout: float = 7200.0
    assemble_timeout: float = 600.0
    configuration_limit: float = 120.0  # one start-up stage before the rendezvous
    rendezvous_limit: float = 300.0  # waiting for the other ranks
    load_idle_limit: float = 600.0  # loading without a log line, read or write
    self_fence: float = 0.0  # nodes stop engines when they heard no controller for so long; 0 = never


@dataclass(frozen=True)
class OperatorState:
    """What operators have ordered and has to outlive the controller."""

    cordoned: frozenset[str] = frozenset()  # nodes that get no new slots
    paused: str = ""  # why no automatic action is taken; empty = not paused
    stopped: frozenset[str] = frozenset()  # scopes that stay down


@dataclass(frozen=True)
class DeploymentPlan:
    """What one deploy.json describes, reduced to what decisions need."""

    deployment_id: str
    instances: tuple[InstancePlan, ...]
    timers: Timers = field(default_factory=Timers)
    allow_loopback: bool = False

    @cached_property
    def _by_name(self) -> dict[str, InstancePlan]:
        return {plan.name: plan for plan in self.instances}

    def instance(self, name: str) -> InstancePlan:
        """KeyError for a name that the file does not make."""
        return self._by_name[name]


@dataclass(frozen=True)
class NodeOffer:
    """What a node says of itself when it registers."""

    node_id: str
    incarnation: int
    boot_id: str
    address: str
    role: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    device_kind: str = "cpu"
    devices: tuple[str, ...] = ()
    engines: Mapping[str, str] = field(default_factory=dict)  # name -> version ("" = unknown)
    profiles: Mapping[str, str] = field(default_factory=dict)  # name -> engine profile, "vllm@0.32.0" ("" = unknown)
    # Instance -> why the deployment does not work with the engine profile of this node. The node does not say so
    # itself: whoever makes the offer has tried the file under that profile.
    obstacles: Mapping[str, str] = field(default_factory=dict)
    expected_nnodes: int = 0
    expected_model: str = ""
    hostname: str = ""


class MemberState(str, Enum):
    """State of one slot's engine process, as the node reports it."""

    NONE = "none"  # nothing known or nothing started
    PREPARED = "prepared"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


ENDED = frozenset({MemberState.FAILED, MemberState.STOPPED})
RUNNING = frozenset({MemberState.STARTING, MemberState.LOADING, MemberState.READY, MemberState.STOPPING})


@dataclass(frozen=True)
class Liveness:
    """What a node knows of a running engine's life. Ages are in seconds before the report."""

    canary: str = "off"  # off | waiting | ok | late
    canary_detail: str = ""
    canary_running: float = 0.0  # late: since the unanswered canary was sent
    canary_failures: int = 0
    progress: float = -1.0  # since the last sign of progress; -1 = never seen
    devices: str = "unknown"  # unknown | flat | busy | busy_without_memory
    devices_detail: str = ""
    devices_since: float = 0.0
    flat_samples: int = 0
    flat_peak: float = 0.0  # percent; the most that the flattest device has shown in the newest looks
    warning: str = ""
    warning_age: float = 0.0


@dataclass(frozen=True)
class MemberReport:
    """One slot's engine as a node sees it; a holding when it comes with a registration."""

    slot: SlotKey
    generation: int
    epoch: int
    run_id: str
    config_digest: str
    state: MemberState
    stage: str = ""
    stage_seconds: float = 0.0
    reason: str = ""
    workers_up: bool = False
    workers_seen: int = 0
    workers_expected: int = 0
    pid: int = 0
    exit_code: int | None = None
    exit_signal: int | None = None
    last_log_lines: tuple[str, ...] = ()
    failure_class: str = ""
    devices: tuple[str, ...] = ()
    address: str = ""
    master_addr: str = ""
    master_port: int = 0
    api_port: int = 0
    dp_rpc_port: int = 0
    idle_seconds: float = 0.0  # while loading: since the last log line, read or write
    devices_busy: bool = False  # stopped, but its device memory is not free
    liveness: Liveness | None = None


@dataclass(frozen=True)
class Placement:
    """One slot's share of a generation's record."""

    node_id: str
    boot_id: str
    address: str
    devices: tuple[str, ...]
    api_port: int | None
    master_addr: str
    master_port: int
    dp_rpc_port: int | None


@dataclass(frozen=True)
class GenerationRecord:
    """What is stored before the first message of a generation leaves (rule 9)."""

    instance: str
    scope_id: str  # "prefill-0" or "prefill-0/1"
    generation: int
    run_id: str
    config_digest: str
    members: Mapping[SlotKey, Placement]
    restarts: int = 0  # restarts used up before this generation
    outcome: str = ""  # "" while it is wanted; "stopped" or "failed" (given up) once it is over
    outcome_reason: str = ""
    adopted_run_ids: tuple[str, ...] = ()  # run ids of other stores' generations that this scope has taken over
