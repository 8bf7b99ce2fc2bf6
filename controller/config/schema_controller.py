"""motor_controller_config: where the controller listens, where it keeps its state, how long it waits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from controller.config.schema_section import FIELD, Port, Seconds, Section, key, seconds
from controller.core.model import Timers

_TIMERS = Timers()

_LISTEN = "Address to listen on. Beyond loopback it needs `tls` (REST: tokens too), or `insecure`."


class Rest(Section):
    """REST and metrics, for operators and routers."""

    host: str = key("127.0.0.1", _LISTEN)
    port: Port = key(1026, "Port of REST.", source=FIELD, unit="port")


class Grpc(Section):
    """Where node managers dial in."""

    host: str = key("127.0.0.1", _LISTEN)
    port: Port = key(1028, "Port of the nodes' streams.", unit="port")


class Store(Section):
    """Where generations, operators' orders and the epoch are kept. Paths may be relative to the folder of deploy.json.

    With etcd several controllers may run: one leads, the others wait (docs/deploy-ha.md)."""

    kind: Literal["sqlite", "etcd", "memory"] = key(
        "sqlite",
        "`etcd` is for several controllers. `memory` forgets all with the process: running engines are then adopted "
        "or shown as foreign.",
    )
    path: str = key("/var/lib/motor/controller.sqlite3", "sqlite: the file.")
    allow_network_fs: bool = key(False, "sqlite: allow it on NFS and the like, whose locks and fsync may not hold.")
    endpoints: list[str] = key([], "etcd: its members, https://host:port. http:// beyond loopback needs `insecure`.")
    prefix: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$")] = key(
        "/motor", "etcd: all keys lie below prefix/deployment_id/."
    )
    user: str = key("", "etcd: who logs in, where etcd asks for that.")
    password_file: str | None = key(
        None, "etcd: a file with the password of `user`, read at each log-in.", unset="no log-in"
    )
    ca: str | None = key(None, "etcd: PEM file of the authority of its certificates.", unset="the public ones")
    cert: str | None = key(
        None, "etcd: PEM file of this controller's client certificate.", unset="no certificate is shown"
    )
    lease_seconds: Annotated[int, Field(ge=2)] = key(
        5, "etcd: a leader that is not heard of for so long is replaced.", unit="s"
    )
    request_seconds: Seconds | None = seconds(
        None, "etcd: for one try of a call; then the next member is asked.", unset="min(1, lease_seconds / 4)"
    )
    # last: from here on `key` is this
    key: str | None = key(None, "etcd: PEM file of the private key of `cert`.", unset="none, as with cert")


class TimerSettings(Section):
    """How long the controller waits for what. The times nest, and `motorctl validate` checks it."""

    heartbeat_interval: Seconds | None = seconds(
        None, "A node says so often that it lives.", source=FIELD, unset="max(2, nodes / 1500)"
    )
    node_timeout: Seconds | None = seconds(
        None, "Without a heartbeat for so long a node is unreachable.", unset="max(6, 3 x heartbeat_interval) + 1"
    )
    prepare_timeout: Seconds = seconds(_TIMERS.prepare_timeout, "For the checks of all members before a start.")
    refusal_backoff: Seconds = seconds(
        _TIMERS.refusal_backoff, "A node that refused a slot is not asked again for so long; doubles each time."
    )
    refusal_backoff_max: Seconds = seconds(_TIMERS.refusal_backoff_max, "The longest refusal_backoff.")
    restart_backoff: Seconds = seconds(
        _TIMERS.restart_backoff, "Between a failure and the next start; doubles each time."
    )
    restart_backoff_max: Seconds = seconds(_TIMERS.restart_backoff_max, "The longest restart_backoff.")
    max_restarts: Annotated[int, Field(ge=0)] = key(
        _TIMERS.max_restarts, "Restarts of one scope within restart_window; then it stays failed and says why."
    )
    stable_after: Seconds = seconds(_TIMERS.stable_after, "Ready for so long clears the count of restarts.")
    stop_grace: Seconds = seconds(_TIMERS.stop_grace, "SIGTERM to SIGKILL when members of a failed gang are stopped.")
    stop_timeout: Seconds = seconds(_TIMERS.stop_timeout, "After this an unconfirmed stop is sent again.")
    start_unreachable_grace: Seconds = seconds(
        _TIMERS.start_unreachable_grace, "A gang that is starting waits so long for a member out of sight."
    )
    start_timeout: Seconds = seconds(_TIMERS.start_timeout, "From the start order to ready; longer is a failure.")
    assemble_timeout: Seconds = seconds(
        _TIMERS.assemble_timeout, "Waiting longer for nodes is called out in status and metrics.", source=FIELD
    )
    restart_window: Seconds = seconds(_TIMERS.restart_window, "max_restarts are counted within this time.")
    port_blocked_for: Seconds = seconds(
        _TIMERS.port_blocked_for, "A port that something else holds is not tried again for so long."
    )
    configuration_limit: Seconds = seconds(
        _TIMERS.configuration_limit, "For one start-up stage before the ranks have met."
    )
    rendezvous_limit: Seconds = seconds(_TIMERS.rendezvous_limit, "For a rank to wait for the others.")
    load_idle_limit: Seconds = seconds(
        _TIMERS.load_idle_limit, "Loading without a log line, a read or a write for so long is a hang."
    )
    self_fence: Annotated[float, Field(ge=0, allow_inf_nan=False)] = seconds(
        _TIMERS.self_fence, "Nodes stop their engines when they heard no controller for so long; 0: never."
    )


class Tls(Section):
    """PEM files, read again whenever they change. `motorctl certs init` makes them; docs/tls.md."""

    cert: str = key(
        ..., "The controller's certificate, for the names that nodes and operators dial. REST shows the same."
    )
    ca: str = key(..., "Who may sign the nodes' certificates.")
    revoked_file: str | None = key(
        None,
        "SHA-256 fingerprints of nodes' certificates that are not accepted any more, as `motorctl certs revoke` writes "
        "them.",
        unset="all that `ca` has signed are",
    )
    key: str = key(..., "The certificate's private key, without a password.")  # last: from here on `key` is this


class Access(Section):
    """Who may ask what over REST, and how much. docs/security.md says how to set it up."""

    tokens_file: str | None = key(
        None,
        "Names, roles and hashes of bearer tokens, as `motorctl token add` writes them; relative: below the folder of "
        "deploy.json. Read again when it changes.",
        unset="no token is asked for",
    )
    loopback_read: bool = key(False, "With tokens: requests from this machine itself may read without one.")
    rate_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = key(
        200.0, "Requests of one client address; more are answered 429.", unit="1/s"
    )
    burst: Annotated[int, Field(ge=1)] = key(400, "Requests of one client address at once, above the rate.")
    max_body_bytes: Annotated[int, Field(ge=1024)] = key(
        65536, "The largest body of a request; more is answered 413.", unit="bytes"
    )


class Advertise(Section):
    """Where this controller is found, for the nodes and operators that a standby sends on (docs/deploy-ha.md)."""

    grpc: str | None = key(
        None, "host:port for the nodes' streams. Also --advertise-grpc, MOTOR_ADVERTISE_GRPC.", unset="grpc's own"
    )
    rest: str | None = key(
        None, "Base URL for operators. Also --advertise-rest, MOTOR_ADVERTISE_REST.", unset="rest's own"
    )


class Controller(Section):
    """Settings of motor-controller."""

    rest: Rest = key(Rest(), "REST and metrics.")
    grpc: Grpc = key(Grpc(), "The nodes' streams.")
    advertise: Advertise = key(Advertise(), "Where it is found; for several controllers on etcd.")
    tls: Tls | None = key(
        None,
        "TLS on REST, mutual TLS on the nodes' streams. Relative files lie below the folder of deploy.json.",
        unset="neither is encrypted",
    )
    access: Access = key(Access(), "Tokens and limits of REST.")
    insecure: bool = key(False, "Listen beyond loopback without TLS and tokens: for a trusted network only.")
    allow_loopback: bool = key(False, "Nodes may offer loopback addresses: everything runs on one machine.")
    store: Store = key(Store(), "Where the state is kept.")
    timers: TimerSettings = key(TimerSettings(), "How long the controller waits for what.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = key(
        "INFO", "The least severe lines that are logged.", source=FIELD
    )


class NodeManager(Section):
    """Reserved: a node's settings stand in its own nodemanager.yaml."""
