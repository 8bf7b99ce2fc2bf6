"""The deployments whose plans are pinned in tests/golden/*.txt: one readable file for each shape."""

from __future__ import annotations

from pathlib import Path

from controller.config.load import parse_document
from controller.config.plan import LoadedDeployment, deployment_from
from controller.config.render import render_plan
from controller.config.render_text import plan_text

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"

# The samples that users read are pinned as well.
SAMPLES = ("seed", "demo", "dp2-nnodes2-replica", "dp2-nnodes2-native", "atom")

SHAPES: dict[str, Path] = {
    **{name: ROOT / "configs" / f"{name}.json" for name in SAMPLES},
    **{path.stem: path for path in sorted((GOLDEN / "inputs").glob("*.json"))},
}


def load_shape(name: str) -> LoadedDeployment:
    """The deployment, named by its file name alone: plans must not depend on where the repository lies."""
    path = SHAPES[name]
    return deployment_from(parse_document(path.name, path.read_text(encoding="utf-8")))


def golden_path(name: str) -> Path:
    return GOLDEN / f"{name}.txt"


def golden_text(name: str) -> str:
    """What the golden file should hold: the warnings, then the plan."""
    loaded = load_shape(name)
    warnings = "".join(f"warning: {warning}\n" for warning in loaded.warnings)
    return warnings + plan_text(render_plan(loaded))
