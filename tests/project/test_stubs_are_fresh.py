"""The committed stubs are what the named compiler makes of the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUBS = ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py", "etcd_wire_pb2.py", "etcd_wire_pb2.pyi")


def test_committed_stubs_equal_generated_ones(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", tmp_path], check=True)
    for name in STUBS:
        committed = (ROOT / "proto" / "motor_rpc" / name).read_text()
        generated = (tmp_path / "motor_rpc" / name).read_text()
        assert committed == generated, f"{name} is stale: run `make proto` and commit the result"


def test_stubs_ask_for_no_newer_runtime_than_declared() -> None:
    assert "Protobuf Python Version: 5.29.0" in (ROOT / "proto" / "motor_rpc" / "control_pb2.py").read_text()
    assert "GRPC_GENERATED_VERSION = '1.71.2'" in (ROOT / "proto" / "motor_rpc" / "control_pb2_grpc.py").read_text()
