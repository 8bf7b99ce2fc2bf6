"""Command line of motor-nodemanager."""

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

from nodemanager.config import DEFAULT_PATH, ConfigError, NodeConfig, load
from nodemanager.devices import with_found_devices
from nodemanager.node_status import node_status
from nodemanager.records import RecordError, Records
from nodemanager.service import MANAGER_LOG, NodeManager, motor_version
from nodemanager.status_server import StatusServer
from nodemanager.stop_engines import stop_engines

log = logging.getLogger(__name__)

EXIT_CONFIG = 2
RUN_FILE = "nodemanager.json"
STATUS_SECONDS = 5.0


@click.group(invoke_without_command=True)
@click.option("--config", "path", type=click.Path(path_type=Path), default=DEFAULT_PATH, show_default=True)
@click.option("--controller", "controllers", multiple=True, help="host:port; replaces the node file's list.")
@click.option("--address", help="Data address: a literal, an interface name or a CIDR.")
@click.option("--node-id", help="Replaces the node file's node_id.")
@click.option("--role", type=click.Choice(["prefill", "decode", "union"]))
@click.option("--state-dir", type=click.Path(path_type=Path))
@click.option("--log-dir", type=click.Path(path_type=Path))
@click.option("--status-port", type=int)
@click.version_option(motor_version(), prog_name="motor-nodemanager")
@click.pass_context
def main(context: click.Context, /, path: Path, controllers: tuple[str, ...], **values: Any) -> None:
    """Look after the engines of this node. SIGTERM and Ctrl-C end the manager, the engines run on."""
    overrides = {name: value for name, value in values.items() if value is not None}
    if controllers:
        overrides["controllers"] = list(controllers)
    context.obj = (path, overrides)
    if context.invoked_subcommand is None:
        sys.exit(run_manager(_load(path, overrides)))


@main.command()
@click.option("--engines", is_flag=True, required=True, help="Confirms that the engines are meant.")
@click.option("--config", "path", type=click.Path(path_type=Path), help="As before `stop`.")
@click.option("--grace", type=float, help="Seconds from SIGTERM to SIGKILL; default: each engine's own.")
@click.pass_obj
def stop(common: tuple[Path, dict[str, Any]], engines: bool, path: Path | None, grace: float | None) -> None:
    """End all engines of this node through their shims and wait until nothing of them is left."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    config = _load(path or common[0], common[1])
    sys.exit(asyncio.run(stop_engines(config, grace)))


def _load(path: Path, overrides: dict[str, Any]) -> NodeConfig:
    try:
        return load(path, overrides)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        sys.exit(EXIT_CONFIG)


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
    if config.insecure:
        log.warning("INSECURE: the connection to the controller is neither encrypted nor authenticated")
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


if __name__ == "__main__":
    main()
