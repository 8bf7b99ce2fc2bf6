"""What ATOM prints: how far a start has come, and why it ends.

Lines look like `[atom 12:00:01] text` (atom/utils/__init__.py:899-908 of commit ffdf3bb5d, as all paths here); uvicorn
and Python's tracebacks have no prefix. Read in its source: none of it was seen in a run.
"""

from __future__ import annotations

from engine_launch.log_patterns import (
    FOREIGN_ADDRESS,
    LOST_PEER_LINE,
    OUT_OF_MEMORY,
    OUT_OF_MEMORY_LINE,
    PORT_TAKEN,
    PORT_TAKEN_LINE,
    UNKNOWN_FLAG,
    UNREADABLE_VALUE,
    configuration,
    group,
)
from engine_launch.model import FatalPattern, StageMarker

# Whose line shows that a worker is past the rendezvous. ATOM has no followers whose readiness hangs on it.
WORKER_STAGE = "kv_cache"

STAGES: tuple[StageMarker, ...] = (
    StageMarker("process", r"Loading tokenizer from ", "engine process is up"),
    StageMarker("config", r"Initializing engine with model ", "reading the model's configuration"),
    StageMarker(
        "engine",
        r"Creating EngineCore |Starting EngineCore for DP rank \d+/",
        "starting workers",
    ),
    # model_engine/model_runner.py:919, one line for each worker before it joins the process group; the next one comes
    # after its weights. All ranks are below one process, so none can be missing, and to wait for a peer is no stage.
    StageMarker(
        "weights",
        r"ModelRunner rank=(?P<rank>\d+), dp_rank_local=\d+|Model load done: |Weight post-processing done: "
        r"|Loading drafter model\.\.\.",
        "joining the process group and loading weights",
    ),
    StageMarker("kv_cache", r"Model warmup done: |Memory budget: total_gpu=", "setting up the KV cache"),
    StageMarker("warm_up", r"cudagraph capture.* cost: |load model runner success", "warming up"),
    StageMarker(
        "http",
        r"EngineCores are fully initialized and ready|Starting server on |Server started successfully",
        "opening the API",
    ),
)


# The first pattern that matches a line wins, so the ones that forbid a restart stand first.
FATAL_PATTERNS: tuple[FatalPattern, ...] = (
    # model_engine/llm_engine.py:64-122
    configuration(
        r"ValueError: (?:prefill_context_parallel_size|--enable-dp-attention|moe_backend)",
        "the engine refuses this combination of options",
    ),
    # config.py:1644-1695, engine_core_mgr.py:155-168
    configuration(
        r"AssertionError: (?:tp_size|dcp_config|kv_cache_block_size|num_hidden_layers|Speculative decode|Pipeline p)",
        "the engine refuses this combination of sizes",
    ),
    # model_runner.py:913
    configuration(
        r"Calculated local_device_rank=\d+ exceeds available GPUs", "it sees fewer devices than it has ranks"
    ),
    UNKNOWN_FLAG,
    UNREADABLE_VALUE,
    FatalPattern(PORT_TAKEN_LINE, "port", PORT_TAKEN),
    FOREIGN_ADDRESS,
    FatalPattern(OUT_OF_MEMORY_LINE, "transient", OUT_OF_MEMORY),
    # model_engine/async_proc.py:463-466. The API server stays up after it, and its /health says ok.
    group(r"proc died unexpectedly \(exitcode=.*\)", "a worker process died"),
    group(r"run_engine: exception", "the engine core failed"),
    group(
        r"Failed to initialize all EngineCores|Some processes failed to start|load model runner failed",
        "the engine core did not start",
    ),
    group(LOST_PEER_LINE, "RCCL lost a peer"),
)
