"""Engine options that Motor reads, and those that it computes, with why an operator may not set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Written by the operator, read by Motor, and put on the command line with computed values (or not at all).
CONSUMED = frozenset(
    {
        "model",
        "host",
        "port",
        "nnodes",
        "master-port",
        "data-parallel-size",
        "data-parallel-size-local",
        "data-parallel-rpc-port",
    }
)

# Only processes with an API server may get these: headless wants api-server-count unset or 0 (vLLM 0.32
# entrypoints/cli/serve.py:69-77).
MASTER_ONLY = frozenset({"api-server-count"})


@dataclass(frozen=True)
class ReadOption:
    """An engine option that Motor computes from, by what it may hold."""

    kind: str  # size | number | port | text | switch | object | seconds
    meaning: str


READ_OPTIONS: Mapping[str, ReadOption] = MappingProxyType(
    {
        "model": ReadOption("text", "a path or a hub name; a node may find it below its model_roots"),
        "nnodes": ReadOption("size", "nodes of one group (not of the engine's whole world: Motor computes that)"),
        "master-port": ReadOption("port", "the first port on which a group's nodes meet; needed with nnodes > 1"),
        "tensor-parallel-size": ReadOption("size", "tensor parallelism (TP)"),
        "pipeline-parallel-size": ReadOption("size", "pipeline parallelism (PP)"),
        "prefill-context-parallel-size": ReadOption("size", "prefill context parallelism (PCP)"),
        "decode-context-parallel-size": ReadOption("size", "decode context parallelism (DCP); takes no devices"),
        "data-parallel-size": ReadOption("size", "data-parallel ranks of one instance (DP): its groups"),
        "data-parallel-size-local": ReadOption(
            "size", "ranks in one process: a group is then one process on one node, with so many ranks"
        ),
        "data-parallel-rpc-port": ReadOption("port", "the first port of the data-parallel handshake"),
        "data-parallel-backend": ReadOption("text", "mp, where groups share one world"),
        "distributed-executor-backend": ReadOption("text", "mp over several nodes, which Motor sets"),
        "enable-expert-parallel": ReadOption("switch", "a mixture of experts: groups may share one world"),
        "host": ReadOption("text", "where masters listen: their own data address without it, 0.0.0.0 or ::"),
        "port": ReadOption("port", "the first port of the APIs"),
        "api-server-count": ReadOption("size", "API servers of a master; headless processes do not get it"),
        "block-size": ReadOption("number", "tokens of a block of the KV cache"),
        "cp-kv-cache-interleave-size": ReadOption("number", "tokens of a context-parallel stripe; divides block-size"),
        "kv-transfer-config": ReadOption("object", "the KV connector between prefill and decode"),
        "ssl-certfile": ReadOption("text", "API servers then speak https, and so do Motor's checks and the inventory"),
        "shutdown-timeout": ReadOption("seconds", "how long a planned stop lets requests finish"),
    }
)

# It has to stand in engine_config, since extra_args are passed on unread.
READ = frozenset(READ_OPTIONS)

_RANK = "Motor assigns ranks to slots and computes this for every process"
_ADDRESS = "it is the data address of the first node of the engine's world, known only after assembly"
_LB = "the load balancing of data-parallel ranks follows from dp_translation"

RESERVED: Mapping[str, str] = MappingProxyType(
    {
        "node-rank": _RANK,
        "master-addr": _ADDRESS,
        "headless": "every process but the one with the API server gets it",
        "data-parallel-rank": _RANK,
        "data-parallel-start-rank": _RANK,
        "data-parallel-address": _ADDRESS,
        "data-parallel-external-lb": _LB,
        "data-parallel-hybrid-lb": _LB,
        "data-parallel-multi-port-external-lb": _LB,
        "device-ids": "Motor leases devices by name and each node makes only its own visible",
        "config": "a second file of flags would bypass every check; write its keys into engine_config",
        "uds": "Motor and routers reach the API by address and port",
        "grpc": "Motor asks for /health over HTTP",
        "ssl-cert-reqs": "Motor's own requests (/health, canary, metrics) bring no client certificate",
    }
)
