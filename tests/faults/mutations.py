"""Take one mechanism out of a copy of the tree and see that its row of docs/faults.md then fails.

    python -m tests.faults.mutations                    all of them, one after the other (root; about an hour)
    python -m tests.faults.mutations --only "deaf"      those whose row has this text
    python -m tests.faults.mutations --list             what there is, as docs/faults.md has it; runs nothing

What is taken out stands in `mechanisms.py`. A test that fails is not enough: the words of its failure are compared
too, so that a mutation which merely breaks everything is told from one that removes what the test is for.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.mechanisms import MUTATIONS, Edit, Mutation
from tests.nodemanager.places import kill_all

ROOT = Path(__file__).parent.parent.parent
LIMIT_SECONDS = 420.0  # of one mutation: every wait of a test ends earlier
TEAR_DOWN_SECONDS = 90.0
PACKAGES = ("controller", "nodemanager", "engine_launch", "motor_rpc")  # what the daemons run


class StaleMutation(Exception):
    """The text to replace is not found exactly once: the code has moved on, the mutation has to follow."""


@dataclass(frozen=True)
class Outcome:
    """What became of one test: "" for passed, else the failure's own words."""

    test: str
    failure: str


def mutate(tree: Path, edits: Sequence[Edit]) -> None:
    """Apply all edits below `tree`. StaleMutation if one does not match exactly once."""
    for edit in edits:
        path = tree / edit.file
        text = path.read_text()
        if (count := text.count(edit.old)) != 1:
            raise StaleMutation(f"{edit.file}: expected exactly once, found {count} times:\n{edit.old}")
        path.write_text(text.replace(edit.old, edit.new))


def copy_tree(to: Path) -> None:
    """Everything that git tracks or would track, as it is now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def environment(tree: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Python finds the copy before the installed tree, here and in every daemon."""
    return {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'proto'}", "PYTHONDONTWRITEBYTECODE": "1", **more}


def check_resolves(tree: Path) -> None:
    """RuntimeError if the daemons of this copy would run code of another tree."""
    program = f"import {', '.join(PACKAGES)}; print(*(m.__path__[0] for m in ({', '.join(PACKAGES)})), sep='\\n')"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tree, env=environment(tree, {}), capture_output=True, text=True, check=True
    )
    for path in found.stdout.split():
        if not path.startswith(f"{tree}/"):
            raise RuntimeError(f"expected the code of {tree}, python finds {path}")


@contextlib.contextmanager
def mutated_tree(mutation: Mutation) -> Iterator[Path]:
    """A copy with the mutation; at the end no process of it is left, however its tests ended."""
    folder = Path(tempfile.mkdtemp(prefix="motor-mutated-"))
    try:
        copy_tree(folder)
        mutate(folder, mutation.edits)
        check_resolves(folder)
        yield folder
    finally:
        kill_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def run_tests(tree: Path, mutation: Mutation) -> list[Outcome]:
    """What became of the mutation's tests."""
    results = tree / "results.xml"
    argv = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", f"--basetemp={tree / 'tmp'}",
        f"--junitxml={results}", "-o", "junit_logging=no", *mutation.tests,
    ]  # fmt: skip
    with (tree / "output").open("wb") as output:
        pytest = subprocess.Popen(
            argv, cwd=tree, env=environment(tree, dict(mutation.env)), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pytest.wait(LIMIT_SECONDS)
        finally:
            end(pytest)
    return outcomes(results)


def end(pytest: subprocess.Popen[bytes]) -> None:
    """First as Ctrl-C does: then its fixtures take their hosts and daemons down."""
    if pytest.poll() is None:
        pytest.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.wait(TEAR_DOWN_SECONDS)
    if pytest.poll() is None:
        pytest.kill()
        pytest.wait()


def outcomes(results: Path) -> list[Outcome]:
    """From pytest's own report; [] if there is none."""
    if not results.exists():
        return []
    words: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):  # two for a test whose fixtures failed at the end as well
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        told = "".join(f"{child.get('message', '')}\n{child.text or ''}\n" for child in bad)
        words[case.get("name", "?")] = words.get(case.get("name", "?"), "") + told
    return [Outcome(test, failure) for test, failure in words.items()]


def judge(mutation: Mutation, found: Sequence[Outcome]) -> tuple[bool, str]:
    """(failed as it should, one line about it)."""
    if not found:
        return False, "NO RESULT: pytest did not get to its end"
    if passed := [one.test for one in found if not one.failure]:
        return False, f"STILL PASSES: {', '.join(passed)}"
    if other := [one for one in found if not said(mutation, one)]:
        return False, f"FAILED IN ANOTHER WAY: {other[0].test}: {line_with('', other[0].failure)}"
    return True, f"failed as it should: {line_with(said(mutation, found[0]), found[0].failure)}"


def said(mutation: Mutation, found: Outcome) -> str:
    """Which of the expected words the failure has; "" for none."""
    words = (mutation.says,) if isinstance(mutation.says, str) else mutation.says
    return next((one for one in words if one in found.failure), "")


def line_with(words: str, text: str) -> str:
    """The first line that has them ("" : the first of all)."""
    return next((line.strip() for line in text.strip().splitlines() if words in line), "")[:160]


def run(mutation: Mutation, keep: Path | None) -> bool:
    began = time.monotonic()
    with mutated_tree(mutation) as tree:
        good, line = judge(mutation, run_tests(tree, mutation))
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            name = "".join(letter if letter.isalnum() else "_" for letter in f"{mutation.row} {mutation.removed}")[:100]
            shutil.copy2(tree / "output", keep / f"{name}.txt")
    print(f"{mutation.row} [{mutation.removed}]: {line} ({time.monotonic() - began:.0f} s)", flush=True)
    return good


def listed(mutation: Mutation) -> str:
    """Its line of docs/faults.md."""
    return f"| {mutation.row} | {mutation.removed} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="rows with this text")
    parser.add_argument("--list", action="store_true", help="say what there is and run nothing")
    parser.add_argument("--keep", type=Path, help="folder for what pytest wrote")
    options = parser.parse_args()
    chosen = [one for one in MUTATIONS if options.only in one.row]
    if not chosen:
        parser.error(f"no row has {options.only!r} in it; see --list")
    if options.list:
        for one in chosen:
            print(listed(one))
        return 0
    # A background job ignores Ctrl-C, and so would pytest; and an order to end must not leave daemons behind.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    bad = [one.row for one in chosen if not run(one, options.keep)]
    print(
        f"{len(chosen) - len(bad)} of {len(chosen)} failed as they should" + "".join(f"\n  not: {row}" for row in bad)
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
