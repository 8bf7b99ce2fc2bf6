"""The running manager: its folders, its log, its signals and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import logging.handlers
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from motor_rpc import sd_notify as notify

from nodemanager.config import NodeConfig
from nodemanager.devices import with_found_devices
from nodemanager.node_status import node_status
from nodemanager.records import RecordError, Records
from nodemanager.service import MANAGER_LOG, NodeManager, motor_version
from nodemanager.status_server import StatusServer

log = logging.getLogger(__name__)

RUN_FILE = "nodemanager.json"
STATUS_SECONDS = 5.0


def run_manager(config: NodeConfig) -> int:
    """Run until a signal; the exit code."""
    records = Records(config.state_dir)
    try:
        for folder in (config.log_dir, config.run_folder):
            _make(folder)
        records.make_folders()
        records.lock()
        _set_up_logging(config.log_dir)
        node_id, incarnation = records.identity(config.node_id)
    except (RecordError, OSError) as error:
        click.echo(f"motor-nodemanager: {error}", err=True)
        return 1
    config = with_found_devices(config)
    try:
        asyncio.run(_serve(NodeManager(config, records, node_id, incarnation)))
    finally:
        records.unlock()
    return 0


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder}: cannot make it: {error.strerror}; create it for this user") from error


def _set_up_logging(log_dir: Path) -> None:
    line = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(logging.StreamHandler(sys.stderr))
    try:
        root.addHandler(logging.handlers.RotatingFileHandler(log_dir / MANAGER_LOG, maxBytes=10 << 20, backupCount=3))
    except OSError as error:  # a full disk must not keep the manager from its engines
        log.error("%s: %s; this log goes to stderr only", log_dir / MANAGER_LOG, error.strerror)
    for handler in root.handlers:
        handler.setFormatter(line)


async def _serve(manager: NodeManager) -> None:
    config = manager.config
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    log.info("node %s, incarnation %d, motor %s", manager.node_id, manager.incarnation, motor_version())
    if config.insecure and config.tls is None:
        log.warning("INSECURE: the connection to the controller is neither encrypted nor authenticated")
    elif config.insecure:
        log.warning("insecure: true has no effect beside tls; remove it from the node file")
    await manager.adopt()
    server = StatusServer(config.status_port, lambda: node_status(manager))
    await server.start()
    _write_run_file(config, server.port)
    tasks = [
        asyncio.create_task(manager.link.run()),
        asyncio.create_task(notify.feed_watchdog()),
        asyncio.create_task(_tell_systemd(manager)),
    ]
    notify.notify("READY=1")
    await over.wait()
    notify.notify("STOPPING=1")
    log.info(
        "ending; %d engine(s) go on under their shims",
        sum(not s.finished.is_set() for s in manager.slots.values()),
    )
    server.close()
    await _cancel([*tasks, *manager.detach()])
    with contextlib.suppress(OSError):
        (config.run_folder / RUN_FILE).unlink(missing_ok=True)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """End tasks. More than once if need be: until Python 3.12 `wait_for` swallows a cancellation that comes together
    with its result.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)


async def _tell_systemd(manager: NodeManager) -> None:
    """One line for `systemctl status`."""
    while True:
        notify.notify(
            f"STATUS={manager.overall()}, {len(manager.slots)} slot(s), controller {manager.link.state.state}"
        )
        await asyncio.sleep(STATUS_SECONDS)


def _write_run_file(config: NodeConfig, port: int) -> None:
    """Where tools on this machine find the manager: its pid and status port."""
    with contextlib.suppress(OSError):
        (config.run_folder / RUN_FILE).write_text(json.dumps({"pid": os.getpid(), "status_port": port}) + "\n")
