"""Deployments that `motorctl init` writes, one for each engine and shape. Each is valid as it is, but for the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

SHAPES: Mapping[str, str] = MappingProxyType(
    {
        "single-node": "one engine on one node",
        "pcp": "prefill context parallelism over two nodes (ATOM: on one)",
        "data-parallel": "several groups, each over two nodes (ATOM: ranks inside one process)",
        "prefill-decode": "a prefill and a decode instance, and KV transfer between them",
    }
)


@dataclass(frozen=True)
class Sample:
    """`roles` maps a role to its engine_config; `devices` is what a node of it has."""

    engine: str
    shape: str
    says: str  # one sentence: what starts where
    profile: str
    roles: Mapping[str, Mapping[str, Any]]
    devices: int

    @property
    def nodes(self) -> int:
        """How many machines it needs where no two slots share one."""
        return sum(int(c.get("nnodes", 1)) * self.groups(role) for role, c in self.roles.items())

    def groups(self, role: str) -> int:
        """Data-parallel groups of one instance; ATOM keeps its ranks inside one process."""
        return 1 if self.engine == "atom" else int(self.roles[role].get("data-parallel-size", 1))


_VLLM, _ASCEND, _ATOM = "vllm@0.32", "vllm_ascend@0.23", "atom@0.1.6"
_MODEL = {"model": "/mnt/weight/your_model"}
_DEEPSEEK = {"model": "/mnt/weight/DeepSeek-V4"}
_TWO_NODES = {"nnodes": 2, "master-port": 7001}
# The plug-in transfers KV only in whole blocks (platform.py:743-752 of v0.23.0).
_ASCEND_PCP = {"prefill-context-parallel-size": 2, "cp-kv-cache-interleave-size": 128, "block-size": 128}


# Without kv_port Motor finds ports of its own.
_MOONCAKE = {"kv_connector": "MooncakeConnectorV1", "kv_connector_extra_config": {"use_ascend_direct": True}}
_NIXL = {"kv_connector": "NixlConnector"}


SAMPLES: tuple[Sample, ...] = (
    Sample(
        "vllm",
        "single-node",
        "One engine over the eight devices of one node.",
        _VLLM,
        {"union": {**_MODEL, "tensor-parallel-size": 8}},
        8,
    ),
    Sample(
        "vllm",
        "pcp",
        "One engine over two nodes of eight devices: each holds one half of every prompt.",
        _VLLM,
        {"union": {**_MODEL, "tensor-parallel-size": 8, "prefill-context-parallel-size": 2, **_TWO_NODES}},
        8,
    ),
    Sample(
        "vllm",
        "data-parallel",
        "Two groups of two nodes in one world of expert parallelism, an API server on each group's first node.",
        _VLLM,
        {
            "union": {
                **_MODEL,
                "tensor-parallel-size": 16,
                "data-parallel-size": 2,
                "enable-expert-parallel": True,
                **_TWO_NODES,
            }
        },
        8,
    ),
    Sample(
        "vllm",
        "prefill-decode",
        "One prefill and one decode node of eight devices.",
        _VLLM,
        {
            "prefill": {**_MODEL, "tensor-parallel-size": 8, "kv-transfer-config": _NIXL},
            "decode": {**_MODEL, "tensor-parallel-size": 8, "kv-transfer-config": _NIXL},
        },
        8,
    ),
    Sample(
        "vllm_ascend",
        "single-node",
        "One engine over the sixteen devices of one node.",
        _ASCEND,
        {"union": {**_MODEL, "tensor-parallel-size": 16}},
        16,
    ),
    Sample(
        "vllm_ascend",
        "pcp",
        "One engine over two nodes of sixteen devices, as in the guide of cross-node prefill context parallelism.",
        _ASCEND,
        {"prefill": {**_MODEL, "tensor-parallel-size": 16, **_ASCEND_PCP, **_TWO_NODES}},
        16,
    ),
    Sample(
        "vllm_ascend",
        "data-parallel",
        "Four groups of two nodes, each an engine of its own: eight nodes of sixteen devices.",
        _ASCEND,
        {"prefill": {**_MODEL, "tensor-parallel-size": 16, "data-parallel-size": 4, **_ASCEND_PCP, **_TWO_NODES}},
        16,
    ),
    Sample(
        "vllm_ascend",
        "prefill-decode",
        "A prefill instance over two nodes with prefill context parallelism, and a decode instance on one.",
        _ASCEND,
        {
            "prefill": {
                **_MODEL,
                "tensor-parallel-size": 16,
                **_ASCEND_PCP,
                "kv-transfer-config": _MOONCAKE,
                **_TWO_NODES,
            },
            "decode": {**_MODEL, "tensor-parallel-size": 16, "block-size": 128, "kv-transfer-config": _MOONCAKE},
        },
        16,
    ),
    Sample(
        "atom",
        "single-node",
        "One engine over eight devices of one node.",
        _ATOM,
        {"union": {**_DEEPSEEK, "tensor-parallel-size": 8}},
        8,
    ),
    Sample(
        "atom",
        "pcp",
        "One engine over eight devices of one node: two halves of every prompt, four devices each.",
        _ATOM,
        {
            "union": {
                **_DEEPSEEK,
                "tensor-parallel-size": 4,
                "prefill-context-parallel-size": 2,
                "enable-chunked-prefill": False,
                "max-model-len": 131072,
                "max-num-batched-tokens": 131072,
            }
        },
        8,
    ),
    Sample(
        "atom",
        "data-parallel",
        "One process with two data-parallel ranks of four devices each.",
        _ATOM,
        {
            "decode": {
                **_DEEPSEEK,
                "tensor-parallel-size": 4,
                "data-parallel-size": 2,
                "enable-dp-attention": True,
                "enable-expert-parallel": True,
            }
        },
        8,
    ),
)


def find(engine: str, shape: str) -> Sample | None:
    """The sample of an engine and shape; None where the engine has no such shape."""
    return next((sample for sample in SAMPLES if (sample.engine, sample.shape) == (engine, shape)), None)


def shapes_of(engine: str) -> list[str]:
    """The shapes that there are samples of."""
    return [sample.shape for sample in SAMPLES if sample.engine == engine]
