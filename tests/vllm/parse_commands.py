"""Runs inside the engine's environment: the real `vllm serve` parser, and engine arguments up to ParallelConfig.

stdin: {"commands": {name: argv}, "looks": {name: how far}}
stdout, last line: {name: {"error": TEXT} or the facts that vLLM derived}

How far: "arguments", the default, ends with ParallelConfig, since what comes after depends on devices and not on ranks
and addresses; the CPU build would refuse PCP there. "model" then asks the model's configuration whether it can be split
so, and "pcp" the manager of prefill context parallelism: what a CUDA build does next.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from types import SimpleNamespace
from typing import Any

from vllm.engine import arg_utils  # type: ignore[import-not-found]
from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
from vllm.entrypoints.cli.serve import (  # type: ignore[import-not-found]
    make_arg_parser,  # from here, since the command imports both in every version while their home has moved
    validate_parsed_serve_args,
)
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]


class FarEnough(Exception):
    """Carries the parallel configuration out of create_engine_config."""


class StoppingConfig(arg_utils.ParallelConfig):  # type: ignore[name-defined, misc]
    """Ends the run once it is complete; class attributes (defaults) stay visible to the caller."""

    def __new__(cls, **values: Any) -> Any:
        raise FarEnough(PARALLEL_CONFIG(**values))


PARALLEL_CONFIG = arg_utils.ParallelConfig


def derive(argv: list[str], look: str) -> dict[str, Any]:
    """What vLLM makes of one command line."""
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(argv[2:])
    if args.model_tag is not None:
        args.model = args.model_tag
    validate_parsed_serve_args(args)
    if args.headless and args.api_server_count:
        raise ValueError("api_server_count with headless")
    engine_args = AsyncEngineArgs.from_cli_args(args)
    try:
        engine_args.create_engine_config(headless=args.headless)
    except FarEnough as stop:
        parallel = stop.args[0]
    else:
        raise RuntimeError("create_engine_config made no ParallelConfig")
    if look == "model":
        engine_args.create_model_config().verify_with_parallel_config(parallel)
    elif look == "pcp":
        ask_pcp_manager(engine_args, parallel)
    return facts(parallel, args)


def ask_pcp_manager(engine_args: Any, parallel: Any) -> None:
    """The check that the V2 model runner makes with PCP, with the parts of the configuration that it reads."""
    from vllm.config import CUDAGraphMode  # type: ignore[import-not-found]
    from vllm.v1.worker.gpu.pcp_manager import PCPManager  # type: ignore[import-not-found]

    parallel.set_dcp_defaults()
    speculative = engine_args.speculative_config
    method = speculative and SimpleNamespace(
        method=speculative["method"], use_dspark=lambda: False, use_multi_module_mtp=lambda: False
    )
    # The default of a CUDA build.
    graphs = CUDAGraphMode.NONE if engine_args.enforce_eager else CUDAGraphMode.FULL_AND_PIECEWISE
    PCPManager.validate_config(
        SimpleNamespace(
            parallel_config=parallel,
            model_config=engine_args.create_model_config(),
            lora_config=engine_args.enable_lora or None,
            speculative_config=method,
            compilation_config=SimpleNamespace(cudagraph_mode=graphs),
        ),
        supports_mm_inputs=False,
    )


def facts(config: Any, args: Any) -> dict[str, Any]:
    """The derived numbers that have to agree with Motor's plan."""
    names = (
        "nnodes",
        "node_rank",
        "nnodes_within_dp",
        "node_rank_within_dp",
        "world_size",
        "local_world_size",
        "data_parallel_size",
        "data_parallel_rank",
        "data_parallel_size_local",
        "data_parallel_external_lb",
        "data_parallel_hybrid_lb",
        "data_parallel_master_ip",
        "data_parallel_rpc_port",
        "master_addr",
        "master_port",
        "distributed_executor_backend",
        "pipeline_parallel_size",
        "cp_kv_cache_interleave_size",
    )
    derived = {name: getattr(config, name) for name in names if hasattr(config, name)}  # older versions have fewer
    return {**derived, "headless": args.headless, "host": args.host, "port": args.port}


def attempt(argv: list[str], look: str) -> dict[str, Any]:
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return derive(argv, look)
    except SystemExit:
        return {"error": messages.getvalue().strip()[-2000:]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}


def main() -> None:
    job = json.load(sys.stdin)
    arg_utils.ParallelConfig = StoppingConfig
    results = {name: attempt(argv, job["looks"].get(name, "arguments")) for name, argv in job["commands"].items()}
    print()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
