"""Options that Motor computes, and why an operator may not set them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Written by the operator, read by Motor, and put on the command line with computed values (or not at all).
CONSUMED = frozenset({"model", "host", "port", "nnodes", "master-port", "data-parallel-size", "data-parallel-rpc-port"})

# Only processes with an API server may get these: headless wants api-server-count unset or 0 (vLLM 0.32
# entrypoints/cli/serve.py:69-77).
MASTER_ONLY = frozenset({"api-server-count"})

# What Motor computes from: it has to stand in engine_config, since extra_args are passed on unread.
READ = (
    CONSUMED
    | MASTER_ONLY
    | {
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "prefill-context-parallel-size",
        "decode-context-parallel-size",
        "enable-expert-parallel",
        "distributed-executor-backend",
        "data-parallel-backend",
        "block-size",
        "cp-kv-cache-interleave-size",
        "kv-transfer-config",
        "shutdown-timeout",
    }
)

_RANK = "Motor assigns ranks to slots and computes this for every process"
_ADDRESS = "it is the data address of the first node of the engine's world, known only after assembly"
_LB = "the load balancing of data-parallel ranks follows from dp_translation"
_HTTPS = "Motor asks for /health over plain HTTP; put TLS in front of the engine"

RESERVED: Mapping[str, str] = MappingProxyType(
    {
        "node-rank": _RANK,
        "master-addr": _ADDRESS,
        "headless": "every process but the one with the API server gets it",
        "data-parallel-rank": _RANK,
        "data-parallel-start-rank": _RANK,
        # Run on 0.31-0.33: `--nnodes 2 --data-parallel-rank g --data-parallel-size-local 1` is accepted and
        # makes every node try to hold a whole replica.
        "data-parallel-size-local": "over several nodes a size-local of 1 silently builds another topology",
        "data-parallel-address": _ADDRESS,
        "data-parallel-external-lb": _LB,
        "data-parallel-hybrid-lb": _LB,
        "data-parallel-multi-port-external-lb": _LB,
        "device-ids": "Motor leases devices by name and each node makes only its own visible",
        "config": "a second file of flags would bypass every check; write its keys into engine_config",
        "uds": "Motor and routers reach the API by address and port",
        "grpc": "Motor asks for /health over HTTP",
        "ssl-keyfile": _HTTPS,
        "ssl-certfile": _HTTPS,
        "ssl-ca-certs": _HTTPS,
        "ssl-cert-reqs": _HTTPS,
        "ssl-ciphers": _HTTPS,
        "enable-ssl-refresh": _HTTPS,
    }
)
