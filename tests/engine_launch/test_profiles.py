"""Engine profiles: found by name, chosen when nothing is named, and complete."""

from __future__ import annotations

import re

import pytest

from engine_launch.flag_list import load_flag_list, versions_with
from engine_launch.profile import EngineProfile, PcpLimit, PcpSupport
from engine_launch.profiles import PROFILES, UnknownProfile, choose, resolve
from engine_launch.reserved import CONSUMED, MASTER_ONLY, READ, RESERVED
from engine_launch.vllm import REFUSED_ENV

FAILURE_CLASSES = {"configuration", "port", "transient", "group"}


@pytest.mark.parametrize("spelling", ["vllm@0.32", "vllm@0.32.0", "vllm@0.32.0+cpu"])
def test_a_version_fits_by_its_first_two_numbers(spelling: str) -> None:
    assert resolve(spelling) is PROFILES["vllm@0.32"]


def test_a_dash_is_an_underscore() -> None:
    assert resolve("vllm-ascend@0.23rc1") is PROFILES["vllm_ascend@0.23"]


def test_a_newer_version_works_like_the_newest_with_a_note() -> None:
    profile = resolve("vllm@0.99")
    assert profile.name == "vllm@0.99"
    assert profile.native == PROFILES["vllm@0.33"].native
    assert "treated like vllm@0.33" in profile.notes[-1]


@pytest.mark.parametrize("name", ["vllm", "vllm@", "vllm@x", "sglang@0.5", "vllm@0.3", "vlm@0.32"])
def test_unknown_names_say_what_there_is(name: str) -> None:
    with pytest.raises(UnknownProfile, match=r"vllm@0\.18 to 0\.33, vllm_ascend@0\.12 to 0\.26"):
        resolve(name)


@pytest.mark.parametrize("name", ["vllm@0.9.2", "vllm-ascend@0.11.0rc2", "atom@0.1.5"])
def test_an_older_version_than_any_is_refused_and_says_so(name: str) -> None:
    with pytest.raises(UnknownProfile, match=r"is older than any version that Motor knows, and which flags") as raised:
        resolve(name)
    assert "did you mean" not in str(raised.value)


def test_a_typing_error_gets_a_suggestion() -> None:
    with pytest.raises(UnknownProfile, match=r"did you mean 'vllm@0\.32'"):
        resolve("vlm@0.32")


@pytest.mark.parametrize(
    ("engine_type", "pinned", "pcp", "name", "assumed"),
    [
        ("vllm", None, 1, "vllm@0.33", True),
        ("vllm", None, 2, "vllm_ascend@0.23", True),
        ("vllm", "vllm@0.30", 2, "vllm@0.30", False),
        ("vllm_ascend", None, 1, "vllm_ascend@0.23", True),
    ],
)
def test_choice(engine_type: str, pinned: str | None, pcp: int, name: str, assumed: bool) -> None:
    choice = choose(engine_type, pinned, pcp)
    assert (choice.profile.name, choice.assumed) == (name, assumed)
    assert choice.reason


@pytest.mark.parametrize(
    ("name", "pcp", "pcp_with_dp"),
    [
        ("vllm@0.23", PcpSupport.NO, False),
        ("vllm@0.25", PcpSupport.NO, False),
        ("vllm@0.26", PcpSupport.YES, False),
        ("vllm@0.27", PcpSupport.YES, False),
        ("vllm@0.29", PcpSupport.YES, False),
        ("vllm@0.30", PcpSupport.YES, True),
        ("vllm@0.33", PcpSupport.YES, True),
        ("vllm_ascend@0.12", PcpSupport.NO, True),
        ("vllm_ascend@0.13", PcpSupport.YES, True),
        ("vllm_ascend@0.21", PcpSupport.YES, True),
        ("vllm_ascend@0.22", PcpSupport.YES, False),
        ("vllm_ascend@0.24", PcpSupport.YES, False),
        ("vllm_ascend@0.25", PcpSupport.NO, False),
        ("vllm_ascend@0.26", PcpSupport.V2_RUNNER, False),
    ],
)
def test_what_each_version_can_do_with_pcp(name: str, pcp: PcpSupport, pcp_with_dp: bool) -> None:
    assert (PROFILES[name].pcp, PROFILES[name].pcp_with_dp) == (pcp, pcp_with_dp)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=str)
def test_profiles_are_complete(profile) -> None:  # type: ignore[no-untyped-def]
    assert load_flag_list(profile.flag_list).kinds
    stages = [marker.stage for marker in profile.stages]
    assert len(set(stages)) == len(stages) and profile.worker_stage in stages
    assert {pattern.failure_class for pattern in profile.fatal_patterns} == FAILURE_CLASSES
    for pattern in [*profile.stages, *profile.fatal_patterns]:
        re.compile(pattern.pattern)
    assert profile.env["SPT_NOENV"] == "1"
    assert "VLLM_LOGGING_PREFIX" not in profile.env
    assert not set(profile.env) & set(profile.node_env)


