"""The daemon as systemd and an operator see it."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import socket
from pathlib import Path

import pytest
from motor_rpc import control_pb2 as pb

from tests.nodemanager import wire
from tests.nodemanager.places import Node, free_port, get, until


async def test_systemd_hears_of_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY, signs of life, a status line, STOPPING: to a stand-in for systemd's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(place / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        node = Node(place / "n0", free_port())
        node.start()
        heard: list[str] = []

        def listen(word: str) -> bool:
            while True:
                try:
                    heard.append(systemd.recv(4096).decode())
                except BlockingIOError:
                    return any(word in message for message in heard)

        await until(lambda: listen("READY=1"))
        await until(lambda: listen("STATUS=initial, 0 slot(s)"))
        heard.clear()
        await until(lambda: listen("WATCHDOG=1"))
        # A manager that does not turn its loop does not feed the watchdog.
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        listen("")
        heard.clear()
        await asyncio.sleep(0.5)
        assert not listen("WATCHDOG=1")
        node.process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(node.end) == 0
        assert listen("STOPPING=1")


async def test_status_of_an_idle_node(place: Path) -> None:
    node = Node(place / "n0", free_port())
    node.start()
    await until(lambda: (node.state_dir / "nodemanager.json").exists())
    status = await asyncio.to_thread(node.local_status)
    assert status["status"] == "initial" and status["slots"] == []
    assert status["node"]["node_id"] == "n0"
    await until(lambda: "UNAVAILABLE" in node.local_status()["controller"]["detail"])
    port = json.loads((node.state_dir / "nodemanager.json").read_text())["status_port"]
    assert (await asyncio.to_thread(get, f"http://127.0.0.1:{port}/other"))[0] == 404
    assert await asyncio.to_thread(node.end, signal.SIGINT) == 0
    assert not (node.state_dir / "nodemanager.json").exists()


async def test_taken_status_port_does_not_keep_it_from_its_engines(place: Path) -> None:
    async with wire.serve(wire.Controller()) as controller:
        node = Node(place / "n0", controller.port, settings={"status_port": controller.port})
        node.start()
        await controller.session()
        assert "no /status until it is free" in node.output()
        node.end()


async def test_refusal_is_shown_and_does_not_end_it(place: Path) -> None:
    controller = wire.Controller()
    controller.refusal = pb.Refused(code="deployment", reason="expected b, got default", retry=False)
    async with wire.serve(controller):
        node = Node(place / "n0", controller.port)
        node.start()
        await until(lambda: node.local_status()["controller"]["state"] == "refused")
        assert "expected b, got default" in node.local_status()["controller"]["detail"]
        assert "expected b, got default" in node.output()
        assert node.process is not None and node.process.poll() is None
        node.end()


async def test_unwritable_state_folder(place: Path) -> None:
    (place / "file").write_text("")
    node = Node(place / "n0", 1, settings={"state_dir": str(place / "file" / "state")})
    process = node.start()
    assert await asyncio.to_thread(process.wait, 10) == 1
    assert "state_dir" in node.output() or "cannot make it" in node.output()


# Not root, and of root's rights only the one to read files: the interpreter may lie below /root.
AS_NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
for _set in ("inh-caps", "ambient-caps", "bounding-set"):
    AS_NOBODY.append(f"--{_set}=-all,+dac_read_search")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; not being root, all tests test it")
async def test_as_a_user_other_than_root(place: Path) -> None:
    """The whole way, with everything owned by `nobody`."""
    nobody = pwd.getpwnam("nobody")
    async with wire.serve(wire.Controller()) as controller:
        node = Node(place / "n0", controller.port, prefix=AS_NOBODY)
        for folder in [place, *place.parents]:
            if str(folder).startswith("/tmp/"):
                folder.chmod(folder.stat().st_mode | 0o055)
        for path in [node.root, *node.root.rglob("*")]:
            shutil.chown(path, nobody.pw_uid)
        node.start()
        session = await controller.session()
        controller.send(session, start=wire.start(wire.slot(), "tiny", 0, free_port()))
        ready = await session.state("ready")
        assert Path(f"/proc/{ready.pid}").stat().st_uid == nobody.pw_uid
        os.kill(node.status()["shim_pid"], signal.SIGKILL)
        assert "shim lost" in (await session.state("failed")).reason
        stop = pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure")
        controller.send(session, stop=stop)
        await session.state("stopped")
        assert node.end() == 0
