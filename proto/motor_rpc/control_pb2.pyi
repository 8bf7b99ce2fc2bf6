from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_STATE_UNSPECIFIED: _ClassVar[EngineState]
    ENGINE_STATE_STARTING: _ClassVar[EngineState]
    ENGINE_STATE_LOADING: _ClassVar[EngineState]
    ENGINE_STATE_READY: _ClassVar[EngineState]
    ENGINE_STATE_FAILED: _ClassVar[EngineState]
    ENGINE_STATE_STOPPING: _ClassVar[EngineState]
    ENGINE_STATE_STOPPED: _ClassVar[EngineState]
ENGINE_STATE_UNSPECIFIED: EngineState
ENGINE_STATE_STARTING: EngineState
ENGINE_STATE_LOADING: EngineState
ENGINE_STATE_READY: EngineState
ENGINE_STATE_FAILED: EngineState
ENGINE_STATE_STOPPING: EngineState
ENGINE_STATE_STOPPED: EngineState

class NodeMessage(_message.Message):
    __slots__ = ("register", "heartbeat", "slot_report", "prepare_report", "command_refused", "log_chunk", "probe_report")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SLOT_REPORT_FIELD_NUMBER: _ClassVar[int]
    PREPARE_REPORT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_REFUSED_FIELD_NUMBER: _ClassVar[int]
    LOG_CHUNK_FIELD_NUMBER: _ClassVar[int]
    PROBE_REPORT_FIELD_NUMBER: _ClassVar[int]
    register: RegisterMsg
    heartbeat: HeartbeatMsg
    slot_report: SlotReport
    prepare_report: PrepareReport
    command_refused: CommandRefused
    log_chunk: LogChunk
    probe_report: ProbeReport
    def __init__(self, register: _Optional[_Union[RegisterMsg, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatMsg, _Mapping]] = ..., slot_report: _Optional[_Union[SlotReport, _Mapping]] = ..., prepare_report: _Optional[_Union[PrepareReport, _Mapping]] = ..., command_refused: _Optional[_Union[CommandRefused, _Mapping]] = ..., log_chunk: _Optional[_Union[LogChunk, _Mapping]] = ..., probe_report: _Optional[_Union[ProbeReport, _Mapping]] = ...) -> None: ...

