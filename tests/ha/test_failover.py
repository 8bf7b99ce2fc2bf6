"""The lead goes from one controller to the other; engines and nodes' registrations stay."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from controller.terms import GIVES_WAY_SECONDS
from tests.cluster.test_systemd import ServiceManager
from tests.ha.cluster import LEASE, Controller, Ha, seconds_until
from tests.ha.measured import note

HANG = 30.0  # a bound against hangs, not an aim
LET_GO = 0.7 * LEASE  # the aim is 0.5 s; a lease that runs out by itself lasts longer than this after its last renewal


def motorctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "motorctl.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def moved(ha: Ha, began: float, old: Controller) -> tuple[float, float]:
    """Seconds since `began` until the other controller leads, and until all nodes are with it."""
    new = ha.wait_leader(HANG, than=old)
    acting = time.monotonic() - began
    ha.wait(ha.all_there, "all nodes to be with the new leader", HANG)
    assert new is not old
    return acting, time.monotonic() - began


def test_a_killed_leader_is_followed_by_the_standby(ha: Ha) -> None:
    before, old = ha.before(), ha.leader()
    began = time.monotonic()
    old.end(signal.SIGKILL)
    acting, back = moved(ha, began, old)
    note("leader killed (kill -9)", new_leader=acting, nodes_back=back)
    ha.untouched(before)
    assert ha.status()["epoch"] == before.epoch + 1
    assert acting < 5 * (LEASE + 1), "the aim is LEASE + 1 s"
    old.start()
    ha.wait(lambda: old.ask("/livez"), "the old leader to stand by", HANG)
    assert [one.name for one in ha.leaders()] == [ha.other(old).name], "it does not take the lead back"


def test_planned_hand_over(ha: Ha) -> None:
    before, old = ha.before(), ha.leader()
    both = ",".join(one.url for one in ha.controllers.values())
    began = time.monotonic()
    done = motorctl("step-down", "--controller", both, "--reason", "a test")
    assert done.returncode == 0 and "a standby takes over" in done.stdout, done.stderr
    acting, back = moved(ha, began, old)
    note("motorctl step-down (its own start included)", new_leader=acting, nodes_back=back)
    assert acting < LET_GO, "let go, not run out"
    ha.untouched(before)
    assert old.running, "it stands by"
    text = old.output.read_text()
    assert "stepped down: a test" in text


def test_sigterm_hands_over_too(ha: Ha) -> None:
    before, old = ha.before(), ha.leader()
    began = time.monotonic()
    assert old.process is not None
    old.process.send_signal(signal.SIGTERM)
    acting, back = moved(ha, began, old)
    note("leader ended (SIGTERM)", new_leader=acting, nodes_back=back)
    assert acting < LET_GO, "let go, not run out"
    ha.untouched(before)
    assert old.process.wait(10) == 0
    old.process = None


def test_controllers_one_by_one_as_in_an_upgrade(ha: Ha) -> None:
    before = ha.before()
    standby = ha.other(ha.leader())
    standby.end()
    standby.start()
    ha.wait(lambda: standby.ask("/livez"), "the new standby", HANG)
    ha.untouched(before)
    old = ha.leader()
    old.end()
    ha.wait_leader(HANG)
    ha.wait(ha.all_there, "everything to be there", HANG)
    old.start()
    ha.wait(lambda: old.ask("/livez"), "the old leader to stand by", HANG)
    ha.untouched(before)


def test_what_a_standby_answers(ha: Ha) -> None:
    leader = ha.leader()
    standby = ha.other(leader)
    answers = {path: standby.ask(path) for path in ("/livez", "/readyz", "/metrics", "/v1/status?a=1", "/v1/orders")}
    assert all(answer is not None for answer in answers.values())
    codes = {path: answer.status_code for path, answer in answers.items() if answer is not None}
    assert codes == {"/livez": 200, "/readyz": 503, "/metrics": 200, "/v1/status?a=1": 307, "/v1/orders": 307}
    ready, metrics, status = answers["/readyz"], answers["/metrics"], answers["/v1/status?a=1"]
    assert ready is not None and metrics is not None and status is not None
    assert ready.json()["leader"] == leader.url and leader.url in ready.json()["fix"]
    assert "motor_controller_leader 0.0" in metrics.text
    assert status.headers["location"] == f"{leader.url}/v1/status?a=1"
    assert "motor_controller_leader 1.0" in httpx.get(leader.url + "/metrics", trust_env=False).text
    order = httpx.post(
        standby.url + "/v1/orders", json={"order": "cordon", "target": "n9"}, trust_env=False, follow_redirects=True
    )
    assert order.status_code == 409 and str(order.url).startswith(leader.url), "the leader has answered"


def test_who_steps_down_with_no_other_there_leads_again(ha: Ha) -> None:
    before, leader = ha.before(), ha.leader()
    standby = ha.other(leader)
    standby.end()
    try:
        began = time.monotonic()
        httpx.post(leader.url + "/v1/step-down", json={}, trust_env=False).raise_for_status()
        ha.wait(lambda: leader.leads() and ha.status()["epoch"] > before.epoch, "it to lead again", HANG)
        assert time.monotonic() - began >= GIVES_WAY_SECONDS, "left to others first"
        ha.wait(ha.all_there, "everything to be there", HANG)
        ha.untouched(before)
    finally:
        standby.start()


def test_the_service_manager_hears_who_leads(ha: Ha, tmp_path: Path) -> None:
    """A standby is ready, too: it has nothing else to wait for."""
    leader = ha.leader()
    standby = ha.other(leader)
    systemd = ServiceManager(tmp_path)
    standby.end()
    standby.env = {"NOTIFY_SOCKET": str(systemd.path)}
    try:
        standby.start()
        systemd.wait_for("READY=1")
        systemd.wait_for(f"STATUS=standby, leader {leader.url}")
        httpx.post(leader.url + "/v1/step-down", json={}, trust_env=False).raise_for_status()
        systemd.wait_for("STATUS=leader, epoch ")
        ha.wait_leader(HANG, than=leader)
        httpx.post(standby.url + "/v1/step-down", json={}, trust_env=False).raise_for_status()
        systemd.wait_for("STATUS=standby, ")
        assert standby.end() == 0
        systemd.wait_for("STOPPING=1")
    finally:
        systemd.socket.close()
        standby.env = {}
        if standby.running:
            standby.end()
    standby.start()


def test_motorctl_finds_the_leader(ha: Ha) -> None:
    leader = ha.leader()
    standby = ha.other(leader)
    dead = "127.0.0.1:1"
    for addresses in (standby.url, f"{dead},{standby.url}", f"{standby.url},{dead}"):
        done = motorctl("status", "--controller", addresses)
        assert done.returncode == 0 and "union-0/0/1" in done.stdout, done.stderr
    done = motorctl("cordon", "--controller", f"{dead},{standby.url}", "n9")
    assert done.returncode == 1 and "n9" in done.stderr
    done = motorctl("status", "--controller", f"{dead},127.0.0.1:2")
    assert done.returncode == 3 and dead in done.stderr and "127.0.0.1:2" in done.stderr


def test_a_node_that_knows_only_the_standby_finds_the_leader(ha: Ha) -> None:
    """It is told the address, once; and it stays there over its own restart."""
    leader = ha.leader()
    standby = ha.other(leader)
    node = ha.add_node(3, controllers=[standby.nodes.address])
    node.start()
    try:
        took = seconds_until(lambda: ha.node_states().get("n3") == "spare", HANG)
        note("node that knows the standby only", registered=took)
        assert f"names {leader.nodes.address} as the leader" in node.output()
    finally:
        node.end()
        del ha.nodes["n3"]
        ha.wait(lambda: ha.node_states().get("n3") in (None, "lost"), "n3 to be forgotten", HANG)
