"""Controllers frozen and cut off, members of etcd killed, quorum lost: engines run on, and one leads at a time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.ha.cluster import LEASE, Before, Controller, Ha, frozen, seconds_until
from tests.ha.measured import note
from tests.ha.test_failover import motorctl

pytestmark = pytest.mark.faults

HANG = 40.0  # a bound against hangs, not an aim


def all_back(ha: Ha) -> None:
    ha.wait(ha.all_there, "everything to be there", HANG)


def for_a_while(holds: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        holds()
        time.sleep(0.1)


def pid(controller: Controller) -> int:
    assert controller.process is not None
    return controller.process.pid


def leads_no_more(controller: Controller) -> bool:
    """It is a standby: a leader whose store does not take its writes answers 503, too, and names no leader."""
    answer = controller.ask("/readyz")
    return answer is not None and answer.status_code == 503 and "leader" in answer.json()


# -- the leader ----------------------------------------------------------------------------------------------------


def test_a_frozen_leader_finds_itself_deposed(ha: Ha) -> None:
    """It wakes with an order waiting at its door, and gives none to anybody."""
    before, old = ha.before(), ha.leader()
    new = ha.other(old)
    answers: list[httpx.Response] = []

    def order() -> None:
        body = {"order": "restart", "target": "union-0"}
        answers.append(httpx.post(old.url + "/v1/orders", json=body, timeout=HANG * 2, trust_env=False))

    began = time.monotonic()
    with frozen(pid(old)):
        late = threading.Thread(target=order)
        late.start()  # the kernel takes the connection, and the frozen process finds it when it wakes
        assert ha.wait_leader(HANG, than=old) is new
        acting = time.monotonic() - began
        all_back(ha)
        note("leader frozen (SIGSTOP)", new_leader=acting, nodes_back=time.monotonic() - began)
        ha.untouched(before)
    late.join(HANG)
    assert answers and answers[0].status_code in (307, 409, 503), answers
    ha.wait(lambda: leads_no_more(old), "the old leader to stand by", HANG)
    for_a_while(lambda: ha.untouched(before), 2.0)
    assert "leads no more" in old.output.read_text()
    assert ha.leaders() == [new]


def test_a_frozen_leader_orders_nothing_of_what_it_had_begun(ha: Ha) -> None:
    """It is frozen in the middle of stopping a gang; the next leader ends what it began, each command once."""
    before, old = ha.before(), ha.leader()
    os.kill(before.pids["union-0/0/1"], signal.SIGKILL)
    ha.wait(lambda: ha.group()["state"] != "ready", "the failure to be seen", HANG)
    with frozen(pid(old)):
        new = ha.wait_leader(HANG, than=old)
        all_back(ha)
        assert ha.group()["generation"] == before.generation + 1, "one failure, one restart"
        after = ha.before()
    ha.wait(lambda: leads_no_more(old), "the old leader to stand by", HANG)
    for_a_while(lambda: ha.engines_run(after), 2.0)
    assert ha.leader() is new and ha.group()["generation"] == before.generation + 1
    starts = [entry for entry in ha.obeyed() if entry[1] == "start" and entry[3] == before.generation + 1]
    assert sorted(entry[2] for entry in starts) == ["union-0/0/0", "union-0/0/1"], "each member was started once"
    ha.wait(lambda: ha.group()["restarts"] == 1, "the count", HANG)
    restore_budget(ha)


def restore_budget(ha: Ha) -> None:
    """An operator's restart begins a fresh count, which the other tests expect."""
    generation = ha.group()["generation"]
    httpx.post(ha.url + "/v1/orders", json={"order": "restart", "target": "union-0"}, trust_env=False)
    ha.wait(lambda: ha.group()["generation"] > generation, "the ordered restart", HANG)
    all_back(ha)


