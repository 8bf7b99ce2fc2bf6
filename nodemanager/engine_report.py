"""One engine start as the controller is told about it; complete each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motor_rpc import control_pb2 as pb

if TYPE_CHECKING:
    from nodemanager.supervisor import Supervisor

RUNNING = frozenset({pb.ENGINE_STATE_LOADING, pb.ENGINE_STATE_READY})


def slot_report(one: Supervisor) -> pb.SlotReport:
    """Signs of life only while it runs, evidence only after a failure."""
    record = one.record
    message = pb.SlotReport(
        slot=one.key.message(), generation=record.generation, epoch=record.epoch, run_id=record.run_id,
        config_digest=record.config_digest, state=one.state, stage=one.tracker.stage,
        stage_seconds=one.stage_seconds(), reason=record.mask(one.reason), workers_up=one.workers_up,
        workers_seen=one.workers_seen, workers_expected=record.expected_workers, pid=one.pid,
        argv_digest=record.argv_digest, env_digest=record.env_digest, devices=record.devices,
        address=record.address, master_addr=record.master_addr, master_port=record.master_port,
        api_port=record.api_port, dp_rpc_port=record.dp_rpc_port,
    )  # fmt: skip
    if one.state == pb.ENGINE_STATE_LOADING:
        message.idle_seconds = one.idle_seconds()
    if one.state in RUNNING:
        message.liveness.CopyFrom(one.vitals.message())
    if one.end is not None:
        if one.end.exit_code is not None:
            message.exit_code = one.end.exit_code
        if one.end.exit_signal is not None:
            message.exit_signal = one.end.exit_signal
        message.devices_busy = bool(one.devices_busy)
        if one.state == pb.ENGINE_STATE_FAILED:
            message.last_log_lines.extend(map(record.mask, one.last_lines))
            message.failure_class = one.end.failure_class
    return message
