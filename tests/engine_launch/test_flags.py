"""engine_config -> words of a command line."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.config.text import WrittenFloat
from engine_launch.flags import (
    FlagError,
    Option,
    abbreviates,
    canonical_name,
    conflicts,
    flag_names,
    read_options,
    render_option,
    to_json,
)


def words(name: str, value: Any, **knowledge: Any) -> list[str]:
    return render_option(Option(name, name, value), **knowledge)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("tensor_parallel_size", "tensor-parallel-size"),
        ("tensor-parallel-size", "tensor-parallel-size"),
        ("tensor-parallel_size", "tensor-parallel-size"),
        ("tp_size", "tensor-parallel-size"),
        ("tp-size", "tensor-parallel-size"),
        ("enable_ep", "enable-expert-parallel"),
        ("model_path", "model"),
        ("compilation_config.max_size", "compilation-config.max_size"),
    ],
)
def test_names_are_normalised(key: str, name: str) -> None:
    assert canonical_name(key) == name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ["--x"]),
        (None, []),
        (False, []),
        (16, ["--x", "16"]),
        (WrittenFloat("0.90"), ["--x", "0.90"]),
        (WrittenFloat("1e-5"), ["--x", "1e-5"]),
        ("auto", ["--x", "auto"]),
        ("", ["--x", ""]),
        (-1, ["--x=-1"]),
        ("-O3 --fast", ["--x=-O3 --fast"]),
        (["a", "b"], ["--x", "a", "b"]),
        ([1, 2, -4], ["--x", "1", "2", "-4"]),
        (["-a"], ["--x=-a"]),
        ([{"name": "a", "path": "/p"}], ["--x", '[{"name":"a","path":"/p"}]']),
        ([1, None], ["--x", "[1,null]"]),
        ({"b_c": {"a-b": WrittenFloat("0.10")}, "a": [True]}, ["--x", '{"b_c":{"a-b":0.10},"a":[true]}']),
        ({"text": 'é "q"'}, ["--x", '{"text":"é \\"q\\""}']),
    ],
)
def test_values(value: Any, expected: list[str]) -> None:
    assert words("x", value) == expected


def test_false_needs_a_negatable_flag() -> None:
    assert words("enable-prefix-caching", False, negatable={"enable-prefix-caching"}) == ["--no-enable-prefix-caching"]


def test_a_list_is_one_value_where_the_flag_reads_json() -> None:
    assert words("allowed-origins", ["*"], json_valued={"allowed-origins"}) == ["--allowed-origins", '["*"]']


@pytest.mark.parametrize("value", [[], ["a", "-b"]])
def test_what_no_command_line_carries_is_an_error(value: Any) -> None:
    with pytest.raises(FlagError, match="x: "):
        words("x", value)


def test_two_spellings_are_a_conflict_that_names_both() -> None:
    found = conflicts(read_options({"tp_size": 2, "tensor-parallel-size": 2, "enable-x": True, "no_enable_x": True}))
    assert [(c.name, c.first, c.second) for c in found] == [
        ("tensor-parallel-size", "tp_size", "tensor-parallel-size"),
        ("enable-x", "enable-x", "no_enable_x"),
    ]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("--node_rank", "node-rank"),
        ("--node-rank=1", "node-rank"),
        ("--no-enforce-eager", "enforce-eager"),
        ("--compilation-config.level", "compilation-config"),
        ("-tp", "tensor-parallel-size"),
        ("-tp=4", "tensor-parallel-size"),
        ("-t", "tensor-parallel-size"),
        ("-n2", "nnodes"),
        ("-r", "node-rank"),
    ],
)
def test_flags_are_found_in_words_as_argparse_reads_them(word: str, name: str) -> None:
    assert flag_names(["value", word, "-1", "-"]) == [(word.split("=")[0], name)]


def test_abbreviations() -> None:
    assert abbreviates("node-r", ["nnodes", "node-rank"]) == "node-rank"
    assert abbreviates("node-rank", ["node-rank"]) is None
    assert abbreviates("no", ["node-rank"]) is None


# --- properties ---------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
KEY = st.from_regex(r"[a-z][a-z0-9]{0,5}([-_][a-z0-9]{1,5}){0,3}", fullmatch=True)
SCALAR = TEXT | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(KEY)
def test_dashes_and_underscores_are_alike(key: str) -> None:
    assert canonical_name(key.replace("-", "_")) == canonical_name(key.replace("_", "-"))
    assert canonical_name(canonical_name(key)) == canonical_name(key)


@given(JSON)
def test_nested_data_is_untouched(value: Any) -> None:
    assert json.loads(to_json(value)) == value


@given(SCALAR, TEXT)
def test_a_parser_reads_back_every_scalar(value: Any, other: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--some-value")
    parser.add_argument("--other")
    found = parser.parse_args([*words("some-value", value), *words("other", other)])
    assert found.some_value == str(value)
    assert found.other == other


@given(st.lists(SCALAR, min_size=1))
def test_a_parser_reads_back_every_list_or_it_is_refused(values: list[Any]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--many", nargs="+")
    parser.add_argument("--after", action="store_true")
    try:
        rendered = words("many", values)
    except FlagError:
        assert any(str(value).startswith("-") for value in values)
        return
    found = parser.parse_args([*rendered, "--after"])
    assert found.many == [str(value) for value in values]
    assert found.after


@given(st.dictionaries(TEXT, JSON))
def test_a_parser_reads_back_every_object(value: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--object", type=json.loads)
    assert parser.parse_args(words("object", value)).object == value
