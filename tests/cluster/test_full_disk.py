"""A full disk under the store: what runs goes on, nothing new is started, it is said, and it ends with the space."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cluster.deployment import Deployment, engine_section

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting a small file system needs root and unshare"
)

SIZE = "512k"


def start_controller_on_small_disk(d: Deployment, folder: Path) -> None:
    """The mount is in a name space of the controller's own and ends with it."""
    folder.mkdir()
    program = f'mount -t tmpfs -o size={SIZE} small "$0" && exec "$@"'
    command = [sys.executable, "-m", "controller.main", "--config", str(d.file)]
    with (d.root / "controller.out").open("ab") as output:
        d.controller = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", program, str(folder), *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    d.wait(lambda: d.get("/healthz") is not None, "the controller to answer", 20.0)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return filler


def test_full_disk_keeps_engines_and_goes_on_when_space_is_back(
    deploy: Callable[..., Deployment], tmp_path: Path
) -> None:
    small = tmp_path / "small"
    store = {"kind": "sqlite", "path": str(small / "controller.sqlite3")}
    d = deploy({"motor_engine_union_config": engine_section(nnodes=1, dp=2)}, store=store)
    start_controller_on_small_disk(d, small)
    assert d.controller is not None
    d.start_nodes(2)
    d.wait_ready()
    assert not list(small.iterdir()), "the small disk is the controller's alone"
    before = d.members()
    inside = Path(f"/proc/{d.controller.pid}/root{small}")
    assert (inside / "controller.sqlite3").exists()
    filler = fill(inside)
    os.kill(before["union-0/0/0"]["pid"], signal.SIGKILL)
    d.wait(lambda: "full" in d.status()["store_error"], "the store's error")
    ready = httpx.get(d.url + "/readyz", trust_env=False)
    assert ready.status_code == 503 and "running engines are not touched" in ready.text
    d.wait(lambda: "cannot be stored" in d.group(0)["reason"], "the reason of the group that waits")
    assert d.members()["union-0/1/0"]["pid"] == before["union-0/1/0"]["pid"]
    assert [e["node_id"] for e in d.get("/v1/instances")] == [before["union-0/1/0"]["node_id"]]
    assert httpx.get(d.get("/v1/instances")[0]["url"] + "/v1/models", trust_env=False).status_code == 200
    assert d.group(0)["members"][0]["pid"] in (0, before["union-0/0/0"]["pid"]), "nothing was started"

    answer = httpx.post(d.url + "/v1/orders", json={"order": "cordon", "target": "n1"}, trust_env=False)
    assert answer.status_code == 200
    filler.unlink()
    d.wait(lambda: d.status()["store_error"] == "", "the store to be well again")
    assert httpx.get(d.url + "/readyz", trust_env=False).status_code == 200
    httpx.post(d.url + "/v1/orders", json={"order": "uncordon", "target": "n1"}, trust_env=False)
    d.wait_ready()
    after = d.members()
    assert after["union-0/1/0"]["pid"] == before["union-0/1/0"]["pid"]
    assert after["union-0/0/0"]["pid"] not in (0, before["union-0/0/0"]["pid"])


def test_an_order_that_could_not_be_stored_is_stored_later(deploy: Callable[..., Deployment], tmp_path: Path) -> None:
    """Nothing else writes: the order itself is tried again."""
    small = tmp_path / "small"
    store = {"kind": "sqlite", "path": str(small / "controller.sqlite3")}
    d = deploy({"motor_engine_union_config": engine_section(nnodes=1)}, store=store)
    start_controller_on_small_disk(d, small)
    assert d.controller is not None
    inside = Path(f"/proc/{d.controller.pid}/root{small}")
    filler = fill(inside)
    paused = httpx.post(d.url + "/v1/orders", json={"order": "pause", "reason": "a test"}, trust_env=False)
    assert paused.status_code == 200
    d.wait(lambda: d.status()["store_error"], "the store's error")
    filler.unlink()
    d.wait(lambda: not d.status()["store_error"], "the order to be stored")
    copy = tmp_path / "copy"
    copy.mkdir()
    d.controller.send_signal(signal.SIGSTOP)
    for path in inside.glob("controller.sqlite3*"):
        shutil.copy(path, copy)
    d.controller.send_signal(signal.SIGCONT)
    d.end_controller(signal.SIGKILL)
    text = d.file.read_text().replace(str(small), str(copy))
    d.file.write_text(text)
    d.start_controller()
    assert d.status()["paused"] == "a test"
