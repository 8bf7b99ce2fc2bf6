"""`load_deployment` on deployments of 10,000 nodes: from the file to the checked plan.

Usage: python -m bench.validate [RUNS]       (default 7)
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from controller.config.plan import load_deployment

NODES = 10_000


def deployment(instances: int, groups: int, nnodes: int, engine: dict[str, Any] | None = None) -> dict[str, Any]:
    """A file whose prefill role has instances x groups x nnodes nodes of eight devices."""
    config = {
        "model": "/mnt/weight/your_model",
        "tensor-parallel-size": 8 * nnodes,
        "data-parallel-size": groups,
        "nnodes": nnodes,
        "master-port": 7001,
    }
    section = {"engine_type": "vllm", "engine_profile": "vllm@0.32", "engine_config": config, **(engine or {})}
    return {
        "motor_deploy_config": {
            "p_instances_num": instances,
            "p_pod_npu_num": 8,
            "single_p_instance_pod_num": groups * nnodes,
        },
        "motor_engine_prefill_config": section,
    }


def pair(instances: int, groups: int) -> dict[str, Any]:
    """As many prefill as decode nodes, each group one node, KV transfer between the roles."""
    transfer = {"kv_connector": "MooncakeConnectorV1", "kv_connector_extra_config": {"use_ascend_direct": True}}
    config = {"model": "/mnt/weight/your_model", "tensor-parallel-size": 16, "kv-transfer-config": transfer}
    section = {
        "engine_type": "vllm_ascend",
        "engine_profile": "vllm_ascend@0.23",
        "engine_config": {**config, "data-parallel-size": groups},
    }
    return {
        "motor_deploy_config": {
            "p_instances_num": instances,
            "d_instances_num": instances,
            "p_pod_npu_num": 16,
            "d_pod_npu_num": 16,
        },
        "motor_engine_prefill_config": section,
        "motor_engine_decode_config": section,
    }


SHAPES = {
    "one instance, 5000 groups of 2": deployment(1, 5000, 2),
    "100 instances, 50 groups of 2": deployment(100, 50, 2),
    "5000 instances, 1 group of 2": deployment(5000, 1, 2),
    "10000 instances, 1 node each": deployment(10_000, 1, 1),
    "5000 + 5000 instances, KV transfer": pair(5000, 1),
}


def seconds(path: Path) -> float:
    began = time.perf_counter()
    loaded = load_deployment(path)
    spent = time.perf_counter() - began
    nodes = sum(instance.dp_size * instance.nnodes for instance in loaded.plan.instances)
    assert nodes == NODES, f"{nodes} nodes"
    return spent


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in SHAPES.items():
            path = Path(folder) / "deploy.json"
            path.write_text(json.dumps(content, indent=2))
            values = [1000 * seconds(path) for _ in range(runs)]
            low, middle, high = min(values), statistics.median(values), max(values)
            print(f"{name:<36} {low:7.1f} / {middle:7.1f} / {high:7.1f} ms  (min/median/max of {runs})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
