"""How long a deployment is without a leader, with real controllers, three members of etcd and real node managers.

Usage: python -m bench.failover [RUNS]       (default 5; about a quarter of a minute each; needs etcd)

  killed -> leads       SIGKILL of the leading controller until another answers /readyz with 200, lease 5 s
  killed -> nodes back  until every node is registered with it and everything is ready
  step-down -> leads    the answer to POST /v1/step-down until another answers /readyz with 200
  step-down -> nodes    until every node is registered with it
  restarts              engines that are not the same process as before all that
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.ha.cluster import LEASE, Ha, made

LIMIT = 60.0


def killed(ha: Ha) -> tuple[float, float]:
    old = ha.leader()
    began = time.monotonic()
    old.end(signal.SIGKILL)
    found = _moved(ha, began, old)
    old.start()
    ha.wait(lambda: old.ask("/livez"), "the old leader to stand by", LIMIT)
    return found


def stepped_down(ha: Ha) -> tuple[float, float]:
    old = ha.leader()
    answer = httpx.post(old.url + "/v1/step-down", json={}, trust_env=False)
    answer.raise_for_status()
    return _moved(ha, time.monotonic(), old)


def _moved(ha: Ha, began: float, old: object) -> tuple[float, float]:
    other = next(one for one in ha.controllers.values() if one is not old)
    while not other.leads():
        if time.monotonic() - began > LIMIT:
            raise SystemExit(f"no new leader within {LIMIT:g} s\n{ha.story()}")
        time.sleep(0.005)
    leads = time.monotonic() - began
    ha.wait_leader(LIMIT)
    ha.wait(ha.all_there, "all nodes to be back", LIMIT)
    return leads, time.monotonic() - began


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="motor-bench-") as folder, made(Path(folder)) as ha:
        before = ha.before()
        for _ in range(runs):
            leads, back = killed(ha)
            times.setdefault(f"killed -> leads (lease {LEASE} s)", []).append(leads)
            times.setdefault("killed -> nodes back", []).append(back)
            leads, back = stepped_down(ha)
            times.setdefault("step-down -> leads", []).append(leads)
            times.setdefault("step-down -> nodes back", []).append(back)
            time.sleep(3.0)  # the one that stepped down asks for the lead again
        after = ha.before()
        restarted = sum(before.pids[slot] != pid for slot, pid in after.pids.items())
    for what, found in times.items():
        print(f"{what:<32} min {min(found):6.2f}  median {statistics.median(found):6.2f}  max {max(found):6.2f} s")
    print(f"{'restarts':<32} {restarted} of {len(before.pids)} engines after {2 * runs} changes of leader")


if __name__ == "__main__":
    main()
