"""EngineSpec + Assignment -> the exact command of one engine process."""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine_launch.flag_list import load_flag_list
from engine_launch.flags import FlagError, Option, render_option
from engine_launch.kv_transfer import fill_transfer
from engine_launch.model import Assignment, EngineCommand, EngineSpec, NodeLocal, ParallelShape
from engine_launch.override import without
from engine_launch.profile import CommandForm, EngineProfile, PortKind
from engine_launch.profiles import resolve
from engine_launch.reserved import MASTER_ONLY
from engine_launch.translation import WorldPlace, world_place

WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})


class CommandError(ValueError):
    """No command can be made from this spec and assignment. After validation this is a defect of Motor."""


def build_command(spec: EngineSpec, assignment: Assignment) -> EngineCommand:
    """The canonical command of the process that fills one slot.

    Order of options: the operator's engine_config in file order, extra_args as written, then what Motor
    computed, then what the operator insists on in its place. All processes of one world get the same options
    apart from ranks, headless, host and port: vLLM does not check this, and a difference shows as a deadlock
    (vllm #44718). CommandError for contradictions.
    """
    profile = resolve(spec.profile)
    form = profile.form
    place = world_place(spec.shape, spec.translation, assignment.dp_rank, assignment.node_rank)
    options = spec.options
    _check(place, assignment, options, form)
    kv = fill_transfer(spec, assignment, options)
    argv = (
        *form.command,
        *([f"--{form.model_flag}"] if form.model_flag else []),
        spec.model,
        *_operator_words(kv.options, profile, place),
        *spec.extra_args,
        *_computed_words(spec, options, assignment, place, profile),
    )
    env = {**profile.env, **spec.env, **kv.env, **_port_env(assignment, form)}
    node_env = {name: source for name, source in {**profile.node_env, **kv.node_env}.items() if name not in spec.env}
    command = EngineCommand(
        argv=argv,
        env=env,
        node_env=node_env,
        headless=place.headless,
        api_host=_reachable_host(options, assignment) if place.has_api else None,
        api_port=assignment.api_port if place.has_api else None,
        health_path=profile.health_path if place.has_api else None,
        ports=(*_ports(assignment, place, form), *kv.ports),
        expected_workers=spec.shape.workers_per_node,
        drain_seconds=drain_seconds(spec),
        argv_digest="",
    )
    return dataclasses.replace(command, argv_digest=command_digest(argv, env, node_env))


