"""`motorctl schema`: what a deployment file may hold, for editors and for people."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--markdown", is_flag=True, help="The reference for people, as docs/configuration.md has it.")
def schema(markdown: bool) -> None:
    """Print the JSON Schema of deploy.json (draft 2020-12).

    An editor uses it when the file begins with {"$schema": "deploy.schema.json", ...}.
    """
    if markdown:
        from controller.config.reference import reference

        click.echo(reference(), nl=False)
        return
    from controller.config.schema_json import deploy_schema

    click.echo(json.dumps(deploy_schema(), indent=2, ensure_ascii=False))