class ControllerMessage(_message.Message):
    __slots__ = ("epoch", "deployment_id", "registered", "refused", "heartbeat_ack", "placement", "prepare", "release", "start", "stop", "group_ready", "forget", "log_request", "log_cancel", "probe_request")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACK_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    GROUP_READY_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    LOG_REQUEST_FIELD_NUMBER: _ClassVar[int]
    LOG_CANCEL_FIELD_NUMBER: _ClassVar[int]
    PROBE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    deployment_id: str
    registered: Registered
    refused: Refused
    heartbeat_ack: HeartbeatAck
    placement: PlacementMsg
    prepare: PrepareMsg
    release: ReleaseMsg
    start: StartCmdMsg
    stop: StopCmdMsg
    group_ready: GroupReadyMsg
    forget: ForgetMsg
    log_request: LogRequest
    log_cancel: LogCancel
    probe_request: ProbeRequest
    def __init__(self, epoch: _Optional[int] = ..., deployment_id: _Optional[str] = ..., registered: _Optional[_Union[Registered, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., heartbeat_ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., placement: _Optional[_Union[PlacementMsg, _Mapping]] = ..., prepare: _Optional[_Union[PrepareMsg, _Mapping]] = ..., release: _Optional[_Union[ReleaseMsg, _Mapping]] = ..., start: _Optional[_Union[StartCmdMsg, _Mapping]] = ..., stop: _Optional[_Union[StopCmdMsg, _Mapping]] = ..., group_ready: _Optional[_Union[GroupReadyMsg, _Mapping]] = ..., forget: _Optional[_Union[ForgetMsg, _Mapping]] = ..., log_request: _Optional[_Union[LogRequest, _Mapping]] = ..., log_cancel: _Optional[_Union[LogCancel, _Mapping]] = ..., probe_request: _Optional[_Union[ProbeRequest, _Mapping]] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("instance", "dp_rank", "node_rank")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    instance: str
    dp_rank: int
    node_rank: int
    def __init__(self, instance: _Optional[str] = ..., dp_rank: _Optional[int] = ..., node_rank: _Optional[int] = ...) -> None: ...

class EngineOffer(_message.Message):
    __slots__ = ("name", "version", "error", "profile")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    error: str
    profile: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., error: _Optional[str] = ..., profile: _Optional[str] = ...) -> None: ...

class RegisterMsg(_message.Message):
    __slots__ = ("protocol", "node_id", "incarnation", "boot_id", "deployment_id", "hostname", "motor_version", "address", "role", "labels", "device_kind", "devices", "engines", "allow_loopback", "expected_nnodes", "expected_model", "holdings", "seen", "tried_controller")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    MOTOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    ALLOW_LOOPBACK_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NNODES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODEL_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    TRIED_CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    node_id: str
    incarnation: int
    boot_id: str
    deployment_id: str
    hostname: str
    motor_version: str
    address: str
    role: str
    labels: _containers.ScalarMap[str, str]
    device_kind: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    engines: _containers.RepeatedCompositeFieldContainer[EngineOffer]
    allow_loopback: bool
    expected_nnodes: int
    expected_model: str
    holdings: _containers.RepeatedCompositeFieldContainer[SlotReport]
    seen: _containers.RepeatedCompositeFieldContainer[SlotSeen]
    tried_controller: str
    def __init__(self, protocol: _Optional[int] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., boot_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., hostname: _Optional[str] = ..., motor_version: _Optional[str] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., device_kind: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., engines: _Optional[_Iterable[_Union[EngineOffer, _Mapping]]] = ..., allow_loopback: bool = ..., expected_nnodes: _Optional[int] = ..., expected_model: _Optional[str] = ..., holdings: _Optional[_Iterable[_Union[SlotReport, _Mapping]]] = ..., seen: _Optional[_Iterable[_Union[SlotSeen, _Mapping]]] = ..., tried_controller: _Optional[str] = ...) -> None: ...

class SlotSeen(_message.Message):
    __slots__ = ("slot", "generation", "epoch")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    epoch: int
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("heartbeat_interval_seconds", "node_timeout_seconds")
    HEARTBEAT_INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NODE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_seconds: float
    node_timeout_seconds: float
    def __init__(self, heartbeat_interval_seconds: _Optional[float] = ..., node_timeout_seconds: _Optional[float] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "reason", "retry", "leader")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    retry: bool
    leader: str
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ..., retry: bool = ..., leader: _Optional[str] = ...) -> None: ...

class HeartbeatMsg(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class PlacementMsg(_message.Message):
    __slots__ = ("state", "reason", "slots")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ...) -> None: ...

class SlotReport(_message.Message):
    __slots__ = ("slot", "generation", "epoch", "run_id", "config_digest", "state", "stage", "stage_seconds", "reason", "workers_up", "workers_seen", "workers_expected", "pid", "exit_code", "exit_signal", "last_log_lines", "failure_class", "argv_digest", "env_digest", "devices", "address", "master_addr", "master_port", "api_port", "dp_rpc_port", "idle_seconds", "devices_busy", "liveness")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKERS_UP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_SEEN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    EXIT_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CLASS_FIELD_NUMBER: _ClassVar[int]
    ARGV_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENV_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    API_PORT_FIELD_NUMBER: _ClassVar[int]
    DP_RPC_PORT_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_BUSY_FIELD_NUMBER: _ClassVar[int]
    LIVENESS_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    epoch: int
    run_id: str
    config_digest: str
    state: EngineState
    stage: str
    stage_seconds: float
    reason: str
    workers_up: bool
    workers_seen: int
    workers_expected: int
    pid: int
    exit_code: int
    exit_signal: int
    last_log_lines: _containers.RepeatedScalarFieldContainer[str]
    failure_class: str
    argv_digest: str
    env_digest: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    address: str
    master_addr: str
    master_port: int
    api_port: int
    dp_rpc_port: int
    idle_seconds: float
    devices_busy: bool
    liveness: Liveness
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ..., run_id: _Optional[str] = ..., config_digest: _Optional[str] = ..., state: _Optional[_Union[EngineState, str]] = ..., stage: _Optional[str] = ..., stage_seconds: _Optional[float] = ..., reason: _Optional[str] = ..., workers_up: bool = ..., workers_seen: _Optional[int] = ..., workers_expected: _Optional[int] = ..., pid: _Optional[int] = ..., exit_code: _Optional[int] = ..., exit_signal: _Optional[int] = ..., last_log_lines: _Optional[_Iterable[str]] = ..., failure_class: _Optional[str] = ..., argv_digest: _Optional[str] = ..., env_digest: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., address: _Optional[str] = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., api_port: _Optional[int] = ..., dp_rpc_port: _Optional[int] = ..., idle_seconds: _Optional[float] = ..., devices_busy: bool = ..., liveness: _Optional[_Union[Liveness, _Mapping]] = ...) -> None: ...