def test_the_leader_is_cut_off_from_etcd_only(ha: Ha) -> None:
    """Its nodes hear it well, and it lets them go before another can lead."""
    before, old = ha.before(), ha.leader()
    new = ha.other(old)
    began = time.monotonic()
    for cable in old.etcd:
        cable.cut()
    try:
        left = seconds_until(lambda: leads_no_more(old), HANG)
        assert not new.leads(), "it ends before the next one begins"
        assert ha.wait_leader(HANG, than=old) is new
        acting = time.monotonic() - began
        all_back(ha)
        told = motorctl("status", "--controller", f"{old.url},{new.url}")
        assert told.returncode == 0 and "STALE" not in told.stdout, "the old one's picture is not taken for the truth"
        note("leader cut off from etcd", steps_down=left, new_leader=acting, nodes_back=time.monotonic() - began)
        ha.untouched(before)
    finally:
        for cable in old.etcd:
            cable.mend()
    ha.wait(lambda: (old.ask("/readyz") or old).json()["leader"] == new.url, "it to know the leader", HANG)  # type: ignore[union-attr]
    ha.untouched(before)


def test_the_leader_is_cut_off_from_the_nodes_only(ha: Ha) -> None:
    """It holds the lead, sees nobody, and judges nobody. An operator hands over; or the cable is mended."""
    before, old = ha.before(), ha.leader()
    old.nodes.cut()
    try:
        ha.wait(lambda: set(ha.node_states().values()) == {"unreachable"}, "all nodes to be out of sight", HANG)
        for_a_while(lambda: ha.engines_run(before), 3.0)
        assert ha.leaders() == [old] and ha.group()["generation"] == before.generation
        answer = httpx.post(old.url + "/v1/step-down", json={}, trust_env=False)
        assert answer.status_code == 200
        assert ha.wait_leader(HANG, than=old) is not old
        all_back(ha)
        ha.untouched(before)
    finally:
        old.nodes.mend()
    all_back(ha)
    ha.untouched(before)


def test_the_leaders_wall_clock_jumps(ha: Ha, tmp_path: Path) -> None:
    """An hour both ways: no lease is counted by it."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    assert library is not None, "libfaketime is missing; Debian's package faketime has it"
    before, clocked = ha.before(), ha.leader()
    clock = tmp_path / "clock"

    def jump(seconds: int) -> None:
        fresh = clock.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.rename(clock)

    jump(0)
    clocked.env = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    try:
        clocked.end()
        second = ha.wait_leader(HANG, than=clocked)
        clocked.start()
        all_back(ha)
        ha.wait(lambda: clocked.ask("/livez"), "the one with the odd clock to stand by", HANG)
        second.end()
        assert ha.wait_leader(HANG) is clocked
        second.start()
        all_back(ha)
        now = ha.before()
        for seconds in (3600, -3600):
            jump(seconds)
            for_a_while(lambda: stays(ha, now, clocked), LEASE + 1.0)
        jump(0)
        ha.untouched(before)
    finally:
        clocked.env = {}
        if clocked.running:
            clocked.end()
        clocked.start()
    ha.wait_leader(HANG)
    all_back(ha)
    ha.untouched(before)


# -- etcd ----------------------------------------------------------------------------------------------------------


def test_each_member_of_etcd_dies_in_turn(ha: Ha) -> None:
    """etcd's own leader and the member that the controller talks to are among them. Two of three are a quorum: the
    lead does not move, and what has to be stored is stored."""
    before, leader = ha.before(), ha.leader()
    for index in range(3):
        ha.etcd.kill(index)
        try:
            for_a_while(lambda: stays(ha, before, leader), LEASE + 1.0)
            stored(ha)
        finally:
            ha.etcd.start(index)
    stays(ha, before, leader)
    ha.untouched(before)


def stays(ha: Ha, before: Before, leader: Controller) -> None:
    """The same leader in the same term, and engines that nobody has touched."""
    assert ha.leaders() == [leader], "the lead does not move"
    assert ha.status()["epoch"] == before.epoch, "the lead does not move"
    ha.engines_run(before)


def stored(ha: Ha) -> None:
    """An operator's order gets into the store."""
    for order in ("cordon", "uncordon"):
        answer = httpx.post(ha.url + "/v1/orders", json={"order": order, "target": "n1"}, timeout=HANG, trust_env=False)
        assert answer.status_code == 200, answer.text
    ha.wait(lambda: not ha.status()["store_error"], "the order to be stored", HANG)


