"""Ascend devices that the node file does not name: recorded outputs of the tool, and a folder in place of /dev."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nodemanager import prepare_checks
from nodemanager.config import NodeConfig, load
from nodemanager.devices import match, mounted, with_found_devices
from nodemanager.telemetry.ascend_text import parse_mapping_rows
from tests.nodemanager.fake_tools import FIXTURES, FakeTools, cat


def dev_with(folder: Path, *numbers: int) -> Path:
    dev = folder / "dev"
    dev.mkdir()
    for name in ("davinci_manager", "devmm_svm", "hisi_hdc", *(f"davinci{number}" for number in numbers)):
        (dev / name).touch()
    return dev


def node(folder: Path, **values: Any) -> NodeConfig:
    path = folder / "node.yaml"
    least = {"controllers": ["127.0.0.1:1028"], "engines": {"vllm": {"python": "/usr/bin/python3"}}}
    path.write_text(yaml.safe_dump({**least, **values}))
    return load(path)


def test_only_chips_are_devices(tmp_path: Path) -> None:
    assert mounted(dev_with(tmp_path, 10, 2, 0)) == [0, 2, 10]
    assert mounted(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("mapping", "numbers", "names"),
    [
        # a whole machine
        ("mapping_910b3.txt", [0, 1], {"0": 0, "1": 1}),
        ("mapping_a3.txt", [0, 1, 2, 3], {"0": 0, "1": 1, "2": 2, "3": 3}),  # two chips a card
        ("mapping_950pr.txt", [5], {"5": 5}),
        # a container that was given a part of it, and a tool that shows all
        ("mapping_a3.txt", [2, 3], {"2": 2, "3": 3}),
        ("mapping_910b3.txt", [1], {"1": 1}),
        # a container whose driver numbers what is mounted from 0, without physical ids
        ("mapping_910b3.txt", [6, 7], {"0": 6, "1": 7}),
        ("mapping_a3.txt", [8, 9], {}),
        ("mapping_910b3.txt", [], {}),
    ],
)
def test_logic_ids_of_what_is_mounted(mapping: str, numbers: list[int], names: dict[str, int]) -> None:
    assert match(parse_mapping_rows((FIXTURES / mapping).read_text()), numbers) == names


def test_a_container_that_numbers_its_chips_anew() -> None:
    text = "NPU ID  Chip ID  Chip Logic ID  Chip Phy-ID  Chip Name\n3 0 0 6 Ascend910\n3 1 1 7 Ascend910\n3 2 - - Mcu\n"
    assert match(parse_mapping_rows(text), [6, 7]) == {"0": 6, "1": 7}


async def test_a_node_file_without_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine counts by logic id, and what is looked for is the file of the chip."""
    FakeTools(tmp_path / "bin", monkeypatch).tool("npu-smi", {"info -m": cat("mapping_910b3.txt")})
    dev = dev_with(tmp_path, 6, 7)
    found = with_found_devices(node(tmp_path), dev)
    assert found.devices.kind == "ascend" and found.devices.all() == ["0", "1"]
    assert found.devices.file_of("1") == str(dev / "davinci7")
    item = await prepare_checks.device_files_item(found, ["0", "1"])
    assert item.ok and item.detail == f"{dev / 'davinci6'} {dev / 'davinci7'}"
    (dev / "davinci7").unlink()
    item = await prepare_checks.device_files_item(found, ["0", "1"])
    assert not item.ok and f"not there: {dev / 'davinci7'}" in item.detail


@pytest.mark.parametrize("devices", [{"kind": "ascend", "names": ["1"]}, {"kind": "ascend", "count": 2}])
def test_what_the_node_file_names_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: dict[str, Any]
) -> None:
    FakeTools(tmp_path / "bin", monkeypatch).tool("npu-smi", {"info -m": cat("mapping_910b3.txt")})
    config = node(tmp_path, devices=devices)
    found = with_found_devices(config, dev_with(tmp_path, 6, 7))
    assert found.devices.all() == config.devices.all()
    assert found.devices.file_of("1") == str(tmp_path / "dev" / "davinci7")


@pytest.mark.parametrize(
    ("values", "numbers"),
    [({}, []), ({"devices": {"kind": "cpu"}}, [0]), ({"devices": {"kind": "nvidia", "count": 1}}, [0])],
)
def test_other_machines_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], numbers: list[int]
) -> None:
    tools = FakeTools(tmp_path / "bin", monkeypatch)
    tools.tool("npu-smi", {})
    config = node(tmp_path, **values)
    assert with_found_devices(config, dev_with(tmp_path, *numbers)) is config
    assert tools.calls("npu-smi") == []


@pytest.mark.parametrize(
    ("numbers", "names", "said"),
    [([0, 1, 2], ["0", "1", "2"], ""), ([4, 5], [], "names: [...]"), ([], [], "/davinci*")],
)
def test_without_the_tool_only_a_numbering_from_zero_is_sure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    numbers: list[int],
    names: list[str],
    said: str,
) -> None:
    FakeTools(tmp_path / "bin", monkeypatch).tool("npu-smi", {"info -m": "echo dcmi module initialize failed; exit 1"})
    found = with_found_devices(node(tmp_path, devices={"kind": "ascend"}), dev_with(tmp_path, *numbers))
    assert found.devices.all() == names
    assert said in caplog.text
    assert names or "dcmi module initialize failed" in caplog.text
