"""Is the model there, and is it the same as on the other nodes? Asked in a child: a hung mount must not block
us.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nodemanager.aside import ChildIsLateError, run_child

MODEL_SECONDS = 20.0

# Runs in a process of its own, so only the standard library. Prints {"digest": ...} or {"error": ...}.
_LOOK = """
import hashlib, json, os, sys
folder = sys.argv[1]
answer = {}
try:
    if not os.path.exists(folder):
        answer["missing"] = True
    elif os.path.isfile(folder):
        answer["digest"] = "size:%d" % os.path.getsize(folder)
    else:
        total = hashlib.sha256()
        names = [n for n in sorted(os.listdir(folder)) if n == "config.json" or n.endswith(".index.json")]
        if "config.json" not in names:
            answer["error"] = "%s holds no config.json" % folder
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                total.update(name.encode() + b"\\0" + file.read() + b"\\0")
        answer["digest"] = total.hexdigest()
except OSError as error:
    answer = {"error": "%s: %s" % (error.filename or folder, error.strerror)}
print(json.dumps(answer))
"""


@dataclass(frozen=True)
class ModelCheck:
    """What was found. `digest` covers config.json and the weights index; empty for a model from the hub."""

    ok: bool
    detail: str
    digest: str = ""
    path: str = ""


async def check_model(model: str, roots: Sequence[Path], allow_hub: bool, seconds: float = MODEL_SECONDS) -> ModelCheck:
    """Look for `model`: an absolute path as it is, a relative name below each of `roots`."""
    candidates = [model] if model.startswith("/") else [str(root / model) for root in roots]
    reasons = []
    for candidate in candidates:
        found = await _look(candidate, seconds)
        if found is None:
            return ModelCheck(
                False, f"{candidate}: no answer from the file system within {seconds:g} s (a hung mount?)"
            )
        if "digest" in found and "error" not in found:
            return ModelCheck(True, f"{candidate}, digest {found['digest'][:12]}", found["digest"], candidate)
        reasons.append(found.get("error") or f"{candidate}: not there")
    if not model.startswith("/") and allow_hub:
        return ModelCheck(True, f"{model}: not in model_roots; the engine fetches it from the hub (allow_hub_models)")
    expected = (
        "put it there"
        if model.startswith("/")
        else (
            "put it below one of `model_roots` in the node file, "
            "or set `allow_hub_models: true` to let the engine fetch it"
        )
    )
    return ModelCheck(False, f"{'; '.join(reasons) or f'{model}: no model_roots are set'}; {expected}")


async def _look(path: str, seconds: float) -> dict[str, str] | None:
    try:
        ended = await run_child([sys.executable, "-I", "-S", "-c", _LOOK, path], None, seconds)
    except ChildIsLateError:
        return None
    try:
        answer = json.loads(ended.output)
    except ValueError:
        return {"error": f"{path}: the check of the model ended without an answer"}
    return answer if isinstance(answer, dict) else {}
