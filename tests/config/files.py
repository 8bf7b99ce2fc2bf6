"""Deployment files for the tests of the configuration."""

from __future__ import annotations

import json
from typing import Any

from controller.config.errors import ConfigError, Problem
from controller.config.load import parse_document
from controller.config.plan import LoadedDeployment, deployment_from

ENGINE = {
    "model": "/m",
    "tensor-parallel-size": 8,
    "nnodes": 2,
    "master-port": 7001,
}


def engine(profile: str | None = "vllm@0.32", env: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An engine section. Keywords of engine_config have underscores; those of the section are in `section`."""
    section: dict[str, Any] = {"engine_type": "vllm", **more.pop("section", {})}
    if profile:
        section["engine_profile"] = profile
    if env is not None:
        section["env"] = env
    config = {**ENGINE, **{key.replace("_", "-"): value for key, value in more.items()}}
    section["engine_config"] = {key: value for key, value in config.items() if value is not ...}
    return section


def file_with(
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    union: dict[str, Any] | None = None,
    deploy: dict[str, Any] | None = None,
    controller: dict[str, Any] | None = None,
    **top: Any,
) -> dict[str, Any]:
    sections = {
        "motor_deploy_config": deploy,
        "motor_controller_config": controller,
        "motor_engine_prefill_config": prefill,
        "motor_engine_decode_config": decode,
        "motor_engine_union_config": union,
        **top,
    }
    return {key: value for key, value in sections.items() if value is not None}


def load(content: dict[str, Any] | str) -> LoadedDeployment:
    text = content if isinstance(content, str) else json.dumps(content, indent=2)
    return deployment_from(parse_document("deploy.json", text))


def problems_of(content: dict[str, Any] | str) -> tuple[Problem, ...]:
    """Errors and warnings; a valid file has warnings only."""
    try:
        return load(content).warnings
    except ConfigError as error:
        return error.problems


def texts(content: dict[str, Any] | str) -> list[str]:
    return [f"{problem.severity.value}: {problem}" for problem in problems_of(content)]
