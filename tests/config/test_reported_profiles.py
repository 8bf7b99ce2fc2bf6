"""A file that pins no engine profile, and nodes that report theirs."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest

from controller.config.errors import ConfigError
from controller.config.plan import LoadedDeployment
from controller.config.reported_profiles import ReportedProfiles, try_profile
from controller.core.model import NodeOffer
from engine_launch.command import build_command
from engine_launch.model import Assignment, Role
from tests.config.files import engine, file_with, load
from tests.golden_shapes import ROOT


def node(profile: str, engine_name: str = "vllm", version: str = "1") -> NodeOffer:
    return NodeOffer(
        "n1", 1, "b", "10.0.0.1", engines={engine_name: version}, profiles={engine_name: profile}, devices=("0",)
    )


def profiles(**config: Any) -> ReportedProfiles:
    return ReportedProfiles(load(file_with(union=engine(None, **config))))


def test_engines_run_under_the_profile_that_their_node_reports() -> None:
    found = profiles()
    offer, remarks = found.judge(node("vllm@0.32.1+cpu"))
    assert offer.obstacles == {}
    assert [subject for subject, _ in remarks] == ["union-0"]
    assert "nodes have vllm@0.32: they run its command lines instead of those of vllm@0.33" in remarks[0][1]
    assert found.engine("union-0", offer).profile == "vllm@0.32"
    assert found.engine("union-0", None).profile == "vllm@0.33", "assumed, as long as nobody has said anything"


def test_a_plug_in_brings_its_own_environment() -> None:
    found = profiles()
    place = Assignment("union-0", Role.UNION, 0, 0, "10.0.0.1", "10.0.0.1", 7001, 8000, None)
    upstream = build_command(found.engine("union-0", None), place)
    offer, _ = found.judge(node("vllm_ascend@0.23.0"))
    plug_in = build_command(found.engine("union-0", offer), place)
    assert "HCCL_IF_IP" in plug_in.node_env and "HCCL_IF_IP" not in upstream.node_env


def test_each_profile_is_tried_and_told_once() -> None:
    found = profiles()
    assert not found.is_known(node("vllm@0.32.0"))
    _, first = found.judge(node("vllm@0.32.0"))
    assert found.is_known(node("vllm@0.32.1")), "no profile looks at the third number"
    _, again = found.judge(node("vllm@0.32.1"))
    assert first and not again


def test_a_newer_version_than_any_that_is_known_works_with_a_warning() -> None:
    found = profiles()
    offer, remarks = found.judge(node("vllm@0.99.0"))
    assert offer.obstacles == {} and found.engine("union-0", offer).profile == "vllm@0.99"
    assert any("newer than any version that Motor knows" in sentence for _, sentence in remarks)


@pytest.mark.parametrize("profile", ["", "vllm@dev", "vllm@unknown"])
def test_an_unknown_version_keeps_the_assumed_profile(profile: str) -> None:
    found = profiles()
    offer, remarks = found.judge(node(profile))
    assert (offer.obstacles, remarks) == ({}, ())
    assert found.engine("union-0", offer).profile == "vllm@0.33"


@pytest.mark.parametrize(
    ("config", "profile", "words"),
    [
        # --watchdog-config came with 0.33
        ({"watchdog_config": {"timeout": 5}}, "vllm@0.20.0", ["the node has vllm@0.20", "watchdog-config"]),
        (
            {},
            "vllm@0.9.2",
            ["the node has vllm@0.9.2, which no profile of Motor fits", "older than any", "known: vllm@0.18"],
        ),
        ({}, "atom@0.1.6", ["the profile is of another engine"]),
        # the profile that was assumed, and a connector of the plug-in: a warning as long as no node has spoken
        (
            {"kv_transfer_config": {"kv_connector": "AscendStoreConnector", "kv_role": "kv_both"}},
            "vllm@0.33.0",
            ["the node has vllm@0.33, and the file does not work with that", "vllm@0.33 has no such connector"],
        ),
    ],
)
def test_a_file_that_does_not_work_with_the_version_is_an_obstacle(
    config: dict[str, Any], profile: str, words: list[str]
) -> None:
    found = profiles(**config)
    offer, remarks = found.judge(node(profile))
    assert set(offer.obstacles) == {"union-0"} and not remarks
    for word in words:
        assert word in offer.obstacles["union-0"]


def test_another_translation_is_an_obstacle_that_names_the_way_out() -> None:
    """PCP over several groups: one world with upstream 0.33, engines of their own with 0.28."""
    content = file_with(
        union=engine(
            None, tensor_parallel_size=4, prefill_context_parallel_size=2, data_parallel_size=2,
            enable_expert_parallel=True, section={"engine_type": "vllm"},
        )
    )  # fmt: skip
    found = ReportedProfiles(load(content))
    assert found.engine("union-0", None).profile == "vllm_ascend@0.23", "PCP without a profile means the plug-in"
    offer, _ = found.judge(node("vllm@0.33.0"))
    assert "native_external instead of replica" in offer.obstacles["union-0"]
    assert 'set engine_profile to "vllm@0.33" in motor_engine_union_config' in offer.obstacles["union-0"]


def test_a_pinned_profile_stays() -> None:
    found = ReportedProfiles(load(file_with(union=engine("vllm@0.32"))))
    offer, remarks = found.judge(node("vllm@0.20.0"))
    assert (offer.obstacles, remarks) == ({}, ()), "the core compares versions with a pinned profile itself"
    assert found.engine("union-0", offer).profile == "vllm@0.32"


def test_sections_are_tried_by_themselves() -> None:
    content = file_with(prefill=engine(None), decode=engine(None, watchdog_config={"timeout": 5}, master_port=7201))
    found = ReportedProfiles(load(content))
    offer, _ = found.judge(node("vllm@0.20.0"))
    assert set(offer.obstacles) == {"decode-0"}
    assert found.engine("prefill-0", offer).profile == "vllm@0.20"


PREFILL, DECODE = "motor_engine_prefill_config", "motor_engine_decode_config"
# where the facts of an engine change
TURNS = (
    "vllm@0.18", "vllm@0.26", "vllm@0.27", "vllm@0.29", "vllm@0.30", "vllm@0.31", "vllm@0.33",
    "vllm_ascend@0.12", "vllm_ascend@0.13", "vllm_ascend@0.21", "vllm_ascend@0.22", "vllm_ascend@0.24",
    "vllm_ascend@0.25", "vllm_ascend@0.26",
)  # fmt: skip


def experts(**more: Any) -> dict[str, Any]:
    """Data parallelism, whose translation depends on the version where PCP is there too."""
    kv = {"kv_connector": "NixlConnector"}
    return engine(
        None, tensor_parallel_size=4, data_parallel_size=2, enable_expert_parallel=True, kv_transfer_config=kv, **more
    )


def unpinned(golden: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "tests" / "golden" / "inputs" / f"{golden}.json").read_text())
    for section in (PREFILL, DECODE):
        content[section].pop("engine_profile", None)
        content[section]["engine_type"] = "vllm"
    return content


PAIRS: dict[str, dict[str, Any]] = {
    "pcp": unpinned("1p1d-ascend"),
    "layerwise": unpinned("1p1d-layerwise-ascend"),
    "several connectors": unpinned("multi-connector-ascend"),
    "experts": file_with(prefill=experts(prefill_context_parallel_size=2), decode=experts(master_port=7201)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_works_with_two_profiles_exactly_if_each_side_works_with_its_own(pair: str) -> None:
    """Sections are tried by themselves; this holds only while no rule over a pair looks at a profile."""
    deployment = load(PAIRS[pair])
    alone = {
        (section, profile): not try_profile(deployment, section, profile).obstacle
        for section in (PREFILL, DECODE)
        for profile in TURNS
    }
    assert len(set(alone.values())) == 2, "a pair that tells something works with some and not with others"
    together = {}
    for prefill, decode in itertools.product(TURNS, TURNS):
        content = copy.deepcopy(PAIRS[pair])
        content[PREFILL]["engine_profile"], content[DECODE]["engine_profile"] = prefill, decode
        together[prefill, decode] = _same_plan(deployment, content)
    wrong = {both for both, works in together.items() if works != (alone[PREFILL, both[0]] and alone[DECODE, both[1]])}
    assert not wrong


def _same_plan(deployment: LoadedDeployment, content: dict[str, Any]) -> bool:
    """Is `content` valid, with the ranks, ports and KV sizes of `deployment`?"""
    try:
        other = load(content)
    except ConfigError:
        return False

    def layout(loaded: LoadedDeployment) -> list[Any]:
        return [
            (plan.name, plan.dp_size, plan.scope, plan.master_ports, plan.api_ports, plan.dp_rpc_ports,
             plan.api_on_every_group, loaded.engines[plan.name].translation, loaded.engines[plan.name].kv)
            for plan in loaded.plan.instances
        ]  # fmt: skip

    return layout(other) == layout(deployment)
