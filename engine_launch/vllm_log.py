"""What vLLM prints: how far a start has come, and why it ends. vLLM-Ascend prints the same.

Lines look like `(Worker_TP1 pid=77) INFO 11-30 00:55:01 [file.py:12] text`; patterns are searched anywhere in
a line. Seen in runs of 0.32.0 (CPU) over several nodes, apart from what only devices print: lines of NCCL and
HCCL and of graph capture come from sources and reports.
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
from engine_launch.model import FatalPattern, StageMarker, WarningPattern

# A worker that printed this stage's line has passed the rendezvous. One line per worker; `rank` says which.
WORKER_STAGE = "joined"

STAGES: tuple[StageMarker, ...] = (
    StageMarker("process", r"non-default args: ", "engine process is up"),
    StageMarker(
        "config",
        r"Resolved architecture: |Using max model len \d+|Inferred data_parallel_rank \d+ from node_rank \d+",
        "reading the model's configuration",
    ),
    StageMarker(
        "engine",
        r"Initializing a V1 LLM engine|DP group leader: node_rank=|Started DP Coordinator process"
        r"|Launching vLLM .* headless multiproc executor"
        r"|Launching \d+ data parallel engine\(s\) in headless mode",
        "starting workers",
    ),
    # Long in this stage = a member is missing, or master address, port or interface is wrong.
    StageMarker(
        "rendezvous",
        r"world_size=\d+ rank=(?P<rank>\d+) local_rank=\d+ distributed_init_method=",
        "waiting for rendezvous",
    ),
    StageMarker(
        "joined",
        r"rank (?P<rank>\d+) in world size (?P<world>\d+) is assigned as",
        "all ranks have met",
    ),
    StageMarker(
        "weights",
        r"Starting to load model|Loading safetensors checkpoint shards|Loading weights took"
        r"|Model loading took",
        "loading weights",
    ),
    StageMarker(
        "kv_cache",
        r"Available KV cache memory: |for KV cache on node|(?:GPU|CPU) KV cache size: "
        r"|Maximum concurrency for ",
        "setting up the KV cache",
    ),
    StageMarker(
        "warm_up",
        r"Graph capturing finished in|init engine \(profile, create kv cache, warmup model\) took",
        "warming up",
    ),
    StageMarker(
        "http",
        r"Supported tasks: |Starting vLLM server on http|Available routes are:"
        r"|Application startup complete\.",
        "opening the API",
    ),
)


# The first pattern that matches a line wins, so the ones that forbid a restart stand first.
FATAL_PATTERNS: tuple[FatalPattern, ...] = (
    configuration(
        r"ValueError: (?:PCP|Invalid data-parallel|When PCP is enabled|Non-MoE models)",
        "the engine refuses this combination of sizes",
    ),
    configuration(r"\d+ validation errors? for ", "the engine refuses its arguments"),
    configuration(r"NotImplementedError: .*PCP", "the model or a feature does not work with PCP"),
    UNKNOWN_FLAG,
    UNREADABLE_VALUE,
    configuration(r"Configuration mismatch detected for engine", "groups of one world have different flags"),
    configuration(
        r"collective_rpc should not be called on follower node",
        "the engine ignored --headless (only `vllm serve` honours it)",
    ),
    configuration(
        r"Timed out waiting for engine core processes to start",
        "loading took longer than VLLM_ENGINE_READY_TIMEOUT_S",
    ),
    FatalPattern(PORT_TAKEN_LINE + r"|\bEI0020\b|\bEJ0003\b", "port", PORT_TAKEN),
    FOREIGN_ADDRESS,
    FatalPattern(OUT_OF_MEMORY_LINE + r"|No available memory for the cache blocks", "transient", OUT_OF_MEMORY),
    group(r"client socket has timed out after", "the master's port was never reachable"),
    group(
        r"Did not receive response from front-end process within \d+ minutes",
        "the first group's API server was not reachable at the data-parallel RPC port",
    ),
    # Printed by the parent at once, on master and follower alike; the follower then ends with exit code 0.
    group(r"Worker proc .* died unexpectedly \(exit code: .*\)", "a worker process died"),
    group(
        r"WorkerProc failed to start\.|WorkerProc initialization failed due to an exception",
        "a worker did not start",
    ),
    group(r"WorkerProc hit an exception\.", "a worker failed in a step"),
    group(r"EngineCore failed to start\.|Engine core initialization failed\.", "the engine core did not start"),
    group(r"EngineCore encountered a fatal error\.|EngineDeadError", "the engine core failed while serving"),
    group(r"RPC call to \w+ timed out", "a worker did not answer in time"),
    group(LOST_PEER_LINE, "NCCL lost a peer"),
)

# Only on Ascend. EI0006 is the timeout of HCCL's socket set-up.
ASCEND_FATAL_PATTERNS: tuple[FatalPattern, ...] = (
    group(
        r"\bEI0006\b|\bEI0009\b|wait socket establish timeout|HCCL function error.*error code is \d+",
        "HCCL could not reach or lost a peer",
    ),
)

# Not fatal: a worker does not consume. Comes again every 60 s while an engine hangs.
HANG_WARNING = r"No available shared memory broadcast block found in \d+ seconds"

WARNING_PATTERNS: tuple[WarningPattern, ...] = (
    WarningPattern(HANG_WARNING, "a worker does not take its work: it hangs, or one step takes very long"),
)
