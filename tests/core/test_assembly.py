"""Assembly by registration order, exactly, with sticky ranks."""

from __future__ import annotations

from dataclasses import replace

from controller.core.events import NodeDisconnected
from controller.core.model import PortRange, Scope
from controller.core.state import Phase
from simulator.cluster import Cluster
from tests.core.shapes import deployment, instance, offer


def bring_up(cluster: Cluster, count: int, devices: int = 1) -> None:
    for number in range(1, count + 1):
        cluster.connect(cluster.add_node(offer(number, devices)))
    cluster.settle()


def phases(cluster: Cluster) -> set[Phase]:
    return {scope.phase for scope in cluster.core.state.scopes.values()}


def test_nothing_starts_before_every_slot_is_filled() -> None:
    cluster = Cluster(deployment())
    bring_up(cluster, 3)
    assert not any(node.starts for node in cluster.nodes.values())
    assert phases(cluster) == {Phase.ASSEMBLING}
    cluster.connect(cluster.add_node(offer(4)))
    cluster.settle()
    assert phases(cluster) == {Phase.READY}


def test_registration_order_gives_ranks_and_masters() -> None:
    cluster = Cluster(deployment())
    bring_up(cluster, 4)
    seen = {node_id: str(node.starts[0].slot) for node_id, node in cluster.nodes.items()}
    assert seen == {
        "n1": "prefill-0/0/0",
        "n2": "prefill-0/0/1",
        "n3": "prefill-0/1/0",
        "n4": "prefill-0/1/1",
    }
    masters = {node_id: node.starts[0].placement.master_addr for node_id, node in cluster.nodes.items()}
    assert masters == {"n1": "10.0.0.1", "n2": "10.0.0.1", "n3": "10.0.0.3", "n4": "10.0.0.3"}
    assert [n.starts[0].placement.api_port for n in cluster.nodes.values()] == [8000, None, 8000, None]


def test_native_scope_has_one_master_for_all_groups() -> None:
    cluster = Cluster(deployment(instance(scope=Scope.INSTANCE)))
    bring_up(cluster, 4)
    worlds = {
        (n.starts[0].placement.master_addr, n.starts[0].placement.master_port, n.starts[0].generation)
        for n in cluster.nodes.values()
    }
    assert worlds == {("10.0.0.1", 7001, 1)}
    assert phases(cluster) == {Phase.READY}


def test_late_node_is_a_spare_and_replaces_a_lost_one_without_moving_others() -> None:
    cluster = Cluster(deployment())
    bring_up(cluster, 5)
    assert cluster.core.state.nodes["n5"].told == ("spare", "every slot it fits is filled", ())
    gone = cluster.nodes["n2"]
    gone.reboot()
    cluster.disconnect(gone)
    session = cluster.core.state.nodes["n2"].session
    assert session is not None
    cluster.feed(NodeDisconnected(cluster.now, cluster.nonce(), session, "n2", "stream ended"))
    cluster.nodes["n1"].crash(cluster.nodes["n1"].starts[0].slot)  # the master notices its dead follower
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    slots = {str(slot): m.node_id for scope in cluster.core.state.scopes.values() for slot, m in scope.members.items()}
    assert slots == {
        "prefill-0/0/0": "n1",
        "prefill-0/0/1": "n5",
        "prefill-0/1/0": "n3",
        "prefill-0/1/1": "n4",
    }
    assert len(cluster.nodes["n3"].starts) == 1, "the other group is a scope of its own and keeps serving"
    second = cluster.nodes["n1"].starts[-1]
    assert second.placement.master_port == 7002, "a new generation takes the next master port"


def test_a_node_with_room_takes_slots_of_other_groups() -> None:
    cluster = Cluster(deployment(instance(dp=2, nnodes=2, devices=8)))
    bring_up(cluster, 2, devices=16)
    assert phases(cluster) == {Phase.READY}
    starts = cluster.nodes["n1"].starts
    assert [str(start.slot) for start in starts] == ["prefill-0/0/0", "prefill-0/1/0"]
    assert starts[0].placement.master_port != starts[1].placement.master_port
    assert starts[0].placement.api_port != starts[1].placement.api_port
    assert set(starts[0].placement.devices).isdisjoint(starts[1].placement.devices)


def test_roles_are_declared_or_filled_in_file_order() -> None:
    plan = deployment(instance("prefill-0", 1, 2), instance("decode-0", 1, 1))
    cluster = Cluster(plan)
    cluster.connect(cluster.add_node(offer(1, role="decode")))
    for number in (2, 3):
        cluster.connect(cluster.add_node(offer(number)))
    cluster.settle()
    placed = {node_id: str(node.starts[0].slot) for node_id, node in cluster.nodes.items()}
    assert placed == {"n1": "decode-0/0/0", "n2": "prefill-0/0/0", "n3": "prefill-0/0/1"}