def test_the_topology_of_an_engine_cannot_be_set_by_its_environment() -> None:
    for name in ("VLLM_DP_SIZE", "VLLM_DP_MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        read_by = [p for p in PROFILES.values() if p.engine != "atom" or not name.startswith("VLLM_")]
        assert all(name in profile.refused_env for profile in read_by)
    assert {"ATOM_DP_SIZE", "ATOM_DP_BASE_PORT", "HIP_VISIBLE_DEVICES"} <= set(PROFILES["atom@0.1.6"].refused_env)
    assert "RANK_TABLE_FILE" in PROFILES["vllm_ascend@0.23"].refused_env
    assert "RANK_TABLE_FILE" not in REFUSED_ENV


OF_VLLM = [profile for profile in PROFILES.values() if profile.engine in ("vllm", "vllm_ascend")]

# What Motor reads or reserves and an older vLLM lacks -> the first minor version that has it.
YOUNG = {
    "shutdown-timeout": 18,
    "grpc": 20,
    "data-parallel-multi-port-external-lb": 22,
    "device-ids": 24,
}


@pytest.mark.parametrize("profile", OF_VLLM, ids=lambda profile: profile.name)
def test_the_names_motor_knows_are_names_of_the_engine(profile: EngineProfile) -> None:
    flags = load_flag_list(profile.flag_list)
    minor = int(profile.version.split(".")[1])
    missing = {name for name, since in YOUNG.items() if minor < since}
    assert (set(RESERVED) | READ | CONSUMED | MASTER_ONLY) - set(flags.kinds) == missing
    assert not set(RESERVED) & READ
    assert not profile.drain_flag or flags.knows(profile.drain_flag)


@pytest.mark.parametrize("profile", OF_VLLM, ids=lambda profile: profile.name)
def test_every_profile_has_the_flag_list_of_its_own_vllm(profile: EngineProfile) -> None:
    # A vLLM-Ascend sits on the vLLM with the same two numbers.
    assert load_flag_list(profile.flag_list).source == f"vllm-{profile.version}"
    assert profile.strict_flags == (profile.engine == "vllm")


@pytest.mark.parametrize(
    ("flag", "absent", "present"),
    [("watchdog-config", "0.32", "0.33"), ("device-ids", "0.23", "0.24")],
)
def test_lists_differ_by_version(flag: str, absent: str, present: str) -> None:
    assert not load_flag_list(f"vllm-{absent}.json").knows(flag)
    assert load_flag_list(f"vllm-{present}.json").knows(flag)


@pytest.mark.parametrize(
    ("flag", "versions"),
    [
        ("watchdog-config", "vllm-0.33 and newer"),
        ("device-ids", "vllm-0.24 and newer"),
        ("nnodes", "vllm-0.12 and newer"),
        ("no-such-flag", ""),
    ],
)
def test_versions_that_have_a_flag(flag: str, versions: str) -> None:
    assert versions_with(flag, "vllm-0.23") == versions


def test_the_newest_engine_negates_in_two_ways() -> None:
    flags = load_flag_list("vllm-0.33.json")
    assert flags.knows("disable-chunked-prefill") and flags.knows("no-enable-chunked-prefill")
    assert "disable-chunked-prefill" not in flags.negatable


@pytest.mark.parametrize(
    ("name", "limit", "limited"),
    [
        ("vllm@0.26", PcpLimit.NO_PP, True),
        ("vllm@0.31", PcpLimit.NO_PP, True),
        ("vllm@0.32", PcpLimit.NO_PP, False),
        ("vllm@0.29", PcpLimit.NO_SPECULATION, True),
        ("vllm@0.30", PcpLimit.NO_SPECULATION, False),
        ("vllm@0.32", PcpLimit.SPARSE_EAGER, True),
        ("vllm@0.33", PcpLimit.SPARSE_EAGER, False),
        ("vllm_ascend@0.24", PcpLimit.MLA_ONLY, False),
        ("vllm_ascend@0.26", PcpLimit.NO_DCP, True),
    ],
)
def test_what_pcp_cannot_do(name: str, limit: PcpLimit, limited: bool) -> None:
    assert (limit in PROFILES[name].pcp_limits) == limited


def test_flag_list() -> None:
    flags = load_flag_list("vllm-0.32.json")
    assert flags.source == "vllm-0.32"
    assert "enable-prefix-caching" in flags.negatable
    assert "compilation-config" in flags.json_valued
    assert flags.knows("no-enable-prefix-caching") and not flags.knows("max-modl-len")
    assert load_flag_list("").knows("anything")
