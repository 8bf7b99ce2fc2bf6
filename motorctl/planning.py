"""`motorctl plan` and `motorctl validate`: a deployment file without a controller and without hardware.

Exit codes: 0 = usable (warnings on stderr), 2 = not usable (all errors on stderr).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from controller.config.errors import ConfigError, Problem, dotted
from controller.config.plan import LoadedDeployment, load_deployment
from controller.config.render import render_plan
from controller.config.render_text import count_of, plan_data, plan_text

EXIT_INVALID = 2

_FILE = click.argument("file", type=click.Path(path_type=Path))


_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the output."
)


@click.command()
@_FILE
@_OUTPUT
def validate(file: Path, output: str) -> None:
    """Check deployment FILE and report every error, with what was expected and how to fix it.

    As JSON everything goes to stdout: `valid`, and `problems` with severity, path, line, value, rule and fix.
    """
    if output == "json":
        _validate_as_json(file)
        return
    loaded = load_or_exit(file)
    plan = loaded.plan
    slots = sum(instance.dp_size * instance.nnodes for instance in plan.instances)
    click.echo(f"{file}: valid, {count_of(len(plan.instances), 'instance')}, {count_of(slots, 'slot')}")


def _validate_as_json(file: Path) -> None:
    """Every problem for a program to read; the exit code is that of the text form."""
    try:
        problems = load_deployment(file).warnings
        valid = True
    except ConfigError as error:
        problems, valid = error.problems, False
    answer = {"file": str(file), "valid": valid, "problems": [problem_data(problem) for problem in problems]}
    click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    if not valid:
        sys.exit(EXIT_INVALID)


def problem_data(problem: Problem) -> dict[str, Any]:
    """One finding in plain values. Text that does not apply is empty; a line that is not known is null."""
    return {
        "severity": problem.severity.value,
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "path": dotted(problem.path),
        "what": problem.what,
        "value": problem.got,
        "expected": problem.expected,
        "fix": problem.fix,
        "rule": problem.rule,
        "overridable": problem.overridable,
    }


@click.command()
@_FILE
@_OUTPUT
def plan(file: Path, output: str) -> None:
    """Show role, ranks, argv, environment and ports of every slot of deployment FILE."""
    rendering = render_plan(load_or_exit(file))
    if output == "json":
        click.echo(json.dumps(plan_data(rendering), indent=2, ensure_ascii=False))
    else:
        click.echo(plan_text(rendering), nl=False)


def load_or_exit(file: Path) -> LoadedDeployment:
    """The deployment; warnings go to stderr. Errors end the program with code 2."""
    try:
        loaded = load_deployment(file)
    except ConfigError as error:
        _report("warning", error.warnings)
        _report("error", error.errors)
        errors, warnings = len(error.errors), len(error.warnings)
        click.echo(f"{file}: {count_of(errors, 'error')}, {count_of(warnings, 'warning')}", err=True)
        sys.exit(EXIT_INVALID)
    _report("warning", loaded.warnings)
    return loaded


def _report(severity: str, problems: Iterable[Problem]) -> None:
    for problem in problems:
        click.echo(f"{severity}: {problem}", err=True)
