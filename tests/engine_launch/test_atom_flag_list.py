"""The script that reads ATOM's flags from its source."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "engine_launch" / "flag_lists" / "make_atom_flag_list.py"

ARG_UTILS = """
parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
parser.add_argument("--enable_chunked_prefill", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--enforce-eager", action="store_true")
parser.add_argument("--enable-tbo", nargs="?", const="prefill", choices=["prefill", "all"])
group.add_argument("--dcp-config", type=json.loads)
group.add_argument("--eplb-enable", "--enable-eplb", action="store_true")
parser.add_argument("--index-cache-dtype", "--index_cache_dtype", type=str)
parser.add_argument("--kv-transfer-config", type=str, default="{}")
"""
API_SERVER = 'parser.add_argument("--server-port", type=int, default=8000)'


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_atom_flag_list", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_flags_are_read_as_they_are_registered(script: ModuleType, tmp_path: Path) -> None:
    for name, text in zip(script.PARSERS, (ARG_UTILS, API_SERVER), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    flags = script.flag_list(tmp_path)
    assert {flag: entry["kind"] for flag, entry in flags.items()} == {
        "--dcp-config": "json",
        "--enable-eplb": "bool",
        "--enable-tbo": "optional",
        "--enable_chunked_prefill": "bool",
        "--enforce-eager": "bool",
        "--eplb-enable": "bool",
        "--index-cache-dtype": "value",
        "--kv-transfer-config": "json",
        "--server-port": "value",
        "--tensor-parallel-size": "value",
    }
    assert [flag for flag, entry in flags.items() if entry["negatable"]] == ["--enable_chunked_prefill"]
