"""The files a run is started with: configs/demo.json with this run's addresses, and a node file for each node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.engine_environment import EngineEnvironment
from demo.namespaces import Network, NodePlace
from demo.run_folder import ROOT, RunFolder

DEPLOY_FILE = ROOT / "configs" / "demo.json"
ORPHAN_GRACE = 60.0
"""Seconds until an engine ends whose node manager was killed and not started again."""


@dataclass(frozen=True)
class Settings:
    """Paths of the written files, and where the controller answers."""

    deploy: Path
    nodes: Mapping[str, Path]
    rest: str


def node_count() -> int:
    """How many nodes configs/demo.json needs."""
    config = json.loads(DEPLOY_FILE.read_text())["motor_engine_union_config"]["engine_config"]
    return int(config["nnodes"])


def write_settings(folder: RunFolder, network: Network, engine: EngineEnvironment, model: Path) -> Settings:
    """Write the deployment file, the node files, and the model's name as a link to where it is."""
    deploy = json.loads(DEPLOY_FILE.read_text())
    controller = deploy["motor_controller_config"]
    for server in ("rest", "grpc"):
        controller[server]["host"] = network.controller_address
    controller["allow_loopback"] = network.allow_loopback
    path = folder.root / "deploy.json"
    path.write_text(json.dumps(deploy, indent=2) + "\n")

    name = deploy["motor_engine_union_config"]["engine_config"]["model"]
    models = folder.root / "models"
    models.mkdir()
    (models / name).symlink_to(model)

    deployment_id = deploy["motor_deploy_config"]["deployment_id"]
    port = controller["grpc"]["port"]
    nodes = {}
    for node in network.nodes:
        values = {
            "controllers": [f"{network.controller_address}:{port}"],
            "deployment_id": deployment_id,
            # The model lies in the cache and is a link here; where a link leads has to be allowed, too.
            "model_roots": [str(models), str(model.resolve())],
            **_node_values(folder, node, network.allow_loopback, engine),
        }
        # JSON is YAML.
        nodes[node.name] = folder.root / f"{node.name}.yaml"
        nodes[node.name].write_text(json.dumps(values, indent=2) + "\n")
    return Settings(path, nodes, f"http://{network.controller_address}:{controller['rest']['port']}")


def _node_values(folder: RunFolder, node: NodePlace, loopback: bool, engine: EngineEnvironment) -> dict[str, Any]:
    own = folder.root / node.name
    return {
        "insecure": True,
        "node_id": node.name,
        "address": node.address,
        "allow_loopback": loopback,
        "devices": {"kind": "cpu", "count": 1},
        "engines": {
            "vllm": {
                "python": str(engine.python),
                # vLLM and the libraries below it keep caches and settings under HOME, and sockets under TMPDIR.
                "env": {"HOME": str(folder.home), "TMPDIR": str(folder.scratch)},
            }
        },
        "state_dir": str(own / "state"),
        "run_dir": str(own / "run"),
        "log_dir": str(own / "log"),
        "status_port": 0 if loopback else 1027,
        "orphan_grace": ORPHAN_GRACE,
    }
