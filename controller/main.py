"""motor-controller: brings up the deployment that one file describes, and keeps it up."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from controller.config.advertise_rules import Advertised
    from controller.config.plan import LoadedDeployment

EXIT_FAILED, EXIT_CONFIG, EXIT_STORE_LOCKED, EXIT_ADDRESS = 1, 2, 3, 4

log = logging.getLogger("controller")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_file", required=True, type=click.Path(path_type=Path), help="deploy.json or .yaml")
@click.option("--log-level", default=None, help="DEBUG, INFO, WARNING or ERROR; default from the file")
@click.option("--advertise-grpc", envvar="MOTOR_ADVERTISE_GRPC", default="", help="host:port at which nodes find it.")
@click.option("--advertise-rest", envvar="MOTOR_ADVERTISE_REST", default="", help="URL at which operators find it.")
@click.version_option(package_name="motor-pcp")
def main(config_file: Path, log_level: str | None, advertise_grpc: str, advertise_rest: str) -> None:
    """Run the controller of one deployment in the foreground.

    Engines outlive it: SIGTERM ends this program only. Exit codes: 0 asked to end, 1 failed, 2 the configuration
    has errors, 3 another controller holds the store, 4 an address cannot be bound.
    """
    from controller.config.advertise_rules import Advertised
    from controller.config.errors import ConfigError
    from controller.config.plan import load_deployment

    try:
        deployment = load_deployment(config_file)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_CONFIG)
    deployment = _advertised(deployment, Advertised(advertise_grpc, advertise_rest))
    logging.basicConfig(
        level=log_level or deployment.settings.log_level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for warning in deployment.warnings:
        log.warning("%s", warning)
    from controller.daemon import run

    calm_collector()
    sys.exit(asyncio.run(run(deployment)))


def calm_collector() -> None:
    """Nearly everything that a controller makes stays: at Python's default of a look every 700 objects the collector
    took a quarter of the time in which 10,000 nodes registered. But a look at 50,000 takes 30 ms, and nobody is
    answered meanwhile: the first two looks at an object are short ones, the third is rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 100)


def _advertised(deployment: LoadedDeployment, given: Advertised) -> LoadedDeployment:
    """The same file serves all controllers: what differs between them can be given at the start."""
    settings = deployment.settings
    for name, got, expected in given.problems(tls=settings.tls is not None):
        click.echo(f"--advertise-{name}: expected {expected}, got {got}", err=True)
        sys.exit(EXIT_CONFIG)
    settings = dataclasses.replace(settings, advertised=given.over(settings.advertised))
    return dataclasses.replace(deployment, settings=settings)


if __name__ == "__main__":
    main()
