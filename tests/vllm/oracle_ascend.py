"""The oracle for vLLM-Ascend: prints tables of docs/oracle.md.

Usage: python -m tests.vllm.oracle_ascend [VERSION ...]

The plug-in's wheel is unpacked beside the vLLM that it sits on, the one with the same two numbers, and both run on the
PyTorch of the engine's environment: its parser, its platform and configuration code, its patches of vLLM. What the
hardware's library would say stands in stand_in_torch_npu.py; compiled parts and models are left out.

Golden command lines are shown to each version, planned for it. Then come configurations that a rule is about: each goes
to Motor as a file and to the engine as a command line, and the table has both answers.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.config.errors import ConfigError
from controller.config.load import parse_document
from controller.config.plan import deployment_from
from controller.config.render import InstanceRendering, SlotRendering, render_plan
from demo.cache import SetupFailed, entry, exclusive, print_progress, publish, workspace
from demo.engine_environment import EngineEnvironment, ensure_engine_environment
from tests.golden_shapes import SHAPES, load_shape
from tests.vllm.older_wheels import run_with
from tests.vllm.oracle import CONFIGS, address_of
from tests.vllm.oracle_older import Case, case, sentence, table, verdict

SCRIPT = Path(__file__).with_name("parse_ascend.py")
STAND_IN = Path(__file__).with_name("stand_in_torch_npu.py")

# The plug-in's version -> its vLLM's, as the Dockerfile of the tag says. Versions between have no wheel.
VERSIONS: Mapping[str, str] = {
    "0.12.0rc1": "0.12.0",
    "0.13.0": "0.13.0",
    "0.18.0": "0.18.0",
    "0.21.0rc1": "0.21.0",
    "0.22.1rc1": "0.22.1",
    "0.23.0": "0.23.0",
    "0.24.0rc1": "0.24.0",
    "0.25.1rc1": "0.25.1",
    "0.26.0rc1": "0.26.0",
}

# Entry points of the plug-in that are loaded; the others register models and loaders, which need more of the hardware.
_PLUGINS = "ascend,ascend_kv_connector"

# Wheels are of both machines' kinds, and of one Python version each; only their Python files are used.
_ANY_BUILD = ["--only-binary=:all:"] + [
    word
    for tag in ("2_24", "2_28", "2_34", "2_35")
    for machine in ("x86_64", "aarch64")
    for word in ("--platform", f"manylinux_{tag}_{machine}")
]

_V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
MODELS: Mapping[str, Mapping[str, Any]] = {
    **CONFIGS,
    "moe_gqa": {**CONFIGS["moe"], "num_key_value_heads": 2},
    # What quantization `ascend` and MTP ask of a model.
    "deepseek": {
        **CONFIGS["mla"],
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
# What the last part of a golden file's model path stands for.
_GOLDEN_MODELS = {"your_model": "dense", "qwen": "dense", "moe_model": "moe_gqa", "deepseek_v3": "deepseek"}


@dataclass(frozen=True)
class Configuration:
    """An engine section for Motor, and the same command line for the engine."""

    options: Mapping[str, Any]
    model: str = "dense"
    env: Mapping[str, str] = field(default_factory=dict)
    decode: Mapping[str, Any] | None = None  # options of the other role, where the rule is about the pair
    section: Mapping[str, Any] = field(default_factory=dict)  # more of Motor's engine section
    words: str = ""  # what Motor would compute: ranks


def _kv(p: int = 8, d: int = 8, connector: str = "MooncakeConnectorV1") -> dict[str, Any]:
    sizes = {"prefill": {"tp_size": p, "dp_size": 1}, "decode": {"tp_size": d, "dp_size": 1}}
    role = {"kv_role": "kv_producer", "kv_port": 14579, "kv_connector_extra_config": sizes}
    return {"kv-transfer-config": {"kv_connector": connector, **role}}


_TP, _PCP, _DCP = "tensor-parallel-size", "prefill-context-parallel-size", "decode-context-parallel-size"
_STRIPE, _BLOCK, _PP = "cp-kv-cache-interleave-size", "block-size", "pipeline-parallel-size"
_MTP = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 1}}
_WORLD = {"data-parallel-size": 2, "enable-expert-parallel": True, _TP: 8}
_IN_ONE_WORLD = {"dp_translation": "native_external"}

CONFIGURATIONS: Mapping[str, Configuration] = {
    "PCP": Configuration({_TP: 8, _PCP: 2}, "mla"),
    "PCP, V2 runner": Configuration({_TP: 8, _PCP: 2}, "mla", _V2),
    "PCP and stages": Configuration({_TP: 4, _PCP: 2, _PP: 2}, "mla"),
    "PCP and stages, V2 runner": Configuration({_TP: 4, _PCP: 2, _PP: 2}, "mla", _V2),
    "PCP and DCP, V2 runner": Configuration({_TP: 8, _PCP: 2, _DCP: 2}, "mla", _V2),
    "PCP and LoRA, with MLA, V2 runner": Configuration({_TP: 8, _PCP: 2, "enable-lora": True}, "mla", _V2),
    "PCP without MLA, V2 runner": Configuration({_TP: 8, _PCP: 2}, "moe_gqa", _V2),
    "PCP and LoRA": Configuration({_TP: 8, _PCP: 2, "enable-lora": True}, "moe_gqa"),
    "PCP, groups in one world": Configuration(
        {**_WORLD, _PCP: 2}, "moe", section=_IN_ONE_WORLD, words="--data-parallel-rank 0"
    ),
    "groups in one world": Configuration(_WORLD, "moe", section=_IN_ONE_WORLD, words="--data-parallel-rank 0"),
    "dense, groups in one world": Configuration(
        {"data-parallel-size": 2, _TP: 8}, section=_IN_ONE_WORLD, words="--data-parallel-rank 0"
    ),
    "PCP alone over two nodes": Configuration({_TP: 1, _PCP: 2, "nnodes": 2}, "mla"),
    "tp 8 over three nodes": Configuration({_TP: 8, "nnodes": 3}),
    "tp 5 of 48 heads": Configuration({_TP: 5}),
    "stages of no layer": Configuration({_PP: 4}),
    "experts of a dense model": Configuration({"enable-expert-parallel": True}),
    "tp 16 pcp 2 dcp 8": Configuration({_TP: 16, _PCP: 2, _DCP: 8}, "mla"),
    "dcp 3 of tp 8": Configuration({_TP: 8, _DCP: 3}, "mla"),
    "dcp 2 of tp 8, 48 KV heads": Configuration({_TP: 8, _DCP: 2}, "dense"),
    "dcp 8 of tp 8, 4 KV heads": Configuration({_TP: 8, _DCP: 8}, "gqa"),
    "stripe 0": Configuration({_TP: 8, _DCP: 2, _STRIPE: 0}, "mla"),
    "stripe 48 of block 128": Configuration({_TP: 8, _BLOCK: 128, _STRIPE: 48}, "mla"),
    "the same with DCP": Configuration({_TP: 8, _DCP: 2, _BLOCK: 128, _STRIPE: 48}, "mla"),
    "KV, DCP, stripe 64 of block 128": Configuration({_TP: 8, _DCP: 2, _BLOCK: 128, _STRIPE: 64, **_kv()}, "mla"),
    "KV, DCP, stripe unsaid": Configuration({_TP: 8, _DCP: 2, _BLOCK: 128, **_kv()}, "mla"),
    "KV, DCP, block unsaid, stripe 128": Configuration({_TP: 8, _DCP: 2, _STRIPE: 128, **_kv()}, "mla"),
    "KV, DCP, block unsaid, stripe 64": Configuration({_TP: 8, _DCP: 2, _STRIPE: 64, **_kv()}, "mla"),
    "KV, DCP, both 128": Configuration({_TP: 8, _DCP: 2, _BLOCK: 128, _STRIPE: 128, **_kv()}, "mla"),
    "KV, PCP, stripe 64 of block 128": Configuration({_TP: 8, _PCP: 2, _BLOCK: 128, _STRIPE: 64, **_kv()}, "mla"),
    "sparse, dcp 2 of tp 8": Configuration({_TP: 8, _DCP: 2}, "sparse"),
    "sparse, dcp 8 of tp 8": Configuration({_TP: 8, _DCP: 8}, "sparse"),
    "sparse, pcp 2 dcp 2 of tp 8": Configuration({_TP: 8, _PCP: 2, _DCP: 2}, "sparse"),
    "sparse, dcp 8, stripe 64 of block 128": Configuration({_TP: 8, _DCP: 8, _BLOCK: 128, _STRIPE: 64}, "sparse"),
    "KV sizes of another engine": Configuration({_TP: 8, **_kv(p=16)}, decode={_TP: 8, **_kv()}),
    "KV, prefill tp 4, decode tp 8": Configuration({_TP: 4, **_kv(4, 8)}, decode={_TP: 8, **_kv(4, 8)}),
    "KV, prefill tp 6, decode tp 4": Configuration({_TP: 6, **_kv(6, 4)}, decode={_TP: 4, **_kv(6, 4)}),
    "KV, MLA, prefill tp 6, decode tp 4": Configuration({_TP: 6, **_kv(6, 4)}, "mla", decode={_TP: 4, **_kv(6, 4)}),
    "KV by layers, prefill tp 4, decode tp 8": Configuration(
        {_TP: 4, **_kv(4, 8, "MooncakeLayerwiseConnector")},
        decode={_TP: 8, **_kv(4, 8, "MooncakeLayerwiseConnector")},
    ),
    "MTP and stages": Configuration({_TP: 4, _PP: 2, **_MTP}, "deepseek"),
    "MTP and stages, prefill side": Configuration(
        {_TP: 4, _PP: 2, **_MTP, **_kv(4, 4)}, "deepseek", decode={_TP: 4, **_kv(4, 4)}
    ),
    "FlashComm1 with tp 1": Configuration({}, "dense", {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}),
    "FlashComm1, experts without expert parallelism": Configuration(
        {_TP: 8}, "moe", {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}
    ),
    "graphs and ASCEND_LAUNCH_BLOCKING": Configuration({_TP: 8}, "dense", {"ASCEND_LAUNCH_BLOCKING": "1"}),
}


def motor_says(each: Configuration, version: str, models: Mapping[str, Path]) -> str:
    """Ids of the rules by which Motor refuses the file or warns; empty: neither."""
    minor = ".".join(version.split(".")[:2])

    def section(options: Mapping[str, Any], kv_role: str) -> dict[str, Any]:
        config = {**json.loads(json.dumps(options)), "model": str(models[each.model])}
        if "kv-transfer-config" in config:
            config["kv-transfer-config"]["kv_role"] = kv_role
        env = {"env": dict(each.env)} if each.env else {}
        return {
            "engine_type": "vllm",
            "engine_profile": f"vllm_ascend@{minor}",
            "engine_config": config,
            **each.section,
            **env,
        }

    pair = "kv-transfer-config" in each.options
    content: dict[str, Any] = {
        f"motor_engine_{'prefill' if pair else 'union'}_config": section(each.options, "kv_producer")
    }
    if pair:
        content["motor_engine_decode_config"] = section(each.decode or _peer(each), "kv_consumer")
    try:
        loaded = deployment_from(parse_document("deploy.json", json.dumps(content)))
    except ConfigError as error:
        return "refuses: " + ", ".join(dict.fromkeys(problem.rule or problem.what for problem in error.errors))
    warned = [problem.rule for problem in loaded.warnings if problem.rule.startswith(("ascend-", "vllm-", "kv-pair"))]
    return "plans it" + (f", warns: {', '.join(dict.fromkeys(warned))}" if warned else "")


def _peer(each: Configuration) -> dict[str, Any]:
    """A decode side that goes with a prefill side of tp 8."""
    kept = {name: each.options[name] for name in (_BLOCK, "kv-transfer-config") if name in each.options}
    return {_TP: 8, **kept}


def _argv(each: Configuration, models: Mapping[str, Path]) -> list[str]:
    words: list[str] = []
    for name, value in each.options.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        words += [f"--{name}"] if value is True else [f"--{name}", text]
    return ["vllm", "serve", str(models[each.model]), *words, *each.words.split(), *_QUIET]


_QUIET = ("--load-format", "dummy", "--skip-tokenizer-init")


def ascend_shapes() -> Iterator[str]:
    for shape in SHAPES:
        profiles = {instance.spec.profile for instance in render_plan(load_shape(shape)).instances}
        if all(profile.startswith("vllm_ascend@") for profile in profiles):
            yield shape


def _golden_argv(slot: SlotRendering, models: Mapping[str, Path]) -> list[str]:
    words = [address_of(word) if word.startswith("<") else word for word in slot.command.argv]
    return [*words[:2], str(models[_GOLDEN_MODELS[words[2].rpartition("/")[2]]]), *words[3:], *_QUIET]


def _golden_env(slot: SlotRendering) -> dict[str, str]:
    return {name: value for name, value in slot.command.env.items() if not value.startswith("<")}


def write_models(folder: Path) -> dict[str, Path]:
    for name, config in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
        # Its file for quantization `ascend`; nothing is loaded, so that it says nothing of a layer.
    (folder / "deepseek" / "quant_model_description.json").write_text("{}")
    return {name: folder / name for name in MODELS}


def derive(
    commands: Mapping[str, Sequence[str]], env: Mapping[str, Mapping[str, str]], version: str, folder: Path
) -> dict[str, dict[str, Any]]:
    """What this version makes of each command line, in one child process."""
    plug_in = unpacked(version, ensure_engine_environment(print_progress))
    stand_in = folder / "hardware"
    stand_in.mkdir()
    (stand_in / "torch_npu.py").write_text(STAND_IN.read_text(encoding="utf-8"))
    job = json.dumps({"commands": commands, "env": env})
    quiet = {"VLLM_PLUGINS": _PLUGINS, "VLLM_LOGGING_LEVEL": "ERROR", "ASCEND_HOME_PATH": str(folder)}
    output = run_with(VERSIONS[version], SCRIPT, stdin=job, before=(stand_in, plug_in), extra_env=quiet)
    result: dict[str, dict[str, Any]] = json.loads(output.splitlines()[-1])
    return result


def unpacked(version: str, environment: EngineEnvironment) -> Path:
    """The folder with `vllm_ascend/` of this version, made first if it is not there."""
    name = f"vllm-ascend-python-{version}"
    with exclusive(name, print_progress):
        if entry(name).exists():
            return entry(name)
        with workspace(name) as work:
            wheel = _download(version, environment, work)
            folder = work / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [file for file in archive.namelist() if _wanted(file)])
            return publish(folder, name)


def _wanted(file: str) -> bool:
    # The entry points are how vLLM finds its platform.
    return file.endswith((".py", ".json")) or ".dist-info/" in file


def _download(version: str, environment: EngineEnvironment, work: Path) -> Path:
    said = ""
    for python in ("3.11", "3.12"):
        print_progress(f"downloading vllm-ascend {version} for Python {python}")
        words = ["download", "--quiet", "--no-deps", "--python-version", python, *_ANY_BUILD, "--dest", str(work)]
        done = subprocess.run(
            [str(environment.python), "-m", "pip", *words, f"vllm-ascend=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return next(work.glob("*.whl"))
        said += done.stderr
    raise SetupFailed(f"no wheel of vllm-ascend {version} was found:\n{said[-2000:]}")


def run(version: str, folder: Path) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Verdicts by shape, and for each configuration what Motor and the engine say."""
    models = write_models(folder)
    cases = [case(shape, version, "vllm_ascend") for shape in ascend_shapes()]
    slots: list[tuple[str, InstanceRendering, SlotRendering]] = [
        (each.name(number), instance, slot) for each in cases for number, (instance, slot) in enumerate(each.slots)
    ]
    commands = {name: _golden_argv(slot, models) for name, _, slot in slots}
    env = {name: _golden_env(slot) for name, _, slot in slots}
    for name, each in CONFIGURATIONS.items():
        commands[name], env[name] = _argv(each, models), dict(each.env)
    found = derive(commands, env, version, folder)
    verdicts = {each.shape: _with_facts(each, found) for each in cases}
    answers = {name: (motor_says(each, version, models), _answer(found[name])) for name, each in CONFIGURATIONS.items()}
    return verdicts, answers


