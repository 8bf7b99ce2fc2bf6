"""The mutations of tests/faults/mechanisms.py fit the tree, and every row of docs/faults.md has one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.faults.mechanisms import MUTATIONS, Mutation
from tests.faults.mutations import Outcome, judge, listed, mutate

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "faults.md"
SEEN = "## Seen to fail"


def rows() -> list[str]:
    """`Killed: manager` for each row of a table of faults, as mutations name them."""
    found, section = [], ""
    for line in DOCUMENT.read_text().partition(SEEN)[0].splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ").split()[0]
        elif line.startswith("| ") and not line.startswith("| Fault |"):
            found.append(f"{section}: {line.split('|')[1].strip()}")
    return found


def test_every_row_has_a_mutation_and_every_mutation_a_row() -> None:
    assert len(rows()) > 30, "the tables were found"
    assert set(rows()) == {one.row for one in MUTATIONS}


def test_the_document_says_what_was_removed() -> None:
    """`python -m tests.faults.mutations --list` writes these lines."""
    told = [line for line in DOCUMENT.read_text().partition(SEEN)[2].splitlines() if line.startswith("| ")]
    assert told[1:] == [listed(one) for one in MUTATIONS]


def name(mutation: Mutation) -> str:
    return f"{mutation.row} without {mutation.removed}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=name)
def test_mutation_fits_the_tree(mutation: Mutation, tmp_path: Path) -> None:
    """Each text is there exactly once, what comes out is a program, and the tests exist."""
    files = {edit.file for edit in mutation.edits}
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    mutate(tmp_path, mutation.edits)
    for file in files:
        changed = (tmp_path / file).read_text()
        assert changed != (ROOT / file).read_text()
        ast.parse(changed, file)
    for test in mutation.tests:
        file, _, function = test.partition("::")
        assert re.search(rf"def {function.partition('[')[0]}\(", (ROOT / file).read_text()), f"{test} does not exist"


PASSED, AS_MEANT, OTHERWISE = Outcome("a", ""), Outcome("b", "the bound\nwas passed"), Outcome("c", "ImportError")


@pytest.mark.parametrize(
    ("found", "good", "words"),
    [
        ([AS_MEANT], True, "failed as it should: the bound"),
        ([AS_MEANT, PASSED], False, "STILL PASSES: a"),
        ([AS_MEANT, OTHERWISE], False, "FAILED IN ANOTHER WAY: c: ImportError"),
        ([], False, "NO RESULT"),
    ],
)
def test_verdict(found: list[Outcome], good: bool, words: str) -> None:
    mutation = Mutation("a row", ("a test",), "a mechanism", "the bound", ())
    assert judge(mutation, found)[0] is good
    assert words in judge(mutation, found)[1]
