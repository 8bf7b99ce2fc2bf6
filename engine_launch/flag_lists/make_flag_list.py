"""Write the flags of the installed `vllm serve` to vllm-MAJOR.MINOR.json, from vLLM's own parser.

Usage, with the python of an environment that holds vLLM: python make_flag_list.py [FOLDER]

The file maps each long flag to {"kind": ..., "negatable": ...}. Kinds, by what may follow the flag once:
bool: nothing; value: one word; list: one or more words; json: one JSON object or array. Negatable flags also
exist as `--no-FLAG`, which has no entry of its own. A flag that may be repeated is a value.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from importlib.metadata import version
from pathlib import Path

PROBE = "{}"


def serve_parser() -> argparse.ArgumentParser:
    """The parser of `vllm serve`. Raises ImportError without vLLM."""
    # By way of the command, which has imported it in every version while its home has moved.
    from vllm.entrypoints.cli.serve import make_arg_parser  # type: ignore[import-not-found, unused-ignore]
    from vllm.utils.argparse_utils import (  # type: ignore[import-not-found, unused-ignore]
        FlexibleArgumentParser,
    )

    parser: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return parser


def flag_list(parser: argparse.ArgumentParser) -> dict[str, dict[str, str | bool]]:
    """Long flags with kind and negatability, in alphabetical order; `--help` is left out."""
    flags: dict[str, dict[str, str | bool]] = {}
    for action in parser._actions:
        negatable = isinstance(action, argparse.BooleanOptionalAction)
        for flag in action.option_strings:
            negation = negatable and flag.startswith("--no-")
            if flag.startswith("--") and flag != "--help" and not negation:
                flags[flag] = {"kind": kind(action), "negatable": negatable}
    return dict(sorted(flags.items()))


def kind(action: argparse.Action) -> str:
    """What may follow a flag: bool, value, list or json."""
    if action.nargs == 0:
        return "bool"
    if action.nargs in ("+", "*"):
        return "list"
    return "json" if _reads_json(action) else "value"


def _reads_json(action: argparse.Action) -> bool:
    """True where the flag's converter makes an object out of a JSON object.

    Asked and not looked up: converters are nested functions whose names say nothing.
    """
    if not callable(action.type):
        return False
    try:
        converted = action.type(PROBE)
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        return False
    return isinstance(converted, dict) or dataclasses.is_dataclass(converted)


def main() -> None:
    """Write the file and print its path."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    major, minor = version("vllm").split(".")[:2]
    path = folder / f"vllm-{major}.{minor}.json"
    # One flag a line: differences between versions then read well.
    lines = (f"  {json.dumps(flag)}: {json.dumps(entry)}" for flag, entry in flag_list(serve_parser()).items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(path)


if __name__ == "__main__":
    main()
