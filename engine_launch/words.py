"""Words of a command line -> options: the way back from flags.py.

Words are read as the engine's own parser reads them (argparse, and vLLM 0.32 utils/argparse_utils.py:308-460 in front
of it): the last of two equal flags counts, a clear beginning of a name is enough, dotted names make one object. Text
becomes a number only where the number is written in just that form, and never becomes true, false or null outside
JSON: written on a command line again, every value gives the words that it came from.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from engine_launch.flag_list import REPEATABLE, FlagList
from engine_launch.flags import ALIASES, SHORT_FLAGS, is_flag_like
from engine_launch.written_number import WrittenFloat

_INTEGER = re.compile(r"-?[1-9][0-9]{0,99}|0")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?=[.eE])(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_GLUED = re.compile(r"([A-Za-z]+)([0-9].*)")
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT])")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# A path or a name, whatever it looks like.
_TEXT = frozenset({"model"})


class WordError(ValueError):
    """Words that the engine's parser would refuse; `at` is the position of the word."""

    def __init__(self, at: int, what: str, *, got: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.at = at
        self.what = what
        self.got = got
        self.expected = expected
        self.fix = fix


@dataclass(frozen=True)
class Given:
    """An option of a command line."""

    name: str  # the engine's long name without dashes in front
    spelled: str  # as written: -tp
    value: Any  # as engine_config has it
    at: tuple[int, ...]  # positions of its words


@dataclass(frozen=True)
class ReadWords:
    """What the words say. Options in the order of their first word; the last value counts."""

    options: Mapping[str, Given]
    positionals: tuple[int, ...]  # positions of words that belong to no flag: the model
    unknown: tuple[tuple[int, ...], ...]  # for each flag that is not listed: its position and those of its words
    remarks: tuple[tuple[int, str], ...]  # (position, what is read otherwise than it is written)


def read_words(words: Sequence[str], flags: FlagList, others: Mapping[str, str] | None = None) -> ReadWords:
    """`others` are kinds of flags that a list may lack. WordError for words that no parser reads."""
    reader = _Reader(list(words), {**(others or {}), **flags.kinds}, flags.negatable)
    reader.run()
    return ReadWords(
        reader.options, tuple(reader.positionals), tuple(map(tuple, reader.unknown)), tuple(reader.remarks)
    )


def typed(text: str) -> Any:
    """A number where it prints as it is written, else the text."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := WrittenFloat(text)):
        return number
    return text


@dataclass(frozen=True)
class _Flag:
    """A word that is a flag, taken apart."""

    name: str
    value: str | None = None  # behind = or glued on
    keys: tuple[str, ...] = ()  # behind dots
    negated: bool = False


@dataclass
class _Reader:
    words: list[str]
    kinds: Mapping[str, str]
    negatable: frozenset[str]
    at: int = 0
    options: dict[str, Given] = field(default_factory=dict)
    positionals: list[int] = field(default_factory=list)
    unknown: list[list[int]] = field(default_factory=list)
    remarks: list[tuple[int, str]] = field(default_factory=list)
    dotted: dict[str, Given] = field(default_factory=dict)  # by spelling
    repeated: dict[str, list[int]] = field(default_factory=dict)

    def run(self) -> None:
        while self.at < len(self.words):
            word = self.words[self.at]
            if word == "--":
                self.positionals += range(self.at + 1, len(self.words))
                break
            if not self._is_flag(self.at):
                self.positionals.append(self.at)
                self.at += 1
            elif (flag := self._taken_apart(word)) is None:
                self._unknown()
            elif flag.keys:
                self._dotted(flag)
            else:
                self._plain(flag)
        for given in self.dotted.values():
            # vLLM puts the object that dotted names make behind all other words, where it counts alone: an object for
            # each spelling, and the last one counts.
            if (other := self.options.get(given.name)) is not None:
                text = f"{given.spelled} with dots replaces the whole of {other.spelled}, as it does in the engine"
                self.remarks.append((given.at[0], text))
            self.options[given.name] = given
        self._move_repeated()

    def _is_flag(self, at: int) -> bool:
        """As argparse sees it: `-1` is a value, and so is a word with a blank in front of any =."""
        word = self.words[at]
        return is_flag_like(word) and " " not in word.split("=", 1)[0]

    def _taken_apart(self, word: str) -> _Flag | None:
        """None for a flag that is not known."""
        head, equals, value = word.partition("=")
        explicit = value if equals else None
        key, *keys = head.split(".")
        if word.startswith("--"):
            name, negated = self._long(key[2:].replace("_", "-"), word)
            return _Flag(name, explicit, tuple(keys), negated) if name else None
        if word.startswith("-O") and not keys and len(word) > 2 and "optimization-level" in self.kinds:
            return _Flag("optimization-level", word[2:].removeprefix("="))
        name, glued = self._short(key[1:])
        if not name or name not in self.kinds:
            return None
        return _Flag(name, glued if explicit is None and glued else explicit, tuple(keys))

    def _long(self, name: str, word: str) -> tuple[str, bool]:
        """(option, whether it is negated); no option for an unknown one."""
        if name in self.kinds:
            return name, False
        bare = name.removeprefix("no-")
        if bare != name and bare in self.negatable:
            return bare, True
        if (alias := ALIASES.get(name, "")) in self.kinds:
            self.remarks.append((self.at, f"{word} is read as --{alias}"))
            return alias, False
        begins = [known for known in (*self.kinds, *(f"no-{n}" for n in self.negatable)) if known.startswith(name)]
        if len(begins) > 1 and name:
            expected = f"one of {', '.join(f'--{known}' for known in sorted(begins)[:5])}"
            self._refuse("is short for several flags", got=word, expected=expected, fix="write the whole name")
        if not begins or not name:
            return "", False
        self.remarks.append((self.at, f"{word} is short for --{begins[0]}"))
        return self._long(begins[0], word)

    def _short(self, bare: str) -> tuple[str, str]:
        """(option, value glued to it) of a one-dash flag."""
        if bare in SHORT_FLAGS:
            return SHORT_FLAGS[bare], ""
        begins = [short for short in SHORT_FLAGS if short.startswith(bare)]
        if len(begins) > 1:
            expected = f"one of {', '.join(f'-{short}' for short in begins)}"
            self._refuse("is short for several flags", got=f"-{bare}", expected=expected, fix="write the whole name")
        if begins:
            return SHORT_FLAGS[begins[0]], ""
        if (glued := _GLUED.fullmatch(bare)) and glued[1] in SHORT_FLAGS:
            if len(glued[1]) > 1:
                text = f"-{bare} is read as -{glued[1]} {glued[2]}, which the engine's own parser would refuse"
                self.remarks.append((self.at, text))
            return SHORT_FLAGS[glued[1]], glued[2]
        return SHORT_FLAGS.get(bare[:1], ""), bare[1:]

    def _plain(self, flag: _Flag) -> None:
        kind, start = self.kinds[flag.name], self.at
        spelled = self.words[start].split("=", 1)[0]
        if kind == "bool" or flag.negated:
            if flag.value is not None:
                fix = f"write {spelled} alone" if flag.value.lower() in ("true", "1") else "leave it out"
                self._refuse(f"{spelled} takes no value", got=flag.value, fix=fix)
            self.at += 1
            value: Any = not flag.negated
        elif flag.value is not None:
            self.at += 1
            value = self._value(flag.name, kind, flag.value)
        else:
            values = self._following(1 if kind != "list" else len(self.words))
            if not values and kind != "optional":
                self._no_value(spelled, start)
            several = [self._value(flag.name, kind, text) for text in values]
            value = several if len(several) > 1 else several[0] if several else True
        given = Given(flag.name, spelled, value, tuple(range(start, self.at)))
        if flag.name in REPEATABLE:
            self.repeated.setdefault(flag.name, []).extend(given.at)
        elif flag.name in self.options:
            self.remarks.append((start, f"{spelled} stands a second time: the last one counts, as in the engine"))
        self.options[flag.name] = given

    def _following(self, most: int) -> list[str]:
        """Moves behind the flag and its values."""
        start = self.at + 1
        end = start
        while end < len(self.words) and end - start < most and not self._is_flag(end):
            end += 1
        self.at = end
        return self.words[start:end]

    def _value(self, name: str, kind: str, text: str) -> Any:
        if kind == "json" and text.lstrip()[:1] in ("{", "["):
            return self._json(name, text)
        return text if name in _TEXT else typed(text)

    def _json(self, name: str, text: str) -> Any:
        try:
            return json.loads(text, parse_float=WrittenFloat)
        except (ValueError, RecursionError) as error:
            self.at = max(self.at - 1, 0)
            fix = "put single quotes around the whole value, and double quotes around names and texts in it"
            self._refuse(f"--{name} is not valid JSON: {error}", got=text, expected="JSON", fix=fix)

    def _dotted(self, flag: _Flag) -> None:
        """--compilation-config.mode 3: the word behind it is the value, whatever it looks like."""
        start = self.at
        spelled = self.words[start].split("=", 1)[0]
        text = flag.value
        if text is None:
            if start + 1 >= len(self.words):
                self._no_value(spelled, start)
            text = self.words[start + 1]
        self.at += 1 if flag.value is not None else 2
        *outer, last = flag.keys
        value: Any = text.split(",") if last.endswith("+") else _nested(text)
        head = spelled.split(".")[0]
        spelling = head.replace("_", "-")
        given = self.dotted.setdefault(spelling, Given(flag.name, head, {}, ()))
        place = given.value
        for key in outer:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        _merge(place, {last.removesuffix("+"): value})
        self.dotted[spelling] = Given(given.name, given.spelled, given.value, (*given.at, *range(start, self.at)))

    def _unknown(self) -> None:
        start = self.at
        most = 0 if "=" in self.words[start] else len(self.words)
        self._following(most)
        self.unknown.append(list(range(start, self.at)))

    def _move_repeated(self) -> None:
        """A flag that stands for one more value each time has a place in extra_args only."""
        for name, positions in self.repeated.items():
            given = self.options[name]
            if len(positions) > len(given.at):
                del self.options[name]
                self.unknown.append(positions)

    def _no_value(self, spelled: str, at: int) -> NoReturn:
        what = f"{spelled} has no value"
        raise WordError(at, what, expected="a value behind it", fix="add it, or leave both out")

    def _refuse(self, what: str, *, got: str = "", expected: str = "", fix: str = "") -> NoReturn:
        raise WordError(self.at, what, got=got, expected=expected, fix=fix)


def _nested(text: str) -> Any:
    """A value behind a dotted name: JSON, a number with a unit (1k is 1000, 1K is 1024), else text."""
    try:
        return json.loads(text, parse_float=WrittenFloat)
    except ValueError:
        pass
    match = _WITH_UNIT.fullmatch(text.strip())
    if match is None or ("." in match[1] and match[2].isupper()):
        return text
    return int(match[1]) * _UNITS[match[2]] if "." not in match[1] else int(float(match[1]) * _UNITS[match[2]])


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            into[key] = [*old, *value]
        else:
            into[key] = value
