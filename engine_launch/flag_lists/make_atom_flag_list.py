"""Write the flags of ATOM's server to atom-MAJOR.MINOR.PATCH.json, read from its source and not from a run parser.

Usage: python make_atom_flag_list.py SOURCE VERSION [FOLDER], with SOURCE a checkout of ATOM. Its parser needs torch
and a ROCm device to be imported; the `add_argument` calls are read from the text instead.

The file has the form that make_flag_list.py explains, and `source` beside the flags. One more kind, optional: nothing
or one word may follow the flag.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# The server's parser is made of these two (atom/entrypoints/openai/api_server.py: main).
PARSERS = ("atom/model_engine/arg_utils.py", "atom/entrypoints/openai/api_server.py")

# Text for argparse, and JSON or a list in brackets for what reads it later (of commit ffdf3bb5d: parse_size_list in
# arg_utils.py, LLMEngine, main in api_server.py).
JSON_AS_TEXT = frozenset({"--kv-transfer-config", "--cudagraph-capture-sizes", "--default-chat-template-kwargs"})


def flag_list(source: Path) -> dict[str, dict[str, str | bool]]:
    """Long flags as they are registered first, with kind and negatability, in alphabetical order."""
    flags: dict[str, dict[str, str | bool]] = {}
    for name in PARSERS:
        for call in _add_argument_calls(ast.parse((source / name).read_text(encoding="utf-8"))):
            # The engine's parser adds the form with dashes or underscores by itself (atom/utils/arg_parser.py).
            names = {flag.replace("_", "-"): flag for flag in reversed(_long_flags(call))}
            for flag in names.values():
                flags[flag] = {"kind": kind(flag, call), "negatable": _is(call, "action", "BooleanOptionalAction")}
    return dict(sorted(flags.items()))


def kind(flag: str, call: ast.Call) -> str:
    """What may follow a flag: bool, value, list, json or optional."""
    if _is(call, "action", "store_true") or _is(call, "action", "BooleanOptionalAction"):
        return "bool"
    if _is(call, "nargs", "?"):
        return "optional"
    if _is(call, "nargs", "+") or _is(call, "nargs", "*"):
        return "list"
    return "json" if flag in JSON_AS_TEXT or _is(call, "type", "loads") else "value"


def _add_argument_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield node


def _long_flags(call: ast.Call) -> list[str]:
    words = [str(arg.value) for arg in call.args if isinstance(arg, ast.Constant)]
    return [word for word in words if word.startswith("--")]


def _is(call: ast.Call, keyword: str, value: str) -> bool:
    """True where the call has `keyword` with this text, or with a name that ends so (`json.loads`)."""
    for given in call.keywords:
        if given.arg == keyword:
            if isinstance(given.value, ast.Constant):
                return given.value.value == value
            return isinstance(given.value, ast.Attribute) and given.value.attr == value
    return False


def main() -> None:
    """Write the file and print its path."""
    source, version = Path(sys.argv[1]), sys.argv[2]
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(__file__).parent
    commit = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    where = f"ATOM commit {commit.stdout.strip()}, {' and '.join(PARSERS)}, read from the source; no parser was run"
    lines = [f"  {json.dumps(flag)}: {json.dumps(entry)}" for flag, entry in flag_list(source).items()]
    path = folder / f"atom-{version}.json"
    path.write_text("{\n" + ",\n".join([f'  "source": {json.dumps(where)}', *lines]) + "\n}\n")
    print(path)


if __name__ == "__main__":
    main()
