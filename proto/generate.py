"""Generate the stubs of control.proto and etcd_wire.proto with the one compiler version they are meant to come from.

grpcio-tools 1.71.2 on purpose: its output runs on grpcio 1.71-1.85 and protobuf 5.29-7, also inside an engine's
environment, while the newest tools' output refuses every older runtime. The tools live in a virtual environment
of their own because they move protobuf.

Usage: python proto/generate.py [OUTPUT_FOLDER]      (default: the committed files)
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

TOOLS = ["grpcio-tools==1.71.2", "setuptools<81"]  # 1.71.2 imports pkg_resources
ROOT = Path(__file__).resolve().parent.parent
TOOLS_ENVIRONMENT = ROOT / ".venv-proto"


def compiler() -> Path:
    """Python of the environment that holds the compiler, made on first use."""
    python = TOOLS_ENVIRONMENT / "bin" / "python"
    complete = TOOLS_ENVIRONMENT / "complete"
    if not complete.exists():
        venv.create(TOOLS_ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *TOOLS], check=True)
        complete.touch()
    return python


def generate(output: Path) -> None:
    """Write the messages of both files, and control.proto's service, below `output`/motor_rpc."""
    output.mkdir(parents=True, exist_ok=True)
    messages = [f"--python_out={output}", f"--pyi_out={output}"]
    _compile("control.proto", *messages, f"--grpc_python_out={output}")
    _compile("etcd_wire.proto", *messages)


def _compile(name: str, *outputs: str) -> None:
    source = ROOT / "proto"
    file = str(source / "motor_rpc" / name)
    subprocess.run([compiler(), "-m", "grpc_tools.protoc", f"-I{source}", *outputs, file], check=True)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "proto")