class Liveness(_message.Message):
    __slots__ = ("canary", "canary_detail", "canary_running_seconds", "canary_failures", "progress_seconds", "devices", "devices_detail", "devices_seconds", "flat_samples", "warning", "warning_seconds", "flat_peak_percent")
    CANARY_FIELD_NUMBER: _ClassVar[int]
    CANARY_DETAIL_FIELD_NUMBER: _ClassVar[int]
    CANARY_RUNNING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CANARY_FAILURES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_DETAIL_FIELD_NUMBER: _ClassVar[int]
    DEVICES_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FLAT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    WARNING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FLAT_PEAK_PERCENT_FIELD_NUMBER: _ClassVar[int]
    canary: str
    canary_detail: str
    canary_running_seconds: float
    canary_failures: int
    progress_seconds: float
    devices: str
    devices_detail: str
    devices_seconds: float
    flat_samples: int
    warning: str
    warning_seconds: float
    flat_peak_percent: float
    def __init__(self, canary: _Optional[str] = ..., canary_detail: _Optional[str] = ..., canary_running_seconds: _Optional[float] = ..., canary_failures: _Optional[int] = ..., progress_seconds: _Optional[float] = ..., devices: _Optional[str] = ..., devices_detail: _Optional[str] = ..., devices_seconds: _Optional[float] = ..., flat_samples: _Optional[int] = ..., warning: _Optional[str] = ..., warning_seconds: _Optional[float] = ..., flat_peak_percent: _Optional[float] = ...) -> None: ...

class HealthSettings(_message.Message):
    __slots__ = ("canary", "canary_off_reason", "canary_interval_seconds", "canary_deadline_seconds", "warm_up_deadline_seconds", "canary_prompt_tokens", "served_model", "usage_threshold_percent", "sample_interval_seconds", "collector_timeout_seconds")
    CANARY_FIELD_NUMBER: _ClassVar[int]
    CANARY_OFF_REASON_FIELD_NUMBER: _ClassVar[int]
    CANARY_INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CANARY_DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CANARY_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SERVED_MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_THRESHOLD_PERCENT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    canary: bool
    canary_off_reason: str
    canary_interval_seconds: float
    canary_deadline_seconds: float
    warm_up_deadline_seconds: float
    canary_prompt_tokens: int
    served_model: str
    usage_threshold_percent: float
    sample_interval_seconds: float
    collector_timeout_seconds: float
    def __init__(self, canary: bool = ..., canary_off_reason: _Optional[str] = ..., canary_interval_seconds: _Optional[float] = ..., canary_deadline_seconds: _Optional[float] = ..., warm_up_deadline_seconds: _Optional[float] = ..., canary_prompt_tokens: _Optional[int] = ..., served_model: _Optional[str] = ..., usage_threshold_percent: _Optional[float] = ..., sample_interval_seconds: _Optional[float] = ..., collector_timeout_seconds: _Optional[float] = ...) -> None: ...

class ModelKind(_message.Message):
    __slots__ = ("name", "model_types", "architectures", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPES_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_types: _containers.RepeatedScalarFieldContainer[str]
    architectures: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, name: _Optional[str] = ..., model_types: _Optional[_Iterable[str]] = ..., architectures: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class PrepareMsg(_message.Message):
    __slots__ = ("slot", "generation", "run_id", "config_digest", "engine", "engine_version", "model", "address", "devices", "is_master", "master_addr", "master_port", "ports", "deadline_seconds", "reservation_seconds", "controller_time", "model_kind")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    IS_MASTER_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_TIME_FIELD_NUMBER: _ClassVar[int]
    MODEL_KIND_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    run_id: str
    config_digest: str
    engine: str
    engine_version: str
    model: str
    address: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    is_master: bool
    master_addr: str
    master_port: int
    ports: _containers.RepeatedScalarFieldContainer[int]
    deadline_seconds: float
    reservation_seconds: float
    controller_time: float
    model_kind: ModelKind
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., run_id: _Optional[str] = ..., config_digest: _Optional[str] = ..., engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., model: _Optional[str] = ..., address: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., is_master: bool = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., ports: _Optional[_Iterable[int]] = ..., deadline_seconds: _Optional[float] = ..., reservation_seconds: _Optional[float] = ..., controller_time: _Optional[float] = ..., model_kind: _Optional[_Union[ModelKind, _Mapping]] = ...) -> None: ...

class PrepareItem(_message.Message):
    __slots__ = ("name", "ok", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    ok: bool
    detail: str
    def __init__(self, name: _Optional[str] = ..., ok: bool = ..., detail: _Optional[str] = ...) -> None: ...

class PrepareReport(_message.Message):
    __slots__ = ("slot", "generation", "ok", "items", "model_digest", "engine_version", "taken_ports", "driver_version", "toolkit_version")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_PORTS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOOLKIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    ok: bool
    items: _containers.RepeatedCompositeFieldContainer[PrepareItem]
    model_digest: str
    engine_version: str
    taken_ports: _containers.RepeatedScalarFieldContainer[int]
    driver_version: str
    toolkit_version: str
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., ok: bool = ..., items: _Optional[_Iterable[_Union[PrepareItem, _Mapping]]] = ..., model_digest: _Optional[str] = ..., engine_version: _Optional[str] = ..., taken_ports: _Optional[_Iterable[int]] = ..., driver_version: _Optional[str] = ..., toolkit_version: _Optional[str] = ...) -> None: ...

