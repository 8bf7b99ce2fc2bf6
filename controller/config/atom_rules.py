"""An ATOM section against ATOM's rules (engine_launch.atom_rules, engine_launch.atom_advice)."""

from __future__ import annotations

from controller.config.engine_input import EngineInput
from controller.config.errors import Findings
from controller.config.model_files import read_model
from controller.config.rule_report import report_breaches
from engine_launch.atom_advice import ADVICE
from engine_launch.atom_input import AtomEngine
from engine_launch.atom_rules import RULES
from engine_launch.flags import scalar_text


def check_atom(engine: EngineInput, findings: Findings) -> None:
    """Nothing for other engines. Each finding carries the id of its rule."""
    if engine.profile.engine != "atom":
        return
    report_breaches(engine, (*RULES, *ADVICE), atom_engine(engine), findings)


def atom_engine(engine: EngineInput) -> AtomEngine:
    """The section as the rules see it. Reads the model's config.json where it lies on this machine."""
    model, unread = read_model(str(engine.value("model") or "")) if _asks_for_model(engine) else (None, "")
    return AtomEngine(
        shape=engine.shape,
        role=engine.role,
        options={name: option.value for name, option in engine.options.items()},
        env={name: scalar_text(value) for name, value in engine.engine.env.items()},
        model=model,
        model_unread=unread,
    )


def _asks_for_model(engine: EngineInput) -> bool:
    return engine.shape.pcp > 1 or engine.shape.pp > 1
