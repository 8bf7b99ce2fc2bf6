"""motor-controller: brings up the deployment that one file describes, and keeps it up."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import click

EXIT_FAILED, EXIT_CONFIG, EXIT_STORE_LOCKED, EXIT_ADDRESS = 1, 2, 3, 4

log = logging.getLogger("controller")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_file", required=True, type=click.Path(path_type=Path), help="deploy.json or .yaml")
@click.option("--log-level", default=None, help="DEBUG, INFO, WARNING or ERROR; default from the file")
@click.version_option(package_name="motor-pcp")
def main(config_file: Path, log_level: str | None) -> None:
    """Run the controller of one deployment in the foreground.

    Engines outlive it: SIGTERM ends this program only. Exit codes: 0 asked to end, 1 failed, 2 the configuration
    has errors, 3 another controller holds the store, 4 an address cannot be bound.
    """
    from controller.config.errors import ConfigError
    from controller.config.plan import load_deployment

    try:
        deployment = load_deployment(config_file)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_CONFIG)
    logging.basicConfig(
        level=log_level or deployment.settings.log_level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for warning in deployment.warnings:
        log.warning("%s", warning)
    from controller.daemon import run

    sys.exit(asyncio.run(run(deployment)))


if __name__ == "__main__":
    main()
