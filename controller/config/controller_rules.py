"""motor_controller_config -> settings of the daemon and timers of the core, and the rules between them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.config.errors import Findings, Shown
from controller.config.schema import Controller, TimerSettings
from controller.core.model import Timers

_SECTION = "motor_controller_config"
_TIMERS = (_SECTION, "timers")

# SIGTERM to a headless vLLM process: 13.4 s until it was gone (measured); the rest is reserve.
STOP_MARGIN = 20.0


@dataclass(frozen=True)
class Listen:
    """Where a server listens. `host` is a name or a literal without brackets."""

    host: str
    port: int


@dataclass(frozen=True)
class StoreSettings:
    kind: str  # sqlite | memory
    path: Path  # of the sqlite file
    allow_network_fs: bool = False


@dataclass(frozen=True)
class Settings:
    """What the controller's process needs beside the plan."""

    rest: Listen
    grpc: Listen
    insecure: bool
    store: StoreSettings
    log_level: str


def read_settings(controller: Controller, folder: Path, findings: Findings) -> Settings:
    """`folder` is deploy.json's own: a relative store path lies below it."""
    for name, listen in (("rest", controller.rest), ("grpc", controller.grpc)):
        if not is_loopback(listen.host) and not controller.insecure:
            findings.error(
                (_SECTION, name, "host"),
                "listens beyond loopback, where anyone on the network may give orders",
                got=listen.host,
                expected="a loopback address",
                fix=f'set "{_SECTION}.insecure": true if the network is trusted',
                rule="controller-loopback",
            )
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
        store=StoreSettings(controller.store.kind, folder / controller.store.path, controller.store.allow_network_fs),
        log_level=controller.log_level,
    )


def is_loopback(host: str) -> bool:
    """True for localhost and loopback literals; other names may point anywhere."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_timers(settings: TimerSettings, drains: Mapping[str, float], findings: Findings) -> Timers:
    """`drains` holds the drain time of each engine section. Timers nest; what does not is an error."""
    given = settings.model_dump(exclude={"node_timeout"})
    wanted = max(6.0, 3 * settings.heartbeat_interval) + 1
    node_timeout = settings.node_timeout if settings.node_timeout is not None else wanted
    timers = Timers(**given, node_timeout=node_timeout)
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
