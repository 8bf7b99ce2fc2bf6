"""ATOM's command line, ports and log. Whole argvs of the common shapes are pinned in tests/golden."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine_launch import atom_log
from engine_launch.command import CommandError, build_command
from engine_launch.flag_list import load_flag_list
from engine_launch.health import canary_prompt, model_position, served_name_of
from engine_launch.model import Assignment, EngineSpec, NodeLocal, ParallelShape, Role, Translation
from engine_launch.profiles import PROFILES, UnknownProfile, choose, resolve
from engine_launch.translation import choose_translation, engine_shape

ATOM = PROFILES["atom@0.1.6"]
SLOT = Assignment(
    instance="union-0", role=Role.UNION, dp_rank=0, node_rank=0, address="10.0.0.1", master_addr="10.0.0.1",
    master_port=7001, api_port=8000, dp_rpc_port=29550,
)  # fmt: skip


def spec(shape: ParallelShape | None = None, **config: Any) -> EngineSpec:
    return EngineSpec(
        engine_type="atom",
        profile="atom@0.1.6",
        engine="atom",
        shape=shape or ParallelShape(tp=4, pcp=2),
        translation=Translation.REPLICA,
        model="/m",
        engine_config={"model": "/m", "tensor_parallel_size": 4, "prefill_context_parallel_size": 2, **config},
    )


def test_command() -> None:
    command = build_command(spec(kv_cache_dtype="fp8"), SLOT)
    assert command.argv == (
        *("python", "-m", "atom.entrypoints.openai_server", "--model", "/m"),
        *("--tensor-parallel-size", "4", "--prefill-context-parallel-size", "2", "--kv_cache_dtype", "fp8"),
        *("--host", "10.0.0.1", "--server-port", "8000"),
    )
    assert (command.headless, command.expected_workers, command.drain_seconds) == (False, 8, 0.0)
    assert command.node_env["HIP_VISIBLE_DEVICES"] is NodeLocal.DEVICES


def test_each_engine_of_a_node_has_ports_of_its_own() -> None:
    command = build_command(spec(), SLOT)
    assert (command.env["ATOM_DP_BASE_PORT"], command.env["ATOM_DP_MASTER_PORT"]) == ("7001", "29550")
    assert command.ports == (7001, 29550, 8000)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("enable_chunked_prefill", False, ["--no-enable_chunked_prefill"]),
        ("enable-prefix-caching", True, ["--enable_prefix_caching"]),
        ("kv-cache-dtype", "fp8", ["--kv_cache_dtype", "fp8"]),
        ("enable_tbo", True, ["--enable-tbo"]),
        ("enable_tbo", "prefill", ["--enable-tbo", "prefill"]),
        ("enable_tbo", False, []),
        ("cudagraph_capture_sizes", [1, 2], ["--cudagraph-capture-sizes", "[1,2]"]),
        ("dcp_config", {"interleave_size": 16}, ["--dcp-config", '{"interleave_size":16}']),
    ],
)
def test_options_are_spelled_as_the_parser_registers_them(key: str, value: Any, words: list[str]) -> None:
    argv = build_command(spec(**{key: value}), SLOT).argv
    assert list(argv[9 : argv.index("--host")]) == words


def test_the_inner_port_is_not_the_api() -> None:
    with pytest.raises(CommandError, match="the API's is server-port"):
        build_command(spec(port=8000), SLOT)


def test_data_parallel_ranks_live_in_one_process() -> None:
    shape = engine_shape("auto", ParallelShape(tp=2, dp=4), ATOM)
    assert (shape.dp, shape.dp_local, shape.workers_per_node) == (1, 4, 8)
    argv = build_command(spec(shape), SLOT).argv
    assert argv[argv.index("--data-parallel-size") + 1] == "4"
    assert "holds all 4 data-parallel ranks" in choose_translation("auto", shape, ATOM).reason


def test_as_replicas_each_rank_is_an_engine() -> None:
    shape = engine_shape("replica", ParallelShape(tp=2, dp=4), ATOM)
    assert (shape.dp, shape.dp_local, shape.workers_per_node) == (4, 1, 2)
    assert "--data-parallel-size" not in build_command(spec(shape), SLOT).argv


@pytest.mark.parametrize("wanted", ["native_external", "native_internal"])
def test_there_is_no_world_over_several_processes(wanted: str) -> None:
    shape = engine_shape(wanted, ParallelShape(tp=2, dp=4, expert_parallel=True), ATOM)
    assert "no world over several processes" in choose_translation(wanted, shape, ATOM).refusal


def test_other_engines_keep_their_groups() -> None:
    shape = ParallelShape(tp=2, dp=4)
    assert engine_shape("auto", shape, PROFILES["vllm@0.33"]) is shape


@pytest.mark.parametrize("name", ["atom@0.1.6", "atom@0.1.6rc0", "atom@0.1.6rc1.dev323+gffdf3bb5d"])
def test_the_third_number_counts(name: str) -> None:
    assert resolve(name) is ATOM


def test_a_newer_version_works_with_a_note_and_an_older_one_has_no_pcp() -> None:
    assert "treated like atom@0.1.6" in resolve("atom@0.2.0").notes[-1]
    for older in ("atom@0.1.5", "atom@0.1"):
        with pytest.raises(UnknownProfile, match=r"atom@0\.1\.6"):
            resolve(older)


def test_it_is_assumed_for_its_engine_type() -> None:
    choice = choose("atom", None, 8)
    assert (choice.profile, choice.assumed) == (ATOM, True)


def test_the_flag_list_says_where_it_is_from() -> None:
    flags = load_flag_list("atom-0.1.6.json")
    assert "source" not in flags.kinds and len(flags.kinds) == 59
    assert (flags.kinds["enable-tbo"], flags.kinds["hf-overrides"]) == ("optional", "json")
    assert flags.negatable == {"enable-chunked-prefill", "enable-prefix-caching"}
    names = {"port" if name == "server-port" else name for name in ATOM.form.read}
    # What Motor alone reads is in no engine's list.
    assert names - {"nnodes", "master-port", "data-parallel-rpc-port"} <= set(flags.kinds)


# Lines as the source writes them.
LINES = (
    ("[atom 12:00:01] Loading tokenizer from /m...", "process"),
    ("[atom 12:00:02] Initializing engine with model /m...", "config"),
    ("[atom 12:00:03] Engine Core Mgr: Creating EngineCore engine 0 (dp=0, pp=0) of 1", "engine"),
    ("[atom 12:00:04] Engine Core Mgr: Starting EngineCore for DP rank 0/1", "engine"),
    ("[atom 12:00:09] ModelRunner rank=7, dp_rank_local=0, pp_rank=0, local_device_rank=7, device=cuda:7", "weights"),
    ("[atom 12:05:00] [rank_0] Model load done: /m (weights loaded in 290.00s)", "weights"),
    ("[atom 12:06:00] Model warmup done: /m", "kv_cache"),
    ("[atom 12:07:00] Engine Core: cudagraph capture[1, 2] cost: 20.00 seconds, pool: 1.00GB", "warm_up"),
    ("[atom 12:07:00] Engine Core: load model runner success", "warm_up"),
    ("[atom 12:07:01] Engine Core Mgr: All EngineCores are fully initialized and ready", "http"),
    ("[atom 12:07:02] Starting server on 10.0.0.1:8000 (loop=uvloop)...", "http"),
    ("[atom 12:07:03] Server started successfully and ready to accept requests", "http"),
)


def test_a_start_goes_through_all_stages_in_order() -> None:
    found = [
        next((marker.stage for marker in atom_log.STAGES if re.search(marker.pattern, line)), "") for line, _ in LINES
    ]
    assert found == [stage for _, stage in LINES]
    assert list(dict.fromkeys(found)) == [marker.stage for marker in atom_log.STAGES]


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("ValueError: prefill_context_parallel_size > 1 (-pcp) combined with --enable-tbo all is", "configuration"),
        ("ValueError: --enable-dp-attention and pipeline-parallel (pp>1) cannot be used together.", "configuration"),
        ("AssertionError: tp_size (8) must be divisible by dcp_size (3)", "configuration"),
        ("ValueError: Calculated local_device_rank=4 exceeds available GPUs (4). ", "configuration"),
        ("openai_server.py: error: unrecognized arguments: --nnodes 2", "configuration"),
        ("torch.distributed.DistNetworkError: ... (errno: 98 - Address already in use)", "port"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", "transient"),
        (
            "[atom 12:00:01] AsyncIOProcManager: [ModelRunner3] proc died unexpectedly (exitcode=-9), shutting down.",
            "group",
        ),
        ("[atom 12:00:01] run_engine: exception: boom", "group"),
        ("[atom 12:00:01] Engine Core: load model runner failed", "group"),
        ("[atom 12:00:01] Model warmup done: /m", None),
        ("[atom 12:00:01] Disabling TBO: prefill_context_parallel_size > 1 (-pcp) with tensor_parallel_size", None),
    ],
)
def test_failures(line: str, failure_class: str | None) -> None:
    found = [one for one in atom_log.FATAL_PATTERNS if re.search(one.pattern, line)]
    assert (found[0].failure_class if found else None) == failure_class


@pytest.mark.parametrize("title", ["ATOM::TP0", "ATOM::TP7", "ATOM::DP1TP3"])
def test_workers_are_known_by_their_titles(title: str) -> None:
    assert re.match(ATOM.worker_title, title) and not re.match(ATOM.core_title, title)


def test_a_core_is_no_worker() -> None:
    for title in ("ATOM::EngineCore", "ATOM::EngineCore_DP1"):
        assert re.match(ATOM.core_title, title) and not re.match(ATOM.worker_title, title)


def test_the_model_is_found_in_the_command_line() -> None:
    argv = build_command(spec(), SLOT).argv
    assert model_position(argv) == 4 and served_name_of(argv, "otherwise") == "/m"
    assert model_position(("vllm", "serve", "/m", "--port", "1")) == 2
    assert model_position(("vllm", "serve")) is None


def test_a_canary_in_words_is_as_long_as_one_in_ids() -> None:
    assert canary_prompt(3, 4, text=False) == [4, 4, 4, 4]
    text = canary_prompt(3, 4, text=True)
    assert isinstance(text, str) and text.split() == ["4"] * 4
    assert canary_prompt(4, 4, text=True) != text
