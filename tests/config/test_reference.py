"""docs/configuration.md is what the program says today, and leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.config import file_rules
from controller.config.reference import reference
from controller.config.rule_list import RULE_GROUPS, RULES
from controller.config.schema_json import deploy_schema
from controller.config.vocabulary import REFUSED, WITHOUT_EFFECT
from engine_launch.profiles import PROFILES
from tests.golden_shapes import ROOT

TEXT = reference()


def test_the_committed_file_is_fresh() -> None:
    committed = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == TEXT, "run `make docs` and commit docs/configuration.md"


def test_every_key_is_in_it() -> None:
    for name, definition in deploy_schema()["$defs"].items():
        for key in definition.get("properties", {}):
            assert f"`{key}`" in TEXT or f".{key}`" in TEXT, f"{name}.{key}"
    for keys in WITHOUT_EFFECT.values():
        assert all(f"{key}`" in TEXT for key in keys)
    assert all(f"{key}`" in TEXT for _, key in REFUSED)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_in_it_with_what_it_refuses_and_keeps(name: str) -> None:
    profile = PROFILES[name]
    for word in (name, *profile.refused_env, *profile.node_env, *profile.form.reserved, *profile.form.read):
        assert f"`{word}`" in TEXT, word


def test_every_rule_is_in_it_with_severity_and_source() -> None:
    rows = {row.split("|")[1].strip(" `"): row for row in TEXT.splitlines() if row.startswith("| `")}
    for rule in RULES.values():
        assert rule.severity.value in rows[rule.id] and rule.says.replace("|", "\\|") in rows[rule.id], rule.id
        assert rule.source, rule.id


def test_no_two_rules_share_an_id() -> None:
    assert len(RULES) == sum(len(group) for group in RULE_GROUPS.values())


def test_the_rules_that_the_checks_of_a_file_name_are_the_listed_ones() -> None:
    named = set()
    for path in (ROOT / "controller" / "config").glob("*.py"):
        named |= set(re.findall(r'rule="([a-z0-9-]+)"', Path(path).read_text(encoding="utf-8")))
    listed = {rule.id for rule in (*file_rules.FILE, *file_rules.ENGINE, *file_rules.PORTS, *file_rules.TIMES)}
    assert listed <= named <= set(RULES)


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    width = 0
    for line in TEXT.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert cells == 0 or width == 0 or cells == width, line
        width = cells
