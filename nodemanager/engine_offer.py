"""The engines of the node file: their versions, read without importing them, and how they are run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nodemanager.aside import ChildIsLateError, run_child
from nodemanager.config import Engine
from nodemanager.environment import EngineEnvironmentError, ScriptCache, base_environment

VERSION_SECONDS = 30.0

# Where `argv[0]` of the canonical command lives as a Python module; `python -m` needs no script on the PATH.
ENTRY_MODULES = {"vllm": "vllm.entrypoints.cli.main"}

# Runs in the engine's Python. Prints the version and the folders whose change means another version.
_READ_VERSION = """
import importlib.metadata as m, json, sys
answer = {"places": [p for p in sys.path if p.endswith("-packages")]}
for name in sys.argv[1:]:
    try:
        answer["version"] = m.version(name)
        break
    except m.PackageNotFoundError:
        pass
print(json.dumps(answer))
"""


class EngineError(Exception):
    """An engine cannot be used; the text says what was expected and what to do."""


@dataclass(frozen=True)
class Version:
    """An engine's version, or why it is not known."""

    version: str = ""
    error: str = ""


def final_argv(engine: Engine, argv: Sequence[str]) -> list[str]:
    """What is executed for the canonical `argv`. EngineError where the node file does not say how to run
    argv[0].
    """
    if not argv:
        raise EngineError("the command is empty")
    runs_module = list(argv[:2]) == ["python", "-m"]  # then argv names its module itself
    if engine.command:
        return [*engine.command, *argv[3 if runs_module else 1 :]]
    if runs_module and engine.python is not None:
        return [engine.python, *argv[1:]]
    if argv[0] not in ENTRY_MODULES or engine.python is None:
        raise EngineError(
            f"cannot run {argv[0]!r} with `python`, known are {', '.join(ENTRY_MODULES)}; set engines.<name>.command"
        )
    return [engine.python, "-m", ENTRY_MODULES[argv[0]], *argv[1:]]


class Versions:
    """Versions of the node's engines, read again only when their environments change."""

    def __init__(self, scripts: ScriptCache) -> None:
        self._scripts = scripts
        self._known: dict[str, tuple[Version, dict[str, float]]] = {}

    async def of(self, name: str, engine: Engine) -> Version:
        """The version, read or as the node file says. An engine that cannot be executed has none."""
        program = engine.command[0] if engine.command else engine.python or ""
        if shutil.which(program, path=base_environment().get("PATH")) is None:
            return Version(error=f"engines.{name}: {program} is not there, or this user may not execute it")
        if engine.version:
            return Version(engine.version)
        if engine.python is None:
            return Version(error=f"engines.{name}: set `version`, it cannot be read with `command` alone")
        known = self._known.get(name)
        if known and all(_modified(place) == stamp for place, stamp in known[1].items()):
            return known[0]
        version, places = await self._read(name, engine, engine.python)
        if version.version:
            self._known[name] = (version, {place: _modified(place) for place in [engine.python, *places]})
        return version

    async def _read(self, name: str, engine: Engine, python: str) -> tuple[Version, list[str]]:
        candidates = [engine.distribution] if engine.distribution else _distributions(name)
        try:
            env = {**base_environment(), **await self._scripts.variables(engine.env_scripts), **engine.env}
            ended = await run_child([python, "-c", _READ_VERSION, *candidates], env, VERSION_SECONDS)
            answer = json.loads(ended.output)
        except (EngineEnvironmentError, OSError, ChildIsLateError) as error:
            return Version(error=f"engines.{name}: {error}"), []
        except ValueError:
            return Version(error=f"engines.{name}: {python} ended with {ended.code}: {ended.errors[-500:]}"), []
        if "version" not in answer:
            return Version(
                error=f"engines.{name}: {python} has no package {' or '.join(candidates)}; "
                "install it there, or set `distribution` or `version`"
            ), []
        return Version(answer["version"]), answer["places"]


def _distributions(name: str) -> list[str]:
    """Package names to try for an engine that the node file calls `name`."""
    plain = name.replace("_", "-")
    return list(dict.fromkeys([plain, plain.split("-")[0]]))


def _modified(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return -1.0
