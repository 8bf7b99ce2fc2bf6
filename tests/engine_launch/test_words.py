"""Words of a command line -> options, and that both ways give back what they got."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.config.json_text import parse
from engine_launch.flag_list import REPEATABLE, FlagList, load_flag_list
from engine_launch.flags import FlagError, read_options, render_option
from engine_launch.words import ReadWords, WordError, read_words, typed
from engine_launch.written_number import WrittenFloat
from motorctl.convert_text import json_text

VLLM = load_flag_list("vllm-0.32.json")
ATOM = load_flag_list("atom-0.1.6.json")


def read(text: str, flags: FlagList = VLLM) -> ReadWords:
    return read_words(shlex.split(text), flags)


def data(found: ReadWords) -> dict[str, Any]:
    """engine_config, as it would stand in a file."""
    return {name: given.value for name, given in found.options.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--max-model-len 136000", {"max-model-len": 136000}),
        ("--max_model_len=136000", {"max-model-len": 136000}),
        ("--max-model-len 32k", {"max-model-len": "32k"}),
        ("--seed -1 --port 8000", {"seed": -1, "port": 8000}),
        ("--served-model-name a b --port 8000", {"served-model-name": ["a", "b"], "port": 8000}),
        ("--served-model-name a", {"served-model-name": "a"}),
        ("--enable-expert-parallel --enforce-eager", {"enable-expert-parallel": True, "enforce-eager": True}),
        ("--no-enable-prefix-caching", {"enable-prefix-caching": False}),
        ("--no_enable_prefix_caching", {"enable-prefix-caching": False}),
        ("--dtype=true", {"dtype": "true"}),
        ("--dtype null", {"dtype": "null"}),
        ("--dtype ''", {"dtype": ""}),
        ("--chat-template '{\"a\": 1}'", {"chat-template": '{"a": 1}'}),
        ("--hf-token", {"hf-token": True}),
        ("--hf-token abc", {"hf-token": "abc"}),
        ("--hf-token --port 1", {"hf-token": True, "port": 1}),
        ("--kv-transfer-config '{\"a_b\": [1, {\"c-d\": null}]}'", {"kv-transfer-config": {"a_b": [1, {"c-d": None}]}}),
        ("--allowed-origins '[\"*\"]'", {"allowed-origins": ["*"]}),
        ("--pt-load-map-location cuda", {"pt-load-map-location": "cuda"}),
        # one dash
        ("-tp 16 -pp=2 -pcp 2 -dcp 1 -q ascend", None),
        ("-tp16", {"tensor-parallel-size": 16}),
        ("-n2 -r 1", {"nnodes": 2, "node-rank": 1}),
        ("-O3", {"optimization-level": 3}),
        ("-O=2", {"optimization-level": 2}),
        ("-O 1", {"optimization-level": 1}),
        ("-ep -dph", {"enable-expert-parallel": True, "data-parallel-hybrid-lb": True}),
        ("-t 4", {"tensor-parallel-size": 4}),
        ("-asc 2", {"api-server-count": 2}),
        # beginnings, as argparse completes them
        ("--tensor-par 4", {"tensor-parallel-size": 4}),
        ("--no-enable-prefix-c", {"enable-prefix-caching": False}),
        ("--tp-size 4", {"tensor-parallel-size": 4}),
        # dots
        ("--compilation-config.mode 3", {"compilation-config": {"mode": 3}}),
        ("--compilation_config.pass_config.fuse_x=true", {"compilation-config": {"pass_config": {"fuse_x": True}}}),
        ("-cc.cudagraph_mode=NONE -cc.a-b -1", {"compilation-config": {"cudagraph_mode": "NONE", "a-b": -1}}),
        ("-cc.sizes+ 1 -cc.sizes+=2,3", {"compilation-config": {"sizes": ["1", "2", "3"]}}),
        ("-cc.bytes 1k -cc.more 2K", {"compilation-config": {"bytes": 1000, "more": 2048}}),
        ("-cc.half 1.5k -cc.no 1.5K", {"compilation-config": {"half": 1500, "no": "1.5K"}}),
        ("-cc.a 1 --dtype auto -cc.a 2", {"dtype": "auto", "compilation-config": {"a": 2}}),
        ("-cc '{\"a\": 1}' -cc.b 2", {"compilation-config": {"b": 2}}),
        ("-cc.a 1 --compilation_config.b 2 -cc.c 3 --compilation-config.d 4", {"compilation-config": {"b": 2, "d": 4}}),
        # the last one counts
        ("--dtype half --dtype auto", {"dtype": "auto"}),
        ("--enforce-eager --no-enforce-eager", {"enforce-eager": False}),
    ],
)  # fmt: skip
def test_words(text: str, expected: dict[str, Any] | None) -> None:
    found = read(text)
    assert not found.unknown and not found.positionals
    assert data(found) == (
        expected
        or {
            "tensor-parallel-size": 16,
            "pipeline-parallel-size": 2,
            "prefill-context-parallel-size": 2,
            "decode-context-parallel-size": 1,
            "quantization": "ascend",
        }
    )


def test_numbers_keep_their_form() -> None:
    found = data(read("""--gpu-memory-utilization 0.90 --kv-transfer-config '{"a": 1.50e-3}' -cc.x 0.10 --seed 007"""))
    assert str(found["gpu-memory-utilization"]) == "0.90"
    assert str(found["kv-transfer-config"]["a"]) == "1.50e-3"
    assert str(found["compilation-config"]["x"]) == "0.10"
    assert found["seed"] == "007"


@pytest.mark.parametrize("text", ["0", "-1", "12", "0.90", "1e-5", "-0.5", "1E+3"])
def test_numbers_print_as_they_were(text: str) -> None:
    assert str(typed(text)) == text and not isinstance(typed(text), str)


@pytest.mark.parametrize(
    "text", ["", "00", "+1", "1_000", "-0", "0x10", "1.", ".5", "inf", "nan", "1e999", "true", "1k"]
)
def test_what_a_number_would_not_give_back_stays_text(text: str) -> None:
    assert typed(text) == text


def test_positions() -> None:
    found = read("M -tp 16 --new a b --other=c --enforce-eager -cc.a 1 N --dtype auto -cc.b 2 -- --port")
    assert found.positionals == (0, 10, 16)
    assert found.unknown == ((3, 4, 5), (6,))
    assert found.options["tensor-parallel-size"].at == (1, 2)
    assert found.options["compilation-config"].at == (8, 9, 13, 14)
    assert found.options["tensor-parallel-size"].spelled == "-tp"


def test_a_flag_for_one_more_value_goes_where_it_may_be_repeated() -> None:
    assert data(read("--middleware a")) == {"middleware": "a"}
    found = read("--middleware a --dtype auto --middleware=b")
    assert data(found) == {"dtype": "auto"} and found.unknown == ((0, 1, 4),)


@pytest.mark.parametrize(
    ("text", "at", "remark"),
    [
        ("--dtype a --dtype b", 2, "--dtype stands a second time: the last one counts, as in the engine"),
        ("-cc.b 2 -cc 3", 0, "-cc with dots replaces the whole of -cc, as it does in the engine"),
        (
            "-cc.a 1 --compilation_config.b 2 -cc.c 3 --compilation-config.d 4",
            2,
            "--compilation_config with dots replaces the whole of -cc, as it does in the engine",
        ),
        ("--max-model 4", 0, "--max-model is short for --max-model-len"),
        ("--tp-size 4", 0, "--tp-size is read as --tensor-parallel-size"),
        ("-tp2", 0, "-tp2 is read as -tp 2, which the engine's own parser would refuse"),
    ],
)
def test_remarks(text: str, at: int, remark: str) -> None:
    assert read(text).remarks == ((at, remark),)


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("--port", 0, "--port has no value"),
        ("--port --dtype auto", 0, "--port has no value"),
        ("--dtype auto -cc.a", 2, "-cc.a has no value"),
        ("--enforce-eager=true", 0, "--enforce-eager takes no value"),
        ("--no-enforce-eager=1", 0, "--no-enforce-eager takes no value"),
        ("--enable 1", 0, "is short for several flags"),
        ("M -d 1", 1, "is short for several flags"),
        ("--dtype auto --kv-transfer-config '{a: 1}'", 3, "--kv-transfer-config is not valid JSON"),
        ("--kv-transfer-config={", 0, "--kv-transfer-config is not valid JSON"),
    ],
)
def test_what_the_engines_parser_refuses(text: str, at: int, what: str) -> None:
    with pytest.raises(WordError) as caught:
        read(text)
    assert caught.value.at == at
    assert caught.value.what.startswith(what)


def test_atom_names_have_dashes() -> None:
    found = read("--model M -tp 4 --kv_cache_dtype fp8 --no-enable_chunked_prefill --enable-tbo --method mtp", ATOM)
    assert data(found) == {
        "model": "M",
        "tensor-parallel-size": 4,
        "kv-cache-dtype": "fp8",
        "enable-chunked-prefill": False,
        "enable-tbo": True,
        "method": "mtp",
    }


# --- both ways ----------------------------------------------------------------------------------------------

# Text with a value of its own: no surrogates (not in UTF-8), no zero byte (no argument has one).
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
# A text that looks like a number becomes the number; its form is kept.
PLAIN = TEXT.filter(lambda text: isinstance(typed(text), str))
NUMBER = st.integers(-(10**12), 10**12) | st.from_regex(
    r"-?(0|[1-9][0-9]{0,3})\.[0-9]{1,3}([eE][-+]?[1-9])?", fullmatch=True
).map(WrittenFloat)
SCALAR = PLAIN | NUMBER
NESTED = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
# Several words: none of them may look like a flag, which render_option refuses, and none is true or false.
WORDS = st.lists(SCALAR.filter(lambda value: not str(value).startswith("-")), min_size=2, max_size=4)


def value_of(kind: str, negatable: bool) -> st.SearchStrategy[Any]:
    """Values that an option of this kind may have."""
    return {
        "bool": st.booleans() if negatable else st.just(True),
        "value": SCALAR,
        "optional": st.just(True) | SCALAR,
        "list": SCALAR | WORDS,
        "json": st.dictionaries(TEXT, NESTED, max_size=3) | st.lists(NESTED, max_size=3) | NUMBER,
    }[kind]


def configs(flags: FlagList) -> st.SearchStrategy[dict[str, Any]]:
    """engine_config with any options of the list."""
    names = st.lists(st.sampled_from(sorted(flags.kinds)), unique=True, max_size=6)

    def filled(chosen: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries(
            {n: PLAIN if n == "model" else value_of(flags.kinds[n], n in flags.negatable) for n in chosen}
        )

    return names.flatmap(filled)


def rendered(config: dict[str, Any], flags: FlagList) -> list[str]:
    return [
        word
        for option in read_options(config)
        for word in render_option(option, flags.negatable, flags.json_valued, flags.spelled)
    ]


def written(value: Any) -> Any:
    """A value with its numbers as text, so that 0.9 and 0.90 differ."""
    if isinstance(value, dict):
        return {key: written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [written(item) for item in value]
    return (type(value).__name__, str(value))


@pytest.mark.parametrize("flags", [VLLM, ATOM, load_flag_list("vllm-0.23.json")], ids=lambda flags: flags.source)
def test_config_to_words_and_back(flags: FlagList) -> None:
    @settings(max_examples=150)
    @given(configs(flags))
    def check(config: dict[str, Any]) -> None:
        words = rendered(config, flags)
        found = read_words(words, flags)
        assert not found.positionals and not found.unknown and not found.remarks
        assert written(data(found)) == written(config)
        assert rendered(data(found), flags) == words

    check()


def test_every_flag_of_the_list_goes_both_ways() -> None:
    samples = {"bool": True, "value": "x", "optional": "x", "list": ["x", "y"], "json": {"a": 1}}
    for flags in (VLLM, ATOM):
        config = {name: samples[kind] for name, kind in flags.kinds.items()}
        assert data(read_words(rendered(config, flags), flags)) == config
        off = dict.fromkeys(sorted(flags.negatable), False)
        assert data(read_words(rendered(off, flags), flags)) == off


SPELLINGS = st.sampled_from(["--{}={}", "--{} {}", "--{}={}"])


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Words as people write them: any spelling, several of each, dotted names."""
    words: list[str] = []
    listed = sorted(set(VLLM.kinds) - REPEATABLE)
    for name in draw(st.lists(st.sampled_from(listed), max_size=6)):
        kind = VLLM.kinds[name]
        flag = "--" + draw(st.sampled_from([name, name.replace("-", "_")]))
        text = draw(st.sampled_from(["a", "1", "0.50", "-1", "{\"a\": 1}", "x y", "true", "1k"]))  # fmt: skip
        if kind == "bool":
            no = name in VLLM.negatable and draw(st.booleans())
            words.append(flag.replace("--", "--no-", 1) if no else flag)
        elif kind == "json" and draw(st.booleans()):
            words += [flag + draw(st.sampled_from([".a", ".b.c", ".l+"])), text]
        elif draw(st.booleans()) or kind == "optional":
            words.append(f"{flag}={text}")
        else:
            words += [flag, text, *(["b"] if kind == "list" else [])]
    return words


@given(command_lines())
def test_words_to_config_and_back(words: list[str]) -> None:
    """The config's words mean what the first words meant, and nothing changes from then on."""
    first = data(read_words(words, VLLM))
    again = rendered(json_copy(first), VLLM)
    assert written(data(read_words(again, VLLM))) == written(first)
    assert rendered(data(read_words(again, VLLM)), VLLM) == again


def json_copy(config: dict[str, Any]) -> dict[str, Any]:
    """Through a file's text: what the converter prints is what the controller reads."""
    copy: dict[str, Any] = parse(json_text(config)).data
    assert copy == json.loads(json_text(config))
    return copy


@given(st.lists(TEXT | st.sampled_from(["--port", "-tp", "--", "-1", "-cc.a", "--no-", "--", "-O", "M"]), max_size=6))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    try:
        found = read_words(words, VLLM)
    except WordError as error:
        assert 0 <= error.at < len(words)
        return
    places = [*found.positionals, *(at for positions in found.unknown for at in positions)]
    assert len(places) == len(set(places))
    try:
        rendered(data(found), VLLM)
    except FlagError:
        pytest.fail(f"read from words, and no words can be made of it: {data(found)}")
