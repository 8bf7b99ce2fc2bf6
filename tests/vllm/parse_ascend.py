"""Runs inside the engine's environment: the `vllm serve` parser and the whole engine configuration on vLLM-Ascend's
platform, as oracle_ascend.py lays it out.

stdin: {"commands": {name: argv}, "env": {name: {variable: value}}}
stdout, last line: {name: {"error": TEXT} or the facts that vLLM and vLLM-Ascend derived}

Each command line has a process of its own, forked here: the plug-in keeps what it once derived.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
from vllm.entrypoints.cli.serve import (  # type: ignore[import-not-found]
    make_arg_parser,
    validate_parsed_serve_args,
)
from vllm.platforms import current_platform  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).parent))  # a sibling: `tests` is no package in that environment
from parse_commands import facts  # type: ignore[import-not-found]


def derive(argv: list[str]) -> dict[str, Any]:
    """What the engine makes of one command line."""
    parser = make_arg_parser(FlexibleArgumentParser())
    words = argv[2:]
    if "--swap-space" in parser.format_help():  # up to 0.17: 4 GiB for each rank, compared with this host's memory
        words = [*words, "--swap-space", "0"]
    args = parser.parse_args(words)
    if args.model_tag is not None:
        args.model = args.model_tag
    validate_parsed_serve_args(args)
    answer_for_triton()
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(headless=args.headless)
    return {
        **facts(config.parallel_config, args),
        "prefill_context_parallel_size": config.parallel_config.prefill_context_parallel_size,
        "decode_context_parallel_size": config.parallel_config.decode_context_parallel_size,
        "block_size": config.cache_config.block_size,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "worker": config.parallel_config.worker_cls.rpartition(".")[2],
    }


def answer_for_triton() -> None:
    """The V2 runner's configuration asks whether Triton has a device. The NPU has its own Triton, so: yes."""
    from vllm.config import vllm as config  # type: ignore[import-not-found]

    if hasattr(config, "HAS_TRITON"):
        config.HAS_TRITON = True


def attempt(job: tuple[list[str], dict[str, str]]) -> dict[str, Any]:
    argv, env = job
    os.environ.update(env)
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
    assert current_platform.device_type == "npu", current_platform
    make_arg_parser(FlexibleArgumentParser())  # loads the plug-in, once for all forks
    work = [(argv, job["env"].get(name, {})) for name, argv in job["commands"].items()]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        results = pool.map(attempt, work, chunksize=1)
    print()
    print(json.dumps(dict(zip(job["commands"], results, strict=True)), default=str))


if __name__ == "__main__":
    main()
