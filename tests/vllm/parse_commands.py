"""Runs inside the engine's environment: the real `vllm serve` parser, and engine arguments up to ParallelConfig.

stdin: {"commands": {name: argv}}
stdout, last line: {name: {"error": TEXT} or the facts that vLLM derived}

What comes after ParallelConfig depends on devices, not on ranks and addresses.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from vllm.engine import arg_utils  # type: ignore[import-not-found]
from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
from vllm.entrypoints.cli.serve import make_arg_parser  # type: ignore[import-not-found]
from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]


class FarEnough(Exception):
    """Carries the parallel configuration out of create_engine_config."""


class StoppingConfig(arg_utils.ParallelConfig):  # type: ignore[name-defined, misc]
    """Ends the run once it is complete; class attributes (defaults) stay visible to the caller."""

    def __new__(cls, **values: Any) -> Any:
        raise FarEnough(PARALLEL_CONFIG(**values))


PARALLEL_CONFIG = arg_utils.ParallelConfig


def derive(argv: list[str]) -> dict[str, Any]:
    """What vLLM makes of one command line."""
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(argv[2:])
    if args.model_tag is not None:
        args.model = args.model_tag
    validate_parsed_serve_args(args)
    if args.headless and args.api_server_count:
        raise ValueError("api_server_count with headless")
    try:
        AsyncEngineArgs.from_cli_args(args).create_engine_config(headless=args.headless)
    except FarEnough as stop:
        return facts(stop.args[0], args)
    raise RuntimeError("create_engine_config made no ParallelConfig")


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
        "data_parallel_external_lb",
        "data_parallel_master_ip",
        "data_parallel_rpc_port",
        "master_addr",
        "master_port",
        "distributed_executor_backend",
    )
    derived = {name: getattr(config, name) for name in names}
    return {**derived, "headless": args.headless, "host": args.host, "port": args.port}


def attempt(argv: list[str]) -> dict[str, Any]:
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return derive(argv)
    except SystemExit:
        return {"error": messages.getvalue().strip()[-2000:]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}


def main() -> None:
    job = json.load(sys.stdin)
    arg_utils.ParallelConfig = StoppingConfig
    results = {name: attempt(argv) for name, argv in job["commands"].items()}
    print()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
