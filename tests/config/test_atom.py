"""ATOM sections of deploy.json: the way from a file to its rules, its override and its plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.config.errors import Severity
from controller.config.model_files import read_model
from controller.config.render import render_plan
from tests.config.files import file_with, load, problems_of, texts

SECTION = "motor_engine_union_config"
CONFIG = f"{SECTION}.engine_config"


def atom(env: dict[str, Any] | None = None, section: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """A file with one tuned ATOM engine, tp 4 x pcp 2; `...` takes a key out."""
    options: dict[str, Any] = {
        "model": "/m",
        "tensor-parallel-size": 4,
        "prefill-context-parallel-size": 2,
        "enable-chunked-prefill": False,
        "max-num-batched-tokens": 131072,
        **{key.replace("_", "-"): value for key, value in config.items()},
    }
    options = {key: value for key, value in options.items() if value is not ...}
    return file_with(union={"engine_type": "atom", "engine_config": options, "env": env or {}, **(section or {})})


def model_folder(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


# name -> (file, where, part of the message)
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "two nodes": (atom(nnodes=2), f"{CONFIG}.nnodes", "[atom-one-node]"),
    "pcp with dp-attention": (
        atom(enable_dp_attention=True),
        f"{CONFIG}.enable-dp-attention",
        "[atom-pcp-dp-attention]",
    ),
    "tbo with tp": (atom(enable_tbo=True), f"{CONFIG}.enable-tbo", "may hang"),
    "tbo for decode": (atom(tensor_parallel_size=1, enable_tbo="all"), f"{CONFIG}.enable-tbo", "[atom-pcp-tbo-all]"),
    "too wide": (atom(prefill_context_parallel_size=4), f"{CONFIG}.prefill-context-parallel-size", "is 16 ranks"),
    "dcp that does not divide tp": (
        atom(decode_context_parallel_size=3),
        f"{CONFIG}.decode-context-parallel-size",
        "does not divide tensor-parallel-size 4",
    ),
    "a flag of vllm": (atom(gpu_memory_utilisation=0.9), f"{CONFIG}.gpu-memory-utilisation", "did you mean"),
    "headless": (atom(headless=True), f"{CONFIG}.headless", "not a flag of atom-0.1.6"),
    "the inner port": (atom(port=8000), f"{CONFIG}.port", "the API's is server-port"),
    "a number for a switch": (atom(enforce_eager=1), f"{CONFIG}.enforce-eager", "is a switch"),
    "a port in extra_args": (
        atom(section={"extra_args": ["--server-port", "9000"]}),
        f"{SECTION}.extra_args",
        "--server-port, from which Motor computes",
    ),
    "tbo in extra_args": (
        atom(section={"extra_args": ["--enable-tbo"]}),
        f"{SECTION}.extra_args",
        "--enable-tbo, from which Motor computes",
    ),
    "devices by hand": (
        atom({"HIP_VISIBLE_DEVICES": "0"}),
        f"{SECTION}.env.HIP_VISIBLE_DEVICES",
        "Motor leases devices",
    ),
    "ranks by hand": (atom({"ATOM_DP_SIZE": 2}), f"{SECTION}.env.ATOM_DP_SIZE", "behind its command line"),
    "one world": (
        atom(data_parallel_size=2, enable_expert_parallel=True, section={"dp_translation": "native_external"}),
        f"{SECTION}.dp_translation",
        "no world over several processes",
    ),
    "a profile of vllm": (
        atom(section={"engine_profile": "vllm@0.33"}),
        f"{SECTION}.engine_profile",
        "a profile of atom",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    content, where, message = REFUSED[name]
    found = [text for text in texts(content) if text.startswith("error:")]
    assert any(f"deploy.json:{where} " in text and message in text for text in found), found


def test_only_the_model_is_in_doubt_of_a_tuned_engine() -> None:
    (problem,) = problems_of(atom())
    assert problem.rule == "atom-pcp-model-unread" and "/m/config.json cannot be read" in problem.what


def test_the_model_is_read_where_it_can_be(tmp_path: Path) -> None:
    v4 = model_folder(tmp_path, model_type="deepseek_v4", architectures=["DeepseekV4ForCausalLM"])
    assert not problems_of(atom(model=v4))
    other = model_folder(tmp_path, model_type="llama", architectures=["LlamaForCausalLM"])
    (problem,) = problems_of(atom(model=other))
    assert (problem.rule, problem.overridable) == ("atom-pcp-model", True)
    assert "LlamaForCausalLM" in problem.got


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "no JSON"), ("[1]", "no JSON object"), (None, "cannot be read on this machine")],
)
def test_a_config_json_that_cannot_be_used_says_why(tmp_path: Path, content: str | None, why: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    facts, reason = read_model(str(tmp_path))
    assert facts is None and why in reason


def test_a_hub_name_is_not_looked_up() -> None:
    assert read_model("deepseek-ai/DeepSeek-V4")[0] is None


def test_a_rule_stricter_than_the_engine_says_why() -> None:
    (problem,) = [p for p in problems_of(atom(enable_tbo=True)) if p.rule == "atom-pcp-tbo-tp"]
    assert "stricter than the engine: " in problem.what


def test_an_operator_may_overrule_what_the_engine_would_let_pass() -> None:
    override = {"reason": "measured on our nodes", "rules": ["atom-pcp-tbo-tp"]}
    problems = problems_of(atom(enable_tbo=True, section={"override": override}))
    (problem,) = [p for p in problems if p.rule == "atom-pcp-tbo-tp"]
    assert problem.severity is Severity.WARNING and "measured on our nodes" in problem.what
    assert load(atom(enable_tbo=True, section={"override": override}))


def test_nobody_overrules_what_the_engine_refuses() -> None:
    override = {"reason": "why not", "rules": ["atom-pcp-dp-attention"]}
    problems = problems_of(atom(enable_dp_attention=True, section={"override": override}))
    assert any(p.rule == "atom-pcp-dp-attention" and p.severity is Severity.ERROR for p in problems)


def test_pcp_on_a_decode_role_is_told_once() -> None:
    content = atom()
    content["motor_engine_decode_config"] = content.pop(SECTION)
    about_pcp = [p for p in problems_of(content) if p.path[-1] == "prefill-context-parallel-size"]
    assert [p.rule for p in about_pcp] == ["atom-pcp-decode"]


def test_two_groups_on_one_node_take_half_of_its_devices_each() -> None:
    content = atom(
        tensor_parallel_size=2, data_parallel_size=2, section={"dp_translation": "replica"}
    )  # each tp 2 x pcp 2
    content["motor_deploy_config"] = {"hybrid_pod_npu_num": 8, "single_hybrid_instance_pod_num": 1}
    plan = load(content).plan.instances[0]
    assert (plan.dp_size, plan.devices_per_slot, plan.api_on_every_group) == (2, 4, True)


def test_ranks_of_one_process_count_as_devices_of_one_slot() -> None:
    content = atom(tensor_parallel_size=2, prefill_context_parallel_size=1, data_parallel_size=4)
    content["motor_deploy_config"] = {"hybrid_pod_npu_num": 4}
    errors = [text for text in texts(content) if text.startswith("error:")]
    assert len(errors) == 1 and "needs 8 devices" in errors[0]


def test_the_api_port_and_the_inner_ports_are_leased() -> None:
    slot = render_plan(load(atom(server_port=7777))).instances[0].slots[0]
    assert dict(slot.ports) == {7001: "master", 29550: "dp_rpc", 7777: "api"}
