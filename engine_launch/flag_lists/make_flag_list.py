"""Write the flags of `vllm serve` to vllm-MAJOR.MINOR.json, from vLLM's own parser.

Usage, with the python of an environment that holds vLLM: python make_flag_list.py [FOLDER]
For a version that is not installed, in the repository:
    python -m tests.vllm.older_wheels 0.23.0 engine_launch/flag_lists/make_flag_list.py engine_launch/flag_lists

The file maps each long flag to {"kind": ..., "negatable": ...}, and `source` says what was asked. Kinds, by what may
follow the flag once: bool: nothing; value: one word; optional: nothing or one word; list: one or more words; json: one
JSON object or array. Negatable flags also exist as `--no-FLAG`, which has no entry of its own. A flag that may be
repeated is a value.
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
    # All that it accepts: since 0.33 an action's own list leaves the forms out that are hidden from the help.
    accepted = parser._option_string_actions
    flags: dict[str, dict[str, str | bool]] = {}
    for flag, action in accepted.items():
        negation = flag.startswith("--no-") and "--" + flag.removeprefix("--no-") in accepted
        if flag.startswith("--") and flag != "--help" and not negation:
            flags[flag] = {"kind": kind(action), "negatable": "--no-" + flag.removeprefix("--") in accepted}
    return dict(sorted(flags.items()))


def kind(action: argparse.Action) -> str:
    """What may follow a flag: bool, value, optional, list or json."""
    if action.nargs == 0:
        return "bool"
    if action.nargs in ("+", "*"):
        return "list"
    if action.nargs == "?":
        return "optional"
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
    full = version("vllm").split("+")[0]
    major, minor = full.split(".")[:2]
    path = folder / f"vllm-{major}.{minor}.json"
    content = {"source": f"vLLM {full}, its own parser of `vllm serve`", **flag_list(serve_parser())}
    # One flag a line: differences between versions then read well.
    lines = (f"  {json.dumps(flag)}: {json.dumps(entry)}" for flag, entry in content.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(path)


if __name__ == "__main__":
    main()