def _with_facts(each: Case, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The verdict, with what each kind of command line of the shape derives."""
    said = verdict(each, {name: dict(result) for name, result in found.items()})
    if not said.startswith("accepted"):
        return said
    derived = dict.fromkeys(_facts(found[each.name(number)]) for number in range(len(each.slots)))
    return f"{said}: {'; '.join(derived)}"


_FACTS = {
    "world_size": "world",
    "local_world_size": "local",
    "prefill_context_parallel_size": "pcp",
    "decode_context_parallel_size": "dcp",
    "block_size": "block",
    "cp_kv_cache_interleave_size": "stripe",
    "graphs": "graphs",
}


def _facts(result: Mapping[str, Any]) -> str:
    return ", ".join(f"{short} {result[name]}" for name, short in _FACTS.items() if name in result)


def _answer(result: Mapping[str, Any]) -> str:
    return f"refuses: {sentence(result['error'])}" if "error" in result else f"takes it: {_facts(result)}"


def _print_answers(rows: Sequence[tuple[str, str, str, str]]) -> None:
    print("| configuration | vLLM-Ascend | Motor | the engine |\n|---|---|---|---|")
    for name in dict.fromkeys(row[0] for row in rows):
        of_name = [(version, motor, engine) for each, version, motor, engine in rows if each == name]
        for (motor, engine), group in itertools.groupby(of_name, key=lambda row: row[1:]):
            versions = [version for version, _, _ in group]
            span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
            print(f"| {name} | {span} | {motor} | {engine} |")
    print()


def main() -> int:
    """Prints the tables; 1 where Motor plans a golden shape that the engine refuses or derives otherwise."""
    os.nice(19)
    shapes: list[tuple[str, str, str]] = []
    rows: list[tuple[str, str, str, str]] = []
    for version in sys.argv[1:] or VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            verdicts, answers = run(version, Path(folder))
        shapes += [(shape, version, says) for shape, says in verdicts.items()]
        rows += [(name, version, motor, engine) for name, (motor, engine) in answers.items()]
    table("shape", shapes, "vLLM-Ascend")
    _print_answers(rows)
    return int(any(says.startswith("DIFFERS") for _, _, says in shapes))


if __name__ == "__main__":
    sys.exit(main())
