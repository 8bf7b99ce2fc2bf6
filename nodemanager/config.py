"""The node file: what this machine offers and where its controllers are. Read once, at the start."""

from __future__ import annotations

import difflib
import ipaddress
import re
from pathlib import Path
from typing import Any, Literal

from motor_rpc.tls import TlsFiles
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engine_launch.secrets import MASK, Mask, is_secret, redact, secrets_in
from nodemanager.limits import Limits
from nodemanager.node_text import NodeTextError, read_yaml

DEFAULT_PATH = Path("/etc/motor/nodemanager.yaml")
DEFAULT_CONTROLLER_PORT = 1028
NEVER = "never"
DEVICE_FILES = {"nvidia": "/dev/nvidia{}", "ascend": "/dev/davinci{}"}


class ConfigError(Exception):
    """The node file is wrong; `problems` holds one line for each error."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Devices(_Strict):
    """Devices an engine may get: by name, as *_VISIBLE_DEVICES takes them, or the first `count`."""

    kind: Literal["cpu", "nvidia", "ascend", "amd"] = "cpu"
    names: list[str] = Field(default_factory=list)
    count: int | None = Field(default=None, ge=0)

    @field_validator("names", mode="before")
    @classmethod
    def _numbers_are_names(cls, value: Any) -> Any:
        return [str(item) if isinstance(item, int) else item for item in value] if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_of_both(self) -> Devices:
        if self.names and self.count is not None:
            raise ValueError("give either names or count, not both")
        if len(set(self.names)) != len(self.names):
            raise ValueError("a name stands there twice")
        return self

    def all(self) -> list[str]:
        return list(self.names) if self.names else [str(number) for number in range(self.count or 0)]

    def file_of(self, name: str) -> str | None:
        """The device's file; None where there is none one can look for: only devices called by number have one."""
        pattern = DEVICE_FILES.get(self.kind)
        return pattern.format(name) if pattern and name.isdigit() else None


class Engine(_Strict):
    """One installed engine. Its Python may be another environment than Motor's."""

    python: str | None = None  # runs `-m <entry module>`
    command: list[str] = Field(default_factory=list)  # replaces `python -m <entry module>` completely
    version: str | None = None  # default: read from the environment of `python`
    distribution: str | None = None  # name of the package whose version counts; default: the engine's name
    env_scripts: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("env", mode="before")
    @classmethod
    def _plain_values(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for k, v in value.items()}

    @model_validator(mode="after")
    def _python_or_command(self) -> Engine:
        if (self.python is None) == (not self.command):
            raise ValueError("give either `python` or `command`")
        return self


class Tls(_Strict):
    """PEM files for the connection to the controllers, read at each dial. Relative ones lie beside the node file."""

    ca: Path  # who may sign a controller's certificate
    cert: Path  # this node's own: the controller knows the node by it
    key: Path