def test_unfitting_node_is_rejected_with_the_reason() -> None:
    cluster = Cluster(deployment(instance(devices=8)))
    cluster.connect(cluster.add_node(offer(1, devices=4)))
    cluster.connect(cluster.add_node(offer(2, devices=8, engines={})))
    told = cluster.core.state.nodes["n1"].told
    assert told is not None and told[0] == "rejected" and "needs 8 devices per node, the node offers 4" in told[1]
    told = cluster.core.state.nodes["n2"].told
    assert told is not None and "needs engine 'vllm'" in told[1]


def test_same_boot_newer_incarnation_replaces_and_a_clone_is_refused() -> None:
    cluster = Cluster(deployment())
    node = cluster.add_node(offer(1))
    cluster.connect(node)
    clone = cluster.add_node(offer(1, boot_id="boot-9", address="10.0.0.99"))
    cluster.connect(clone)
    assert cluster.refusals[-1].code == "cloned" and cluster.refusals[-1].retry


def test_loopback_is_refused_unless_allowed() -> None:
    cluster = Cluster(deployment())
    cluster.connect(cluster.add_node(offer(1, address="127.0.0.1")))
    assert cluster.refusals[-1].code == "address" and "loopback" in cluster.refusals[-1].reason


def test_refusing_node_is_set_aside_and_a_spare_is_asked() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bad = cluster.add_node(offer(1))
    bad.refuse_prepare = True
    cluster.connect(bad)
    for number in (2, 3):
        cluster.connect(cluster.add_node(offer(number)))
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert not bad.starts
    assert {n for n, node in cluster.nodes.items() if node.starts} == {"n2", "n3"}
    assert cluster.core.state.scopes["prefill-0/0"].restarts == 0, "a refusal costs no restart"


def test_taken_port_means_the_next_port_not_another_node() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    cluster.nodes_with_taken_ports = {"n1": {7001, 8000, 7002}}
    bring_up(cluster, 2)
    assert phases(cluster) == {Phase.READY}
    placed = cluster.nodes["n1"].starts[-1].placement
    assert (placed.master_port, placed.api_port) == (7003, 8001)
    assert cluster.nodes["n2"].starts[-1].placement.master_port == 7003


def test_all_ports_taken_says_so_and_goes_on_when_one_is_free() -> None:
    plan = deployment(replace(instance(dp=1, nnodes=1), api_ports=PortRange(8000, 2)), port_blocked_for=100.0)
    cluster = Cluster(plan)
    cluster.nodes_with_taken_ports = {"n1": {8000, 8001}}
    cluster.connect(cluster.add_node(offer(1)))
    for _ in range(10):
        cluster.store_next()
        cluster.deliver_command(cluster.nodes["n1"])
        cluster.deliver_message(cluster.nodes["n1"])
    scope = cluster.core.state.scopes["prefill-0/0"]
    assert scope.phase is Phase.ASSEMBLING
    assert "no API port free on 10.0.0.1 in 8000-8001" in scope.reason
    cluster.nodes_with_taken_ports.clear()
    cluster.settle()
    assert scope.phase is Phase.READY


def test_headless_exit_code_zero_is_a_failure_and_the_budget_ends() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2), max_restarts=2))
    bring_up(cluster, 2)
    for _ in range(3):
        follower = cluster.nodes["n2"]
        follower.crash(follower.starts[-1].slot)
        cluster.settle()
    scope = cluster.core.state.scopes["prefill-0/0"]
    assert scope.phase is Phase.FAILED
    assert len(cluster.nodes["n1"].starts) == 3
    assert scope.evidence is not None and str(scope.evidence.slot) == "prefill-0/0/1"
    assert "all 2 restarts within 60 min are used up" in scope.reason and "exit code 0" in scope.reason
    cluster.restart_controller()
    for node in cluster.nodes.values():
        cluster.connect(node)
    cluster.settle()
    assert cluster.core.state.scopes["prefill-0/0"].phase is Phase.FAILED, "given up stays given up"


def test_controller_restart_adopts_and_starts_nothing_twice() -> None:
    cluster = Cluster(deployment())
    bring_up(cluster, 4)
    cluster.restart_controller()
    for node in reversed(cluster.nodes.values()):
        cluster.connect(node)
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert all(len(node.starts) == 1 for node in cluster.nodes.values())


def test_emptied_store_adopts_complete_gangs_only() -> None:
    cluster = Cluster(deployment())
    bring_up(cluster, 4)
    cluster.restart_controller(keep_store=False)
    for number in (4, 3, 1):
        cluster.connect(cluster.nodes[f"n{number}"])
    cluster.settle()
    scopes = cluster.core.state.scopes
    assert scopes["prefill-0/1"].phase is Phase.READY
    assert scopes["prefill-0/0"].phase is Phase.ASSEMBLING
    assert cluster.nodes["n1"].engines, "half a gang is foreign: shown, not stopped"
    cluster.connect(cluster.nodes["n2"])
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert all(len(node.starts) == 1 for node in cluster.nodes.values())


