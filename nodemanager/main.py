"""Command line of motor-nodemanager. What a command needs is imported when it runs, so `--help` costs nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nodemanager.config import NodeConfig

EXIT_CONFIG = 2


@click.group(invoke_without_command=True)
@click.option(
    "--config", "path", type=click.Path(path_type=Path), help="The node file.",
    show_default="/etc/motor/nodemanager.yaml",
)  # fmt: skip
@click.option("--controller", "controllers", multiple=True, help="host:port; replaces the node file's list.")
@click.option("--address", help="Data address: a literal, an interface name or a CIDR.")
@click.option("--node-id", help="Replaces the node file's node_id.")
@click.option("--role", type=click.Choice(["prefill", "decode", "union"]))
@click.option("--state-dir", type=click.Path(path_type=Path))
@click.option("--log-dir", type=click.Path(path_type=Path))
@click.option("--status-port", type=int)
@click.version_option(package_name="motor-pcp", prog_name="motor-nodemanager")
@click.pass_context
def main(context: click.Context, /, path: Path | None, controllers: tuple[str, ...], **values: Any) -> None:
    """Look after the engines of this node. SIGTERM and Ctrl-C end the manager, the engines run on."""
    overrides = {name: value for name, value in values.items() if value is not None}
    if controllers:
        overrides["controllers"] = list(controllers)
    context.obj = (path, overrides)
    if context.invoked_subcommand is None:
        from nodemanager.daemon import run_manager

        sys.exit(run_manager(_load(path, overrides)))


@main.command()
@click.option("--engines", is_flag=True, required=True, help="Confirms that the engines are meant.")
@click.option("--config", "path", type=click.Path(path_type=Path), help="As before `stop`.")
@click.option("--grace", type=float, help="Seconds from SIGTERM to SIGKILL; default: each engine's own.")
@click.pass_obj
def stop(common: tuple[Path | None, dict[str, Any]], engines: bool, path: Path | None, grace: float | None) -> None:
    """End all engines of this node through their shims and wait until nothing of them is left."""
    import asyncio
    import logging

    from nodemanager.stop_engines import stop_engines

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    config = _load(path or common[0], common[1])
    sys.exit(asyncio.run(stop_engines(config, grace)))


def _load(path: Path | None, overrides: dict[str, Any]) -> NodeConfig:
    from nodemanager.config import DEFAULT_PATH, ConfigError, load

    try:
        return load(path or DEFAULT_PATH, overrides)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        sys.exit(EXIT_CONFIG)


if __name__ == "__main__":
    main()
