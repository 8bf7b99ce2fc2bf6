"""The loaders of deploy.json and of the node file: whatever they are given, they say what is wrong with it."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.config.errors import ConfigError
from controller.config.json_text import parse as parse_json
from controller.config.load import parse_document, read_document
from controller.config.plan import deployment_from, load_deployment
from controller.config.render import render_plan
from controller.config.render_text import plan_data, plan_text
from controller.config.yaml_text import parse as parse_yaml
from nodemanager import config as node_file
from tests.fuzz.profile import tried

ROOT = Path(__file__).parents[2]
SAMPLES = [json.loads(path.read_text()) for path in sorted(ROOT.glob("configs/*.json"))]
NODE_SAMPLE = yaml.safe_load((ROOT / "configs/nodemanager.yaml").read_text())

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(min_value=10**15, max_value=10**40), st.floats(),
    st.text(max_size=20), st.text(alphabet="\ud800\udfff\x00\x1b\n-=$`{}[]\"'é.", max_size=12),
    st.sampled_from(["--x", "-1", "1e999", "../..", "0.0.0.0", "::", "null", "true", "*", "<<", "__class__"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in plain data."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places_in(item, (*path, key))
    return found


@st.composite
def changed(draw: st.DrawFn, samples: list[Any]) -> Any:
    """A sample in which up to three things are something else, are missing, or are there as well."""
    data = copy.deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places_in(data)))
        if not path:
            continue
        holder = data
        for part in path[:-1]:
            holder = holder[part]
        what = draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "replace":
            holder[path[-1]] = draw(values)
        elif what == "remove":
            del holder[path[-1]]
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=8) | st.sampled_from(["env", "extra_args", "override", "engine_config"]))] = (
                draw(values)
            )
    return data


def check(text: str, reader: Any = parse_json) -> None:
    """Only ConfigError, and what is valid can be shown. Each error can be printed."""
    try:
        loaded = deployment_from(parse_document("deploy.json", text, reader))
    except ConfigError as error:
        assert error.errors
        str(error).encode()
        return
    plan = render_plan(loaded)
    plan_text(plan).encode()
    json.dumps(plan_data(plan)).encode()


@given(changed(SAMPLES))
@tried(60)
def test_a_sample_with_something_else_in_it(data: Any) -> None:
    check(json.dumps(data))


@given(changed(SAMPLES))
@tried(15)
def test_the_same_as_yaml(data: Any) -> None:
    check(yaml.safe_dump(data, allow_unicode=True), parse_yaml)


@given(st.text(max_size=200) | st.text(alphabet='{}[]",:0123456789.eE+-\\ntfu *&!<>|\t', max_size=60))
@tried(100)
def test_any_text(text: str) -> None:
    check(text)
    check(text, parse_yaml)


@given(st.binary(max_size=120), st.sampled_from([".json", ".yaml"]))
@tried(40)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str) -> None:
    file = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_deployment(file)
    str(error.value).encode()


@given(changed([NODE_SAMPLE]))
@tried(60)
def test_a_node_file_with_something_else_in_it(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz-node.yaml"
    file.write_text(yaml.safe_dump(data, allow_unicode=True), errors="surrogatepass")
    try:
        node_file.load(file)
    except node_file.ConfigError as error:
        assert error.problems
        str(error).encode()


@given(st.binary(max_size=120))
@tried(40)
def test_any_bytes_as_a_node_file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz-node.yaml"
    file.write_bytes(content)
    with pytest.raises(node_file.ConfigError):
        node_file.load(file)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{{', '.join([f'k{k}: *a{n - 1}' for k in range(9)])}}}\n" for n in range(1, 9)
)
ENGINE = '{"motor_engine_prefill_config": {"engine_type": "vllm", "engine_config": {"model": "/m", "x": %s}}}'

HARD = {
    "lists in lists": ("[" * 200_000, ".json"),
    "lists in lists, closed": ("[" * 50_000 + "]" * 50_000, ".json"),
    "objects in objects": ('{"a":' * 50_000 + "1" + "}" * 50_000, ".json"),
    "objects in an engine's options": (ENGINE % ('{"a":' * 900 + "1" + "}" * 900), ".json"),
    "lists in an engine's options": (ENGINE % ("[" * 900 + "]" * 900), ".json"),
    "a number of 100,000 digits": (ENGINE % ("9" * 100_000), ".json"),
    "a fraction of 100,000 digits": (ENGINE % ("0." + "9" * 100_000), ".json"),
    "a number beyond floats": (ENGINE % "1e999999", ".json"),
    "not a number": (ENGINE % "NaN", ".json"),
    "half a character": (ENGINE % r'"\ud800"', ".json"),
    "half a character as a key": (r'{"\ud800": 1}', ".json"),
    "a zero byte": (ENGINE % r'"\u0000"', ".json"),
    "a key ten thousand times": ("{" + ", ".join(['"a": 1'] * 10_000) + "}", ".json"),
    "ten thousand keys": ("{" + ", ".join(f'"k{n}": 1' for n in range(10_000)) + "}", ".json"),
    "a word of ten megabytes": (ENGINE % ('"' + "x" * 10_000_000 + '"'), ".json"),
    "aliases of aliases": (BOMB, ".yaml"),
    "aliases of aliases, as mappings": (MERGE_BOMB, ".yaml"),
    "an alias of itself": ("a: &a [*a, *a]\n", ".yaml"),
    "a mapping merged into itself": ("a: &a\n  <<: *a\n", ".yaml"),
    "lists in lists, yaml": ("[" * 20_000, ".yaml"),
    "blocks in blocks": ("\n".join(" " * n + "a:" for n in range(1_000)), ".yaml"),
    "an object of Python": ("a: !!python/object/apply:os.system ['touch /tmp/pwned']\n", ".yaml"),
    "a number of 100,000 digits, yaml": ("a: " + "9" * 100_000 + "\n", ".yaml"),
    "a key that is a list": ("? [a, b]\n: 1\n", ".yaml"),
    "two documents": ("a: 1\n---\nb: 2\n", ".yaml"),
    "an unknown anchor": ("a: *b\n", ".yaml"),
    "a date": ("a: 2001-01-01\n", ".yaml"),
    "nothing": ("", ".yaml"),
}  # fmt: skip


@contextlib.contextmanager
def at_most(more: int) -> Iterator[None]:
    """This process may take `more` bytes of address space than now, or meets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", HARD)
