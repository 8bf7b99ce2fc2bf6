"""The units are valid, and say what Motor relies on."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parent.parent.parent / "configs" / "systemd"
NAMES = ["motor-controller.service", "motor-nodemanager.service"]
NEEDED = {
    "Type": "notify",
    "Restart": "always",
    "KillMode": "process",
    "OOMPolicy": "continue",
    "RuntimeDirectoryPreserve": "yes",
    "PrivateTmp": "no",
    "PrivateDevices": "no",
}


def read(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser


@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # It wants the program to exist; where it will be installed is the operator's affair.
    program = tmp_path / name.removesuffix(".service")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (UNITS / name).read_text()
    unit = tmp_path / name
    unit.write_text(text.replace(f"/opt/motor/bin/{program.name}", str(program)))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stderr.splitlines() if name in line]
    assert ours == []


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_says_what_motor_relies_on(name: str) -> None:
    unit = read(name)
    service = unit["Service"]
    assert {key: service.get(key) for key in NEEDED} == NEEDED
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert int(service["TimeoutStopSec"]) > 0 and int(service["WatchdogSec"]) > 0
    assert service["LimitNOFILE"] and service["LimitMEMLOCK"] and service["TasksMax"]


def test_a_node_may_use_what_engines_need() -> None:
    service = read("motor-nodemanager.service")["Service"]
    assert service["LimitMEMLOCK"] == "infinity" and service["TasksMax"] == "infinity"


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_its_reason(name: str) -> None:
    """A comment stands above each setting or the block of settings it belongs to."""
    explained = False
    for line in (UNITS / name).read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        if not line:
            explained = False
        elif line.startswith("#"):
            explained = True
        else:
            assert explained, f"{name}: no comment for {line}"
