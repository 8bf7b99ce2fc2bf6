"""Between protobuf messages and the core's values. Nothing is decided here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from motor_rpc import control_pb2 as pb
from motor_rpc.finite import not_finite

from controller.core import actions as a
from controller.core import events as e
from controller.core.model import Liveness, MemberReport, MemberState, NodeOffer, Placement, SlotKey, Timers
from engine_launch.command import build_command
from engine_launch.health import canary_prompt_tokens, served_model
from engine_launch.model import Assignment, EngineSpec, Role
from engine_launch.model_need import ModelNeed, model_need

PROTOCOL = 1
UNDERSTOOD = (1,)  # one version back is understood once there is one

LARGEST_COUNT = 1 << 48

_STATES = {
    pb.ENGINE_STATE_UNSPECIFIED: MemberState.NONE,
    pb.ENGINE_STATE_STARTING: MemberState.STARTING,
    pb.ENGINE_STATE_LOADING: MemberState.LOADING,
    pb.ENGINE_STATE_READY: MemberState.READY,
    pb.ENGINE_STATE_FAILED: MemberState.FAILED,
    pb.ENGINE_STATE_STOPPING: MemberState.STOPPING,
    pb.ENGINE_STATE_STOPPED: MemberState.STOPPED,
}


def slot_key(slot: pb.Slot) -> SlotKey:
    return SlotKey(slot.instance, slot.dp_rank, slot.node_rank)


def slot_message(slot: SlotKey) -> pb.Slot:
    return pb.Slot(instance=slot.instance, dp_rank=slot.dp_rank, node_rank=slot.node_rank)


def offer(message: pb.RegisterMsg) -> NodeOffer:
    return NodeOffer(
        node_id=message.node_id,
        incarnation=message.incarnation,
        boot_id=message.boot_id,
        address=message.address,
        role=message.role,
        labels=dict(message.labels),
        device_kind=message.device_kind,
        devices=tuple(message.devices),
        engines={engine.name: engine.version for engine in message.engines},
        profiles={engine.name: engine.profile for engine in message.engines},
        expected_nnodes=message.expected_nnodes,
        expected_model=message.expected_model,
        hostname=message.hostname,
    )


def report(message: pb.SlotReport) -> MemberReport:
    return MemberReport(
        slot=slot_key(message.slot),
        generation=message.generation,
        epoch=message.epoch,
        run_id=message.run_id,
        config_digest=message.config_digest,
        state=_STATES.get(message.state, MemberState.NONE),
        stage=message.stage,
        stage_seconds=message.stage_seconds,
        reason=message.reason,
        workers_up=message.workers_up,
        workers_seen=message.workers_seen,
        workers_expected=message.workers_expected,
        pid=message.pid,
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        exit_signal=message.exit_signal if message.HasField("exit_signal") else None,
        last_log_lines=tuple(message.last_log_lines),
        failure_class=message.failure_class,
        devices=tuple(message.devices),
        address=message.address,
        master_addr=message.master_addr,
        master_port=message.master_port,
        api_port=message.api_port,
        dp_rpc_port=message.dp_rpc_port,
        idle_seconds=message.idle_seconds,
        devices_busy=message.devices_busy,
        liveness=liveness(message.liveness) if message.HasField("liveness") else None,
    )


def liveness(message: pb.Liveness) -> Liveness:
    return Liveness(
        canary=message.canary or "off",
        canary_detail=message.canary_detail,
        canary_running=message.canary_running_seconds,
        canary_failures=message.canary_failures,
        progress=message.progress_seconds,
        devices=message.devices or "unknown",
        devices_detail=message.devices_detail,
        devices_since=message.devices_seconds,
        flat_samples=message.flat_samples,
        flat_peak=message.flat_peak_percent,
        warning=message.warning,
        warning_age=message.warning_seconds,
    )


def seen(message: pb.RegisterMsg) -> tuple[tuple[SlotKey, int], ...]:
    return tuple((slot_key(entry.slot), entry.generation) for entry in message.seen)


def newest_epoch(message: pb.RegisterMsg) -> int:
    """The highest epoch a node has obeyed or holds an engine of."""
    return max([entry.epoch for entry in message.seen] + [held.epoch for held in message.holdings], default=0)


def implausible(message: pb.NodeMessage) -> str:
    """Why numbers of `message` cannot be true; empty if they can. Epochs and generations count starts, and a store
    keeps 63 bits: one of a broken or hostile node would be continued above (rule 6), and could not be stored. NaN would
    pass every limit of time, and JSON has no word for it: nobody could read the status."""
    counts: list[int] = []
    reports: Sequence[pb.SlotReport] = ()
    if message.HasField("register"):
        reports = message.register.holdings
        for held in reports:
            counts += (held.epoch, held.generation)
        for seen_slot in message.register.seen:
            counts += (seen_slot.epoch, seen_slot.generation)
    elif message.HasField("slot_report"):
        reports = [message.slot_report]
        counts = [message.slot_report.epoch, message.slot_report.generation]
    elif message.HasField("prepare_report"):
        counts = [message.prepare_report.generation]
    elif message.HasField("command_refused"):
        refused = message.command_refused
        counts = [refused.generation, refused.newest_epoch, refused.newest_generation]
    largest = max(counts, default=0)
    if largest > LARGEST_COUNT:
        return f"expected epochs and generations up to {LARGEST_COUNT}, got {largest}"
    if not all(math.isfinite(_seconds(held)) for held in reports):
        return f"expected finite numbers, got {not_finite(message) or 'a sum beyond them'}"
    return ""


def _seconds(held: pb.SlotReport) -> float:
    """The sum of all its numbers that are no counts: as finite as each of them, and found in a tenth of the time."""
    life = held.liveness
    return (
        held.stage_seconds + held.idle_seconds + life.canary_running_seconds + life.progress_seconds
        + life.devices_seconds + life.flat_peak_percent + life.warning_seconds
    )  # fmt: skip


def event(body: pb.NodeMessage, session: str, node_id: str, now: float, nonce: str) -> e.Event | None:
    """The event a message becomes; None for those the core does not see (heartbeats, log chunks)."""
    kind = body.WhichOneof("body")
    if kind == "slot_report":
        return e.MemberReported(now, nonce, session, node_id, report(body.slot_report))
    if kind == "prepare_report":
        r = body.prepare_report
        items = tuple(e.PrepareItem(item.name, item.ok, item.detail) for item in r.items)
        return e.PrepareReported(
            now,
            nonce,
            session,
            node_id,
            slot_key(r.slot),
            r.generation,
            r.ok,
            items,
            r.model_digest,
            r.engine_version,
            r.driver_version,
            r.toolkit_version,
            tuple(r.taken_ports),
        )
    if kind == "command_refused":
        c = body.command_refused
        return e.CommandRefused(
            now, nonce, session, node_id, slot_key(c.slot), c.generation, c.command, c.code, c.reason,
            c.newest_epoch, c.newest_generation,
        )  # fmt: skip
    return None


def assignment(instance: str, role: str, slot: SlotKey, placed: Placement, run_id: str) -> Assignment:
    return Assignment(
        instance, Role(role), slot.dp_rank, slot.node_rank, placed.address, placed.master_addr, placed.master_port,
        placed.api_port, placed.dp_rpc_port, run_id,
    )  # fmt: skip


def prepare(
    action: a.SendPrepare, role: str, spec: EngineSpec, reservation_seconds: float, wall_clock: float
) -> pb.PrepareMsg:
    """`wall_clock`: Unix time now, against which the node checks its own."""
    placed = action.placement
    command = build_command(spec, assignment(action.slot.instance, role, action.slot, placed, action.run_id))
    return pb.PrepareMsg(
        slot=slot_message(action.slot),
        generation=action.generation,
        run_id=action.run_id,
        config_digest=action.config_digest,
        engine=spec.engine,
        model=spec.model,
        address=placed.address,
        devices=placed.devices,
        is_master=action.is_world_master and "--master-port" in command.argv,
        master_addr=placed.master_addr,
        master_port=placed.master_port if "--master-port" in command.argv else 0,
        ports=command.ports,
        deadline_seconds=action.deadline_seconds,
        reservation_seconds=reservation_seconds,
        controller_time=wall_clock,
        model_kind=_model_kind(model_need(spec)),
    )


def _model_kind(need: ModelNeed | None) -> pb.ModelKind | None:
    if need is None:
        return None
    kind = need.kind
    return pb.ModelKind(
        name=kind.name,
        model_types=sorted(kind.model_types),
        architectures=sorted(kind.architectures),
        reason=need.reason,
    )


def start(action: a.SendStart, role: str, spec: EngineSpec, timers: Timers) -> pb.StartCmdMsg:
    placed = action.placement
    command = build_command(spec, assignment(action.slot.instance, role, action.slot, placed, action.run_id))
    return pb.StartCmdMsg(
        slot=slot_message(action.slot),
        generation=action.generation,
        run_id=action.run_id,
        config_digest=action.config_digest,
        node_rank=action.slot.node_rank,
        master_dp_ip=placed.master_addr,
        master_port=placed.master_port,
        headless=command.headless,
        role=role,
        engine=spec.engine,
        engine_profile=spec.profile,
        argv=command.argv,
        argv_digest=command.argv_digest,
        env=dict(command.env),
        node_env={name: source.value for name, source in command.node_env.items()},
        devices=placed.devices,
        api_port=command.api_port or 0,
        api_host=command.api_host or "",
        health_path=command.health_path or "",
        expected_workers=command.expected_workers,
        stop_grace_seconds=timers.stop_grace,
        drain_seconds=command.drain_seconds,
        address=placed.address,
        dp_rpc_port=placed.dp_rpc_port or 0,
        self_fence_seconds=timers.self_fence,
        health=health_settings(spec, has_api=not command.headless),
    )


def health_settings(spec: EngineSpec, has_api: bool) -> pb.HealthSettings:
    """The health checks of one process: a headless one is never asked, its devices are watched all the same."""
    checks = spec.health
    given = next((o.value for o in spec.options if o.name == "served-model-name"), None)
    return pb.HealthSettings(
        canary=checks.canary and has_api,
        canary_off_reason=checks.canary_off_reason if has_api else "headless: the group's master is asked",
        canary_interval_seconds=checks.canary_interval,
        canary_deadline_seconds=checks.canary_deadline,
        warm_up_deadline_seconds=checks.warm_up_deadline,
        canary_prompt_tokens=canary_prompt_tokens(spec.shape.pcp),
        served_model=served_model(given, spec.model),
        usage_threshold_percent=checks.usage_threshold,
        sample_interval_seconds=checks.sample_interval,
        collector_timeout_seconds=checks.collector_timeout,
    )
