"""One engine process -> its options by the flag list of the engine's profile, and its place among the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_launch.engine_line import EngineLine
from engine_launch.flag_list import load_flag_list
from engine_launch.kv_connectors import CONNECTORS, KV_ROLES
from engine_launch.model import Role
from engine_launch.profile import EngineProfile
from engine_launch.profiles import ProfileChoice, choose
from engine_launch.reserved import READ_OPTIONS
from engine_launch.words import Given, ReadWords, WordError, read_words
from motorctl.convert_read import Launch, Report

# What only vLLM-Ascend's guides set (its docs/source/tutorials).
_ASCEND_ENV = ("HCCL_", "ASCEND_", "VLLM_ASCEND_", "PYTORCH_NPU_")
_ASCEND_CONNECTORS = tuple(f'"{name}"' for name, known in CONNECTORS.items() if known.engine == "vllm_ascend")

# Of reserved options, those without a value; vLLM 0.32 engine/arg_utils.py.
_SWITCHES = frozenset(
    {
        "headless",
        "data-parallel-external-lb",
        "data-parallel-hybrid-lb",
        "data-parallel-multi-port-external-lb",
        "grpc",
        "enable-ssl-refresh",
    }
)
SET_IT = "write it out, set it in the script, or give it with --set NAME=VALUE"

_KINDS = {"switch": "bool", "object": "json"}


@dataclass(frozen=True)
class Node:
    """One engine process with its options read."""

    file: str
    engine: EngineLine
    read: ReadWords
    model: str

    @property
    def line(self) -> int:
        return self.engine.line

    def given(self, name: str) -> Given | None:
        return self.read.options.get(name)

    def value(self, name: str) -> Any:
        """None where the option is absent, or where the script does not say its value."""
        given = self.given(name)
        return given.value if given is not None and not self.unknown(given.at) else None

    def unknown(self, positions: Iterable[int]) -> str:
        """Why one of these words is not known, or nothing."""
        return next((why for at in positions if (why := self.engine.words[at].unknown)), "")

    def line_of(self, given: Given) -> int:
        return self.engine.words[given.at[0]].line

    @property
    def headless(self) -> bool:
        return self.value("headless") is True

    @property
    def role(self) -> Role:
        """By kv_role; `kv_both` and none are union."""
        # Read even where the script leaves another part of it open, such as engine_id.
        given = self.given("kv-transfer-config")
        kv_role = given.value.get("kv_role") if given is not None and isinstance(given.value, Mapping) else None
        return next((role for role, name in KV_ROLES.items() if name == kv_role), Role.UNION)


def engine_type_of(launches: Sequence[Launch]) -> str:
    """vllm, vllm_ascend or atom, by the commands and what only Ascend's guides say."""
    if any(launch.line.engine == "atom" for launch in launches):
        return "atom"
    for launch in launches:
        texts = [word.text for word in launch.line.words]
        if any(name.startswith(_ASCEND_ENV) for name in launch.line.env):
            return "vllm_ascend"
        # `ascend`, or `--quantization=ascend`.
        if any(text.split("=")[-1] == "ascend" or any(c in text for c in _ASCEND_CONNECTORS) for text in texts):
            return "vllm_ascend"
    return "vllm"


def read_nodes(
    launches: Sequence[Launch], engine_type: str, pinned: str | None, report: Report
) -> tuple[list[Node], ProfileChoice]:
    """All nodes, and the profile by whose flags they were read. Nodes that cannot be read are errors.

    UnknownProfile where `pinned` names none.
    """
    choice = choose(engine_type, pinned, 1)
    first = [node for launch in launches if (node := _node(launch, choice.profile, Report())) is not None]
    sizes = [node.value("prefill-context-parallel-size") for node in first]
    choice = choose(engine_type, pinned, max((size for size in sizes if isinstance(size, int)), default=1))
    return [node for launch in launches if (node := _node(launch, choice.profile, report)) is not None], choice


def _node(launch: Launch, profile: EngineProfile, report: Report) -> Node | None:
    words = launch.line.words
    form = profile.form
    others = dict.fromkeys((*form.read, *form.reserved), "value")
    others |= {name: _KINDS.get(option.kind, "value") for name, option in READ_OPTIONS.items() if name in others}
    others |= dict.fromkeys(_SWITCHES & others.keys(), "bool")
    try:
        read = read_words([word.text for word in words], load_flag_list(profile.flag_list), others)
    except WordError as error:
        word = words[error.at]
        what = f"{error.what} ({word.unknown})" if word.unknown else error.what
        report.error(launch.file, word.line, what, got=error.got, expected=error.expected, fix=error.fix)
        return None
    for at, text in read.remarks:
        report.note(launch.file, words[at].line, text)
    model = _model(launch, read, not form.model_flag, report)
    return None if model is None else Node(launch.file, launch.line, read, model)


def _model(launch: Launch, read: ReadWords, in_front: bool, report: Report) -> str | None:
    """The model, of a positional word or of --model; None (and an error) without a clear one."""
    words = launch.line.words
    given = read.options.get("model")
    places = [given.at[-1]] if given else []
    strays = list(read.positionals)
    if not places and strays and in_front:
        places.append(strays.pop(0))
    usable = True
    for at in strays:
        usable = False
        if words[at].unknown:
            report.error(launch.file, words[at].line, f"not known: {words[at].unknown}", got=words[at].text, fix=SET_IT)
        else:
            fix = "remove it, or quote the value that it belongs to"
            report.error(launch.file, words[at].line, "a word that belongs to no flag", got=words[at].text, fix=fix)
    if not places:
        eaten = f"; is it the word behind {words[read.unknown[0][0]].text}?" if read.unknown else ""
        fix = "write it right behind the command, or with --model" + eaten
        report.error(launch.file, launch.line.line, "the model is missing", expected="a path or a hub name", fix=fix)
        return None
    word = words[places[0]]
    if word.unknown:
        report.error(launch.file, word.line, f"the model is not known: {word.unknown}", got=word.text, fix=SET_IT)
        return None
    model = str(given.value) if given else word.text
    return model if usable else None
