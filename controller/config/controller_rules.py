"""motor_controller_config -> settings of the daemon and timers of the core, and the rules between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from motor_rpc.tls import TlsFiles

from controller.config.advertise_rules import Advertised, read_advertised
from controller.config.errors import Findings, Shown
from controller.config.listen_rules import check_listening, read_revoked_file, read_tls
from controller.config.schema import Controller, TimerSettings
from controller.config.store_rules import StoreSettings, read_store
from controller.core.model import Timers

_SECTION = "motor_controller_config"
_TIMERS = (_SECTION, "timers")

# SIGTERM to a headless vLLM process: 13.4 s until it was gone (measured); the rest is reserve.
STOP_MARGIN = 20.0

# Of all nodes together: about a third of what a controller on one core can take.
HEARTBEATS_PER_SECOND = 1500


@dataclass(frozen=True)
class Listen:
    """Where a server listens. `host` is a name or a literal without brackets."""

    host: str
    port: int


@dataclass(frozen=True)
class AccessSettings:
    """Who may ask what over REST (controller/api/guard.py)."""

    tokens_file: Path | None = None  # None: no token is asked for
    loopback_read: bool = False
    rate_per_second: float = 200.0
    burst: int = 400
    max_body_bytes: int = 65536


@dataclass(frozen=True)
class Settings:
    """What the controller's process needs beside the plan."""

    rest: Listen
    grpc: Listen
    insecure: bool
    store: StoreSettings
    log_level: str
    access: AccessSettings = AccessSettings()
    advertised: Advertised = field(default_factory=Advertised)
    tls: TlsFiles | None = None
    revoked_file: Path | None = None  # None: what the CA has signed is accepted until it ends
    open_doors: str = ""  # what anyone on the network may use or listen to, for people


def read_settings(controller: Controller, folder: Path, findings: Findings) -> Settings:
    """`folder` is deploy.json's own: a relative store path lies below it."""
    open_doors = check_listening(controller, findings)
    if controller.rest.port == controller.grpc.port:
        findings.error(
            (_SECTION, "grpc", "port"),
            "is the REST port",
            got=controller.grpc.port,
            expected="another port",
            rule="controller-ports",
        )
    return Settings(
        rest=Listen(controller.rest.host, controller.rest.port),
        grpc=Listen(controller.grpc.host, controller.grpc.port),
        insecure=controller.insecure,
        store=read_store(controller, folder, findings),
        log_level=controller.log_level,
        access=_read_access(controller, folder, findings),
        advertised=read_advertised(controller, findings),
        tls=read_tls(controller, folder, findings),
        revoked_file=read_revoked_file(controller, folder, findings),
        open_doors=open_doors,
    )


def _read_access(controller: Controller, folder: Path, findings: Findings) -> AccessSettings:
    access = controller.access
    if access.loopback_read and access.tokens_file is None:
        findings.warning(
            (_SECTION, "access", "loopback_read"),
            "no effect: without a tokens_file nobody needs a token",
            fix="set access.tokens_file, or remove it",
            rule="access-loopback",
        )
    return AccessSettings(
        tokens_file=None if access.tokens_file is None else folder / access.tokens_file,
        loopback_read=access.loopback_read,
        rate_per_second=access.rate_per_second,
        burst=access.burst,
        max_body_bytes=access.max_body_bytes,
    )


def read_timers(settings: TimerSettings, drains: Mapping[str, float], findings: Findings, slots: int = 0) -> Timers:
    """`drains` holds the drain time of each engine section, `slots` is the size of the deployment. Timers nest; what
    does not is an error."""
    given = settings.model_dump(exclude={"node_timeout", "heartbeat_interval"})
    interval = settings.heartbeat_interval
    if interval is None:  # a large cluster beats slower: the controller's load has a limit
        interval = max(Timers.heartbeat_interval, slots / HEARTBEATS_PER_SECOND)
    wanted = max(6.0, 3 * interval) + 1
    node_timeout = settings.node_timeout if settings.node_timeout is not None else wanted
    timers = Timers(**given, heartbeat_interval=interval, node_timeout=node_timeout)
    if node_timeout < 3 * timers.heartbeat_interval:
        findings.error(
            (*_TIMERS, "node_timeout"),
            f"is less than three heartbeats of {timers.heartbeat_interval:g} s: any delay looks like a loss",
            got=node_timeout,
            expected=f"at least {3 * timers.heartbeat_interval:g}",
            rule="timers-heartbeat",
        )
    for low, high in (
        ("refusal_backoff", "refusal_backoff_max"),
        ("restart_backoff", "restart_backoff_max"),
        ("stop_grace", "stop_timeout"),
        ("start_unreachable_grace", "start_timeout"),
        ("node_timeout", "start_unreachable_grace"),
    ):
        if getattr(timers, low) > getattr(timers, high):
            findings.error(
                (*_TIMERS, high),
                f"is less than {low}",
                got=Shown(f"{getattr(timers, high):g} s"),
                expected=f"at least {getattr(timers, low):g} s",
                rule="timers-nest",
            )
    if 0 < timers.self_fence <= 3 * node_timeout:
        findings.error(
            (*_TIMERS, "self_fence"),
            f"is not longer than three node timeouts of {node_timeout:g} s: a controller's restart would stop engines",
            got=Shown(f"{timers.self_fence:g} s"),
            expected=f"0 (never), or more than {3 * node_timeout:g} s",
            rule="timers-self-fence",
        )
    section, drain = max(drains.items(), key=lambda item: item[1], default=("the engines", 0.0))
    if drain + STOP_MARGIN >= timers.stop_timeout:
        findings.error(
            (*_TIMERS, "stop_timeout"),
            f"is not longer than the drain of {section} ({drain:g} s) and the {STOP_MARGIN:g} s of a stop",
            got=Shown(f"{timers.stop_timeout:g} s"),
            expected=f"more than {drain + STOP_MARGIN:g} s",
            fix="raise it, or lower shutdown-timeout",
            rule="timers-stop",
        )
    return timers
