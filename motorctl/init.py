"""`motorctl init`: a commented deployment file to begin with."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from controller.config.samples import SAMPLES, SHAPES, find, shapes_of
from controller.config.samples_text import sample_text

EXIT_REFUSED = 2
_ENGINES = tuple(dict.fromkeys(sample.engine for sample in SAMPLES))
_SHAPES = "".join(f"\n  {name:<16} {says}" for name, says in SHAPES.items())


@click.command(help=f"Write a commented sample deployment (YAML) to FILE, or to the terminal.\n\n\b\nShapes:{_SHAPES}")
@click.option("--engine", type=click.Choice(_ENGINES), default=_ENGINES[0], show_default=True, help="Which engine.")
@click.option("--shape", type=click.Choice(list(SHAPES)), default="single-node", show_default=True, help="Which shape.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="A new .yaml file.")
def init(engine: str, shape: str, output: Path | None) -> None:
    sample = find(engine, shape)
    if sample is None:
        _refuse(f"there is no {shape} sample of {engine}; it has: {', '.join(shapes_of(engine))}")
        return
    text = sample_text(sample)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.suffix.lower() not in (".yaml", ".yml"):
        _refuse(f"{output}: the sample is YAML, and the suffix says how a file is read; expected .yaml or .yml")
    try:
        with output.open("x", encoding="utf-8") as file:  # never over a file that is there
            file.write(text)
    except FileExistsError:
        _refuse(f"{output}: is there already and is not overwritten; name another file or remove it")
    except OSError as error:
        _refuse(f"{output}: cannot be written: {error.strerror}")
    click.echo(f"{output}: {sample.says} Next: motorctl validate {output}")


def _refuse(why: str) -> None:
    click.echo(f"error: {why}", err=True)
    sys.exit(EXIT_REFUSED)