def test_quorum_is_lost_and_comes_back(ha: Ha) -> None:
    """Nobody may lead, nothing is touched, it is said, the last picture can be read; and it goes on by itself."""
    before, old = ha.before(), ha.leader()
    standby = ha.other(old)
    orders = len(ha.obeyed())
    began = time.monotonic()
    for index in (0, 1):
        ha.etcd.kill(index)
    try:
        left = seconds_until(lambda: leads_no_more(old), HANG)
        assert left < 5 * LEASE
        note("quorum lost", leader_ends=left)
        for_a_while(lambda: nobody_and_untouched(ha, before), LEASE + 3.0)
        stale = old.ask("/v1/status")
        assert stale is not None and stale.status_code == 200
        view = stale.json()
        assert view["stale_since"] and "lease" in view["stale_reason"], view["stale_reason"]
        assert stale.headers["motor-stale-since"]
        pids = {m["slot"]: m["pid"] for i in view["instances"] for g in i["groups"] for m in g["members"]}
        assert pids == before.pids, "the last picture"
        routers = {
            path: old.ask(path) for path in ("/v1/instances", "/v1/instances?stale=true", "/v1/instances/stream")
        }
        codes = [answer.status_code for answer in routers.values() if answer is not None]
        assert codes == [503, 200, 503], "an old inventory is for who asks for it"
        both = ",".join(one.url for one in ha.controllers.values())
        told = motorctl("status", "--controller", both)
        assert told.returncode == 1 and "STALE since" in told.stdout and "union-0/0/1" in told.stdout, told
        order = httpx.post(old.url + "/v1/orders", json={"order": "restart", "target": "union-0"}, trust_env=False)
        assert order.status_code == 503 and "engines keep running" in order.json()["fix"]
        for one in (old, standby):
            ready = one.ask("/readyz")
            assert ready is not None and "no controller leads since" in ready.json()["error"]
            assert ready.json()["leader"] == ""
        assert len(ha.obeyed()) == orders, "nobody was ordered anything"
    finally:
        back = time.monotonic()
        ha.etcd.start(0, 1)
    quorum = time.monotonic()
    ha.wait_leader(HANG)
    acting = time.monotonic() - quorum
    all_back(ha)
    note("quorum is back", new_leader=acting, nodes_back=time.monotonic() - quorum, away=back - began)
    ha.untouched(before)


def nobody_and_untouched(ha: Ha, before: Before) -> None:
    assert not ha.leaders()
    ha.engines_run(before)


def test_all_of_etcd_freezes_for_a_moment(ha: Ha) -> None:
    """Shorter than what a lease outlives: nothing moves. Three times, a third of a renewal's period later each time: a
    renewal fails that is sent in the first half second of 1.5 s, and one is sent each LEASE / 4."""
    before, leader = ha.before(), ha.leader()
    began = time.monotonic()
    for number in range(3):
        time.sleep(max(0.0, began + number * (3 * LEASE / 4 + LEASE / 12) - time.monotonic()))
        for index in range(3):
            ha.etcd.freeze(index)
        time.sleep(1.5)
        for index in range(3):
            ha.etcd.thaw(index)
    for_a_while(lambda: stays(ha, before, leader), LEASE + 1.0)
    ha.untouched(before)


def test_etcd_is_away_while_a_controller_starts(ha: Ha) -> None:
    """The whole control plane starts before its store does, as after a power cut."""
    before = ha.before()
    for controller in ha.controllers.values():
        controller.end()
    ha.etcd.stop()
    for controller in ha.controllers.values():
        controller.start()
    for controller in ha.controllers.values():
        ha.wait(lambda c=controller: c.ask("/livez"), "it to answer without its store", HANG)  # type: ignore[misc]
        ready = controller.ask("/readyz")
        assert ready is not None and ready.status_code == 503
    ha.engines_run(before)
    ha.etcd.start()
    ha.wait_leader(HANG)
    all_back(ha)
    ha.untouched(before)
