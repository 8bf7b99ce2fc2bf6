"""The file pins no engine profile: what nodes report decides, and a node that does not fit hears why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.deployment import Deployment, engine_section
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
