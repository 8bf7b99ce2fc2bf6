"""Runs inside the engine's environment: words -> options -> words, and the real parser's reading of both.

stdin: {"commands": {name: words behind `vllm serve`}, "root": where engine_launch lies, "flag_list": its file}
stdout, last line: {name: {"error": TEXT} or {"differs": {destination: [before, after]}}}

Besides the given commands, every flag of the parser is tried with a value that the parser takes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from vllm.entrypoints.cli.serve import make_arg_parser  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

# For each flag the first ones that its converter takes.
CANDIDATES = ["1", "0.50", "auto", "text", '{"a": 1.50}', "{}", "[]", '["x"]', "4096", "0", "2k", "a=/b", "false"]

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def namespace(words: list[str]) -> dict[str, str]:
    """What the parser makes of the words, as text. ValueError with its message if it refuses them."""
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            found = make_arg_parser(FlexibleArgumentParser()).parse_args(list(words))
    except SystemExit as error:
        raise ValueError(messages.getvalue().strip()[-500:]) from error
    # Ids that are made anew each time, such as engine_id.
    return {name: UUID.sub("<uuid>", repr(value)) for name, value in vars(found).items()}


def round_trip(words: list[str], flag_list: str) -> list[str]:
    """The words that engine_config gives, which was read from `words`."""
    from engine_launch.flag_list import load_flag_list
    from engine_launch.flags import read_options, render_option
    from engine_launch.words import read_words

    flags = load_flag_list(flag_list)
    found = read_words(words, flags)
    config = {name: given.value for name, given in found.options.items()}
    model = [words[at] for at in found.positionals]
    options = [
        word
        for option in read_options(config)
        for word in render_option(option, flags.negatable, flags.json_valued, flags.spelled)
    ]
    return [*model, *options, *(words[at] for positions in found.unknown for at in positions)]


def every_flag(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """(flag, words that the parser takes) for each spelling of each flag and some of its values."""
    for action in parser._actions:
        for flag in action.option_strings:
            if isinstance(action, argparse._HelpAction) or flag == "--config":  # it names a file of flags
                continue
            if action.nargs == 0:
                yield f"flag {flag}", ["M", flag]
                continue
            values = [str(choice) for choice in action.choices or CANDIDATES]
            taken = [value for value in values if accepted(["M", f"{flag}={value}"])]
            for value in taken[:3]:
                yield f"flag {flag}={value}", ["M", f"{flag}={value}"]
                yield f"flag {flag} {value}", ["M", flag, value]
            if action.nargs == "+" and taken:
                yield f"flag {flag} twice {taken[-1]}", ["M", flag, taken[-1], taken[-1], "--enforce-eager"]
            if not taken:
                yield f"flag {flag} untried", []


def accepted(words: list[str]) -> bool:
    try:
        namespace(words)
    except Exception:
        return False
    return True


def compare(words: list[str], flag_list: str) -> dict[str, Any]:
    try:
        before = namespace(words)
        again = round_trip(words, flag_list)
        after = namespace(again)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"differs": {name: [before[name], after[name]] for name in before if before[name] != after[name]}}


def main() -> None:
    job = json.load(sys.stdin)
    sys.path.insert(0, job["root"])
    commands = {**job["commands"], **dict(every_flag(make_arg_parser(FlexibleArgumentParser())))}
    results = {
        name: compare(words, job["flag_list"]) if words else {"error": "no value was found that the parser takes"}
        for name, words in commands.items()
    }
    print()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
