"""The shim alone: real processes, real signals, its socket and its status file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodemanager import shim_client
from nodemanager.shim_client import ShimClient, ShimError
from tests.nodemanager.places import until

BOUND = 0.5  # seconds for what should take less than 0.1, on a busy machine


def specify(folder: Path, code: str, **values: Any) -> None:
    """A start.json whose engine is a Python program."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [sys.executable, "-S", "-c", code],
        "env": {"PATH": os.environ["PATH"]},
        "cwd": str(folder),
        "log_file": str(folder / "engine.log"),
        "orphan_grace": 60.0,
        "stop_grace": 2.0,
        "boot_id": "boot",
        **values,
    }
    (folder / "start.json").write_text(json.dumps(spec))


async def begin(folder: Path, code: str, **values: Any) -> tuple[ShimClient, Any]:
    """Start an engine under a shim; the connection and its events."""
    specify(folder, code, **values)
    await shim_client.launch(folder)
    client = await ShimClient.connect(folder)
    return client, client.events()


async def run_to_its_end(folder: Path, code: str, **values: Any) -> None:
    """For engines that may be over before anybody has connected."""
    specify(folder, code, **values)
    await shim_client.launch(folder)
    await until(lambda: recorded(folder)["state"] == "reaped")


async def event(events: Any, name: str, seconds: float = 5.0) -> dict[str, Any]:
    async def wait() -> dict[str, Any]:
        async for status in events:
            if status["event"] == name:
                return status
        raise AssertionError(f"the connection ended before {name}")

    return await asyncio.wait_for(wait(), seconds)


def recorded(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "status.json").read_text())


SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# Ends with code 7 when a file appears; a busy wait, so that the moment of the end is known.
EXIT_ON_FILE = "import os\nwhile not os.path.exists('go'): pass\nos._exit(7)"


async def test_exit_code_is_told_at_once_and_recorded(place: Path) -> None:
    client, events = await begin(place, EXIT_ON_FILE)
    (place / "go").touch()
    began = time.monotonic()
    status = await event(events, "exit")
    assert time.monotonic() - began < BOUND
    assert (status["exit_code"], status["exit_signal"]) == (7, None)
    assert (await event(events, "reaped"))["state"] == "reaped"
    assert recorded(place)["exit_code"] == 7
    client.close()
    await until(lambda: not shim_client.alive(status, "boot"), what="the shim ends by itself")


async def test_signal_is_told(place: Path) -> None:
    client, events = await begin(place, SLEEP)
    pid = (await event(events, "status"))["engine_pid"]
    began = time.monotonic()
    os.kill(pid, signal.SIGSEGV)
    status = await event(events, "exit")
    assert time.monotonic() - began < BOUND
    assert (status["exit_code"], status["exit_signal"]) == (None, signal.SIGSEGV)
    await event(events, "reaped")
    client.close()


async def test_output_goes_to_the_log_and_the_environment_is_exact(place: Path) -> None:
    code = "import os, sys; print(sorted(os.environ)); sys.stderr.write('oops')"
    await run_to_its_end(place, code, env={"ONE": "1"})
    log = (place / "engine.log").read_text()
    assert "'ONE'" in log and "PATH" not in log and "oops" in log


