"""The config.json of a model, where it lies on the machine that checks the file."""

from __future__ import annotations

import json
from pathlib import Path

from engine_launch.model_facts import ModelFacts, model_facts

LARGEST_CONFIG = 4 << 20  # bytes; a config.json has some thousands


def read_model(model: str) -> tuple[ModelFacts | None, str]:
    """(what config.json says, why it could not be read). Only folders are read: a hub name needs a network."""
    if not model.startswith("/"):
        return None, "it has no absolute path, and only a node knows where it lies"
    path = Path(model) / "config.json"
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(LARGEST_CONFIG))
    except OSError as error:
        return None, f"{path} cannot be read on this machine ({error.strerror})"
    except ValueError:
        return None, f"{path} is no JSON"
    if not isinstance(content, dict):
        return None, f"{path} is no JSON object"
    return model_facts(content), ""
