"""What is filled into kv_transfer_config, and that nothing else is touched."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_launch.command import build_command
from engine_launch.flags import Option
from engine_launch.health import virtual_transfer_params
from engine_launch.kv_connectors import CONNECTORS, KV_ROLES
from engine_launch.kv_transfer import EXTRA, INNER, OPTION, fill_transfer
from engine_launch.model import (
    Assignment,
    EngineSpec,
    KvPlan,
    KvSizes,
    NodeLocal,
    ParallelShape,
    Role,
    Translation,
)

SIZES = {Role.PREFILL: KvSizes(1, 16, 1, 2, 8), Role.DECODE: KvSizes(4, 8)}
PREFILL = {"dp_size": 1, "tp_size": 16, "pp_size": 1, "pcp_size": 2, "dcp_size": 8}
DECODE = {"dp_size": 4, "tp_size": 8, "pp_size": 1, "pcp_size": 1, "dcp_size": 1}
PLAN = KvPlan(sizes=SIZES, first_port=15000, port_step=8, first_world=2)


def spec(config: Any, plan: KvPlan | None = PLAN, **more: Any) -> EngineSpec:
    values: dict[str, Any] = {
        "engine_type": "vllm",
        "profile": "vllm_ascend@0.23",
        "engine": "vllm",
        "shape": ParallelShape(tp=8),
        "translation": Translation.REPLICA,
        "model": "/m",
        "engine_config": {"model": "/m", "kv_transfer_config": config},
        "kv": plan,
    }
    return EngineSpec(**{**values, **more})


def assignment(
    role: Role = Role.PREFILL, dp_rank: int = 0, node_rank: int = 0, run_id: str = "0123456789ab"
) -> Assignment:
    name = f"{role.value}-1"
    return Assignment(name, role, dp_rank, node_rank, "10.0.0.1", "10.0.0.1", 7003, 8000, 29550, run_id)


def filled(config: Any, plan: KvPlan | None = PLAN, where: Assignment | None = None, **more: Any) -> Any:
    options = [Option("seed", "seed", 1), Option(OPTION, "kv_transfer_config", config)]
    result = fill_transfer(spec(config, plan, **more), where or assignment(), options)
    assert result.options[0] == options[0]
    return result.options[1].value


def test_everything_that_is_absent() -> None:
    assert filled({"kv_connector": "MooncakeConnectorV1"}) == {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_producer",
        "kv_port": 15016,
        "kv_connector_extra_config": {"prefill": PREFILL, "decode": DECODE},
        "engine_id": "prefill-1-01234567",
    }


@pytest.mark.parametrize(
    ("role", "kv_role"), [(Role.PREFILL, "kv_producer"), (Role.DECODE, "kv_consumer"), (Role.UNION, "kv_both")]
)
def test_kv_role_follows_from_the_section(role: Role, kv_role: str) -> None:
    assert filled({"kv_connector": "NixlConnector"}, where=assignment(role))["kv_role"] == kv_role


def test_what_is_written_stays_and_keeps_its_order() -> None:
    written = {
        "kv_buffer_size": 1,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"use_ascend_direct": True, "decode": {"tp_size": 8, "pp_layer_partition": "3,2"}},
        "kv_connector": "MooncakeConnectorV1",
        "engine_id": "mine",
        "kv_port": "15016",
    }
    result = filled(written)
    assert list(result) == list(written)
    assert list(result[EXTRA]) == ["use_ascend_direct", "decode", "prefill"]
    assert result[EXTRA]["decode"] == {"tp_size": 8, "pp_layer_partition": "3,2", **{k: DECODE[k] for k in DECODE}}
    assert result["kv_port"] == "15016"
    assert result["engine_id"] != "mine", "several engines would have it, and keep it over a restart"


def test_null_counts_as_absent() -> None:
    result = filled({"kv_connector": "MooncakeConnectorV1", "kv_role": None, "engine_id": None, EXTRA: None})
    assert result["kv_role"] == "kv_producer" and result["engine_id"] and result[EXTRA]["prefill"] == PREFILL


@pytest.mark.parametrize(
    ("translation", "dp_rank", "engine_id", "port"),
    [
        (Translation.REPLICA, 0, "decode-1-g0-01234567", 15016),
        (Translation.REPLICA, 3, "decode-1-g3-01234567", 15040),
        (Translation.NATIVE_EXTERNAL, 0, "decode-1-01234567", 15016),
        (Translation.NATIVE_EXTERNAL, 3, "decode-1-01234567", 15016),
        (Translation.NATIVE_INTERNAL, 3, "decode-1-01234567", 15016),
    ],
)
def test_engine_id_and_port_of_an_engine_world(
    translation: Translation, dp_rank: int, engine_id: str, port: int
) -> None:
    where = assignment(Role.DECODE, dp_rank)
    shape = ParallelShape(tp=8, dp=4)
    result = filled({"kv_connector": "MooncakeConnectorV1"}, where=where, shape=shape, translation=translation)
    assert (result["engine_id"], result["kv_port"]) == (engine_id, port)


def test_all_processes_of_a_world_get_the_same_and_a_restart_another_engine_id() -> None:
    """A decode engine goes on with the addresses it got from an engine_id: a new start needs a new one."""
    shape = ParallelShape(tp=8, pcp=2, nnodes=2)
    config = {"kv_connector": "MooncakeConnectorV1"}
    one, two = (filled(config, where=assignment(node_rank=node), shape=shape) for node in (0, 1))
    assert one == two
    again = filled(config, where=assignment(run_id="ffff"), shape=shape)
    assert again != one and {**again, "engine_id": ""} == {**one, "engine_id": ""}


def test_worlds_that_never_share_a_host_share_their_ports() -> None:
    plan = KvPlan(sizes=SIZES, first_port=15000, port_step=0, first_world=2)
    assert filled({"kv_connector": "MooncakeConnectorV1"}, plan)["kv_port"] == 15000


def test_multi_connector_fills_each_connector_in_it() -> None:
    store = {"kv_connector": "AscendStoreConnector", EXTRA: {"backend": "mooncake"}}
    config = {"kv_connector": "MultiConnector", EXTRA: {INNER: [{"kv_connector": "MooncakeConnectorV1"}, store]}}
    result = filled(config)
    assert (result["kv_role"], result["engine_id"]) == ("kv_producer", "prefill-1-01234567")
    assert "kv_port" not in result
    transfer, pool = result[EXTRA][INNER]
    assert transfer == {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_producer",
        "kv_port": 15016,
        EXTRA: {"prefill": PREFILL, "decode": DECODE},
    }
    assert pool == {**store, EXTRA: {"backend": "mooncake", "lookup_rpc_port": "7003"}, "kv_role": "kv_producer"}


@pytest.mark.parametrize("key", ["lookup_rpc_port", "mooncake_rpc_port"])
@pytest.mark.parametrize("name", ["AscendStoreConnector", "MooncakeConnectorStoreV1"])
def test_a_store_keeps_the_socket_name_it_has(name: str, key: str) -> None:
    assert filled({"kv_connector": name, EXTRA: {key: "5"}})[EXTRA] == {key: "5"}


def test_the_pools_hash_seed_is_shared_unless_the_operator_sets_one() -> None:
    config = {"kv_connector": "AscendStoreConnector"}
    assert build_command(spec(config), assignment()).env["PYTHONHASHSEED"] == "0"
    assert build_command(spec(config, env={"PYTHONHASHSEED": "7"}), assignment()).env["PYTHONHASHSEED"] == "7"


def test_nixl_gets_address_and_port_by_environment() -> None:
    config = {"kv_connector": "NixlConnector"}
    plan = KvPlan(first_port=5600, port_step=1, first_world=3)
    command = build_command(spec(config, plan), assignment())
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5603"
    assert command.node_env["VLLM_NIXL_SIDE_CHANNEL_HOST"] is NodeLocal.ADDRESS
    assert command.ports == (8000, 5603)
    own = build_command(spec(config, plan, env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.1.1.1"}), assignment())
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" not in own.node_env


def test_an_unknown_connector_gets_its_role_and_name_only() -> None:
    result = filled({"kv_connector": "Mine", EXTRA: {"x": 1}})
    assert result == {
        "kv_connector": "Mine",
        EXTRA: {"x": 1},
        "kv_role": "kv_producer",
        "engine_id": "prefill-1-01234567",
    }


@pytest.mark.parametrize("value", [None, "text", ["MooncakeConnectorV1"], True])
def test_what_is_no_object_is_passed_on(value: Any) -> None:
    assert filled(value) == value


def test_without_a_plan_nothing_is_filled_and_written_ports_count() -> None:
    config = {"kv_connector": "MooncakeConnectorV1", "kv_port": "30000"}
    assert filled(config, plan=None) == config
    command = build_command(spec(config, plan=None), assignment())
    assert command.ports == (8000, *range(30000, 30008))


def test_the_digest_is_of_what_is_filled() -> None:
    config = {"kv_connector": "MooncakeConnectorV1"}
    one = build_command(spec(config), assignment())
    assert one.argv_digest == build_command(spec(config), assignment()).argv_digest
    assert one.argv_digest != build_command(spec(config), assignment(run_id="other")).argv_digest
    word = one.argv[one.argv.index("--kv-transfer-config") + 1]
    assert json.loads(word)["engine_id"] == "prefill-1-01234567"


def test_a_layerwise_connector_inside_a_multi_connector_is_seen_by_the_canary() -> None:
    inner = [{"kv_connector": "MooncakeLayerwiseConnector"}, {"kv_connector": "AscendStoreConnector"}]
    config = {"kv_connector": "MultiConnector", EXTRA: {INNER: inner}}
    argv = build_command(spec(config), assignment(Role.DECODE)).argv
    assert virtual_transfer_params(argv, "decode") and virtual_transfer_params(argv, "prefill") is None


# --- properties -----------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers(-5, 70000) | st.text(max_size=4)
names = st.sampled_from([*CONNECTORS, "Mine", ""])
sides = st.dictionaries(st.sampled_from([*PREFILL, "pp_layer_partition"]), scalars, max_size=4) | scalars
extras = st.fixed_dictionaries(
    {},
    optional={
        "prefill": sides,
        "decode": sides,
        "lookup_rpc_port": scalars,
        "backend": scalars,
        "use_layerwise": scalars,
    },
)
fields = {
    "kv_role": st.sampled_from([*KV_ROLES.values(), None]),
    "kv_port": st.none() | st.integers(1, 65535) | st.integers(1, 65535).map(str),
    "engine_id": st.none() | st.text(min_size=1, max_size=4),
    "kv_load_failure_policy": scalars,
    "kv_buffer_size": scalars,
}
singles = st.fixed_dictionaries({"kv_connector": names}, optional={**fields, EXTRA: extras | scalars})
multis = st.fixed_dictionaries(
    {"kv_connector": st.just("MultiConnector"), EXTRA: st.fixed_dictionaries({INNER: st.lists(singles, max_size=3)})},
    optional=fields,
)
configs = singles | multis
plans = st.builds(
    KvPlan,
    sizes=st.sampled_from([{}, SIZES, {Role.PREFILL: SIZES[Role.PREFILL]}]),
    first_port=st.none() | st.integers(1024, 40000),
    port_step=st.integers(0, 64),
    first_world=st.integers(0, 5),
)


@given(config=configs, plan=plans, role=st.sampled_from(Role), dp_rank=st.integers(0, 3))
def test_filling_twice_is_filling_once_and_the_input_is_not_changed(
    config: dict[str, Any], plan: KvPlan, role: Role, dp_rank: int
) -> None:
    before = copy.deepcopy(config)
    shape = ParallelShape(tp=8, dp=4)
    once = filled(config, plan, assignment(role, dp_rank), shape=shape)
    assert config == before
    twice = filled(once, plan, assignment(role, dp_rank), shape=shape)
    assert twice == once and json.dumps(twice) == json.dumps(once)


@given(config=configs, plan=plans, role=st.sampled_from(Role))
def test_written_values_stay_where_they_are(config: dict[str, Any], plan: KvPlan, role: Role) -> None:
    _assert_kept(config, filled(config, plan, assignment(role)))


def _assert_kept(before: Any, after: Any) -> None:
    if isinstance(before, Mapping):
        assert list(after)[: len(before)] == list(before), "keys keep their order, new ones come last"
        assert set(after) - set(before) <= {
            *("kv_role", "kv_port", "engine_id", EXTRA, "prefill", "decode", "lookup_rpc_port", "mooncake_rpc_port"),
            *PREFILL,
        }
        for key, value in before.items():
            if value is not None and key not in ("kv_port", "engine_id"):
                _assert_kept(value, after[key])
    elif isinstance(before, list):
        assert len(before) == len(after)
        for one, two in zip(before, after, strict=True):
            _assert_kept(one, two)
    else:
        assert before == after and type(before) is type(after)