def test_what_is_hard_to_read_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """Deep, huge and self-similar files: an answer within seconds and a bounded memory."""
    text, suffix = HARD[name]
    file = tmp_path / f"deploy{suffix}"
    file.write_text(text)
    began = time.monotonic()
    with at_most(600 << 20), pytest.raises(ConfigError) as error:
        load_deployment(file)
    assert time.monotonic() - began < 20
    said = str(error.value)
    said.encode()
    assert len(said) < 200_000 and "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "suffix", "words"),
    [
        (r'{"a":\n ["\u0000"]}', ".json", "deploy.json:2:1: not usable: a NUL character"),
        (r'{"a\u0000": 1}', ".json", "deploy.json:1:1: not usable: a NUL character"),
        (r'a: ["b\0"]', ".yaml", "deploy.yaml:1:5: not usable: a NUL character"),
        (r'"b\0": 1', ".yaml", "deploy.yaml:1:1: not usable: a NUL character"),
        (r'{"a":\n ["\ud800"]}', ".json", "deploy.json:2:1: not usable: half of a surrogate pair"),
        ("a: b\n" + r'"\ud800": 1', ".yaml", "deploy.yaml:2:1: not usable: half of a surrogate pair"),
    ],
)
def test_text_that_nothing_can_hold_is_found_where_it_stands(
    tmp_path: Path, text: str, suffix: str, words: str
) -> None:
    file = tmp_path / f"deploy{suffix}"
    file.write_text(text.replace(r"\n", "\n"))
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_deployment(file)
    if suffix == ".yaml":
        problem = "a NUL character" if r"\0" in text else "half a character"
        with pytest.raises(node_file.ConfigError, match=problem):
            node_file.load(file)


@pytest.mark.parametrize("name", [name for name, (_, suffix) in HARD.items() if suffix == ".yaml"])
def test_a_hard_node_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(HARD[name][0])
    began = time.monotonic()
    with at_most(600 << 20), pytest.raises(node_file.ConfigError) as error:
        node_file.load(file)
    assert len(str(error.value)) < 200_000
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "numbers",
    [
        {"hybrid_instances_num": 10**15},
        {"hybrid_instances_num": 10_000, "nnodes": 8, "data-parallel-size": 8, "tensor-parallel-size": 8},
        {"nnodes": 10**9, "tensor-parallel-size": 10**9},
        {"data-parallel-size": 10**12},
        {"tensor-parallel-size": 10**40},
    ],
)
def test_more_than_any_cluster_has_is_refused_before_it_is_planned(numbers: dict[str, int]) -> None:
    deploy = {"hybrid_instances_num": numbers.pop("hybrid_instances_num", 1)}
    engine = {"engine_type": "vllm", "engine_config": {"model": "/m", **numbers}}
    content = {"motor_deploy_config": deploy, "motor_engine_union_config": engine}
    began = time.monotonic()
    with pytest.raises(ConfigError):
        deployment_from(parse_document("deploy.json", json.dumps(content)))
    assert time.monotonic() - began < 20


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    for path in (tmp_path / "folder.json", tmp_path / "no.json", tmp_path / "no.txt", Path("/proc/self/mem.json")):
        with pytest.raises(ConfigError):
            read_document(path)