def command_digest(argv: tuple[str, ...], env: Mapping[str, str], node_env: Mapping[str, NodeLocal]) -> str:
    """sha256 over argv, env and the names and sources of node-local values, as canonical JSON."""
    content = {
        "argv": list(argv),
        "env": dict(env),
        "node_env": {name: source.value for name, source in node_env.items()},
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def drain_seconds(spec: EngineSpec) -> float:
    """How long a planned stop lets requests finish: the engine's own drain option, 0 when it is not set."""
    flag = resolve(spec.profile).drain_flag
    value = _value(spec.options, flag)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _check(place: WorldPlace, assignment: Assignment, options: Sequence[Option], form: CommandForm) -> None:
    for option in options:
        if option.name in form.reserved:
            raise CommandError(f"{option.spelled} may not be set: {form.reserved[option.name]}")
    if place.has_api and assignment.api_port is None:
        raise CommandError(f"{_slot(assignment)} has the API server and was given no API port")
    if place.dp_size > 1 and assignment.dp_rpc_port is None:
        raise CommandError(f"{_slot(assignment)} joins a data-parallel world and was given no RPC port")


def _operator_words(options: Sequence[Option], profile: EngineProfile, place: WorldPlace) -> list[str]:
    flag_list = load_flag_list(profile.flag_list)
    words: list[str] = []
    for option in options:
        if option.name in profile.form.consumed or (place.headless and option.name in MASTER_ONLY):
            continue
        try:
            words += render_option(option, flag_list.negatable, flag_list.json_valued, flag_list.spelled)
        except FlagError as error:
            raise CommandError(str(error)) from error
    return words


def _computed_words(
    spec: EngineSpec, options: Sequence[Option], assignment: Assignment, place: WorldPlace, profile: EngineProfile
) -> list[str]:
    """Motor's own words, with those of the `override` block in the place of the ones they replace."""
    words = _own_words(options, assignment, place, spec.shape, profile.form)
    if not spec.override.options:
        return words
    try:
        return without(words, spec.override.replaces()) + spec.override.words(load_flag_list(profile.flag_list))
    except FlagError as error:
        raise CommandError(str(error)) from error


def _own_words(
    options: Sequence[Option], assignment: Assignment, place: WorldPlace, shape: ParallelShape, form: CommandForm
) -> list[str]:
    words: list[str] = []
    if shape.dp_local > 1 and place.dp_size == 1:
        words += ["--data-parallel-size", str(shape.dp_local)]
    if place.nnodes > 1:
        words += ["--nnodes", str(place.nnodes), "--node-rank", str(place.node_rank)]
        words += ["--master-addr", assignment.master_addr, "--master-port", str(assignment.master_port)]
    if place.dp_size > 1:
        words += ["--data-parallel-size", str(place.dp_size)]
        if place.dp_rank is not None:
            words += ["--data-parallel-rank", str(place.dp_rank)]
        words += _local_rank_words(place)
        words += ["--data-parallel-address", assignment.master_addr]
        words += ["--data-parallel-rpc-port", str(assignment.dp_rpc_port)]
    # Of mp the workers are processes of their own also where a rank has one, and followers are ready by their workers.
    several = place.nnodes > 1 or place.dp_local > 1
    if several and _value(options, "distributed-executor-backend") is None:
        words += ["--distributed-executor-backend", "mp"]
    if place.has_api:
        host = _value(options, "host") or assignment.address
        return [*words, "--host", str(host), f"--{form.port_options[PortKind.API]}", str(assignment.api_port)]
    return [*words, "--headless"]


def _local_rank_words(place: WorldPlace) -> list[str]:
    """For a process that holds several data-parallel ranks of a larger world."""
    words = ["--data-parallel-size-local", str(place.dp_local)] if place.dp_local > 1 else []
    if place.dp_start_rank is not None:
        words += ["--data-parallel-start-rank", str(place.dp_start_rank)]
    return [*words, "--data-parallel-hybrid-lb"] if place.hybrid else words


def _port_env(assignment: Assignment, form: CommandForm) -> dict[str, str]:
    """Ports that the engine reads from its environment."""
    ports = {PortKind.MASTER: assignment.master_port, PortKind.DP_RPC: assignment.dp_rpc_port}
    return {name: str(ports[kind]) for name, kind in form.port_env.items() if ports.get(kind) is not None}


def _reachable_host(options: Sequence[Option], assignment: Assignment) -> str:
    host = _value(options, "host")
    if not host or str(host) in WILDCARD_HOSTS:
        return assignment.address
    return str(host)


def _ports(assignment: Assignment, place: WorldPlace, form: CommandForm) -> tuple[int, ...]:
    carried = frozenset(form.port_env.values())
    ports: list[int] = []
    if place.opens_master_port or PortKind.MASTER in carried:
        ports.append(assignment.master_port)
    if (place.opens_dp_rpc_port or PortKind.DP_RPC in carried) and assignment.dp_rpc_port is not None:
        ports.append(assignment.dp_rpc_port)
    if place.has_api and assignment.api_port is not None:
        ports.append(assignment.api_port)
    return tuple(ports)


def _value(options: Sequence[Option], name: str) -> Any:
    return next((option.value for option in options if option.name == name), None)


def _slot(assignment: Assignment) -> str:
    return f"{assignment.instance}/{assignment.dp_rank}/{assignment.node_rank}"


def url_host(address: str) -> str:
    """An address as it stands in a URL: IPv6 literals get brackets."""
    try:
        return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    except ValueError:
        return address
