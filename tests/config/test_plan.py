"""From a file to the plan, the engines and the settings of the controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.config.errors import ConfigError
from controller.config.listen_rules import is_loopback
from controller.config.load import parse_document
from controller.config.plan import deployment_from, load_deployment
from controller.config.yaml_text import parse as parse_yaml
from controller.core.model import PortRange
from tests.config.files import engine, file_with, load
from tests.golden_shapes import ROOT

SEED = """
{
  "motor_engine_prefill_config": {
    "engine_type": "vllm",
    "engine_config": {
      "model": "/mnt/weight/your_model",
      "tensor_parallel_size": 16,
      "data_parallel_size": 1,
      "prefill-context-parallel-size": 2,
      "cp-kv-cache-interleave-size": 128,
      "nnodes": 2,
      "master-port": 7001
    }
  }
}
"""

ASCEND = "vllm_ascend@0.23"


def test_the_fields_example_is_accepted_as_it_is() -> None:
    loaded = load(SEED)
    assert not loaded.warnings
    (plan,) = loaded.plan.instances
    assert (plan.name, plan.dp_size, plan.nnodes, plan.devices_per_slot) == ("prefill-0", 1, 2, 16)
    assert loaded.engines["prefill-0"].profile == "vllm_ascend@0.23"
    assert plan.engine_versions == (), "an assumed profile fits any version that a node reports"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.json")), ids=lambda path: path.name)
def test_every_sample_is_valid(path: Path) -> None:
    # Whether the model is one for PCP stands in its config.json, which is not here.
    assert {warning.rule for warning in load_deployment(path).warnings} <= {"atom-pcp-model-unread"}


def test_yaml_is_the_same_file() -> None:
    text = "motor_engine_prefill_config:\n  engine_type: vllm\n  engine_profile: vllm@0.32\n  engine_config:\n"
    text += "    model: /m\n    tensor-parallel-size: 8\n    nnodes: 2\n    master-port: 7001\n"
    from_yaml = deployment_from(parse_document("deploy.yaml", text, parse_yaml))
    assert from_yaml.plan == load(file_with(prefill=engine())).plan


def test_instances_and_their_order() -> None:
    content = {
        "motor_deploy_config": {"p_instances_num": 2, "d_instances_num": 1, "deployment_id": "x"},
        "motor_engine_decode_config": engine(),
        "motor_engine_prefill_config": engine(),
    }
    loaded = load(content)
    assert loaded.plan.deployment_id == "x"
    assert [plan.name for plan in loaded.plan.instances] == ["decode-0", "prefill-0", "prefill-1"]
    assert set(loaded.engines) == set(loaded.choices) == {"decode-0", "prefill-0", "prefill-1"}


def test_a_pinned_profile_fits_its_own_version_only() -> None:
    assert load(file_with(prefill=engine("vllm@0.32"))).plan.instances[0].engine_versions == ("0.32",)


def test_the_engines_name_in_node_files() -> None:
    assert load(file_with(prefill=engine())).plan.instances[0].engine == "vllm"
    assert load(file_with(prefill=engine(section={"engine": "v32"}))).plan.instances[0].engine == "v32"


def test_the_digest_changes_with_the_section_and_not_with_its_layout() -> None:
    def digest(**more: Any) -> str:
        return load(file_with(prefill=engine(**more))).plan.instances[0].config_digest

    assert digest() == digest()
    assert len(digest()) == 16
    assert len({digest(), digest(seed=1), digest(env={"A": "1"}), digest(section={"extra_args": ["--x"]})}) == 4
    section = engine()
    reordered = dict(reversed(section.items()))
    assert load(file_with(prefill=reordered)).plan.instances[0].config_digest == digest()


# --- ports --------------------------------------------------------------------------------------------------


def ranges(content: dict[str, Any]) -> dict[str, tuple[str, str, str | None]]:
    return {
        plan.name: (str(plan.master_ports), str(plan.api_ports), plan.dp_rpc_ports and str(plan.dp_rpc_ports))
        for plan in load(content).plan.instances
    }


def test_default_ranges_lie_side_by_side() -> None:
    one_node: dict[str, Any] = {
        "nnodes": 1,
        "master_port": ...,
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
    }
    found = ranges(file_with(engine(**one_node), engine(**one_node), engine(**one_node)))
    assert found == {
        "prefill-0": ("7001-7064", "8000-8063", "29550-29613"),
        "decode-0": ("7065-7128", "8064-8127", "29614-29677"),
        "union-0": ("7129-7192", "8128-8191", "29678-29741"),
    }


def test_a_default_keeps_away_from_what_another_role_fixed() -> None:
    found = ranges(file_with(engine(port=8004), engine(nnodes=1, master_port=...)))
    assert found["prefill-0"] == ("7001-7064", "8004-8067", None)
    assert found["decode-0"] == ("7065-7128", "8128-8191", None)


def test_first_ports_may_be_equal_in_roles_since_a_ledger_keeps_hosts_apart() -> None:
    found = ranges(file_with(engine(port=8000), engine(port=8000)))
    assert found["prefill-0"] == found["decode-0"] == ("7001-7064", "8000-8063", None)


def test_a_range_of_default_length_gives_way() -> None:
    assert ranges(file_with(engine(master_port=7990, port=8000)))["prefill-0"] == ("7990-7999", "8000-8063", None)
    assert ranges(file_with(engine(master_port=65500)))["prefill-0"][0] == "65500-65535"


def test_given_ranges() -> None:
    deploy = {"port_ranges": {"prefill": {"master": [7000, 7009], "api": [9000, 9000]}}}
    assert ranges(file_with(engine(port=...), deploy=deploy))["prefill-0"] == ("7000-7009", "9000-9000", None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"master": [7100, 7200]}, "lies outside motor_deploy_config.port_ranges.prefill.master"),
        ({"api": [9000, 8000]}, "is no range of ports"),
        ({"api": [80, 90]}, "1024 <= first"),
        ({"api": [8000]}, "two numbers"),
        ({"api": [7000, 7100]}, "overlap"),
        ({"api": [1020, 1030]}, "is no range of ports"),
        ({"api": [1024, 1030]}, "overlap controller rest ports 1026-1026"),
    ],
)
def test_bad_ranges(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(file_with(engine(), deploy={"port_ranges": {"prefill": given}}))


def test_kv_ports_take_part() -> None:
    kv = {"kv_connector": "MooncakeConnectorV1", "kv_port": 8010}
    with pytest.raises(ConfigError, match="overlap kv ports 8010-8017"):
        load(file_with(engine(ASCEND, port=8012, kv_transfer_config=kv)))
    both = load(file_with(engine(ASCEND, kv_transfer_config=kv), engine(ASCEND, kv_transfer_config=kv)))
    assert ["on one host they would collide" in str(warning) for warning in both.warnings] == [True]
    assert both.plan.instances[0].api_ports == PortRange(8064, 64)


# --- settings -----------------------------------------------------------------------------------------------


def test_settings_and_their_defaults() -> None:
    settings = load(file_with(engine())).settings
    assert (settings.rest.host, settings.rest.port) == ("127.0.0.1", 1026)
    assert (settings.grpc.host, settings.grpc.port) == ("127.0.0.1", 1028)
    assert not settings.insecure
    assert (settings.store.kind, settings.log_level) == ("sqlite", "INFO")
    assert settings.store.path.is_absolute()


def test_a_relative_store_lies_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deploy.json"
    path.write_text(json.dumps(file_with(engine(), controller={"store": {"path": "state/motor.sqlite3"}})))
    assert load_deployment(path).settings.store.path == tmp_path / "state" / "motor.sqlite3"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "controller.example"])
@pytest.mark.parametrize("server", ["rest", "grpc"])
def test_beyond_loopback_has_to_be_wanted(host: str, server: str) -> None:
    with pytest.raises(ConfigError, match=rf"motor_controller_config.{server}.host .*: listens beyond loopback"):
        load(file_with(engine(), controller={server: {"host": host}}))
    settings = load(file_with(engine(), controller={server: {"host": host}, "insecure": True})).settings
    assert settings.insecure and getattr(settings, server).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.0.1", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


def test_timers() -> None:
    loaded = load(file_with(engine(), controller={"timers": {"heartbeat_interval": 4, "max_restarts": 0}}))
    timers = loaded.plan.timers
    assert (timers.heartbeat_interval, timers.node_timeout, timers.max_restarts) == (4, 13, 0)
    assert load(file_with(engine())).plan.timers.node_timeout == 7


@pytest.mark.parametrize(
    ("timers", "message"),
    [
        ({"self_fence": 21}, "self_fence .*: is not longer than three node timeouts of 7 s"),
        ({"heartbeat_interval": 4, "node_timeout": 11}, "less than three heartbeats"),
        ({"restart_backoff": 90}, "restart_backoff_max .*: is less than restart_backoff"),
        ({"refusal_backoff": 900}, "refusal_backoff_max"),
        ({"stop_grace": 70}, "stop_timeout .*: is less than stop_grace"),
        ({"stop_timeout": 20}, "stop_timeout .*: is not longer than the drain"),
        ({"start_timeout": 100}, "start_timeout .*: is less than start_unreachable_grace"),
        ({"stop_grace": 0}, "more than 0"),
        ({"stop_grace": "20s"}, "a number of seconds"),
        ({"max_restarts": -1}, "at least 0"),
        ({"max_restarts": 2.5}, "an integer"),
        ({"hartbeat_interval": 1}, 'did you mean "heartbeat_interval"'),
    ],
)
def test_timers_that_do_not_nest(timers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(file_with(engine(), controller={"timers": timers}))


def test_a_drain_has_to_fit_into_the_stop() -> None:
    load(file_with(engine(shutdown_timeout=39)))
    with pytest.raises(ConfigError, match="more than 60 s"):
        load(file_with(engine(shutdown_timeout=40)))
    load(file_with(engine(shutdown_timeout=40), controller={"timers": {"stop_timeout": 61}}))


def test_ports_of_the_controller_differ() -> None:
    with pytest.raises(ConfigError, match="is the REST port"):
        load(file_with(engine(), controller={"grpc": {"port": 1026}}))


def test_the_coordinators_section_is_kept() -> None:
    section = {"scheduler_config": {"deploy_mode": "cpcd_separate"}}
    assert load(file_with(engine(), motor_coordinator_config=section)).coordinator == section