async def test_every_descendant_ends_with_the_main_process(place: Path) -> None:
    """Plain children, and ones that went to sessions of their own behind two forks."""
    code = (
        "import os, subprocess, time\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "subprocess.Popen(['sh', '-c', 'setsid sh -c \"touch a; exec sleep 601\" &'\n"
        "                  'setsid setsid sh -c \"touch b; exec sleep 602\" & wait'])\n"
        "while not (os.path.exists('a') and os.path.exists('b')): time.sleep(0.01)\n"
        "os._exit(0)"
    )
    client, events = await begin(place, code)
    assert (await event(events, "exit"))["exit_code"] == 0
    status = await event(events, "reaped")
    client.close()
    assert status["killed"]
    assert [p for p in psutil.process_iter() if _cwd(p) == str(place) and p.pid != status["shim_pid"]] == []


def _cwd(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.cwd()
    return ""


async def test_stop_is_sigterm_first(place: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    client, events = await begin(place, code)
    await until(lambda: "up" in (place / "engine.log").read_text())
    client.stop(10.0, "planned", "test", "over")
    assert (await event(events, "stopping"))["stop"]["by"] == "test"
    status = await event(events, "reaped")
    assert status["exit_code"] == 3 and not status["killed"]
    client.close()


async def test_deaf_engine_is_killed_after_the_grace(place: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    client, events = await begin(place, code)
    await until(lambda: "up" in (place / "engine.log").read_text())
    began = time.monotonic()
    client.stop(30.0, "planned", "test", "slow")
    client.stop(0.4, "failure", "test", "a shorter grace wins")
    status = await event(events, "exit")
    assert 0.35 < time.monotonic() - began < 2.0
    assert status["exit_signal"] == signal.SIGKILL
    await event(events, "reaped")
    client.close()


async def test_lease_runs_out_only_without_a_manager(place: Path) -> None:
    client, events = await begin(place, SLEEP, orphan_grace=0.8, stop_grace=0.5)
    for _ in range(5):
        await asyncio.sleep(0.25)
        client.renew(0.8)
    assert (await event(events, "status"))["state"] == "running"
    client.close()
    await until(lambda: recorded(place)["state"] == "reaped")
    status = recorded(place)
    assert status["stop"]["by"] == "shim" and "orphan_grace" in status["stop"]["reason"]
    log = (place / "shim.log").read_text()
    assert log.count("ALARM") == 2, log


async def test_sigterm_to_the_shim_ends_the_engine_in_order(place: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); time.sleep(600)"
    )
    client, events = await begin(place, code, orphan_grace=None)
    shim_pid = (await event(events, "status"))["shim_pid"]
    await until(lambda: "up" in (place / "engine.log").read_text())
    os.kill(shim_pid, signal.SIGHUP)
    os.kill(shim_pid, signal.SIGINT)
    os.kill(shim_pid, signal.SIGTERM)
    status = await event(events, "reaped")
    assert status["exit_code"] == 0 and status["stop"]["reason"] == "the shim got SIGTERM"
    client.close()


async def test_engine_does_not_inherit_ignored_signals_or_descriptors(place: Path) -> None:
    code = (
        "import os\n"
        "print('ignored', [l.split()[1] for l in open('/proc/self/status') if l.startswith('SigIgn')][0])\n"
        "print('descriptors', sorted(os.listdir('/proc/self/fd')))\n"
        "print('session', os.getsid(0) == os.getpid() == os.getpgid(0))"
    )
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        await run_to_its_end(place, code)
    finally:
        signal.signal(signal.SIGQUIT, before)
    log = (place / "engine.log").read_text()
    # Python itself ignores SIGPIPE (bit 12) and SIGXFSZ (bit 24). Under make also 32 and 33 are, which the C library
    # keeps for itself and lets no program change. Nothing else may be ignored.
    ignored = int(log.partition("ignored ")[2].split()[0], 16)
    assert ignored & ~(1 << 31 | 1 << 32) == 0x1001000
    assert "descriptors ['0', '1', '2', '3']" in log  # 3 is the folder being listed
    assert "session True" in log


async def test_a_program_that_cannot_be_executed_is_recorded(place: Path) -> None:
    await run_to_its_end(place, "", argv=["/nowhere/engine"])
    status = recorded(place)
    assert "/nowhere/engine" in status["start_error"] and status["exit_code"] is None


async def test_a_log_that_cannot_be_written_starts_nothing(place: Path) -> None:
    specify(place, SLEEP, log_file=str(place / "missing" / "engine.log"))
    with pytest.raises(ShimError, match="No such file"):
        await shim_client.launch(place)


async def test_long_state_folder(place: Path) -> None:
    """A socket's path holds 108 bytes; the folder's may be longer."""
    folder = place / ("x" * 100) / ("y" * 100)
    client, events = await begin(folder, SLEEP)
    client.stop(1.0, "planned", "test", "over")
    await event(events, "reaped")
    client.close()


async def test_full_disk_loses_no_exit(place: Path) -> None:
    """While the status cannot be written the shim stays and tells it over the socket."""
    client, events = await begin(place, EXIT_ON_FILE)
    await event(events, "status")
    (place / "status.json.tmp").mkdir()  # the next write fails, as on a full disk
    (place / "go").touch()
    status = await event(events, "exit")
    assert status["exit_code"] == 7
    await asyncio.sleep(0.3)
    assert shim_client.alive(status, "boot")
    (place / "status.json.tmp").rmdir()
    assert (await event(events, "reaped"))["exit_code"] == 7
    assert recorded(place)["state"] == "reaped"
    client.close()


async def test_a_frozen_shim_gives_its_manager_a_chance(place: Path) -> None:
    """After a suspend the lease is not simply over: nobody could renew it meanwhile."""
    client, events = await begin(place, SLEEP, orphan_grace=2.0)
    status = await event(events, "status")
    os.kill(status["shim_pid"], signal.SIGSTOP)
    await asyncio.sleep(0.3)
    os.kill(status["shim_pid"], signal.SIGCONT)
    client.renew(60.0)
    client.stop(0.0, "planned", "test", "over")
    await event(events, "reaped")
    client.close()


async def test_killed_shim_takes_its_engine_along(place: Path) -> None:
    """Even with no manager there: the kernel sends SIGTERM to the engine."""
    client, events = await begin(place, SLEEP)
    status = await event(events, "status")
    await until(lambda: "up" in (place / "engine.log").read_text())
    os.kill(status["shim_pid"], signal.SIGKILL)
    client.close()
    engine = {**status, "shim_pid": status["engine_pid"], "shim_start": status["engine_start"]}
    await until(lambda: not shim_client.alive(engine, "boot"))


def test_imports_of_the_shim_are_few() -> None:
    """It stays for weeks in memory beside the engine."""
    code = f"import sys, runpy; runpy.run_path({shim_client.shim.__file__!r}, run_name='x'); print(*sys.modules)"
    loaded = os.popen(f'{sys.executable} -I -S -c "{code}"').read().split()
    assert not {"asyncio", "threading", "subprocess", "pathlib", "logging"} & set(loaded)
