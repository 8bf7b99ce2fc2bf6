"""What every section of deploy.json is made of: strict sections, and keys that explain themselves."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# Where a key comes from, as `motorctl schema` and docs/configuration.md name it.
PCP_PAPER = "PCP paper"  # "Cross-node Prefill Context Parallel orchestration", the guide Motor was made from
FIELD = "field"  # the field's own deployment files (PyMotor, motor/config)
MOTOR = "Motor"

Count = Annotated[int, Field(ge=1)]
Instances = Annotated[int, Field(ge=1, le=10_000)]  # more is a slip of the finger that would fill the memory
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
Range = Annotated[list[int], Field(min_length=2, max_length=2)]  # [first, last], both included


class Section(BaseModel):
    """Unknown keys are errors and types are not bent: "2" and 2.0 are not 2."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def key(default: Any, meaning: str, *, source: str = MOTOR, unit: str = "", unset: str = "") -> Any:
    """One key. `...` as the default makes it obligatory; `unset` says what null or leaving it out means."""
    extra: dict[str, Any] = {"x-source": source, "x-unit": unit, "x-unset": unset}
    extra = {name: text for name, text in extra.items() if text}
    return Field(default, description=meaning, json_schema_extra=extra)


def seconds(default: Any, meaning: str, *, source: str = MOTOR, unset: str = "") -> Any:
    """A duration."""
    return key(default, meaning, source=source, unit="s", unset=unset)
