"""A sample as commented YAML: each key with its meaning from the schema; keys left at their defaults are comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from controller.config.samples import Sample
from controller.config.schema import Controller, Deploy, Engine, HealthCheck
from controller.config.schema_controller import Grpc, TimerSettings, Tls
from controller.config.schema_deploy import PortRanges
from engine_launch.reserved import READ_OPTIONS

# as `motorctl certs init` calls them
_TLS_FILES = {"cert": "controller.pem", "key": "controller.key", "ca": "ca.pem"}
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_/@.-]*$")
_SECTION_OF = {"prefill": "p", "decode": "d", "union": "hybrid"}

# What the samples set beside the options that Motor reads.
_OPTIONS: Mapping[str, str] = {
    "enable-dp-attention": "attention is computed by data-parallel ranks, experts by all",
    "enable-chunked-prefill": "chunks take from prefill context parallelism what it gains",
    "max-model-len": "the longest prompt and answer together, in tokens",
    "max-num-batched-tokens": "not below the prompt's length, so that a prompt is computed at once",
}


def sample_text(sample: Sample) -> str:
    """YAML that `motorctl validate` accepts. Ends with a line break."""
    lines = [
        f"# {sample.says}",
        f"# {sample.nodes} node{'s' * (sample.nodes > 1)}, {sample.devices} devices each. Change at least the model.",
        "#   motorctl validate FILE    what is wrong with it",
        "#   motorctl plan FILE        every command line that it makes",
        "# Keys with # in front show their defaults. docs/configuration.md explains all.",
        "",
        *_deploy(sample),
        "",
        *_controller(),
    ]
    for role, config in sample.roles.items():
        lines += ["", *_engine(sample, role, config)]
    return "\n".join(lines) + "\n"


def _deploy(sample: Sample) -> list[str]:
    lines = [
        "motor_deploy_config:",
        *_key(Deploy, "deployment_id", f"{sample.engine}-{sample.shape}".replace("_", "-")),
    ]
    for role, config in sample.roles.items():
        short = _SECTION_OF[role]
        lines += _key(Deploy, f"{short}_instances_num", 1)
        lines += _key(Deploy, f"{short}_pod_npu_num", sample.devices)
        lines += _key(Deploy, f"single_{short}_instance_pod_num", int(config.get("nnodes", 1)) * sample.groups(role))
    role = next(iter(sample.roles))
    lines += ["  # port_ranges:", f"  #   {role}:"]
    for name, default in (("master", "[7001, 7064]"), ("api", "[8000, 8063]")):
        lines += [f"  #     {name}: {default}  # {_meaning(PortRanges, name)}"]
    return lines


def _controller() -> list[str]:
    return [
        "motor_controller_config:",
        "  grpc:",
        *_key(Grpc, "host", "0.0.0.0", 4),
        *_key(Controller, "insecure", True),
        f"  # tls:  # {_meaning(Controller, 'tls')} Instead of insecure.",
        *(f"  #   {name}: tls/{file}  # {_meaning(Tls, name)}" for name, file in _TLS_FILES.items()),
        "  # timers:",
        *_defaults(TimerSettings, 4),
    ]


def _engine(sample: Sample, role: str, config: Mapping[str, Any]) -> list[str]:
    lines = [
        f"motor_engine_{role}_config:",
        *_key(Engine, "engine_type", sample.engine),
        *_key(Engine, "engine_profile", sample.profile),
        f"  # {_meaning(Engine, 'engine_config')}",
        "  engine_config:",
    ]
    for name, value in config.items():
        meaning = READ_OPTIONS[name].meaning if name in READ_OPTIONS else _OPTIONS[name]
        lines += _commented(name, value, meaning, 4)
    return [
        *lines,
        f"  # env: {{}}  # {_meaning(Engine, 'env')}",
        f"  # extra_args: []  # {_meaning(Engine, 'extra_args')}",
        "  # health_check_config:",
        *_defaults(HealthCheck, 4),
    ]


def _key(model: type[BaseModel], name: str, value: Any, indent: int = 2) -> list[str]:
    return _commented(name, value, _meaning(model, name), indent)


def _commented(name: str, value: Any, meaning: str, indent: int) -> list[str]:
    head = " " * indent
    if isinstance(value, Mapping):
        return [f"{head}{name}:  # {meaning}", *_block(value, indent + 2)]
    return [f"{head}{name}: {_yaml(value)}  # {meaning}"]


def _block(value: Mapping[str, Any], indent: int) -> Iterable[str]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield f"{' ' * indent}{name}:"
            yield from _block(inner, indent + 2)
        else:
            yield f"{' ' * indent}{name}: {_yaml(inner)}"


def _defaults(model: type[BaseModel], indent: int) -> Iterable[str]:
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = extra.get("x-unset") if field.default is None else _yaml(field.default)
        yield f"{' ' * (indent - 2)}#   {name}: {default}  # {field.description}"


def _meaning(model: type[BaseModel], name: str) -> str:
    return str(model.model_fields[name].description)


def _yaml(value: Any) -> str:
    """JSON is YAML, and a plain word needs no quotes."""
    return value if isinstance(value, str) and _PLAIN.match(value) else json.dumps(value)