def test_member_that_is_gone_is_judged_although_a_stranger_claims_its_slot() -> None:
    """The skip is for a recovered record only: what this controller has seen run, it misses."""
    cluster = Cluster(deployment(instance(dp=1, nnodes=1)))
    bring_up(cluster, 1)
    own = cluster.nodes["n1"]
    stranger = cluster.add_node(offer(2))
    slot = own.starts[0].slot
    engine = own.engines[slot]
    newer = replace(engine.report, generation=6, run_id="another store's")
    stranger.engines[slot] = replace(engine, report=newer)
    cluster.connect(stranger)
    cluster.disconnect(own)
    own.reboot()
    cluster.connect(own)
    assert phases(cluster) == {Phase.STOPPING}, "it went down with its engine"
    cluster.advance(60.0)
    cluster.settle()
    assert phases(cluster) == {Phase.READY} and len(own.starts) == 2
    assert stranger.engines[slot].report.generation == 6, "nobody has said a word about it"


def test_losing_sight_of_a_serving_member_stops_nothing() -> None:
    cluster = Cluster(deployment())
    bring_up(cluster, 4)
    cluster.disconnect(cluster.nodes["n2"])
    cluster.advance(3600.0)
    assert phases(cluster) == {Phase.READY}
    cluster.connect(cluster.nodes["n2"])
    cluster.settle()
    assert all(len(node.starts) == 1 for node in cluster.nodes.values())


def test_assembly_timeout_is_said_once_and_names_the_missing() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2), assemble_timeout=100.0))
    cluster.connect(cluster.add_node(offer(1)))
    cluster.advance(50.0)
    cluster.connect(cluster.add_node(offer(9, devices=0)))
    cluster.advance(60.0)
    lines = [line for line in cluster.core.state.story if line.code == "assemble_timeout"]
    assert [line.sentence for line in lines] == ["1 slots missing for 100 s: prefill-0/0/1"]


def test_member_out_of_sight_and_really_dead_means_a_restart_with_a_spare() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 3)
    cluster.nodes["n2"].reboot()  # power lost: its engine is gone and nobody reports it
    cluster.miss_heartbeats()
    cluster.advance(5.0)
    assert phases(cluster) == {Phase.READY}
    cluster.advance(120.0)
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert {m.node_id for m in cluster.core.state.scopes["prefill-0/0"].members.values()} == {"n1", "n3"}
    assert "no proof of life" in next(e.sentence for e in cluster.core.state.story if e.code == "failed")


def test_nobody_in_sight_is_no_reason_to_do_anything() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 2)
    for node in cluster.nodes.values():
        cluster.disconnect(node)
    cluster.advance(7200.0)
    for node in cluster.nodes.values():
        cluster.connect(node)
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert all(len(node.starts) == 1 for node in cluster.nodes.values())


def test_self_fence_is_proof_once_it_has_run_out() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2), self_fence=120.0))
    bring_up(cluster, 4)
    cluster.order("restart", "prefill-0")  # nobody will confirm the stop
    for name in ("n1", "n2"):
        cluster.nodes[name].reboot()
    cluster.miss_heartbeats()
    cluster.advance(100.0)
    assert phases(cluster) == {Phase.STOPPING}
    cluster.advance(100.0)
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert {m.node_id for m in cluster.core.state.scopes["prefill-0/0"].members.values()} == {"n3", "n4"}


def test_node_whose_devices_stay_busy_is_quarantined_and_a_spare_takes_the_slot() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    bring_up(cluster, 3)
    cluster.nodes["n2"].devices_stay_busy = True
    cluster.nodes["n1"].crash(cluster.nodes["n1"].starts[-1].slot)
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert {m.node_id for m in cluster.core.state.scopes["prefill-0/0"].members.values()} == {"n1", "n3"}
    assert "quarantined" in {line.code for line in cluster.core.state.story}


def test_member_with_other_model_files_is_refused() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2)))
    cluster.connect(cluster.add_node(offer(1)))
    odd = cluster.add_node(offer(2))
    odd.model_digest = "other"
    cluster.connect(odd)
    cluster.connect(cluster.add_node(offer(3)))
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert not odd.starts
    assert "has model files other" in " ".join(line.sentence for line in cluster.core.state.story)


def test_serving_gang_out_of_sight_is_replaced_once_its_fence_has_run_out() -> None:
    cluster = Cluster(deployment(instance(dp=1, nnodes=2), self_fence=120.0))
    bring_up(cluster, 4)
    for name in ("n1", "n2"):
        cluster.nodes[name].reboot()
    cluster.miss_heartbeats()
    cluster.advance(120.0)
    assert phases(cluster) == {Phase.READY}, "they may still serve"
    cluster.advance(120.0)
    cluster.settle()
    assert phases(cluster) == {Phase.READY}
    assert {m.node_id for m in cluster.core.state.scopes["prefill-0/0"].members.values()} == {"n3", "n4"}
