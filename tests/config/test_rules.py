"""What cannot start is refused, with path, reason and fix; what can start is not."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from controller.config.errors import ConfigError
from controller.core.model import Scope
from engine_launch.model import Translation
from tests.config.files import engine, file_with, load, problems_of, texts

ASCEND = "vllm_ascend@0.23"
MOE = {"enable_expert_parallel": True, "data_parallel_size": 2}
KV = {
    "kv_connector": "MooncakeConnectorV1",
    "kv_port": "15000",
    "kv_connector_extra_config": {"decode": {"dp_size": 1, "tp_size": 8}},
}

CONFIG = "motor_engine_prefill_config.engine_config"

# (engine section, path below engine_config or whole path, part of the message)
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "workers over nodes": (engine(nnodes=3), f"{CONFIG}.nnodes", "expected one of 1, 2, 4, 8"),
    "nnodes in quotes": (engine(nnodes="2"), f"{CONFIG}.nnodes", "write 2 without quotes"),
    "nnodes true": (engine(nnodes=True), f"{CONFIG}.nnodes", "got true (a boolean)"),
    "nnodes as a fraction": (engine(nnodes=2.0), f"{CONFIG}.nnodes", "got 2.0 (a number)"),
    "nnodes negative": (engine(nnodes=-3), f"{CONFIG}.nnodes", "an integer of at least 1"),
    "nnodes in words": (engine(nnodes="two"), f"{CONFIG}.nnodes", 'got "two" (a string)'),
    "tp zero": (engine(tensor_parallel_size=0), f"{CONFIG}.tensor-parallel-size", "at least 1"),
    "expert parallel in quotes": (
        engine(enable_expert_parallel="true"),
        f"{CONFIG}.enable-expert-parallel",
        "true or false",
    ),
    "no master port": (engine(master_port=...), CONFIG, 'add "master-port": 7001'),
    "ray over nodes": (engine(distributed_executor_backend="ray"), f"{CONFIG}.distributed-executor-backend", '"mp"'),
    "pcp left out of the division": (
        engine(ASCEND, tensor_parallel_size=1, prefill_context_parallel_size=2),
        f"{CONFIG}.nnodes",
        "leaves PCP out",
    ),
    "pcp on old vllm": (
        engine("vllm@0.23", prefill_context_parallel_size=2),
        f"{CONFIG}.prefill-context-parallel-size",
        "vllm@0.23 has no prefill context parallelism",
    ),
    "pcp on the v1 runner": (
        engine("vllm_ascend@0.26", prefill_context_parallel_size=2),
        f"{CONFIG}.prefill-context-parallel-size",
        "VLLM_USE_V2_MODEL_RUNNER",
    ),
    "pcp and dcp on the v2 runner": (
        engine(
            "vllm_ascend@0.26",
            {"VLLM_USE_V2_MODEL_RUNNER": "1"},
            prefill_context_parallel_size=2,
            decode_context_parallel_size=2,
        ),
        f"{CONFIG}.decode-context-parallel-size",
        "refuses this together with PCP",
    ),
    "native for a dense model": (
        engine(data_parallel_size=2, section={"dp_translation": "native_external"}),
        "motor_engine_prefill_config.dp_translation",
        "mixture of experts only",
    ),
    "native with pcp on ascend": (
        engine(ASCEND, prefill_context_parallel_size=2, **MOE, section={"dp_translation": "native_internal"}),
        "motor_engine_prefill_config.dp_translation",
        "refuses PCP together with data parallelism",
    ),
    "ray in one world": (
        engine(**MOE, data_parallel_backend="ray"),
        f"{CONFIG}.data-parallel-backend",
        'expected "mp"',
    ),
    "dcp": (engine(decode_context_parallel_size=3), f"{CONFIG}.decode-context-parallel-size", "divisor"),
    "dcp beside upstream's pcp": (
        engine(prefill_context_parallel_size=2, decode_context_parallel_size=4),
        f"{CONFIG}.decode-context-parallel-size",
        "expected one of 1, 2, 16",
    ),
    "interleave over block": (
        engine(cp_kv_cache_interleave_size=48, block_size=128),
        f"{CONFIG}.cp-kv-cache-interleave-size",
        "a divisor of 128",
    ),
    "interleave with kv transfer": (
        engine(
            ASCEND,
            prefill_context_parallel_size=2,
            cp_kv_cache_interleave_size=64,
            block_size=128,
            kv_transfer_config=KV,
        ),
        f"{CONFIG}.cp-kv-cache-interleave-size",
        "only in whole blocks",
    ),
    "two spellings": (engine(tp_size=8), f"{CONFIG}.tp-size", 'means the same flag as "tensor-parallel-size"'),
    "no model": (engine(model=...), CONFIG, "the model is missing"),
    "model like a flag": (engine(model="--x"), f"{CONFIG}.model", "is no model"),
    "rank": (engine(node_rank=0), f"{CONFIG}.node-rank", "may not be set"),
    "abbreviated rank": (engine(node_ran=0), f"{CONFIG}.node-ran", "may take it for --node-rank"),
    "negated": (engine(no_headless=True), f"{CONFIG}.no-headless", "may not be set"),
    "several ranks of several nodes": (
        engine(**MOE, data_parallel_size_local=2),
        f"{CONFIG}.data-parallel-size-local",
        "a group of 2 nodes holds one data-parallel rank",
    ),
    "ranks that fill no process": (
        engine(nnodes=1, data_parallel_size=8, data_parallel_size_local=3),
        f"{CONFIG}.data-parallel-size-local",
        "does not divide data-parallel-size 8",
    ),
    "unknown flag": (engine(max_modl_len=1), f"{CONFIG}.max-modl-len", 'did you mean "max-model-len"'),
    "a flag of a newer vllm": (
        engine("vllm@0.23", watchdog_config={"timeout": 60}),
        f"{CONFIG}.watchdog-config",
        "not a flag of vllm-0.23; got --watchdog-config; vllm-0.33 and newer have it",
    ),
    "short flag": (engine(tensor_parallel_size=..., tp=8), f"{CONFIG}.tp", 'write "tensor-parallel-size"'),
    "short flag beside the long one": (engine(tp=8), f"{CONFIG}.tp", 'the same flag as "tensor-parallel-size"'),
    "abbreviated size": (
        engine(ASCEND, prefill_context=2),
        f"{CONFIG}.prefill-context",
        "short for --prefill-context-parallel-size",
    ),
    "switch in quotes": (engine(enforce_eager="true"), f"{CONFIG}.enforce-eager", "is a switch"),
    "value missing": (engine(dtype=True), f"{CONFIG}.dtype", "takes a value"),
    "host of one master": (
        engine(host="10.0.0.1", data_parallel_size=2),
        f"{CONFIG}.host",
        "each of 2 masters has its own address",
    ),
    "host by name": (engine(host="head-node"), f"{CONFIG}.host", "is no address"),
    "port": (engine(port=80), f"{CONFIG}.port", "an integer from 1024 to 65535"),
    "ports that meet": (engine(port=7001), f"{CONFIG}.master-port", "overlap api ports 7001-7064"),
    "drain": (engine(shutdown_timeout="5s"), f"{CONFIG}.shutdown-timeout", "whole seconds"),
    "topology by environment": (
        engine(env={"VLLM_DP_SIZE": "2"}),
        "motor_engine_prefill_config.env.VLLM_DP_SIZE",
        "may not be set",
    ),
    "address by environment": (
        engine(env={"VLLM_HOST_IP": "10.0.0.1"}),
        "motor_engine_prefill_config.env.VLLM_HOST_IP",
        "each node fills in",
    ),
    "rank table": (
        engine(ASCEND, {"RANK_TABLE_FILE": "/x"}),
        "motor_engine_prefill_config.env.RANK_TABLE_FILE",
        "a node's own file",
    ),
    "motor's names": (engine(env={"MOTOR_X": "1"}), "motor_engine_prefill_config.env.MOTOR_X", "Motor's own"),
    "boolean environment": (engine(env={"X": True}), "motor_engine_prefill_config.env.X", "text or a number"),
    "silent log": (
        engine(env={"VLLM_LOGGING_LEVEL": "error"}),
        "motor_engine_prefill_config.env.VLLM_LOGGING_LEVEL",
        "INFO or DEBUG",
    ),
    "extra arguments: rank": (
        engine(section={"extra_args": ["--node-rank=1"]}),
        "motor_engine_prefill_config.extra_args",
        "may not be set",
    ),
    "extra arguments: size": (
        engine(section={"extra_args": ["-tp", "4"]}),
        "motor_engine_prefill_config.extra_args",
        "-tp is --tensor-parallel-size",
    ),
    "extra arguments: nodes": (
        engine(section={"extra_args": ["-n2"]}),
        "motor_engine_prefill_config.extra_args",
        "-n2 is --nnodes",
    ),
    "extra arguments: twice": (
        engine(seed=1, section={"extra_args": ["--seed", "2"]}),
        "motor_engine_prefill_config.extra_args",
        'as "seed"',
    ),
    "extra arguments: no flag": (
        engine(section={"extra_args": ["seed"]}),
        "motor_engine_prefill_config.extra_args[0]",
        "is no flag",
    ),
    "engine": (engine(section={"engine_type": "sglang"}), "motor_engine_prefill_config.engine_type", '"vllm"'),
    "profile": (engine("vllm@9"), "motor_engine_prefill_config.engine_profile", "vllm@0.18 to 0.33"),
    "profile of another engine": (
        engine(section={"engine_type": "vllm_ascend"}),
        "motor_engine_prefill_config.engine_profile",
        "of another engine",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    section, path, message = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        load(file_with(prefill=section))
    found = [problem for problem in caught.value.errors if problem.where().split(":", 1)[1].split(" ")[0] == path]
    assert any(message in str(problem) for problem in found), "\n".join(map(str, caught.value.errors))
    assert all(problem.line for problem in found)


ACCEPTED: dict[str, dict[str, Any]] = {
    "pp over nodes": engine(tensor_parallel_size=4, pipeline_parallel_size=2),
    "tp 3 over 3 nodes": engine(tensor_parallel_size=3, nnodes=3),
    "pcp alone over nodes, from 0.30": engine("vllm@0.30", tensor_parallel_size=1, prefill_context_parallel_size=2),
    "pcp, old groups as replicas": engine("vllm@0.27", prefill_context_parallel_size=2, **MOE),
    "the guide's tp 16 pcp 2 dcp 8": engine(
        ASCEND, tensor_parallel_size=16, prefill_context_parallel_size=2, decode_context_parallel_size=8
    ),
    "pcp on the v2 runner": engine(
        "vllm_ascend@0.26", {"VLLM_USE_V2_MODEL_RUNNER": 1}, prefill_context_parallel_size=2
    ),
    "interleave equal to block": engine(
        ASCEND,
        prefill_context_parallel_size=2,
        cp_kv_cache_interleave_size=128,
        block_size=128,
        kv_transfer_config=KV,
    ),
    "the default ranks of a process": engine(**MOE, data_parallel_size_local=1),
    "one node, no master port": engine(nnodes=1, master_port=...),
    "null": engine(seed=None, quantization=None),
    "past the list": engine(
        section={"extra_args": ["--flag-of-tomorrow", "1", "--middleware", "a", "--middleware", "b"]}
    ),
    "wildcard host": engine(host="0.0.0.0", data_parallel_size=2),
    "unknown flag of ascend": engine(ASCEND, ascend_only_flag=1),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    load(file_with(prefill=ACCEPTED[name]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file_with(prefill=engine(ASCEND, ascend_flag=1)), "not a flag of vllm-0.23; got --ascend-flag"),
        (file_with(prefill=engine("vllm@0.27", prefill_context_parallel_size=2)), "upstream's PCP is young here"),
        (file_with(prefill=engine("vllm@0.99")), "treated like vllm@0.33"),
        (file_with(prefill=engine(host="10.0.0.1")), "fits only if this node becomes the master"),
        (file_with(prefill=engine(env={"GLOO_SOCKET_IFNAME": "eth0"})), "one value for all nodes"),
        (file_with(decode=engine(ASCEND, prefill_context_parallel_size=2)), "a decode instance gains nothing"),
        (file_with(prefill=engine(section={"dp_translation": "native_external"})), "nothing to join"),
        (file_with(prefill=engine(), deploy={"p_pod_npu_num": 6}), "2 of 6 devices"),
        (file_with(prefill=engine(port=40000)), "ip_local_reserved_ports=40000-40063"),
        (
            file_with(prefill=engine(section={"health_check_config": {"health_collector_timeout_retry_attempts": 5}})),
            "no effect: a ready engine is called unready after 3 bad answers",
        ),
        (
            file_with(prefill=engine(section={"health_check_config": {"enable_virtual_inference": False}})),
            "a frozen engine is not found",
        ),
        (file_with(prefill=engine(), motor_coordinator_config={}), "Motor has no router yet"),
        (file_with(prefill=engine(), motor_nodemanger_config={}), 'it is read as "motor_nodemanager_config"'),
        (file_with(prefill=engine(), motor_nodemanager_config={"x": 1}), "in its own nodemanager.yaml"),
        (file_with(prefill=engine(), deploy={"image_name": "x"}), "it is for Kubernetes"),
        (
            file_with(prefill=engine(ASCEND, prefill_context_parallel_size=2, kv_transfer_config=KV)),
            "block-size is not in the file",
        ),
    ],
)
def test_warned_of_once_and_still_valid(content: dict[str, Any], message: str) -> None:
    assert len([warning for warning in load(content).warnings if message in str(warning)]) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no engine section"),
        (file_with(prefill=engine(), motor_engine_encode_config={}), "encode instances are not supported yet"),
        (file_with(prefill=engine(), motor_Controller_config={}), 'did you mean "motor_controller_config"'),
        (file_with(prefill=engine(section={"model_config": {}})), "move its keys into engine_config"),
        (file_with(prefill=engine(section={"engine_confg": {}})), 'did you mean "engine_config"'),
        (file_with(prefill=engine(), deploy={"d_instances_num": 1}), "motor_engine_decode_config is missing"),
        (file_with(prefill=engine(), deploy={"p_instances_num": "2"}), "an integer, without quotes"),
        (file_with(prefill=engine(), deploy={"p_pod_npu_num": 3}), "a prefill node needs 4 devices: 8 (tp 8"),
        (file_with(prefill=engine(), deploy={"single_p_instance_pod_num": 3}), "1 groups of 2 nodes; got 3"),
        (file_with(prefill=engine(), deploy={"deployment_id": "a b"}), "letters, digits"),
        ('{"motor_engine_prefill_config": {"engine_type": "vllm"', "cut off"),
    ],
)
def test_the_file_as_a_whole(content: dict[str, Any] | str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(content)
    assert message in str(caught.value)


def test_slots_of_several_groups_may_share_a_node() -> None:
    shape = engine(tensor_parallel_size=4, data_parallel_size=4, nnodes=1)
    for nodes in (1, 2, 4):
        load(file_with(prefill=shape, deploy={"p_pod_npu_num": 16, "single_p_instance_pod_num": nodes}))
    with pytest.raises(ConfigError, match="expected 1 to 4"):
        load(file_with(prefill=shape, deploy={"p_pod_npu_num": 16, "single_p_instance_pod_num": 5}))


def test_all_errors_come_at_once() -> None:
    content = file_with(
        prefill=engine(nnodes=3, max_modl_len=1, section={"engin": "x", "dp_translation": "x"}, env={"RANK": 0}),
        deploy={"p_instances_num": 0},
        controller={"grpc": {"host": "0.0.0.0"}, "timers": {"stop_grace": -1}},
    )
    found = "\n".join(texts(content))
    for part in ("nnodes", "max-modl-len", "engin ", "dp_translation", "RANK", "p_instances_num", "grpc", "stop_grace"):
        assert f"{part}" in found
    assert len([problem for problem in problems_of(content) if problem.severity.value == "error"]) == 8


def test_an_error_reads_like_this() -> None:
    text = json.dumps(file_with(prefill=engine(nnodes="2")), indent=2)
    line = next(number for number, row in enumerate(text.split("\n"), 1) if "nnodes" in row)
    assert texts(text)[0] == (
        f"error: deploy.json:motor_engine_prefill_config.engine_config.nnodes (line {line}): is no usable size; "
        'got "2" (a string); expected an integer of at least 1; write 2 without quotes [option-size]'
    )


def test_automatic_translation_and_its_scope() -> None:
    native = load(file_with(prefill=engine(**MOE)))
    plan = native.plan.instance("prefill-0")
    assert native.engines["prefill-0"].translation is Translation.NATIVE_EXTERNAL
    assert plan.scope is Scope.INSTANCE and plan.dp_rpc_ports is not None and plan.api_on_every_group
    replica = load(file_with(prefill=engine(data_parallel_size=2)))
    plan = replica.plan.instance("prefill-0")
    assert plan.scope is Scope.GROUP and plan.dp_rpc_ports is None
    internal = load(file_with(prefill=engine(**MOE, section={"dp_translation": "native_internal"})))
    assert not internal.plan.instance("prefill-0").api_on_every_group


def test_ten_thousand_nodes_are_checked_quickly() -> None:
    content = file_with(prefill=engine(data_parallel_size=5000), deploy={"p_pod_npu_num": 4})
    load(content)
    start = time.perf_counter()
    load(content)
    assert time.perf_counter() - start < 1.0
