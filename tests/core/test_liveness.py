"""When a ready gang counts as hung, and when it must be left alone."""

from __future__ import annotations

from dataclasses import replace

from controller.core.model import HangSettings, Liveness, MemberState, SlotKey
from controller.core.state import Phase
from simulator.cluster import Cluster
from tests.core.shapes import deployment, instance
from tests.core.test_assembly import bring_up
from tests.core.test_stage_limits import starting

MASTER, FOLLOWER = SlotKey("prefill-0", 0, 0), SlotKey("prefill-0", 0, 1)


def gang(**hang: object) -> Cluster:
    cluster = Cluster(deployment(replace(instance(dp=1, nnodes=2), hang=HangSettings(**hang))))  # type: ignore[arg-type]
    bring_up(cluster, 2)
    return cluster


def report(cluster: Cluster, slot: SlotKey, state: MemberState | None = None, **life: object) -> None:
    node = cluster.nodes[cluster.core.state.scopes["prefill-0/0"].members[slot].node_id or ""]
    changed = {"state": state} if state is not None else {}
    node.change(slot, liveness=Liveness(**life), **changed)  # type: ignore[arg-type]
    cluster.deliver_message(node)


def phase(cluster: Cluster) -> Phase:
    return cluster.core.state.scopes["prefill-0/0"].phase


def late(
    cluster: Cluster, running: float = 40.0, progress: float = 60.0, devices: str = "busy", **more: object
) -> None:
    report(cluster, MASTER, canary="late", canary_running=running, progress=progress, devices=devices, **more)


def test_frozen_follower_is_named_by_its_flat_devices() -> None:
    cluster = gang()
    report(cluster, FOLLOWER, devices="flat", flat_samples=5, devices_since=25.0, devices_detail="device 3 at 0 %")
    late(cluster)
    assert phase(cluster) is Phase.READY, "five flat samples are not six"
    report(cluster, FOLLOWER, devices="flat", flat_samples=6, devices_since=30.0, devices_detail="device 3 at 0 %")
    assert phase(cluster) is Phase.STOPPING
    evidence = cluster.core.state.scopes["prefill-0/0"].evidence
    assert evidence is not None and evidence.slot == FOLLOWER
    assert "rank 1 on n2 is flat (device 3 at 0 %)" in evidence.reason


def test_gang_that_is_not_ready_any_more_is_still_judged() -> None:
    """An API server that answers nothing at all fails /health first, and then its canary is late."""
    cluster = gang()
    report(cluster, FOLLOWER, devices="flat", flat_samples=6, devices_since=30.0)
    late(cluster, state=MemberState.LOADING)
    assert phase(cluster) is Phase.STOPPING
    evidence = cluster.core.state.scopes["prefill-0/0"].evidence
    assert evidence is not None and "canary is late" in evidence.reason


def test_four_minutes_of_one_busy_prefill_step_are_normal() -> None:
    cluster = gang()
    report(cluster, FOLLOWER, devices="busy", devices_since=1.0)
    for seconds in range(30, 245, 5):
        late(cluster, running=float(seconds), progress=float(seconds))
        cluster.advance(5.0)
    assert phase(cluster) is Phase.READY
    report(cluster, MASTER, canary="ok", progress=0.0, devices="busy")
    cluster.advance(1000.0)
    assert phase(cluster) is Phase.READY


def test_idle_gang_with_flat_devices_and_an_answered_canary_is_healthy() -> None:
    cluster = gang()
    for slot in (MASTER, FOLLOWER):
        report(cluster, slot, canary="ok" if slot is MASTER else "off", devices="flat", flat_samples=900)
    cluster.advance(5000.0)
    assert phase(cluster) is Phase.READY


def test_collective_deadlock_is_high_compute_without_memory_traffic() -> None:
    cluster = gang()
    report(cluster, FOLLOWER, devices="busy_without_memory", devices_since=10.0)
    late(cluster, devices="busy_without_memory", devices_since=10.0)
    cluster.advance(280.0)
    assert phase(cluster) is Phase.READY
    cluster.advance(20.0)
    assert phase(cluster) is Phase.STOPPING


