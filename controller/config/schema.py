"""The keys of deploy.json, their types and their defaults: the only place where a default is written down.

Relations between keys are in rules.py; what the engines' own options mean is in engine_launch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.core.model import HangSettings, Timers
from engine_launch.health import HealthChecks

_TIMERS = Timers()
_CHECKS = HealthChecks()
_HANG = HangSettings()

# A ready engine is unready after so many late or bad answers of its health endpoint: fixed, on the node.
HEALTH_ATTEMPTS = 3

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
Range = Annotated[list[int], Field(min_length=2, max_length=2)]  # [first, last], both included


class Section(BaseModel):
    """Unknown keys are errors and types are not bent: "2" and 2.0 are not 2."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PortRanges(Section):
    """Ports of one role. A restart takes the next master port: ranges are longer than one start needs."""

    master: Range | None = None  # default: [master-port, master-port + 63]
    api: Range | None = None  # default: [port, port + 63]
    dp_rpc: Range | None = None  # default: [data-parallel-rpc-port, + 63], else from 29550; one-world forms only


class RolePortRanges(Section):
    prefill: PortRanges = PortRanges()
    decode: PortRanges = PortRanges()
    union: PortRanges = PortRanges()


class Deploy(Section):
    """How many instances of each role, and on what machines. `hybrid` is the field's word for union."""

    deployment_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = "default"
    p_instances_num: Count | None = None  # default 1 where the engine section is present
    d_instances_num: Count | None = None
    hybrid_instances_num: Count | None = None
    # Devices of one node, checked against what an engine process takes. Unset: nodes are taken to have them.
    p_pod_npu_num: Count | None = None
    d_pod_npu_num: Count | None = None
    hybrid_pod_npu_num: Count | None = None
    # Nodes of one instance: checked against dp_size x nnodes.
    single_p_instance_pod_num: Count | None = None
    single_d_instance_pod_num: Count | None = None
    single_hybrid_instance_pod_num: Count | None = None
    port_ranges: RolePortRanges = RolePortRanges()


class Rest(Section):
    host: str = "127.0.0.1"
    port: Port = 1026


class Grpc(Section):
    host: str = "127.0.0.1"
    port: Port = 1028


class Store(Section):
    kind: Literal["sqlite", "memory"] = "sqlite"
    path: str = "/var/lib/motor/controller.sqlite3"  # relative: below the folder of deploy.json
    allow_network_fs: bool = False  # its locks and its fsync may not hold what they promise


class TimerSettings(Section):
    """Seconds, as controller.core.model.Timers explains them."""

    heartbeat_interval: Seconds = _TIMERS.heartbeat_interval
    node_timeout: Seconds | None = None  # default: max(6, 3 x heartbeat_interval) + 1
    prepare_timeout: Seconds = _TIMERS.prepare_timeout
    refusal_backoff: Seconds = _TIMERS.refusal_backoff
    refusal_backoff_max: Seconds = _TIMERS.refusal_backoff_max
    restart_backoff: Seconds = _TIMERS.restart_backoff
    restart_backoff_max: Seconds = _TIMERS.restart_backoff_max
    max_restarts: Annotated[int, Field(ge=0)] = _TIMERS.max_restarts
    stable_after: Seconds = _TIMERS.stable_after
    stop_grace: Seconds = _TIMERS.stop_grace
    stop_timeout: Seconds = _TIMERS.stop_timeout
    start_unreachable_grace: Seconds = _TIMERS.start_unreachable_grace
    start_timeout: Seconds = _TIMERS.start_timeout
    assemble_timeout: Seconds = _TIMERS.assemble_timeout
    restart_window: Seconds = _TIMERS.restart_window  # max_restarts are counted within this time
    port_blocked_for: Seconds = _TIMERS.port_blocked_for
    configuration_limit: Seconds = _TIMERS.configuration_limit  # one start-up stage before the rendezvous
    rendezvous_limit: Seconds = _TIMERS.rendezvous_limit
    load_idle_limit: Seconds = _TIMERS.load_idle_limit  # loading without a log line, read or write
    self_fence: Annotated[float, Field(ge=0, allow_inf_nan=False)] = _TIMERS.self_fence  # 0 = never


class Controller(Section):
    rest: Rest = Rest()
    grpc: Grpc = Grpc()
    insecure: bool = False  # beyond loopback without TLS and token
    allow_loopback: bool = False  # nodes may offer loopback addresses
    store: Store = Store()
    timers: TimerSettings = TimerSettings()
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class NodeManager(Section):
    """Reserved: a node's settings stand in its own nodemanager.yaml."""


class HealthCheck(Section):
    """How an engine's health is watched; peers' keys keep their names and defaults, but the canary is on. Seconds."""

    enable_virtual_inference: bool = True  # the canary: a one-token request when nothing else shows progress
    npu_usage_threshold: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = _CHECKS.usage_threshold
    max_failure_count: Count = _HANG.max_failure_count
    health_collector_timeout: Seconds = _CHECKS.collector_timeout
    health_collector_timeout_retry_attempts: Count = HEALTH_ATTEMPTS
    sample_interval: Seconds = _CHECKS.sample_interval
    canary_interval: Seconds = _CHECKS.canary_interval
    canary_deadline: Seconds = _CHECKS.canary_deadline
    warm_up_deadline: Seconds = _CHECKS.warm_up_deadline
    collective_deadlock_after: Seconds = _HANG.collective_deadlock_after
    hang_after_unknown: Seconds = _HANG.hang_after_unknown
    hang_verdict: Literal["enforce", "log"] = "enforce"


class Engine(Section):
    """One role's engine."""

    engine_type: str
    engine_config: dict[str, Any]
    env: dict[str, Any] = Field(default_factory=dict)
    extra_args: list[str] = Field(default_factory=list)
    dp_translation: Literal["auto", "replica", "native_external", "native_internal"] = "auto"
    engine_profile: str | None = None  # default: from the nodes' versions; offline see engine_launch.profiles
    engine: Annotated[str, Field(min_length=1)] | None = None  # name in the nodes' `engines`; default engine_type
    health_check_config: HealthCheck = HealthCheck()


class DeployFile(Section):
    motor_deploy_config: Deploy = Deploy()
    motor_controller_config: Controller = Controller()
    motor_nodemanager_config: NodeManager = NodeManager()
    motor_engine_prefill_config: Engine | None = None
    motor_engine_decode_config: Engine | None = None
    motor_engine_union_config: Engine | None = None
