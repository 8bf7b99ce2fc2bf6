"""Is the model there, the same as on the other nodes, and one that the engine is right for? Asked in a child: a hung
mount must not block us.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_launch.model_need import ModelNeed
from nodemanager.aside import ChildIsLateError, run_child
from nodemanager.items import WARNING

MODEL_SECONDS = 20.0

# Runs in a process of its own, so only the standard library. Prints {"missing": true}, {"error": ...}, or the digest
# and the model's kind, of which nothing is known where the model is one file or config.json is no JSON object.
_LOOK = """
import hashlib, json, os, sys
folder = sys.argv[1]
answer = {}
try:
    if not os.path.exists(folder):
        answer["missing"] = True
    elif os.path.isfile(folder):
        answer["digest"] = "size:%d" % os.path.getsize(folder)
        answer["unread"] = "%s is one file" % folder
    else:
        total = hashlib.sha256()
        names = [n for n in sorted(os.listdir(folder)) if n == "config.json" or n.endswith(".index.json")]
        if "config.json" not in names:
            answer["error"] = "%s holds no config.json" % folder
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            total.update(name.encode() + b"\\0" + content + b"\\0")
            if name == "config.json":
                try:
                    config = json.loads(content)
                    answer["model_type"] = str(config.get("model_type") or "")
                    answer["architectures"] = [str(one) for one in config.get("architectures") or []]
                except (AttributeError, TypeError, ValueError):
                    answer["broken"] = True
        answer["digest"] = total.hexdigest()
except OSError as error:
    answer = {"error": "%s: %s" % (error.filename or folder, error.strerror)}
answer["real"] = os.path.realpath(folder)
answer["roots"] = [os.path.realpath(root) for root in sys.argv[2:]]
print(json.dumps(answer))
"""


@dataclass(frozen=True)
class ModelCheck:
    """What was found. `digest` covers config.json and the weights index; empty for a model from the hub."""

    ok: bool
    detail: str
    digest: str = ""
    path: str = ""


async def check_model(
    model: str, roots: Sequence[Path], allow_hub: bool, seconds: float = MODEL_SECONDS, need: ModelNeed | None = None
) -> ModelCheck:
    """Look for `model`: an absolute path as it is, a relative name below each of `roots`; where it leads to has to lie
    below one of them. With `need` it has to be of that kind, as far as its config.json says.
    """
    candidates = [model] if model.startswith("/") else [str(root / model) for root in roots]
    reasons = []
    for candidate in candidates:
        found = await _look(candidate, roots, seconds)
        if found is None:
            return ModelCheck(
                False, f"{candidate}: no answer from the file system within {seconds:g} s (a hung mount?)"
            )
        if "real" in found and not any(Path(found["real"]).is_relative_to(root) for root in found["roots"]):
            leads = "" if found["real"] == candidate else f" leads to {found['real']}, which"
            reasons.append(f"{candidate}{leads} is not below model_roots ({', '.join(map(str, roots)) or 'none'})")
            continue
        if "digest" in found and "error" not in found:
            seen = ModelCheck(True, f"{candidate}, digest {found['digest'][:12]}", found["digest"], candidate)
            return _of_kind(seen, found, need) if need is not None else seen
        reasons.append(found.get("error") or f"{candidate}: not there")
    if not model.startswith("/") and allow_hub:
        detail = f"{model}: not in model_roots; the engine fetches it from the hub (allow_hub_models)"
        return ModelCheck(True, _not_checked(detail, "it is not here yet", need) if need is not None else detail)
    expected = (
        "put it there, below one of `model_roots` of the node file"
        if model.startswith("/")
        else (
            "put it below one of `model_roots` in the node file, "
            "or set `allow_hub_models: true` to let the engine fetch it"
        )
    )
    return ModelCheck(False, f"{'; '.join(reasons) or f'{model}: no model_roots are set'}; {expected}")


def _of_kind(seen: ModelCheck, found: Mapping[str, Any], need: ModelNeed) -> ModelCheck:
    """`seen`, or a refusal if config.json says that the model is of another kind."""
    if "unread" in found:
        return replace(seen, detail=_not_checked(seen.detail, found["unread"], need))
    if "broken" in found:
        got = "a file that is no JSON object of a model"
    else:
        model_type, architectures = found["model_type"], found["architectures"]
        if need.kind.fits(model_type, architectures):
            return seen
        got = f"{model_type or 'none'} ({', '.join(architectures) or 'no architecture'})"
    expected = " or ".join(sorted(need.kind.model_types))
    where = f"{seen.path}/config.json"
    return replace(seen, ok=False, detail=f"{where}: expected model_type {expected}, got {got}; {need.reason}")


def _not_checked(detail: str, why: str, need: ModelNeed) -> str:
    return f"{WARNING}: {detail}; not checked whether it is {need.kind.name}: {why}. {need.reason}"


async def _look(path: str, roots: Sequence[Path], seconds: float) -> dict[str, Any] | None:
    try:
        ended = await run_child([sys.executable, "-I", "-S", "-c", _LOOK, path, *map(str, roots)], None, seconds)
    except ChildIsLateError:
        return None
    try:
        answer = json.loads(ended.output)
    except ValueError:
        return {"error": f"{path}: the check of the model ended without an answer"}
    return answer if isinstance(answer, dict) else {}
