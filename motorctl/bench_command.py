"""`motorctl bench-command`: the benchmark of ATOM's PCP guide for a deployment, and for its baseline without PCP."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from controller.config.render import InstanceRendering, SlotRendering, render_plan
from engine_launch.command import url_host
from engine_launch.flags import Option
from engine_launch.model import EngineSpec, ParallelShape
from engine_launch.profiles import resolve
from motorctl.planning import EXIT_INVALID, load_or_exit

BENCHMARK = ("python", "-m", "atom.benchmarks.benchmark_serving")

# Sizes that a baseline changes; the rest of its command line is the deployment's own.
_TP = "tensor-parallel-size"
_PCP = "prefill-context-parallel-size"


@dataclass(frozen=True)
class Load:
    """What is asked of the server; the defaults are the guide's."""

    input_len: int = 32768
    output_len: int = 512
    num_prompts: int = 128
    max_concurrency: int = 64


@dataclass(frozen=True)
class Baseline:
    """The deployment to compare with: same devices, another split, no TBO."""

    shape: ParallelShape
    what: str  # for people


@click.command("bench-command")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--base-url", help="Where the server answers; default: the place of the instance's first API server.")
@click.option("--input-len", type=click.IntRange(1), default=Load.input_len, show_default=True, help="Prompt tokens.")
@click.option("--output-len", type=click.IntRange(1), default=Load.output_len, show_default=True, help="Answer tokens.")
@click.option("--num-prompts", type=click.IntRange(1), default=Load.num_prompts, show_default=True, help="In all.")
@click.option(
    "--max-concurrency", type=click.IntRange(1), default=Load.max_concurrency, show_default=True, help="At once."
)
def bench_command(
    file: Path, base_url: str | None, input_len: int, output_len: int, num_prompts: int, max_concurrency: int
) -> None:
    """Print how to measure the PCP of deployment FILE against the same devices without it.

    Nothing is run. PCP is for long prompts: watch mean TTFT and output throughput.
    """
    load = Load(input_len, output_len, num_prompts, max_concurrency)
    instances = [one for one in render_plan(load_or_exit(file)).instances if resolve(one.spec.profile).engine == "atom"]
    if not instances:
        click.echo(f"{file}: no ATOM engine, and the benchmark of its PCP guide is for no other", err=True)
        sys.exit(EXIT_INVALID)
    for instance in _one_of_each_role(instances):
        for warning in load_warnings(instance.spec, load):
            click.echo(f"warning: {instance.plan.name}: {warning}", err=True)
        click.echo("\n".join(instance_lines(instance, load, base_url)))


def instance_lines(instance: InstanceRendering, load: Load, base_url: str | None) -> list[str]:
    """The benchmark of what is deployed, then each baseline: its server, and the same benchmark."""
    spec, first = instance.spec, instance.slots[0]
    command = shell(benchmark_words(spec, base_url or _api_url(first), load))
    lines = [f"# {instance.plan.name}: {sizes(spec.shape)}, as deployed", command]
    if spec.shape.pcp == 1:
        return [*lines, "# no PCP: this is a baseline itself", ""]
    for baseline in baselines(spec):
        lines += ["", f"# baseline, {baseline.what}: {sizes(baseline.shape)}, in a copy of the file. Its server:"]
        lines += [f"#   {text}" for text in shell(baseline_argv(spec, first, baseline)).splitlines()]
        lines.append(command)
    return [*lines, ""]


def baselines(spec: EngineSpec) -> list[Baseline]:
    """All devices to tensor parallelism; and for TBO the same PCP without it, since TBO wants tensor parallelism 1."""
    shape, found = spec.shape, []
    if _is_on(spec, "enable-tbo"):
        found.append(Baseline(shape, "the same PCP without enable-tbo"))
    width = shape.tp * shape.pcp
    found.append(Baseline(dataclasses.replace(shape, tp=width, pcp=1), "tensor parallelism alone"))
    return found


def baseline_argv(spec: EngineSpec, slot: SlotRendering, baseline: Baseline) -> list[str]:
    """The server's command line as deployed, with the baseline's sizes."""
    sizes_now = {f"--{_TP}": baseline.shape.tp, f"--{_PCP}": baseline.shape.pcp}
    words, argv = [], list(slot.command.argv)
    while argv:
        word = argv.pop(0)
        if word == "--enable-tbo":
            if argv and not argv[0].startswith("-"):
                argv.pop(0)
        elif word in sizes_now:
            argv.pop(0)
            words += [word, str(sizes_now.pop(word))]
        else:
            words.append(word)
    return [*words, *(text for flag, size in sizes_now.items() for text in (flag, str(size)))]


def benchmark_words(spec: EngineSpec, base_url: str, load: Load) -> list[str]:
    """The guide's command. The model is the name of its tokenizer, the served name only what requests carry."""
    words = [*BENCHMARK, f"--model={spec.model}", "--backend=vllm", f"--base-url={base_url}"]
    served = _value(spec, "served-model-name")
    if served:
        words.append(f"--served-model-name={served}")
    return [
        *words,
        "--dataset-name=random",
        f"--random-input-len={load.input_len}",
        f"--random-output-len={load.output_len}",
        f"--num-prompts={load.num_prompts}",
        f"--max-concurrency={load.max_concurrency}",
        "--request-rate=inf",
        "--ignore-eos",
    ]


def load_warnings(spec: EngineSpec, load: Load) -> Iterator[str]:
    """Where the benchmark asks for more than the server takes."""
    longest, batched = _value(spec, "max-model-len"), _value(spec, "max-num-batched-tokens")
    if isinstance(longest, int) and load.input_len + load.output_len > longest:
        yield f"{load.input_len} + {load.output_len} tokens do not fit into max-model-len {longest}; see --input-len"
    chunked = _value(spec, "enable-chunked-prefill")
    if chunked is False and isinstance(batched, int) and load.input_len > batched:
        yield f"prompts of {load.input_len} tokens are rejected: max-num-batched-tokens is {batched}; see --input-len"


def sizes(shape: ParallelShape) -> str:
    return f"-tp {shape.tp} -pcp {shape.pcp}"


def shell(words: list[str]) -> str:
    """One option on each line, ready for a shell."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(group) for group in groups)


def _one_of_each_role(instances: list[InstanceRendering]) -> list[InstanceRendering]:
    """Instances of a role are alike."""
    return list({instance.plan.role: instance for instance in reversed(instances)}.values())[::-1]


def _api_url(slot: SlotRendering) -> str:
    return f"http://{url_host(slot.command.api_host or slot.assignment.address)}:{slot.command.api_port}"


def _options(spec: EngineSpec) -> dict[str, Option]:
    return {option.name: option for option in spec.options}


def _value(spec: EngineSpec, name: str) -> object:
    option = _options(spec).get(name)
    return option.value if option else None


def _is_on(spec: EngineSpec, name: str) -> bool:
    return bool(_value(spec, name))