def test_unknown_telemetry_waits_for_the_longer_time_without_progress() -> None:
    cluster = gang()
    late(cluster, running=40.0, progress=50.0, devices="unknown", devices_detail="npu-smi: not found")
    cluster.advance(240.0)
    assert phase(cluster) is Phase.READY
    cluster.advance(15.0)
    assert phase(cluster) is Phase.STOPPING
    evidence = cluster.core.state.scopes["prefill-0/0"].evidence
    assert evidence is not None and "no progress for 300 s" in evidence.reason


def test_progress_clears_the_suspicion() -> None:
    cluster = gang()
    late(cluster, running=40.0, progress=290.0, devices="unknown")
    report(cluster, MASTER, canary="ok", progress=0.5, devices="unknown")
    cluster.advance(100.0)
    assert phase(cluster) is Phase.READY


def test_log_only_mode_says_it_and_does_nothing() -> None:
    cluster = gang(enforce=False)
    report(cluster, FOLLOWER, devices="flat", flat_samples=9)
    late(cluster)
    assert phase(cluster) is Phase.READY
    assert any(line.code == "hang_log_only" for line in cluster.core.state.story)


def test_without_canary_nothing_is_judged() -> None:
    cluster = gang(canary=False)
    report(cluster, FOLLOWER, devices="flat", flat_samples=900)
    cluster.advance(5000.0)
    assert phase(cluster) is Phase.READY


def test_nothing_is_judged_before_it_was_ready_once() -> None:
    cluster = starting()
    report(cluster, FOLLOWER, devices="flat", flat_samples=90)
    late(cluster)
    assert phase(cluster) is Phase.STARTING


def test_of_two_flat_ranks_the_one_that_shows_nothing_is_named() -> None:
    cluster = gang()
    report(cluster, FOLLOWER, devices="flat", flat_samples=8, flat_peak=0.0, devices_detail="worker at 0 %")
    late(cluster, devices="flat", flat_samples=8, flat_peak=1.4, devices_detail="worker at 1 %")
    evidence = cluster.core.state.scopes["prefill-0/0"].evidence
    assert evidence is not None and evidence.slot == FOLLOWER


def test_rank_whose_workers_are_gone_is_named_and_not_the_one_that_waits_for_it() -> None:
    """A dead engine under a frozen shim has no worker that could be flat."""
    cluster = gang()
    node, gone = cluster.nodes["n2"], "was ready: 0 of 1 workers are left"
    node.change(FOLLOWER, state=MemberState.LOADING, workers_up=False, workers_seen=0, workers_expected=1, reason=gone)
    cluster.deliver_message(node)
    late(cluster, devices="flat", flat_samples=8, flat_peak=0.0)
    assert phase(cluster) is Phase.STOPPING
    evidence = cluster.core.state.scopes["prefill-0/0"].evidence
    assert evidence is not None and evidence.slot == FOLLOWER
    assert f"rank 1 on n2 has lost workers ({gone})" in evidence.reason


def test_rank_out_of_sight_is_blamed_before_those_that_wait_for_it() -> None:
    cluster = gang()
    cluster.disconnect(cluster.nodes["n2"])
    late(cluster, devices="flat", flat_samples=8, flat_peak=0.0)
    evidence = cluster.core.state.scopes["prefill-0/0"].evidence
    assert evidence is not None and evidence.slot == FOLLOWER and "out of sight" in evidence.reason


def test_gang_that_was_ready_and_lost_its_workers_unseen_is_not_left_waiting() -> None:
    cluster = gang()
    node = cluster.nodes["n2"]
    node.change(
        FOLLOWER, state=MemberState.LOADING, workers_up=False, workers_seen=0, workers_expected=1, stage="kv_cache"
    )
    cluster.deliver_message(node)
    assert phase(cluster) is Phase.STARTING
    cluster.advance(119.0)
    assert phase(cluster) is Phase.STARTING
    cluster.advance(2.0)
    evidence = cluster.core.state.scopes["prefill-0/0"].evidence
    assert evidence is not None and "was ready, 0 of 1 workers are left" in evidence.reason
