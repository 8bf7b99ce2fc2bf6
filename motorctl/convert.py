"""`motorctl convert`: command lines -> deploy.json, and back.

The result is on stdout; what became of each part that is not in it, and what is wrong, on stderr. Exit codes:
0 = converted; 2 = not usable, or converted to what `motorctl validate` refuses (the result is printed nevertheless).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from controller.config.errors import ConfigError
from controller.config.load import parse_document
from controller.config.plan import deployment_from
from controller.config.render import render_plan
from engine_launch.model import Role
from engine_launch.profiles import ENGINE_TYPES, UnknownProfile
from motorctl.convert_merge import deploy_data
from motorctl.convert_nodes import engine_type_of, read_nodes
from motorctl.convert_read import Report, read_launches
from motorctl.convert_text import json_text
from motorctl.convert_write import slot_script
from motorctl.planning import EXIT_INVALID, load_or_exit

_DOCUMENTS = frozenset({".json", ".yaml", ".yml"})
_STDIN = "-"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--slot", help="Of a deployment file only this slot, such as prefill-0/0/1.")
@click.option("--role", type=click.Choice([role.value for role in Role]), help="The engines' role; else by kv_role.")
@click.option("--engine-type", type=click.Choice(ENGINE_TYPES), help="The engine; else by the commands.")
@click.option("--profile", help="engine@version whose flags hold, such as vllm@0.32; it goes into the result.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A variable that the scripts take as set.")
def convert(
    files: tuple[str, ...],
    slot: str | None,
    role: str | None,
    engine_type: str | None,
    profile: str | None,
    settings: tuple[str, ...],
) -> None:
    """Shell scripts with engine commands (- for stdin) into a deployment file, or a deployment file into scripts.

    Give the scripts of all nodes: their commands become one engine section for each role. Motor computes ranks and
    addresses; these are left out, and stderr says so.
    """
    documents = [name for name in files if Path(name).suffix.lower() in _DOCUMENTS]
    if documents and len(files) > 1:
        _refuse(f"{documents[0]}: a deployment file is converted alone; expected one file")
    if documents:
        _write_scripts(Path(files[0]), slot)
    elif slot:
        _refuse("--slot names a slot of a deployment file; expected a .json, .yaml or .yml file")
    else:
        variables = dict(_setting(text) for text in settings)
        _write_deployment([(_shown(name), _text(name)) for name in files], role, engine_type, profile, variables)


def _write_scripts(file: Path, slot: str | None) -> None:
    rendering = render_plan(load_or_exit(file))
    scripts = {
        str(rendered.slot): slot_script(instance, rendered)
        for instance in rendering.instances
        for rendered in instance.slots
    }
    if slot is not None and slot not in scripts:
        _refuse(f"{file}: there is no such slot; got {slot}; expected one of {', '.join(scripts)}")
    click.echo("\n".join([scripts[slot]] if slot is not None else scripts.values()), nl=False)


def _write_deployment(
    files: list[tuple[str, str]],
    role: str | None,
    engine_type: str | None,
    profile: str | None,
    variables: Mapping[str, str],
) -> None:
    report = Report()
    launches = read_launches(files, variables, report)
    engine_type = engine_type or engine_type_of(launches)
    try:
        nodes, choice = read_nodes(launches, engine_type, profile, report)
    except UnknownProfile as error:
        _refuse(f"--profile: unknown engine profile; got {profile}; {error}")
    data: dict[str, Any] = {}
    if nodes:
        data = deploy_data(nodes, engine_type, profile, choice, Role(role) if role else None, report)
        if choice.assumed:
            node = nodes[0]
            text = f"profile {choice.profile.name} is assumed ({choice.reason}); --profile names another"
            report.note(node.file, node.line, text)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    for trouble in report.errors:
        click.echo(f"error: {trouble}", err=True)
    if report.errors:
        sys.exit(EXIT_INVALID)
    text = json_text(data) + "\n"
    click.echo(text, nl=False)
    sys.exit(_validate(text))


def _validate(text: str) -> int:
    """What `motorctl validate` says of the result, by its own lines; the exit code."""
    try:
        warnings = deployment_from(parse_document("result", text)).warnings
    except ConfigError as error:
        for problem in (*error.warnings, *error.errors):
            click.echo(f"{problem.severity.value}: {problem}", err=True)
        click.echo("the result is not a valid deployment yet", err=True)
        return EXIT_INVALID
    for problem in warnings:
        click.echo(f"warning: {problem}", err=True)
    return 0


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        _refuse(f"--set: got {text}; expected NAME=VALUE")
    return name, value


def _shown(name: str) -> str:
    return "<stdin>" if name == _STDIN else name


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == _STDIN else Path(name).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        _refuse(f"{name}: cannot be read; got {error.strerror}; expected a readable file")
    except UnicodeDecodeError as error:
        _refuse(f"{_shown(name)}: is not UTF-8 text; got {error.reason}; expected a shell script")


def _refuse(text: str) -> NoReturn:
    click.echo(f"error: {text}", err=True)
    sys.exit(EXIT_INVALID)
