"""Every pinned argv of an upstream-vLLM profile goes through the real parser, and vLLM derives from it the ranks,
worlds and addresses that Motor meant. docs/oracle.md has the same for other versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.config.render import InstanceRendering, SlotRendering, render_plan
from tests.golden_shapes import SHAPES, load_shape
from tests.vllm.oracle import derive, disagreements, real_argv, write_models

pytestmark = pytest.mark.vllm


def upstream_slots() -> Iterator[tuple[str, InstanceRendering, SlotRendering]]:
    for shape in SHAPES:
        for instance in render_plan(load_shape(shape)).instances:
            if instance.spec.profile.startswith("vllm@"):
                for slot in instance.slots:
                    yield f"{shape}:{slot.slot}", instance, slot


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    models: dict[str, Path] = write_models(tmp_path_factory.mktemp("models"))
    return derive({name: real_argv(slot, models, instance) for name, instance, slot in upstream_slots()})


@pytest.mark.parametrize("name", [name for name, _, _ in upstream_slots()])
def test_vllm_derives_what_motor_meant(name: str, derived: dict[str, dict[str, Any]]) -> None:
    instance, slot = next((i, s) for n, i, s in upstream_slots() if n == name)
    found = derived[name]
    assert "error" not in found, found["error"]
    assert not disagreements(found, instance, slot)