class ReleaseMsg(_message.Message):
    __slots__ = ("slot", "generation", "reason")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    reason: str
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StartCmdMsg(_message.Message):
    __slots__ = ("slot", "generation", "run_id", "config_digest", "node_rank", "master_dp_ip", "master_port", "headless", "role", "engine", "engine_profile", "argv", "argv_digest", "env", "node_env", "devices", "api_port", "api_host", "health_path", "expected_workers", "stop_grace_seconds", "drain_seconds", "address", "dp_rpc_port", "health", "self_fence_seconds")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class NodeEnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    MASTER_DP_IP_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    HEADLESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PROFILE_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ARGV_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    NODE_ENV_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    API_PORT_FIELD_NUMBER: _ClassVar[int]
    API_HOST_FIELD_NUMBER: _ClassVar[int]
    HEALTH_PATH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    STOP_GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DP_RPC_PORT_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    SELF_FENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    run_id: str
    config_digest: str
    node_rank: int
    master_dp_ip: str
    master_port: int
    headless: bool
    role: str
    engine: str
    engine_profile: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    argv_digest: str
    env: _containers.ScalarMap[str, str]
    node_env: _containers.ScalarMap[str, str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    api_port: int
    api_host: str
    health_path: str
    expected_workers: int
    stop_grace_seconds: float
    drain_seconds: float
    address: str
    dp_rpc_port: int
    health: HealthSettings
    self_fence_seconds: float
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., run_id: _Optional[str] = ..., config_digest: _Optional[str] = ..., node_rank: _Optional[int] = ..., master_dp_ip: _Optional[str] = ..., master_port: _Optional[int] = ..., headless: bool = ..., role: _Optional[str] = ..., engine: _Optional[str] = ..., engine_profile: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., argv_digest: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., node_env: _Optional[_Mapping[str, str]] = ..., devices: _Optional[_Iterable[str]] = ..., api_port: _Optional[int] = ..., api_host: _Optional[str] = ..., health_path: _Optional[str] = ..., expected_workers: _Optional[int] = ..., stop_grace_seconds: _Optional[float] = ..., drain_seconds: _Optional[float] = ..., address: _Optional[str] = ..., dp_rpc_port: _Optional[int] = ..., health: _Optional[_Union[HealthSettings, _Mapping]] = ..., self_fence_seconds: _Optional[float] = ...) -> None: ...

class StopCmdMsg(_message.Message):
    __slots__ = ("slot", "generation", "mode", "reason", "grace_seconds")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    mode: str
    reason: str
    grace_seconds: float
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., mode: _Optional[str] = ..., reason: _Optional[str] = ..., grace_seconds: _Optional[float] = ...) -> None: ...

class GroupReadyMsg(_message.Message):
    __slots__ = ("slot", "generation", "ready")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    ready: bool
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., ready: bool = ...) -> None: ...

class ForgetMsg(_message.Message):
    __slots__ = ("slot", "generation")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class CommandRefused(_message.Message):
    __slots__ = ("slot", "generation", "command", "code", "reason", "newest_epoch", "newest_generation")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEWEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEWEST_GENERATION_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    generation: int
    command: str
    code: str
    reason: str
    newest_epoch: int
    newest_generation: int
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., command: _Optional[str] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., newest_epoch: _Optional[int] = ..., newest_generation: _Optional[int] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("request_id", "slot", "generation", "tail_lines", "follow")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    slot: Slot
    generation: int
    tail_lines: int
    follow: bool
    def __init__(self, request_id: _Optional[str] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ..., generation: _Optional[int] = ..., tail_lines: _Optional[int] = ..., follow: bool = ...) -> None: ...

class LogCancel(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("request_id", "data", "end", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    data: bytes
    end: bool
    error: str
    def __init__(self, request_id: _Optional[str] = ..., data: _Optional[bytes] = ..., end: bool = ..., error: _Optional[str] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("request_id", "host", "port", "served_model", "prompt_tokens", "deadline_seconds", "tls")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SERVED_MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    host: str
    port: int
    served_model: str
    prompt_tokens: int
    deadline_seconds: float
    tls: bool
    def __init__(self, request_id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., served_model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., deadline_seconds: _Optional[float] = ..., tls: bool = ...) -> None: ...

class ProbeReport(_message.Message):
    __slots__ = ("request_id", "ok", "detail")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    ok: bool
    detail: str
    def __init__(self, request_id: _Optional[str] = ..., ok: bool = ..., detail: _Optional[str] = ...) -> None: ...
