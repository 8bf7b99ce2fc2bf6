"""The model of a prepare: is it of the kind that the engine is right for?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from motor_rpc import control_pb2 as pb

from nodemanager.model_check import check_model
from tests.nodemanager import wire
from tests.nodemanager.manager import Direct, direct

V4 = pb.ModelKind(
    name="DeepSeek-V4",
    model_types=["deepseek_v4", "deepseek_v4_mtp"],
    architectures=["DeepseekV4"],
    reason="PCP (8 here) is for DeepSeek-V4 only: leave it out",
)


def model(folder: Path, content: Any) -> str:
    """A folder with this config.json: an object, or text as it is."""
    folder.mkdir()
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder)


async def model_item(one: Direct, path: str, kind: pb.ModelKind | None, generation: int = 1) -> tuple[bool, str, str]:
    """(is it good, what is said, digest of the whole answer)."""
    message = wire.prepare(wire.slot(), path, 0, model_kind=kind, generation=generation)
    await one.command(prepare=message)
    answer: pb.PrepareReport = await one.answer("prepare_report")
    (item,) = [entry for entry in answer.items if entry.name == "model"]
    assert answer.ok == item.ok, answer
    return item.ok, item.detail, answer.model_digest


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "deepseek_v4"},
        {"model_type": "deepseek_v4_mtp", "architectures": None},
        {"model_type": "deepseek_v3", "architectures": ["DeepseekV4ForCausalLMNextN"]},
    ],
)
async def test_a_model_of_the_kind(place: Path, config: dict[str, Any]) -> None:
    path = model(place / "m", config)
    async with direct(place, model_roots=[str(place)]) as one:
        ok, detail, digest = await model_item(one, path, V4)
        assert ok and detail == f"{path}, digest {digest[:12]}"


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "got llama (LlamaForCausalLM)"),
        ({"architectures": ["A", "B"]}, "got none (A, B)"),
        ({}, "got none (no architecture)"),
        ("[]", "got a file that is no JSON object of a model"),
        ("{", "got a file that is no JSON object of a model"),
    ],
)
async def test_a_model_of_another_kind_is_refused(place: Path, content: Any, got: str) -> None:
    path = model(place / "m", content)
    async with direct(place, model_roots=[str(place)]) as one:
        ok, detail, _ = await model_item(one, path, V4)
        expected = f"{path}/config.json: expected model_type deepseek_v4 or deepseek_v4_mtp, {got}; {V4.reason}"
        assert (ok, detail) == (False, expected)
        ok, detail, digest = await model_item(one, path, None, generation=2)
        assert ok and digest, "where no kind is asked for, any content will do"


async def test_a_model_whose_kind_cannot_be_known_is_told_and_not_refused(place: Path) -> None:
    file = place / "m.gguf"
    file.write_bytes(b"GGUF")
    async with direct(place, model_roots=[str(place)], allow_hub_models=True) as one:
        ok, detail, digest = await model_item(one, str(file), V4)
        assert ok and digest == "size:4"
        assert detail.startswith(f"WARNING: {file}, digest size:4; not checked whether it is DeepSeek-V4: ")
        ok, detail, _ = await model_item(one, "org/somewhere", V4, generation=2)
        assert ok and detail.startswith("WARNING: org/somewhere: not in model_roots") and V4.reason in detail


async def test_the_digest_does_not_depend_on_the_kind(tmp_path: Path) -> None:
    path = model(tmp_path / "m", {"model_type": "deepseek_v4"})
    whole, relative = await check_model(path, [tmp_path], False), await check_model("m", [tmp_path], False)
    assert whole.digest == relative.digest != ""
