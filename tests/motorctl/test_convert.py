"""`motorctl convert` from shell scripts to a deployment file, as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from controller.config.load import parse_document
from controller.config.plan import deployment_from
from controller.config.render import PlanRendering, render_plan
from engine_launch.engine_line import engine_line
from engine_launch.flag_list import load_flag_list
from engine_launch.profiles import resolve
from engine_launch.shell_text import read_script
from engine_launch.words import read_words
from motorctl.main import main

SCRIPTS = Path(__file__).with_name("scripts")
PREFILL = [SCRIPTS / "prefill_node0.sh", SCRIPTS / "prefill_node1.sh"]
DECODE = SCRIPTS / "decode.sh"


def convert(*words: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, words)], input=text)


def converted(text: str, *words: str) -> dict[str, Any]:
    """The deployment that a script becomes."""
    result = convert("-", *words, text=text)
    assert result.exit_code == 0, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def union(text: str, *words: str) -> dict[str, Any]:
    section: dict[str, Any] = converted(text, *words)["motor_engine_union_config"]
    return section


def plan_of(text: str) -> PlanRendering:
    return render_plan(deployment_from(parse_document("deploy.json", text)))


def options(argv: tuple[str, ...] | list[str], profile: str) -> dict[str, Any]:
    found = read_words(list(argv), load_flag_list(resolve(profile).flag_list))
    return {name: given.value for name, given in found.options.items()}


# --- the guide's scripts ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guide() -> Result:
    return convert(*PREFILL, DECODE)


def test_the_guides_scripts_become_a_valid_deployment(guide: Result, tmp_path: Path) -> None:
    assert guide.exit_code == 0, guide.stderr
    path = tmp_path / "deploy.json"
    path.write_text(guide.stdout)
    checked = CliRunner().invoke(main, ["validate", str(path)])
    assert checked.exit_code == 0 and "2 instances, 3 slots" in checked.stdout


def test_sizes_of_the_guides_deployment(guide: Result) -> None:
    data = json.loads(guide.stdout)
    assert data["motor_deploy_config"] == {
        "p_instances_num": 1,
        "single_p_instance_pod_num": 2,
        "p_pod_npu_num": 16,
        "d_instances_num": 1,
        "single_d_instance_pod_num": 1,
        "d_pod_npu_num": 16,
    }
    prefill = data["motor_engine_prefill_config"]
    assert prefill["engine_type"] == "vllm_ascend"
    assert prefill["engine_config"]["nnodes"] == 2 and prefill["engine_config"]["master-port"] == 7001
    assert '"gpu-memory-utilization": 0.80' in guide.stdout
    assert data["motor_engine_decode_config"]["engine_config"]["compilation-config"] == {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 2, 4],
    }
    assert data["motor_engine_decode_config"]["env"] == {
        "HCCL_BUFFSIZE": "1024",
        "OMP_NUM_THREADS": "1",
        "HCCL_OP_EXPANSION_MODE": "AIV",
    }


def test_what_is_left_out_is_said(guide: Result) -> None:
    notes = guide.stderr
    assert "left out, since Motor computes it: --node-rank, --master-addr, --headless" in notes
    assert f"{PREFILL[1]}:25: --host of a headless process is left out" in notes
    assert "not in env: GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, HCCL_SOCKET_IFNAME: each node fills in its own" in notes
    assert "not in env: HCCL_IF_IP: each node fills in its own data address" in notes
    assert "not in env: LD_LIBRARY_PATH: $LD_LIBRARY_PATH is not set in the script" in notes
    assert "set_env.sh; name it under env_scripts" in notes
    assert "--data-parallel-start-rank, --data-parallel-address" in notes


# What the guide's own command lines say, by what Motor may change: ranks and addresses agree in the plan by other
# means, and the KV sizes are filled in.
_OF_PLACE = {"master-addr", "host", "port", "kv-transfer-config", "distributed-executor-backend"}
_OF_ONE_RANK = {
    "data-parallel-size",
    "data-parallel-size-local",
    "data-parallel-start-rank",
    "data-parallel-address",
    "data-parallel-rpc-port",
}


def script_words(path: Path) -> list[str]:
    lines = [engine_line(command) for command in read_script(path.read_text()).commands]
    (line,) = [line for line in lines if line is not None]
    return [word.text for word in line.words]


def test_the_plan_says_what_the_guides_commands_say(guide: Result) -> None:
    slots = {
        str(slot.slot): (slot, instance.spec.profile)
        for instance in plan_of(guide.stdout).instances
        for slot in instance.slots
    }
    for name, path in (("prefill-0/0/0", PREFILL[0]), ("prefill-0/0/1", PREFILL[1]), ("decode-0/0/0", DECODE)):
        slot, profile = slots[name]
        meant = options(script_words(path), profile)
        planned = options(slot.command.argv, profile)
        ignored = _OF_PLACE | (_OF_ONE_RANK if name.startswith("decode") else set())
        assert {k: v for k, v in planned.items() if k not in ignored} == {
            k: v for k, v in meant.items() if k not in ignored
        }
        for key, value in meant["kv-transfer-config"].items():
            if key not in ("engine_id", "kv_connector_extra_config"):
                assert planned["kv-transfer-config"][key] == value
    assert slots["prefill-0/0/0"][0].command.api_port == 8004


# --- one command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve M --max-model-len 4096",
        "$ vllm serve M --max-model-len 4096",
        "vllm serve --max-model-len 4096 M",
        "vllm serve --model M --max-model-len=4096",
        "/opt/venv/bin/vllm serve M --max_model_len 4096 > log 2>&1 &",
        "python -m vllm.entrypoints.openai.api_server --model M --max-model-len 4096",
        "python3.11 -u -m vllm.entrypoints.openai.api_server --max-model-len 4096 --model=M | tee log",
        "MODEL=M LEN=4096\nvllm serve $MODEL \\\n  --max-model-len ${LEN}",
        "ARGS=(--max-model-len 4096)\nexec vllm serve M \"${ARGS[@]}\"",
        "nohup env A=1 numactl -N 0 vllm serve M --max-model-len 4096",
    ],
)  # fmt: skip
def test_ways_to_write_one_command(command: str) -> None:
    section = union(command)
    assert section["engine_config"] == {"model": "M", "max-model-len": 4096}
    assert section["engine_type"] == "vllm"


def test_the_environment_of_one_command() -> None:
    text = (
        "export A=1 HF_HUB_OFFLINE=1\nNOT=2\nexport VLLM_DP_RANK=0 MOTOR_X=1 SPT_NOENV=1\nB='x y' env C=3 vllm serve M"
    )
    assert union(text)["env"] == {"A": "1", "HF_HUB_OFFLINE": "1", "B": "x y", "C": "3"}


def test_unknown_flags_go_to_extra_args_and_are_said() -> None:
    result = convert("-", text="vllm serve M --brand-new a b --dtype auto --other=1")
    section = json.loads(result.stdout)["motor_engine_union_config"]
    assert section["extra_args"] == ["--brand-new", "a", "b", "--other=1"]
    assert "<stdin>:1: --brand-new goes to extra_args: it is no flag in the list of vllm@0.33" in result.stderr


def test_profile_and_role() -> None:
    data = converted("vllm serve M", "--profile", "vllm@0.23", "--role", "prefill")
    assert data["motor_engine_prefill_config"]["engine_profile"] == "vllm@0.23"
    assert data["motor_deploy_config"] == {"p_instances_num": 1, "single_p_instance_pod_num": 1, "p_pod_npu_num": 1}


def test_atom() -> None:
    text = "export ATOM_PCP_MOE_MERGE=1\npython -m atom.entrypoints.openai_server --model /m -tp 4 -pcp 2 "
    text += "--kv_cache_dtype fp8 --server-port 8001 --port 8006"
    result = convert("-", text=text)
    section = json.loads(result.stdout)["motor_engine_union_config"]
    assert section == {
        "engine_type": "atom",
        "engine_config": {
            "model": "/m",
            "tensor-parallel-size": 4,
            "prefill-context-parallel-size": 2,
            "kv-cache-dtype": "fp8",
            "server-port": 8001,
        },
        "env": {"ATOM_PCP_MOE_MERGE": "1"},
    }
    assert "--port is left out: in ATOM --port is a port inside the engine" in result.stderr


# --- several nodes ------------------------------------------------------------------------------------------


def nodes(*rows: str, common: str = "-tp 8 --enable-expert-parallel") -> str:
    return "\n".join(f"vllm serve M {common} {row}" for row in rows)


@pytest.mark.parametrize(
    ("text", "expected", "instances"),
    [
        # one group over two nodes
        (
            nodes("-n 2 -r 0 --master-port 7001", "-n 2 -r 1 --master-port 7001 --headless"),
            {"nnodes": 2, "master-port": 7001},
            1,
        ),
        # the port that vLLM takes without one
        (nodes("-n 2 -r 0", "-n 2 -r 1 --headless"), {"nnodes": 2, "master-port": 29501}, 1),
        # the script of one node stands for all
        (nodes("-n 2 -r $RANK --master-addr $(hostname)"), {"nnodes": 2, "master-port": 29501}, 1),
        # two engines of two nodes each
        (
            nodes(
                "-n 2 -r 0 --master-addr 10.0.0.1",
                "-n 2 -r 1 --master-addr 10.0.0.1 --headless",
                "-n 2 -r 0 --master-addr 10.0.0.3",
                "-n 2 -r 1 --master-addr 10.0.0.3 --headless",
            ),
            {"nnodes": 2, "master-port": 29501},
            2,
        ),
        # native, external: two groups of two nodes
        (
            nodes(*(f"-n 4 -r {k} -dp 2 -dpn {k // 2} {'--headless' * (k % 2)}" for k in range(4))),
            {"nnodes": 2, "master-port": 29501, "data-parallel-size": 2, "dp_translation": "native_external"},
            1,
        ),
        # native, internal: one API for all
        (
            nodes(*(f"-n 4 -r {k} -dp 2 {'--headless' * (k > 0)}" for k in range(4))),
            {"nnodes": 2, "master-port": 29501, "data-parallel-size": 2, "dp_translation": "native_internal"},
            1,
        ),
        # several ranks in one process per node, with and without --nnodes
        (
            nodes("-dp 4 -dpl 2", "-dp 4 -dpl 2 -dpr 2 --headless"),
            {"data-parallel-size": 4, "data-parallel-size-local": 2, "dp_translation": "native_internal"},
            1,
        ),
        (
            nodes("-dp 4 -dpl 2 -dpr 0 --data-parallel-hybrid-lb", "-dp 4 -dpl 2 -dpr 2 --data-parallel-hybrid-lb"),
            {"data-parallel-size": 4, "data-parallel-size-local": 2, "dp_translation": "native_external"},
            1,
        ),
        (
            nodes("-n 2 -r 0 -dp 4", "-n 2 -r 1 -dp 4 --headless"),
            {
                "nnodes": 1,
                "master-port": 29501,
                "data-parallel-size": 4,
                "data-parallel-size-local": 2,
                "dp_translation": "native_internal",
            },
            1,
        ),
        # one process with all ranks
        (nodes("-dp 4"), {"data-parallel-size": 4, "data-parallel-size-local": 4}, 1),
        # one rank per process, each with an API
        (
            nodes(*(f"-dp 2 -dpn {k} -dpa 10.0.0.1 --port 800{k}" for k in range(2))),
            {"data-parallel-size": 2, "port": 8000, "dp_translation": "native_external"},
            1,
        ),
    ],
)  # fmt: skip
def test_groups(text: str, expected: dict[str, Any], instances: int) -> None:
    data = converted(text)
    section = data["motor_engine_union_config"]
    found = {**section["engine_config"], **{k: v for k, v in section.items() if k == "dp_translation"}}
    common = {"model": "M", "tensor-parallel-size": 8, "enable-expert-parallel": True}
    assert found == {**common, **expected}
    assert data["motor_deploy_config"]["hybrid_instances_num"] == instances


def test_dense_groups_become_engines_of_their_own() -> None:
    rows = [f"-n 2 -r {k} -dp 2 {'--headless' * (k > 0)}" for k in range(2)]
    result = convert("-", text=nodes(*rows, common="-tp 2"))
    assert result.exit_code == 0
    assert "dp_translation" not in json.loads(result.stdout)["motor_engine_union_config"]
    assert "each of 2 groups becomes an engine of its own: enable-expert-parallel is off" in result.stderr


def test_options_of_masters_only() -> None:
    text = nodes("-n 2 -r 0 --api-server-count 2 --port 8004", "-n 2 -r 1 --headless --port 9000", common="-tp 2")
    config = union(text)["engine_config"]
    assert (config["api-server-count"], config["port"]) == (2, 8004)


def test_kv_ports_and_ids_may_differ() -> None:
    """In a MooncakeConnectorV1 world each process was given its own: Motor fills both in."""
    kv = '{{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer", "kv_port": "{port}", "engine_id": "{id}"}}'
    rows = [
        "--kv-transfer-config '" + kv.format(port=40100, id="0") + "'",
        '--kv-transfer-config "' + kv.format(port=40000, id="$RANDOM_ID").replace('"', '\\"') + '"',
    ]
    result = convert("-", text=nodes(*rows, common=""))
    config = json.loads(result.stdout)["motor_engine_decode_config"]["engine_config"]["kv-transfer-config"]
    assert config == {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer", "kv_port": "40000"}
    assert "engine_id is left out" in result.stderr and "kv_port 40100 is left out" in result.stderr


# --- what cannot be used ------------------------------------------------------------------------------------


DIFFERS = "is another one than in the command of <stdin>:1"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "<stdin>:1: no command here starts an engine; expected vllm serve MODEL ..., or python -m with"),
        ("vllm bench\npython -m x", "<stdin>:1: no command here starts an engine"),
        ("A=1\nvllm serve 'M", "<stdin>:2: a ' has no end; expected a closing '; close it"),
        ("vllm serve --dtype auto", "<stdin>:1: the model is missing; expected a path or a hub name"),
        ("vllm serve --new M --dtype auto", "is it the word behind --new?"),
        ("vllm serve $MODEL", "<stdin>:1: the model is not known: $MODEL is not set in the script; got $MODEL"),
        ("vllm serve M \\\n  --dtype auto extra", "<stdin>:2: a word that belongs to no flag; got extra"),
        ("vllm serve M $ARGS", "<stdin>:1: not known: $ARGS is not set in the script; got $ARGS"),
        ("vllm serve M \\\n  --max-model-len $LEN", "<stdin>:2: --max-model-len is not known: $LEN is not set"),
        ("vllm serve M \\\n  --new $X", "<stdin>:2: not known: $X is not set in the script; got $X"),
        ("vllm serve M --port", "<stdin>:1: --port has no value; expected a value behind it"),
        ("vllm serve M --kv-transfer-config {a:1}", "<stdin>:1: --kv-transfer-config is not valid JSON"),
        ("vllm serve M\n  --dtype auto", "<stdin>:2: a command begins with a flag: the command before it has ended"),
        ("vllm serve M \\\n # no\n --dtype auto", "a command begins with a flag"),
        ("vllm serve M --dtype auto\nvllm serve M --dtype half", f"<stdin>:2: --dtype {DIFFERS}; got half"),
        ("vllm serve M --dtype auto\nvllm serve M", f"<stdin>:2: --dtype {DIFFERS}; got nothing; expected auto"),
        ("vllm serve M\nvllm serve N", f"<stdin>:2: the model {DIFFERS}; got N; expected M"),
        ("export A=1\nvllm serve M\nA=2\nvllm serve M", f"<stdin>:3: A {DIFFERS.replace('1', '2')}; got 2; expected 1"),
        ("vllm serve M --new\nvllm serve M", "what goes to extra_args is another one"),
        (nodes(*["-n 2 -r 0 --master-addr a"] * 2), "the place of <stdin>:1 in the engine's world again"),
        (nodes("-n 3 -r 0 -dp 2"), "<stdin>:1: 3 nodes do not hold 2 data-parallel ranks evenly"),
    ],
)  # fmt: skip
def test_errors(text: str, error: str) -> None:
    result = convert("-", text=text)
    assert result.exit_code == 2 and result.stdout == ""
    assert error in result.stderr


def test_all_errors_at_once() -> None:
    result = convert("-", text="vllm serve M --dtype $A\nvllm serve M --port\nvllm serve $B")
    assert [line.split(":")[2] for line in result.stderr.splitlines() if line.startswith("error")] == ["2", "3", "1"]


def test_what_motor_refuses_is_printed_and_refused() -> None:
    result = convert("-", text="vllm serve M -tp 3 -n 2 -r 0 --master-port 7001")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["motor_engine_union_config"]["engine_config"]["tensor-parallel-size"] == 3
    assert "error: result:motor_engine_union_config.engine_config.nnodes" in result.stderr
    assert result.stderr.endswith("the result is not a valid deployment yet\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["none.sh"], "none.sh: cannot be read; got No such file or directory"),
        (["a.json", "b.sh"], "a.json: a deployment file is converted alone"),
        (["-", "--slot", "x"], "--slot names a slot of a deployment file"),
        (["-", "--set", "A"], "--set: got A; expected NAME=VALUE"),
        (["-", "--profile", "vllm@0.1"], "--profile: unknown engine profile; got vllm@0.1"),
    ],
)
def test_words_that_the_command_refuses(words: list[str], error: str) -> None:
    result = convert(*words, text="vllm serve M")
    assert (result.exit_code, result.stdout) == (2, "")
    assert error in result.stderr


def test_set_says_what_the_script_does_not() -> None:
    text = "vllm serve $MODEL --max-model-len ${LEN:-8}"
    section = union(text, "--set", "MODEL=/m/x", "--set", "LEN=16")
    assert section["engine_config"] == {"model": "/m/x", "max-model-len": 16}


def test_a_script_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_bytes(b"vllm serve \xff")
    assert "is not UTF-8 text" in convert(path).stderr


def test_commands_inside_texts_are_said() -> None:
    result = convert("-", text="ssh node1 'vllm serve M --headless'\nvllm serve M\ndocker ps")
    assert "<stdin>:1: the command inside a text of ssh is not read: put it in a file" in result.stderr
    assert "other commands are not in the result: docker (line 3)" in result.stderr
