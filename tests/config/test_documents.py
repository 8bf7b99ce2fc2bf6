"""JSON and YAML with line numbers."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.config import json_text, yaml_text
from controller.config.errors import ConfigError
from controller.config.load import read_document
from controller.config.text import TextError, WrittenFloat

JSON = """{
  "a": 0.90,
  "b": [1, {"c": "x, {y}: \\"z\\""},
    2],
  "d": {
    "e": null}
}"""


def test_json_lines() -> None:
    parsed = json_text.parse(JSON)
    assert parsed.data == {"a": 0.9, "b": [1, {"c": 'x, {y}: "z"'}, 2], "d": {"e": None}}
    assert parsed.lines == {
        ("a",): 2,
        ("b",): 3,
        ("b", 0): 3,
        ("b", 1): 3,
        ("b", 1, "c"): 3,
        ("b", 2): 4,
        ("d",): 5,
        ("d", "e"): 6,
    }


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ('{"a": 1,\n "b": [1,', 2, 10, "cut off"),
        ('{"a": 1,\n "b": "x', 2, 7, "cut off"),
        ("", 1, 1, "cut off"),
        ('{"a": 1,}', 1, 9, ""),
        ('{"a": NaN}', 1, 1, "finite"),
        ("[" * 200_000, 1, 1, ""),
    ],
)
def test_what_is_no_json_says_where(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(TextError) as caught:
        json_text.parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert says in caught.value.fix


def test_yaml_has_plain_scalars_of_yaml_1_2() -> None:
    parsed = yaml_text.parse("a: no\nb: 1:30\nc: 2024-01-01\nd: 0.90\ne: 0x1F\nf: ~\ng: true\nh: '5'\ni: !!str 5\n")
    assert parsed.data == {
        "a": "no",
        "b": "1:30",
        "c": "2024-01-01",
        "d": 0.9,
        "e": 31,
        "f": None,
        "g": True,
        "h": "5",
        "i": "5",
    }
    assert str(parsed.data["d"]) == "0.90"


def test_yaml_lines_anchors_and_merges() -> None:
    parsed = yaml_text.parse("base: &b\n  x: 1\n  y: 2\nown:\n  <<: *b\n  y: 3\nlist:\n- a\n- b\n")
    assert parsed.data == {"base": {"x": 1, "y": 2}, "own": {"x": 1, "y": 3}, "list": ["a", "b"]}
    assert parsed.lines["own", "y"] == 6
    assert parsed.lines["list", 1] == 9
    assert not parsed.duplicates


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: [1,\n", 2), ("a: 1\nb: {", 2), ("? [a]\n: 1\n", 1), ("a: &x [*x]\n", 1), ("a: 1\n---\nb: 2\n", 2)],
)
def test_what_is_no_yaml_says_where(text: str, line: int) -> None:
    with pytest.raises(TextError) as caught:
        yaml_text.parse(text)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("suffix", "text"), [("json", '{"a": 1,\n "b": {"c": 1,\n "c": 2}}'), ("yaml", "a: 1\nb:\n  c: 1\n  c: 2\n")]
)
def test_a_key_that_stands_twice_is_an_error(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"b\.c \(line \d\): the key stands twice; got lines \d and \d"):
        read_document(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.toml", b"", "the suffix does not say"),
        ("x.json", b"[]", "expected an object"),
        ("x.yaml", b"", "got null"),
        ("x.json", b"\xff\xfe\x00", "not UTF-8"),
        ("x.json", b'{"a": 1', r"x\.json:1:8: not valid JSON"),
    ],
)
def test_files_that_are_no_documents(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read_document(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read; got No such file"):
        read_document(tmp_path / "none.json")


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_document(tmp_path / "x.json").data == {"a": 1}


def test_written_floats_keep_their_form_in_copies() -> None:
    number = WrittenFloat("1.50e-3")
    for same in (copy.deepcopy(number), pickle.loads(pickle.dumps(number))):
        assert str(same) == "1.50e-3" and same == 0.0015


# --- properties ---------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126))
DATA = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)


def paths(value: Any, here: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: set[tuple[str | int, ...]] = set()
    for key, inner in items:
        found |= {(*here, key)} | paths(inner, (*here, key))
    return found


@given(DATA, st.sampled_from([None, 0, 2]))
def test_every_key_and_item_has_a_line(data: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(data, indent=indent)
    parsed = json_text.parse(text)
    assert parsed.data == data
    assert set(parsed.lines) == paths(data)
    rows = text.split("\n")
    for path, line in parsed.lines.items():
        assert not isinstance(path[-1], str) or json.dumps(path[-1]) in rows[line - 1]


@given(DATA)
def test_yaml_reads_json_alike(data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=1)
    assert yaml_text.parse(text).data == data
    if not any("<<" in path for path in paths(data)):
        assert yaml_text.parse(text).lines == json_text.parse(text).lines
