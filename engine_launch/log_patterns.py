"""Fatal log lines that engines have in common: words of argparse, the kernel, torch and NCCL."""

from __future__ import annotations

from engine_launch.model import FatalPattern


def configuration(pattern: str, meaning: str) -> FatalPattern:
    """Never tried again: the same configuration ends the same way."""
    return FatalPattern(pattern, "configuration", meaning)


def group(pattern: str, meaning: str) -> FatalPattern:
    """The whole gang starts anew."""
    return FatalPattern(pattern, "group", meaning)


UNKNOWN_FLAG = configuration(r"error: unrecognized arguments: ", "this engine version does not know a flag")
UNREADABLE_VALUE = configuration(r"error: argument .*: ", "the engine cannot read a flag's value")

PORT_TAKEN_LINE = r"EADDRINUSE|[Aa]ddress already in use"
PORT_TAKEN = "a port of this engine is taken"
FOREIGN_ADDRESS = FatalPattern(
    r"[Cc]annot assign requested address", "port", "an address given to the engine is not on this node"
)

OUT_OF_MEMORY_LINE = r"out of memory"
OUT_OF_MEMORY = "not enough device memory: left-overs of an earlier engine, or a model too large for the device"

# RCCL prints NCCL's words.
LOST_PEER_LINE = r"ncclUnhandledCudaError|ncclRemoteError|Watchdog caught collective operation timeout"
