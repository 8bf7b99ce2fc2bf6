"""What a program imports is what its users wait for, and what can break in an engine's environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "transformers", "numpy")


@pytest.mark.parametrize(
    "module", ["controller.daemon", "nodemanager.daemon", "motorctl.main", "engine_launch.command"]
)
def test_motor_never_imports_an_engine(module: str) -> None:
    program = f"import sys, {module}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


@pytest.mark.parametrize("module", ["motorctl.main", "controller.main", "nodemanager.main"])
def test_help_imports_neither_schema_nor_tables(module: str) -> None:
    program = (
        f"import sys, click; from click.testing import CliRunner; from {module} import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "print(sorted({'pydantic', 'fastapi', 'rich', 'grpc', 'yaml'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
