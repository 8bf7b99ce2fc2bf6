"""EngineSpec + Assignment -> command. Whole argvs of the common shapes are pinned in tests/golden."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engine_launch.command import CommandError, build_command, url_host
from engine_launch.model import Assignment, EngineSpec, NodeLocal, ParallelShape, Role, Translation

CONFIG = {"model": "/m", "tensor-parallel-size": 4, "nnodes": 2, "master-port": 7001, "max-model-len": 1024}


def spec(**more: Any) -> EngineSpec:
    values: dict[str, Any] = {
        "engine_type": "vllm",
        "profile": "vllm@0.32",
        "engine": "vllm",
        "shape": ParallelShape(tp=4, nnodes=2),
        "translation": Translation.REPLICA,
        "model": "/m",
        "engine_config": CONFIG,
    }
    return EngineSpec(**{**values, **more})


def assignment(dp_rank: int = 0, node_rank: int = 0, **more: Any) -> Assignment:
    values: dict[str, Any] = {
        "instance": "prefill-0",
        "role": Role.PREFILL,
        "dp_rank": dp_rank,
        "node_rank": node_rank,
        "address": f"10.0.{dp_rank}.{node_rank}",
        "master_addr": "10.0.0.0",
        "master_port": 7003,
        "api_port": 8000 if node_rank == 0 else None,
        "dp_rpc_port": None,
    }
    return Assignment(**{**values, **more})


def after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_master() -> None:
    command = build_command(spec(), assignment())
    assert command.argv == (
        *("vllm", "serve", "/m", "--tensor-parallel-size", "4", "--max-model-len", "1024"),
        *("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.0", "--master-port", "7003"),
        *("--distributed-executor-backend", "mp", "--host", "10.0.0.0", "--port", "8000"),
    )
    assert (command.headless, command.api_host, command.api_port) == (False, "10.0.0.0", 8000)
    assert (command.health_path, command.ports, command.expected_workers) == ("/health", (7003, 8000), 2)


def test_follower() -> None:
    command = build_command(spec(), assignment(node_rank=1))
    assert command.argv[-1] == "--headless"
    assert "--host" not in command.argv and "--port" not in command.argv
    assert (command.headless, command.api_host, command.api_port, command.health_path) == (True, None, None, None)
    assert command.ports == ()


def test_members_differ_in_ranks_and_api_only() -> None:
    master, follower = (build_command(spec(), assignment(node_rank=rank)).argv for rank in (0, 1))
    varying = {"--node-rank", "0", "1", "--headless", "--host", "10.0.0.0", "--port", "8000"}
    assert set(master) ^ set(follower) <= varying


def test_a_plain_engine_on_one_node_has_no_multi_node_flag() -> None:
    one = spec(shape=ParallelShape(tp=4), engine_config={"model": "/m", "tp_size": 4, "dp_size": 1})
    command = build_command(one, assignment())
    assert command.argv == (
        *("vllm", "serve", "/m", "--tensor-parallel-size", "4"),
        *("--host", "10.0.0.0", "--port", "8000"),
    )
    assert command.ports == (8000,), "it opens no master port"


def test_the_operators_executor_stays() -> None:
    config = {**CONFIG, "distributed_executor_backend": "external_launcher"}
    argv = build_command(spec(engine_config=config), assignment()).argv
    assert argv.count("--distributed-executor-backend") == 1
    assert after(argv, "--distributed-executor-backend") == "external_launcher"


@pytest.mark.parametrize(
    ("host", "flag", "reached_at"),
    [("0.0.0.0", "0.0.0.0", "10.0.0.0"), ("::", "::", "10.0.0.0"), ("10.9.9.9", "10.9.9.9", "10.9.9.9")],
)
def test_the_operators_host_is_for_masters(host: str, flag: str, reached_at: str) -> None:
    command = build_command(spec(engine_config={**CONFIG, "host": host}), assignment())
    assert after(command.argv, "--host") == flag
    assert command.api_host == reached_at
    assert "--host" not in build_command(spec(engine_config={**CONFIG, "host": host}), assignment(node_rank=1)).argv


def test_ipv6_has_brackets_only_in_urls() -> None:
    here = assignment(address="fd00::1:1", master_addr="fd00::1:1")
    command = build_command(spec(), here)
    assert after(command.argv, "--host") == after(command.argv, "--master-addr") == "fd00::1:1"
    assert command.api_host == "fd00::1:1"
    assert [url_host(address) for address in ("fd00::1:1", "10.0.0.1", "<prefill-0/0/0>")] == [
        "[fd00::1:1]",
        "10.0.0.1",
        "<prefill-0/0/0>",
    ]


def test_extra_args_stand_between_the_operators_and_the_computed_options() -> None:
    argv = build_command(spec(extra_args=("--new-flag", "1")), assignment()).argv
    assert argv.index("--max-model-len") < argv.index("--new-flag") < argv.index("--nnodes")


def test_an_api_server_count_is_for_processes_with_an_api_server() -> None:
    config = {**CONFIG, "api-server-count": 2}
    assert "--api-server-count" in build_command(spec(engine_config=config), assignment()).argv
    assert "--api-server-count" not in build_command(spec(engine_config=config), assignment(node_rank=1)).argv


def test_native_worlds() -> None:
    shape = ParallelShape(tp=4, dp=2, nnodes=2, expert_parallel=True)
    external = spec(shape=shape, translation=Translation.NATIVE_EXTERNAL)
    command = build_command(external, assignment(1, 1, dp_rpc_port=29551))
    assert after(command.argv, "--nnodes") == "4"
    assert after(command.argv, "--node-rank") == "3"
    assert after(command.argv, "--data-parallel-size") == "2"
    assert after(command.argv, "--data-parallel-rank") == "1"
    assert after(command.argv, "--data-parallel-address") == "10.0.0.0"
    assert after(command.argv, "--data-parallel-rpc-port") == "29551"
    internal = spec(shape=shape, translation=Translation.NATIVE_INTERNAL)
    command = build_command(internal, assignment(1, 0, dp_rpc_port=29551, api_port=None))
    assert command.headless and "--data-parallel-rank" not in command.argv
    master = build_command(internal, assignment(dp_rpc_port=29551))
    assert master.ports == (7003, 29551, 8000)


def test_kv_ports_follow_the_rank_in_the_world() -> None:
    config = {**CONFIG, "kv-transfer-config": {"kv_connector": "MooncakeConnectorV1", "kv_port": "30000"}}
    shape = ParallelShape(tp=4, dp=2, nnodes=2, expert_parallel=True)
    world = spec(profile="vllm_ascend@0.23", shape=shape, engine_config=config)
    replica = build_command(world, assignment(1, 1))
    assert replica.ports == (30002, 30003)
    native = dataclasses.replace(world, translation=Translation.NATIVE_EXTERNAL)
    assert build_command(native, assignment(1, 1, dp_rpc_port=29550)).ports == (30006, 30007)


def test_environment() -> None:
    command = build_command(spec(env={"OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "0"}), assignment())
    assert command.env == {
        "SPT_NOENV": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "0",
        "OMP_NUM_THREADS": "1",
    }
    assert command.node_env["VLLM_HOST_IP"] is NodeLocal.ADDRESS
    assert command.node_env["GLOO_SOCKET_IFNAME"] is NodeLocal.INTERFACE
    assert command.node_env["CUDA_VISIBLE_DEVICES"] is NodeLocal.DEVICES
    given = build_command(spec(env={"GLOO_SOCKET_IFNAME": "eth1"}), assignment())
    assert given.env["GLOO_SOCKET_IFNAME"] == "eth1" and "GLOO_SOCKET_IFNAME" not in given.node_env


def test_the_digest_covers_argv_and_environment_and_nothing_else() -> None:
    base = build_command(spec(), assignment())
    assert base.argv_digest == build_command(spec(), assignment()).argv_digest
    changed = [
        build_command(spec(), assignment(node_rank=1)),
        build_command(spec(env={"A": "1"}), assignment()),
        build_command(spec(env={"GLOO_SOCKET_IFNAME": "x"}), assignment()),
        build_command(spec(engine_config={**CONFIG, "seed": 1}), assignment()),
    ]
    assert len({command.argv_digest for command in [base, *changed]}) == 5
    assert build_command(spec(env={"A": "1", "B": "2"}), assignment()).argv_digest == (
        build_command(spec(env={"B": "2", "A": "1"}), assignment()).argv_digest
    )


def test_drain_is_the_engines_own_option() -> None:
    assert build_command(spec(), assignment()).drain_seconds == 0
    drained = build_command(spec(engine_config={**CONFIG, "shutdown_timeout": 25}), assignment())
    assert drained.drain_seconds == 25
    assert after(drained.argv, "--shutdown-timeout") == "25"


@pytest.mark.parametrize("key", ["node_rank", "master-addr", "headless", "data-parallel-rank", "config"])
def test_reserved_options_are_refused(key: str) -> None:
    with pytest.raises(CommandError, match=f"{key} may not be set"):
        build_command(spec(engine_config={**CONFIG, key: 1}), assignment())


def test_contradictions_are_refused() -> None:
    with pytest.raises(CommandError, match="no API port"):
        build_command(spec(), assignment(api_port=None))
    native = spec(shape=ParallelShape(tp=4, dp=2, nnodes=2), translation=Translation.NATIVE_EXTERNAL)
    with pytest.raises(CommandError, match="no RPC port"):
        build_command(native, assignment())
    with pytest.raises(CommandError, match="served-model-name: an empty list"):
        build_command(spec(engine_config={**CONFIG, "served-model-name": []}), assignment())
