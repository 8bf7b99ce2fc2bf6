"""`motorctl convert` from a deployment file to shell scripts, and the scripts back to a deployment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from controller.config.load import parse_document
from controller.config.plan import deployment_from
from controller.config.render import InstanceRendering, SlotRendering, render_plan
from engine_launch.flag_list import load_flag_list
from engine_launch.profiles import resolve
from engine_launch.words import read_words
from motorctl.main import main
from tests.golden_shapes import ROOT, SHAPES, load_shape

SEED = ROOT / "configs" / "seed.json"


def convert(*words: str | Path, text: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["convert", *map(str, words)], input=text)
    assert result.exit_code == 0, result.stderr
    return result


def test_a_script_to_read() -> None:
    assert (
        convert(SEED, "--slot", "prefill-0/0/1").stdout
        == """\
(  # prefill-0/0/1: prefill, headless, 16 devices
  : "${NODE_ADDRESS:?the data address of this node}"
  : "${MASTER_ADDRESS:?the data address of the node of prefill-0/0/0}"
  : "${NODE_INTERFACE:?the interface of that address, such as eth0}"
  : "${NODE_DEVICES:?the devices for this engine, such as 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}"
  export DO_NOT_TRACK=1
  export SPT_NOENV=1
  export VLLM_NO_USAGE_STATS=1
  export ASCEND_RT_VISIBLE_DEVICES="$NODE_DEVICES"
  export GLOO_SOCKET_IFNAME="$NODE_INTERFACE"
  export HCCL_IF_IP="$NODE_ADDRESS"
  export HCCL_SOCKET_IFNAME="$NODE_INTERFACE"
  export TP_SOCKET_IFNAME="$NODE_INTERFACE"
  export VLLM_HOST_IP="$NODE_ADDRESS"
  exec vllm serve /mnt/weight/your_model \\
    --tensor-parallel-size 16 \\
    --prefill-context-parallel-size 2 \\
    --cp-kv-cache-interleave-size 128 \\
    --nnodes 2 \\
    --node-rank 1 \\
    --master-addr "$MASTER_ADDRESS" \\
    --master-port 7001 \\
    --distributed-executor-backend mp \\
    --headless
)
"""
    )


def test_without_a_slot_all_are_printed_in_order() -> None:
    found = convert(SEED).stdout
    master, follower = (convert(SEED, "--slot", f"prefill-0/0/{rank}").stdout for rank in (0, 1))
    assert found == f"{master}\n{follower}"
    assert '--host "$NODE_ADDRESS" \\\n    --port 8000' in master


def test_an_unknown_slot_is_refused() -> None:
    result = CliRunner().invoke(main, ["convert", str(SEED), "--slot", "prefill-0/0/2"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no such slot; got prefill-0/0/2; expected one of prefill-0/0/0, prefill-0/0/1" in result.stderr


AWKWARD = {
    "motor_engine_union_config": {
        "engine_type": "vllm",
        "engine_config": {
            "model": "/m/it's here/$HOME",
            "served-model-name": ["a b", 'c"d'],
            "chat-template": "-starts with a dash",
            "tokenizer": "",
            "dtype": "`x` $(y) \\ !z *",
            "speculative-config": {"text": 'it\'s "é" $X\n\\', "n": 1},
        },
        "env": {"A_TEXT": "it's $HOME\\", "EMPTY": ""},
        "extra_args": ["--new-flag", "x y"],
    }
}


@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh")
def test_a_shell_runs_exactly_the_planned_command(tmp_path: Path) -> None:
    path = tmp_path / "deploy.json"
    path.write_text(json.dumps(AWKWARD))
    script = convert(path).stdout
    engine = tmp_path / "vllm"
    engine.write_text('#!/bin/sh\nprintf \'%s\\0\' "$A_TEXT" "$EMPTY" "$VLLM_HOST_IP" vllm "$@"\n')
    engine.chmod(0o755)
    local = {"NODE_ADDRESS": "fd00::7", "NODE_INTERFACE": "eth0", "NODE_DEVICES": "0"}
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **local}
    done = subprocess.run(["sh"], input=script, env=env, capture_output=True, text=True, check=True, timeout=20)
    (instance,) = render_plan(deployment_from(parse_document("deploy.json", json.dumps(AWKWARD)))).instances
    argv = [local["NODE_ADDRESS"] if word.startswith("<") else word for word in instance.slots[0].command.argv]
    assert done.stdout.split("\0")[:-1] == ["it's $HOME\\", "", "fd00::7", *argv]


@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh")
def test_nothing_starts_while_a_value_of_the_node_is_missing() -> None:
    script = convert(SEED, "--slot", "prefill-0/0/1").stdout.replace("exec vllm", "echo started")
    done = subprocess.run(
        ["sh"], input=script, env={"NODE_ADDRESS": "x"}, capture_output=True, text=True, check=False, timeout=20
    )
    assert "MASTER_ADDRESS: the data address of the node of prefill-0/0/0" in done.stderr
    assert done.returncode != 0 and "started" not in done.stdout


# --- both ways ----------------------------------------------------------------------------------------------


def slots_of(shape: str) -> list[tuple[InstanceRendering, SlotRendering]]:
    return by_place(render_plan(load_shape(shape)).instances)


def by_place(instances: tuple[InstanceRendering, ...]) -> list[tuple[InstanceRendering, SlotRendering]]:
    """All slots, engine by engine. A group that is an engine of its own comes back as an instance of its own."""
    found = [(instance, slot) for instance in instances for slot in instance.slots]
    return sorted(found, key=lambda pair: (pair[0].plan.role, str(pair[1].slot)))


def meaning(instance: InstanceRendering, slot: SlotRendering) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Options, environment, and words of flags that no list has; without names of slots."""
    argv = list(slot.command.argv)
    found = read_words(argv, load_flag_list(resolve(instance.spec.profile).flag_list))
    options = {name: given.value for name, given in found.options.items()}
    for name in ("host", "master-addr", "data-parallel-address"):
        options.pop(name, None)
    if isinstance(kv := options.get("kv-transfer-config"), dict):
        # Later engines get other ports where several lie on one host, which no script says.
        options["kv-transfer-config"] = {k: v for k, v in kv.items() if k not in ("engine_id", "kv_port")}
    return options, dict(slot.command.env), [argv[at] for positions in found.unknown for at in positions]


@pytest.mark.parametrize("shape", SHAPES)
def test_scripts_of_a_deployment_become_an_equal_one(shape: str) -> None:
    before = slots_of(shape)
    words = ["--profile", before[0][0].spec.profile]
    roles = {instance.plan.role for instance, _ in before}
    if len(roles) == 1:
        words += ["--role", *roles]
    text = convert("-", *words, text=convert(SHAPES[shape]).stdout).stdout
    after = by_place(render_plan(deployment_from(parse_document("deploy.json", text))).instances)
    assert [meaning(*pair) for pair in after] == [meaning(*pair) for pair in before]
    assert [pair[0].plan.scope for pair in after] == [pair[0].plan.scope for pair in before]
    assert [pair[0].plan.devices_per_slot for pair in after] == [pair[0].plan.devices_per_slot for pair in before]
