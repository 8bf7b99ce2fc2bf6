"""What the node shows of itself under /status."""

from __future__ import annotations

import time
from typing import Any

from engine_launch.secrets import redact_argv
from nodemanager.engine_start import state_name
from nodemanager.service import NodeManager, motor_version
from nodemanager.supervisor import Supervisor


def node_status(manager: NodeManager) -> dict[str, Any]:
    """`status` is initial, normal or abnormal, for nodes of masters and of followers alike."""
    link = manager.link.state
    return {
        "status": manager.overall(),
        "node": {
            "node_id": manager.node_id,
            "incarnation": manager.incarnation,
            "address": manager.address,
            "deployment_id": manager.config.deployment_id,
            "motor_version": motor_version(),
        },
        "controller": {
            "state": link.state,
            "endpoint": link.controller,
            "since": link.since,
            "detail": link.detail,
            "last_ack_seconds": round(time.monotonic() - link.last_ack, 1) if link.last_ack else None,
        },
        "placement": {
            "state": manager.placement.state,
            "reason": manager.placement.reason,
            "slots": [f"{slot.instance}/{slot.dp_rank}/{slot.node_rank}" for slot in manager.placement.slots],
        },
        "telemetry": {"source": manager.telemetry.source, "problem": manager.telemetry.problem},
        "slots": [slot_status(one) for one in manager.slots.values()],
    }


def slot_status(one: Supervisor) -> dict[str, Any]:
    """One engine process of this node."""
    running = state_name(one.state) in ("starting", "loading")
    return {
        "slot": str(one.key),
        "generation": one.record.generation,
        "epoch": one.record.epoch,
        "run_id": one.record.run_id,
        "state": state_name(one.state),
        "reason": one.record.mask(one.reason),
        "stage": one.tracker.stage,
        "stage_seconds": round(one.stage_seconds(), 1),
        "progress": one.tracker.describe(one.key.node_rank, time.monotonic()) if running else "",
        "idle_seconds": round(one.idle_seconds(), 1) if running else 0.0,
        "liveness": one.vitals.status() if state_name(one.state) in ("loading", "ready") else None,
        "workers": {"seen": one.workers_seen, "expected": one.record.expected_workers, "up": one.workers_up},
        "pid": one.pid,
        "headless": one.record.headless,
        "devices": one.record.devices,
        "devices_busy": one.devices_busy,
        "self_fence": one.record.self_fence,
        "log_file": one.record.log_file,
        "command": redact_argv(one.record.argv),
    }
