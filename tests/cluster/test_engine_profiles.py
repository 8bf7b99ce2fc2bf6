"""The file pins no engine profile: what nodes report decides, and a node that does not fit hears why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.deployment import Deployment, engine_section, free_port
from tests.nodemanager.places import ENGINE


def section(**config: Any) -> dict[str, Any]:
    found = engine_section(**config)
    del found["engine_profile"]
    return found


def engines(version: str, **more: str) -> dict[str, Any]:
    return {"vllm": {"command": [sys.executable, str(ENGINE)], "version": version, **more}}


def environment(d: Deployment, slot: str) -> dict[str, str]:
    text = Path(f"/proc/{d.members()[slot]['pid']}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def test_engines_run_under_the_profile_of_their_nodes(deploy: Callable[..., Deployment]) -> None:
    d = deploy({"motor_engine_union_config": section()})
    d.start_controller()
    (before,) = d.status()["instances"]
    assert before["engine_profile"] == "vllm@0.33" and "assumed" in before["engine_profile_reason"]
    for number in (1, 2):
        d.add_node(number, engines=engines("0.23.0", distribution="vllm-ascend")).start()
        d.wait(lambda n=number: f"n{n}" in d.node_states(), f"n{number} to register", 20.0)  # type: ignore[misc]
    d.wait_ready()
    (after,) = d.status()["instances"]
    assert after["engine_profile"] == "vllm_ascend@0.23.0"
    assert environment(d, "union-0/0/1")["HCCL_IF_IP"] == "127.0.1.2"
    lines = [e["sentence"] for e in d.events("union-0") if e["code"] == "engine_profile"]
    assert len(lines) == 1 and "those of vllm@0.33, which was only assumed" in lines[0]
    # a controller that starts again hears the profile from its nodes, and adopts what runs
    pids = {slot: member["pid"] for slot, member in d.members().items()}
    d.end_controller()
    d.start_controller()
    d.wait_ready()
    assert {slot: member["pid"] for slot, member in d.members().items()} == pids


def test_a_node_whose_version_cannot_run_the_file_is_rejected(deploy: Callable[..., Deployment]) -> None:
    # --watchdog-config came with vLLM 0.33
    d = deploy({"motor_engine_union_config": section(watchdog_config={"timeout": 5})})
    d.start_controller()
    d.add_node(1, engines=engines("0.20.0")).start()
    d.wait(lambda: d.node_states().get("n1") == "rejected", "n1 to be rejected", 20.0)
    (node,) = d.get("/v1/nodes")
    assert "the node has vllm@0.20, and the file does not work with that" in node["reason"]
    assert "watchdog_config" in node["reason"]
    for number in (2, 3):
        d.add_node(number, engines=engines("0.99.1")).start()
    d.wait_ready()
    assert d.node_states()["n1"] == "rejected"
    told = [e["sentence"] for e in d.events("union-0") if "newer than any version that Motor knows" in e["sentence"]]
    assert len(told) == 1, "a version newer than any that is known works, with one warning"


def atom_section(model: str, **more: Any) -> dict[str, Any]:
    config = {
        "model": model,
        "tensor_parallel_size": 1,
        "prefill-context-parallel-size": 2,
        "server-port": free_port(64),
        "master-port": free_port(64),
    }
    return {"engine_type": "atom", "engine_profile": "atom@0.1.6", "engine_config": config, **more}


def test_nodes_look_at_the_kind_of_a_model_that_the_controller_cannot_read(deploy: Callable[..., Deployment]) -> None:
    """PCP of ATOM is right for DeepSeek-V4 only, and `tiny` lies below a node's model root."""
    d = deploy({"motor_engine_union_config": atom_section("tiny")})
    d.start_controller()
    settings = {"devices": {"kind": "cpu", "count": 2}, "engines": {"atom": {"command": ["true"], "version": "0.1.6"}}}
    for number, model_type in ((1, "llama"), (2, "deepseek_v4_mtp")):
        node = d.add_node(number, **settings)
        (node.root / "models" / "tiny" / "config.json").write_text(json.dumps({"model_type": model_type}))
    d.nodes["n1"].start()
    told = d.wait(
        lambda: [e for e in d.events() if "expected model_type deepseek_v4" in e["sentence"]], "n1 to refuse", 20.0
    )
    assert "tiny/config.json: expected model_type deepseek_v4 or deepseek_v4_mtp, got llama" in told[0]["sentence"]
    assert 'name rule "atom-pcp-model" in override.rules' in told[0]["sentence"]
    assert "expected model_type deepseek_v4" in d.group()["waiting_for"], "status says why"
    d.nodes["n2"].start()
    d.wait(lambda: [e for e in d.events() if e["sentence"] == "node n2 is prepared"], "n2 to be right for it", 20.0)
