"""Recorded outputs of vendors' tools -> values."""

from __future__ import annotations

import pytest

from nodemanager.telemetry.ascend_text import (
    MIB,
    Chip,
    Usage,
    WatchParser,
    parse_info,
    parse_mapping,
    parse_usages,
)
from nodemanager.telemetry.nvidia import parse_csv
from nodemanager.telemetry.source import number, percent
from tests.nodemanager.fake_tools import FIXTURES


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize(
    ("file", "chips"),
    [
        ("mapping_910b3.txt", {"0": Chip(0, 0), "1": Chip(1, 0)}),
        ("mapping_a3.txt", {"0": Chip(0, 0), "1": Chip(0, 1), "2": Chip(1, 0), "3": Chip(1, 1)}),
        ("mapping_950pr.txt", {"5": Chip(5, 0)}),
    ],
)
def test_mapping(file: str, chips: dict[str, Chip]) -> None:
    assert parse_mapping(text(file)) == chips


@pytest.mark.parametrize(
    "garbage", ["", "dcmi model initialized failed\n", "NPU ID Chip ID\n", "0 0 0 Ascend\n", "\0\xff"]
)
def test_no_mapping(garbage: str) -> None:
    assert parse_mapping(garbage) == {}


@pytest.mark.parametrize(
    ("file", "chip", "usage"),
    [
        ("watch_910b.txt", Chip(3, 0), Usage(37.0, 14.0, None, 144.7)),
        ("watch_310b.txt", Chip(0, 0), Usage(0.0, 13.0, None, 8.8)),
        ("watch_950pr.txt", Chip(7, 0), Usage(0.0, 0.0, None, 289.3)),
    ],
)
def test_watch(file: str, chip: Chip, usage: Usage) -> None:
    parser = WatchParser()
    readings = dict(filter(None, map(parser.feed, text(file).splitlines())))
    assert readings[chip] == usage


def test_watch_takes_the_busiest_part() -> None:
    parser = WatchParser()
    parser.feed("NpuID(Idx)  ChipId(Idx) AI Core(%)  Memory BW(%)  NPU Util(%)  AI Cube(%)")
    assert parser.feed("2 1 0 3 5 44") == (Chip(2, 1), Usage(44.0, 3.0))
    assert parser.feed("2 1 NA - NA NA") == (Chip(2, 1), Usage(None, None))


@pytest.mark.parametrize("line", ["", "0 0 1", "NPU 3 is lost", "0 0 161.7 43 17 0 5 95", "x 0 161.7 43 17 0 5 95 14"])
def test_watch_skips_what_is_no_row(line: str) -> None:
    parser = WatchParser()
    assert parser.feed("0 0 161.7 43 17 0 5 95 14") is None, "no header yet"
    parser.feed(text("watch_910b.txt").splitlines()[0])
    assert parser.feed(line) is None


@pytest.mark.parametrize(
    ("file", "usages"),
    [
        ("usages_910b.txt", {Chip(0, 0): Usage(0.0, 0.0, int(65536 * MIB * 0.03))}),
        (
            "usages_a3.txt",
            {
                Chip(0, 0): Usage(57.0, 31.0, int(65536 * MIB * 0.86)),
                Chip(0, 1): Usage(0.0, 0.0, int(65536 * MIB * 0.04)),
            },
        ),
        ("usages_chip_first.txt", {Chip(0, 0): Usage(25.0, 4.0, None)}),
    ],
)
def test_usages(file: str, usages: dict[Chip, Usage]) -> None:
    assert parse_usages(text(file), 0) == usages


def test_usages_of_two_chips_that_are_named_first() -> None:
    found = parse_usages("Chip ID : 0\nAicore Usage Rate(%) : 5\nChip ID : 1\nHBM Usage Rate(%) : NA\n", 4)
    assert found == {Chip(4, 0): Usage(5.0), Chip(4, 1): Usage()}


def test_usages_without_fields_are_unknown() -> None:
    assert parse_usages("NPU ID : 0\nChip Count : 1\nAicore Usage Rate(%) : NA\nChip ID : 0\n", 0) == {
        Chip(0, 0): Usage()
    }
    assert parse_usages("", 0) == parse_usages("Error: parameter is invalid\n", 0) == {}


def test_usages_cut_short() -> None:
    whole = text("usages_a3.txt")
    assert Chip(0, 1) not in parse_usages(whole[: whole.index("Chip ID")], 0)


def test_info_of_910b() -> None:
    chips = parse_info(text("info_910b3.txt"))
    assert set(chips) == {Chip(0, 0), Chip(5, 0)}
    one = chips[Chip(5, 0)]
    assert (one.health, one.pids) == ("OK", (2290156,))
    assert one.usage == Usage(12.0, None, 60156 * MIB, 100.8)
    assert chips[Chip(0, 0)].pids == ()


def test_info_of_a3() -> None:
    chips = parse_info(text("info_a3.txt"))
    assert set(chips) == {Chip(0, 0), Chip(0, 1), Chip(7, 1)}
    assert chips[Chip(0, 0)].pids == (632268,) and chips[Chip(0, 1)].pids == ()
    assert chips[Chip(7, 1)].usage == Usage(0.0, None, 31877 * MIB, None)
    busy = parse_info(text("info_a3_busy.txt"))
    assert busy[Chip(1, 1)].usage.compute == 15.0
    assert busy[Chip(1, 1)].pids is None, "no table of processes was printed"


def test_info_in_any_state_of_decay() -> None:
    whole = text("info_a3.txt")
    for end in range(0, len(whole), 37):
        parse_info(whole[:end])
    assert parse_info("garbage | 1 | 2\n| 0 |\n") == {}


def test_nvidia_csv() -> None:
    busy, idle = parse_csv(text("nvidia.csv"), 1.0)
    assert (busy.name, busy.compute_pct, busy.membw_pct, busy.mem_used_bytes) == ("0", 97.0, 41.0, 62400 * MIB)
    assert busy.power_w == 245.5 and busy.aliases == ("GPU-10fb0fbd-2696-43f3-467f-d280d906a107",)
    assert (idle.compute_pct, idle.membw_pct) == (0.0, 0.0)


def test_nvidia_csv_with_unknown_fields() -> None:
    _, mig, other = parse_csv(text("nvidia_mig.csv"), 1.0)
    assert (mig.compute_pct, mig.membw_pct, mig.mem_used_bytes) == (None, None, 36537 * MIB)
    assert (other.compute_pct, other.mem_used_bytes, other.power_w) == (None, None, None)
    assert (
        parse_csv("Unable to determine the device handle for GPU0000:01:00.0: GPU has fallen off the bus.", 1.0) == []
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [("7", 7.0), (" 12 % ", 12.0), ("-", None), ("N/A", None), ("", None), ("-1", None), ("inf", None), ("nan", None)],
)
def test_numbers(given: str, expected: float | None) -> None:
    assert number(given) == expected
    assert percent(given) == expected
    assert percent("101") is None and percent("4294967295") is None
