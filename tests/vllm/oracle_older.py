"""The oracle for other versions than the installed one: prints tables of docs/oracle.md.

Usage: python -m tests.vllm.oracle_older [VERSION ...]

Every golden shape of an upstream profile is planned for the version, and each of its command lines goes through that
version's parser and argument code up to the parallel configuration. What Motor refuses for the version is shown to it
as well, with the command line that the shape's own profile has.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.config.errors import ConfigError
from controller.config.load import parse_document
from controller.config.plan import LoadedDeployment, deployment_from
from controller.config.render import InstanceRendering, SlotRendering, render_plan
from tests.golden_shapes import SHAPES, load_shape
from tests.vllm.oracle import derive, disagreements, real_argv, write_models

VERSIONS = ("0.18.0", "0.21.0", "0.23.0", "0.25.1", "0.27.1", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")

# Versions before 0.21 keep these to themselves or under other names.
OPTIONAL = frozenset({"nnodes_within_dp", "node_rank_within_dp", "local_world_size", "data_parallel_external_lb"})


@dataclass(frozen=True)
class Case:
    """One shape for one version."""

    shape: str
    refusals: tuple[str, ...]  # ids of Motor's rules; empty: Motor plans it
    slots: tuple[tuple[InstanceRendering, SlotRendering], ...]

    def name(self, number: int) -> str:
        return f"{self.shape}:{number}"


def upstream_shapes() -> Iterator[str]:
    for shape in SHAPES:
        profiles = {instance.spec.profile for instance in render_plan(load_shape(shape)).instances}
        if all(profile.startswith("vllm@") for profile in profiles):
            yield shape


def case(shape: str, version: str, engine: str = "vllm") -> Case:
    """The shape with its profile replaced by this version's."""
    minor = ".".join(version.split(".")[:2])
    text = SHAPES[shape].read_text(encoding="utf-8")
    content = json.loads(text)
    for key, section in content.items():
        if key.startswith("motor_engine_"):
            section["engine_profile"] = f"{engine}@{minor}"
    try:
        planned = deployment_from(parse_document(SHAPES[shape].name, json.dumps(content)))
    except ConfigError as error:
        rules = tuple(dict.fromkeys(problem.rule or problem.what for problem in error.errors))
        return Case(shape, rules, _slots(load_shape(shape)))
    return Case(shape, (), _slots(planned))


def _slots(loaded: LoadedDeployment) -> tuple[tuple[InstanceRendering, SlotRendering], ...]:
    return tuple((instance, slot) for instance in render_plan(loaded).instances for slot in instance.slots)


def verdict(case: Case, found: dict[str, dict[str, Any]]) -> str:
    """One cell: what Motor and the engine say. A line that begins with DIFFERS is a defect of one of the two."""
    results = [found[case.name(number)] for number in range(len(case.slots))]
    errors = [result["error"] for result in results if "error" in result]
    if case.refusals:
        motor = f"Motor refuses ({', '.join(case.refusals)})"
        return f"{motor}; vLLM: {sentence(errors[0])}" if errors else f"{motor}; vLLM's arguments pass"
    if errors:
        return f"DIFFERS: Motor plans it; vLLM: {sentence(errors[0])}"
    wrong = [
        difference
        for (instance, slot), result in zip(case.slots, results, strict=True)
        for difference in disagreements(result, instance, slot, OPTIONAL)
    ]
    if wrong:
        return f"DIFFERS: {wrong[0]}"
    translations = {instance.spec.translation.value for instance, _ in case.slots if instance.spec.shape.dp > 1}
    lines = f"{len(results)} command line{'s' if len(results) > 1 else ''}"
    return f"accepted, {lines}" + "".join(f", {name}" for name in sorted(translations))