class NodeConfig(_Strict):
    """The node file, checked. Times in seconds."""

    controllers: list[str] = Field(min_length=1)
    deployment_id: str = "default"
    node_id: str | None = None
    address: str | None = None
    role: Literal["prefill", "decode", "union"] | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    devices: Devices = Field(default_factory=Devices)
    engines: dict[str, Engine] = Field(min_length=1)
    model_roots: list[Path] = Field(default_factory=list)
    state_dir: Path = Path("/var/lib/motor")
    run_dir: Path | None = None  # default: state_dir
    log_dir: Path = Path("/var/log/motor")
    status_port: int = Field(default=1027, ge=0, le=65535)  # on loopback; 0 = any free one
    orphan_grace: float | None = Field(default=600.0, gt=0)
    limits: Limits = Field(default_factory=Limits)
    allow_loopback: bool = False
    allow_hub_models: bool = False
    allow_env: list[str] = Field(default_factory=list)  # names a controller may set although code is found by them
    allow_flags: list[str] = Field(default_factory=list)  # options it may set although they choose code or files
    tls: Tls | None = None
    insecure: bool = False
    expected_nnodes: int | None = Field(default=None, ge=1)
    expected_model: str | None = None

    @field_validator("orphan_grace", mode="before")
    @classmethod
    def _never(cls, value: Any) -> Any:
        return None if value == NEVER else value

    @field_validator("controllers")
    @classmethod
    def _endpoints(cls, value: list[str]) -> list[str]:
        for item in value:
            parse_endpoint(item)
        return value

    @field_validator("state_dir", "run_dir", "log_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError(f"expected an absolute path, got {value}")
        return value

    @model_validator(mode="after")
    def _open_wire_is_said(self) -> NodeConfig:
        if not self.insecure and self.tls is None:
            for item in self.controllers:
                host, _ = parse_endpoint(item)
                if not _is_loopback(host):
                    raise ValueError(
                        f"controllers: {item} is not on this machine, and the connection to it has no TLS; set "
                        "`tls: {ca, cert, key}` (motorctl certs node makes the files), or `insecure: true` to accept "
                        "that, on a network you trust"
                    )
        return self

    def endpoints(self) -> list[tuple[str, int]]:
        return [parse_endpoint(item) for item in self.controllers]

    def may_dial(self, host: str) -> bool:
        """Whether a controller that is not in the list may be dialled, because one that is names it as the leader. With
        TLS it has to show a certificate like any other."""
        return self.insecure or self.tls is not None or _is_loopback(host)

    def tls_files(self) -> TlsFiles | None:
        return None if self.tls is None else TlsFiles(self.tls.cert, self.tls.key, self.tls.ca)

    @property
    def run_folder(self) -> Path:
        return self.run_dir or self.state_dir


def parse_endpoint(text: str) -> tuple[str, int]:
    """`host`, `host:port`, `[v6]:port` -> (host, port); ValueError otherwise."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]\s]+))(?::(\d{1,5}))?", text)
    if not match or not 0 < int(match[3] or DEFAULT_CONTROLLER_PORT) < 65536:
        raise ValueError(f"expected host:port or [IPv6]:port, got {text!r}")
    return match[1] or match[2], int(match[3] or DEFAULT_CONTROLLER_PORT)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load(path: Path, overrides: dict[str, Any] | None = None) -> NodeConfig:
    """Read and check the node file; the command line wins over it. ConfigError names every problem."""
    try:
        data = read_yaml(path)
    except OSError as error:
        raise ConfigError([f"{path}: cannot read the node file: {error.strerror}; give one with --config"]) from error
    except NodeTextError as error:
        raise ConfigError([f"{path}: {error}"]) from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError([f"{path}: expected keys and values, got a {type(data).__name__}"])
    data.update(overrides or {})
    if isinstance(data.get("tls"), dict):
        data["tls"] = {k: str(path.parent / v) if isinstance(v, str) and v else v for k, v in data["tls"].items()}
    try:
        return NodeConfig.model_validate(data)
    except ValidationError as error:
        mask = Mask(secrets_in(data))
        raise ConfigError([mask.known(_problem(path, entry)) for entry in error.errors()]) from error


def _problem(path: Path, entry: Any) -> str:
    """`file:path.to.key: what, got, expected, how to fix`."""
    where = ".".join(str(part) for part in entry["loc"]) or "(file)"
    if entry["type"] == "extra_forbidden":
        known = _known_keys(entry["loc"][:-1])
        close = difflib.get_close_matches(str(entry["loc"][-1]), known, 1)
        hint = f'did you mean "{close[0]}"?' if close else f"known keys: {', '.join(known)}"
        return f"{path}:{where}: unknown key; {hint}"
    if entry["type"] == "missing":
        return f"{path}:{where}: missing; add it"
    message = entry["msg"].removeprefix("Value error, ")
    got = MASK if any(is_secret(str(part)) for part in entry["loc"]) else redact(entry["input"])
    shown = f", got {got!r}" if isinstance(got, str | int | float | bool | list) and repr(got) not in message else ""
    return f"{path}:{where}: {message}{shown}"


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    model: type[BaseModel] = NodeConfig
    if location[:1] == ("devices",):
        model = Devices
    elif location[:1] == ("limits",):
        model = Limits
    elif location[:1] == ("tls",):
        model = Tls
    elif location[:1] == ("engines",) and len(location) >= 2:
        model = Engine
    return sorted(model.model_fields)
