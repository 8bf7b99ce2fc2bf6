"""The environment of an engine: a short allow-list, the operator's scripts, the controller's values,
node-local ones.

Nothing else of the manager's own environment reaches the engine: a stray RANK or VLLM_DP_* changes its
topology.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodemanager.aside import ChildIsLateError, run_child

ALLOWED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Names that engines take their place in the world from; the command line alone decides that.
SCRUBBED = re.compile(r"(VLLM_DP_.*|RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)\Z")
# A rank table, HCCL's older way to say who is who, fixes what Motor assigns. Only the node's own file may hand one on.
RANK_TABLE = re.compile(r"(RANK_TABLE_FILE|RANK_ID|RANK_SIZE)\Z")
# Settings of HCCL in the manager's own environment are left-overs of somebody's shell; an engine's come from the
# deployment, the node file and env_scripts.
HCCL = re.compile(r"HCCL_")
# What bash itself adds to the environment of `env`.
BASH_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS"})

SCRIPT_SECONDS = 60.0

SLOT_MARK = "MOTOR_SLOT"
GENERATION_MARK = "MOTOR_GENERATION"
RUN_MARK = "MOTOR_RUN_ID"
NODE_MARK = "MOTOR_NODE_ID"
STATE_MARK = "MOTOR_STATE_DIR"

# Sources each script in turn, its output kept apart, then prints the environment behind a zero byte.
_SOURCE = r"""
for script in "$@"; do
  if [ ! -r "$script" ]; then echo "$script: cannot be read" >&2; exit 3; fi
  # shellcheck disable=SC1090
  . "$script" >&2 || echo "$script: returned $?" >&2
done
printf '\0'
exec env -0
"""


class EngineEnvironmentError(Exception):
    """A script failed or a variable may not be set; the text says which, and what to do."""


@dataclass(frozen=True)
class EngineEnvironment:
    """The complete environment of an engine process and what was taken out on the way (name -> where it came
    from).
    """

    values: dict[str, str]
    scrubbed: dict[str, str] = field(default_factory=dict)


def base_environment(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The allow-list, taken from the manager's own environment."""
    own = os.environ if own is None else own
    values = {name: own[name] for name in ALLOWED if name in own}
    values.setdefault("PATH", DEFAULT_PATH)
    return values


class ScriptCache:
    """Results of env_scripts, kept until one of the files changes."""

    def __init__(self) -> None:
        self._results: dict[tuple[tuple[str, float], ...], dict[str, str]] = {}

    async def variables(self, scripts: list[str]) -> dict[str, str]:
        """Variables that sourcing `scripts` in a clean bash sets or changes. EngineEnvironmentError if one
        fails.
        """
        if not scripts:
            return {}
        key = tuple((script, _modified(script)) for script in scripts)
        if key not in self._results:
            self._results[key] = await _source(scripts)
        return dict(self._results[key])


def _modified(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return -1.0


async def _source(scripts: list[str]) -> dict[str, str]:
    clean = base_environment()
    argv = ["bash", "--noprofile", "--norc", "-c", _SOURCE, "motor", *scripts]
    try:
        ended = await run_child(argv, clean, SCRIPT_SECONDS)
    except OSError as error:
        raise EngineEnvironmentError(f"env_scripts: cannot run bash: {error}") from error
    except ChildIsLateError:
        raise EngineEnvironmentError(f"env_scripts {scripts}: not done after {SCRIPT_SECONDS:g} s") from None
    _, mark, listing = ended.output.partition(b"\0")
    if ended.code != 0 or not mark:
        said = ended.errors[-2000:] or "no output"
        raise EngineEnvironmentError(f"env_scripts {scripts}: bash ended with {ended.code}: {said}")
    result = {}
    for entry in listing.split(b"\0"):
        name, equals, value = entry.decode(errors="surrogateescape").partition("=")
        if equals and name not in BASH_OWN and clean.get(name) != value:
            result[name] = value
    return result


def left_out(own: Mapping[str, str] | None = None) -> list[str]:
    """Names of the manager's own environment that would have reached an engine started by hand, and changed it."""
    inherited = os.environ if own is None else own
    return sorted(name for name in inherited if SCRUBBED.match(name) or RANK_TABLE.match(name) or HCCL.match(name))


def rank_table(env: Mapping[str, str]) -> list[str]:
    """Names in `env` that give an engine a rank table."""
    return sorted(name for name in env if RANK_TABLE.match(name))


def node_values(node_env: Mapping[str, str], address: str, interface: str, devices: list[str]) -> dict[str, str]:
    """Values of the variables that the controller left to the node. EngineEnvironmentError for an unknown
    kind.
    """
    known = {"address": address, "interface": interface, "devices": ",".join(devices)}
    values = {}
    for name, kind in node_env.items():
        if kind not in known:
            raise EngineEnvironmentError(f"node_env {name}: expected one of {sorted(known)}, got {kind!r}")
        values[name] = known[kind]
    return values


def compose(
    scripts: Mapping[str, str],
    command: Mapping[str, str],
    node: Mapping[str, str],
    engine: Mapping[str, str],
    marks: Mapping[str, str],
    own: Mapping[str, str] | None = None,
) -> EngineEnvironment:
    """Put the layers on top of each other: allow-list, env_scripts, command (profile and deployment),
    node-local values, the node file's `engines.<name>.env`, Motor's marks. What a controller may set is
    bounds.check_env's to say.
    """
    values: dict[str, str] = {}
    scrubbed: dict[str, str] = {}
    layers = {
        "manager": base_environment(own),
        "env_scripts": scripts,
        "controller": command,
        "node": node,
        "node file": engine,
    }
    for source, layer in layers.items():
        for name, value in layer.items():
            if SCRUBBED.match(name) or (RANK_TABLE.match(name) and layer is not engine):
                scrubbed[name] = source
            else:
                values[name] = value
    scrubbed.update(dict.fromkeys(left_out(own), "manager"))
    values.update(marks)
    # vLLM's setproctitle overwrites the environment block otherwise, and with it the marks.
    values["SPT_NOENV"] = "1"
    return EngineEnvironment(values, scrubbed)


def digest(value: object) -> str:
    """sha256 over the canonical JSON of `value`."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