def sentence(error: str) -> str:
    """The engine's own words, on one line and without pydantic's address and the usage of a parser."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line and "validation error for" not in line] or lines[-1:]
    text = re.sub(r"\s*\[type=.*|For further information.*", "", " ".join(telling))
    plain = text.replace("`", "").replace("|", "/")
    return f"`{plain[:200]}`"


# Command lines that Motor never writes, and why it doesn't: name -> (model, words).
NEVER_WRITTEN = {
    "ranks that restart in each group": (
        "moe",
        "--tensor-parallel-size 8 --nnodes 2 --node-rank 1 --data-parallel-size 4 --data-parallel-rank 1",
    ),
    "the same with a size-local of 1": (
        "moe",
        "--tensor-parallel-size 8 --nnodes 2 --node-rank 1 --data-parallel-size 4 --data-parallel-rank 1 "
        "--data-parallel-size-local 1",
    ),
    "one world for a dense model, external": (
        "dense",
        "--tensor-parallel-size 2 --nnodes 4 --node-rank 0 --data-parallel-size 2 --data-parallel-rank 0",
    ),
    "PCP with groups in one world": (
        "moe",
        "--tensor-parallel-size 4 --prefill-context-parallel-size 2 --nnodes 8 --data-parallel-size 4 "
        "--data-parallel-rank 0 --enable-expert-parallel",
    ),
    "PCP alone over two nodes": ("dense", "--prefill-context-parallel-size 2 --nnodes 2"),
    "a group that does not divide": ("dense", "--tensor-parallel-size 8 --nnodes 3"),
    "DCP that does not divide": ("dense", "--tensor-parallel-size 8 --decode-context-parallel-size 3"),
    "tp 8 pcp 2 dcp 4": (
        "dense",
        "--tensor-parallel-size 8 --prefill-context-parallel-size 2 --decode-context-parallel-size 4",
    ),
    "data-parallel rank of a single group": ("dense", "--tensor-parallel-size 2 --nnodes 2 --data-parallel-rank 0"),
}


def run(version: str, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Verdicts by shape, and the engine's answers to what Motor never writes."""
    models = write_models(folder)
    cases = [case(shape, version) for shape in upstream_shapes()]
    commands = {
        each.name(number): real_argv(slot, models, instance)
        for each in cases
        for number, (instance, slot) in enumerate(each.slots)
    }
    for name, (model, words) in NEVER_WRITTEN.items():
        commands[name] = ["vllm", "serve", str(models[model]), *words.split(), "--skip-tokenizer-init"]
    found = derive(commands, version)
    answers = {name: _answer(found[name]) for name in NEVER_WRITTEN}
    return {each.shape: verdict(each, found) for each in cases}, answers


def _answer(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"refused: {sentence(result['error'])}"
    facts = ("world_size", "local_world_size", "nnodes_within_dp", "data_parallel_size", "data_parallel_rank")
    return "taken: " + ", ".join(f"{name} {result[name]}" for name in facts if name in result)


def table(title: str, rows: Sequence[tuple[str, str, str]], engine: str = "vLLM") -> None:
    """One line for each run of versions that say the same."""
    print(f"| {title} | {engine} | |\n|---|---|---|")
    for name in dict.fromkeys(row[0] for row in rows):
        of_name = [(version, says) for each, version, says in rows if each == name]
        for says, group in itertools.groupby(of_name, key=lambda row: row[1]):
            versions = [version for version, _ in group]
            span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
            print(f"| {name} | {span} | {says} |")
    print()


def main() -> int:
    """Prints the tables; 1 where Motor and an engine differ."""
    versions = sys.argv[1:] or VERSIONS
    shapes: list[tuple[str, str, str]] = []
    never: list[tuple[str, str, str]] = []
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            verdicts, answers = run(version, Path(folder))
        shapes += [(shape, version, says) for shape, says in verdicts.items()]
        never += [(name, version, says) for name, says in answers.items()]
    table("shape", shapes)
    table("never written by Motor", never)
    return int(any(says.startswith("DIFFERS") for _, _, says in shapes))


if __name__ == "__main__":
    sys.exit(main())
