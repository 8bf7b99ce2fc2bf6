"""A shell script -> the commands it would run, each with its words expanded and what is exported to it.

Only what the script itself sets is expanded. What it takes from elsewhere (`$HOSTNAME`, `$(hostname -i)`, `$1`) stays
as written in the word, and the word says why it is not known. Branches and loops are read once, as if everything
in them ran: a script for all nodes usually holds a command for each in its branches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine_launch.shell_tokens import Operator, Part, RawWord, ShellError, tokenize

__all__ = ["Script", "ShellCommand", "ShellError", "ShellWord", "read_script"]

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_OPENS = {"if": "if", "while": "loop", "until": "loop", "for": "loop", "select": "loop", "case": "case", "{": "group"}
_CLOSES = {"fi": "if", "done": "loop", "esac": "case", "}": "group"}
_LEADS = frozenset({"then", "else", "elif", "do", "!", "if", "while", "until", "{"})  # a command follows
_DECLARES = frozenset({"export", "declare", "typeset", "readonly", "local"})
_BLANKS = re.compile(r"[ \t\n]+")
_TESTS = frozenset({"[", "[[", "test"})
_BRANCHES = frozenset({"if", "loop", "case", "function"})


@dataclass(frozen=True)
class ShellWord:
    """A word as the command gets it."""

    text: str
    line: int
    unknown: str = ""  # not empty: the script does not say what it is, and why: "$X is not set in the script"


@dataclass(frozen=True)
class ShellCommand:
    """A simple command. `exports` holds the exported variables and those in front of the command."""

    words: tuple[ShellWord, ...]
    line: int
    exports: Mapping[str, ShellWord] = field(default_factory=dict)


@dataclass(frozen=True)
class Script:
    commands: tuple[ShellCommand, ...]
    remarks: tuple[tuple[int, str], ...] = ()  # (line, what was read otherwise than a shell runs it)


def read_script(text: str, variables: Mapping[str, str] | None = None) -> Script:
    """`variables` keep their values whatever the script sets. ShellError for what is no script."""
    found = tokenize(text)
    fixed = {name: (ShellWord(value, 0),) for name, value in (variables or {}).items()}
    reader = _Reader(dict(fixed), frozenset(fixed))
    reader.run(found.tokens)
    remarks = [(line, "a here-document is not read") for line in found.here_documents]
    return Script(tuple(reader.commands), tuple(sorted(remarks + reader.remarks)))


@dataclass
class _Reader:
    values: dict[str, tuple[ShellWord, ...]]  # an array has several
    fixed: frozenset[str]
    exported: set[str] = field(default_factory=set)
    commands: list[ShellCommand] = field(default_factory=list)
    remarks: list[tuple[int, str]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)  # what the command stands in: if, loop, case, group, function
    after: str = ""  # the operator before this command
    tested: bool = False  # the command before this one was a test
    function_next: bool = False
    subshells: list[tuple[dict[str, tuple[ShellWord, ...]], set[str], int]] = field(default_factory=list)

    def run(self, tokens: Sequence[RawWord | Operator]) -> None:
        words: list[RawWord] = []
        for token in (*tokens, Operator("\n", 0)):
            if isinstance(token, RawWord):
                words.append(token)
                continue
            if token.text == "(" and len(words) == 1 and words[0].plain:
                self._function(words[0].plain, words[0].line)
            elif token.text == "(":
                self.subshells.append((dict(self.values), set(self.exported), len(self.open)))
            elif token.text != ")":
                self._command(words)
            else:
                self._closed(words)
            if words or token.text != "\n":
                self.after = token.text
            words = []

    def _closed(self, words: list[RawWord]) -> None:
        """Behind the last command of a subshell, whose variables end with it; else behind a pattern of `case`."""
        if self.subshells and self.subshells[-1][2] == len(self.open):
            self._command(words)
            self.values, self.exported, _ = self.subshells.pop()
        elif not self.function_next and not (self.open and self.open[-1] == "case"):
            self._command(words)

    def _function(self, name: str, line: int) -> None:
        self.remarks.append((line, f"the body of the function {name} is read where it stands"))
        self.function_next = True

    def _command(self, words: list[RawWord]) -> None:
        while words and (word := words[0].plain) in (*_OPENS, *_CLOSES, *_LEADS):
            self._structure(word, words)
            if word not in _LEADS:
                return
            words = words[1:]
        if not words:
            return
        if words[0].plain == "function":
            self._function(words[1].plain if len(words) > 1 else "", words[0].line)
            words = words[2:]
            if words:
                self._command(words)
            return
        assignments = 0
        while assignments < len(words) and _is_assignment(words[assignments]):
            assignments += 1
        rest = words[assignments:]
        if rest and rest[0].plain in _DECLARES:
            self._declare(rest)
        elif rest:
            self._simple(words[:assignments], rest)
        else:
            for word_ in words:
                self._assign(word_)
        self.tested = bool(rest) and rest[0].plain in _TESTS

    def _structure(self, word: str, words: list[RawWord]) -> None:
        line = words[0].line
        if word in _CLOSES:
            if self.open:
                self.open.pop()
            return
        if word not in _OPENS:
            return
        kind = _OPENS[word]
        if kind == "group" and self.function_next:
            kind, self.function_next = "function", False
        if kind in ("if", "case", "loop") and not self._branched():
            self.remarks.append((line, f"`{word}`: everything in it is read, once"))
        self.open.append(kind)
        name = words[1].plain if word in ("for", "select") and len(words) > 1 else ""
        if name and name not in self.fixed:
            self.values[name] = (ShellWord(f"${name}", line, f"${name} changes with the loop of line {line}"),)

    def _branched(self) -> bool:
        return any(kind in _BRANCHES for kind in self.open)

    def _conditional(self) -> bool:
        return self._branched() or self.after == "||" or (self.after == "&&" and self.tested)

    def _simple(self, assignments: list[RawWord], rest: list[RawWord]) -> None:
        words = tuple(word for raw in rest for word in self._expand(raw))
        if not words:
            return
        if words[0].text == "unset":
            for word in words[1:]:
                self.values.pop(word.text, None)
            return
        exports = {name: self.values[name][0] for name in self.values if name in self.exported and self.values[name]}
        for raw in assignments:
            name, _, value = self._assigned(raw)
            exports[name] = value[0] if value else ShellWord("", raw.line)
        self.commands.append(ShellCommand(words, rest[0].line, exports))

    def _declare(self, words: list[RawWord]) -> None:
        """export, declare and the like."""
        exports = words[0].plain == "export" or any("x" in w.plain for w in words[1:] if w.plain.startswith("-"))
        for raw in words[1:]:
            if _is_assignment(raw):
                name = self._assign(raw)
            else:
                (word, *_) = self._expand(raw) or (ShellWord("-", raw.line),)
                name = word.text
                if name.startswith("-"):
                    continue
                if exports and name not in self.values:
                    self.values[name] = (self._missing(name, f"${name}", raw.line),)
            if exports:
                self.exported.add(name)

    def _assign(self, raw: RawWord) -> str:
        name, appends, value = self._assigned(raw)
        before = self.values.get(name)
        if appends and before is not None:
            value = self._appended(before, raw, value)
        if self._conditional() and (before is None or [w.text for w in before] != [w.text for w in value]):
            why = f"${name} depends on a branch (line {raw.line})"
            value = (ShellWord(f"${name}", raw.line, why),)
        if name not in self.fixed:
            self.values[name] = value
        return name

    def _appended(
        self, before: tuple[ShellWord, ...], raw: RawWord, value: tuple[ShellWord, ...]
    ) -> tuple[ShellWord, ...]:
        if raw.items is not None:
            return (*before, *value)
        added = value[0]
        return (ShellWord(before[0].text + added.text, raw.line, before[0].unknown or added.unknown),)

    def _assigned(self, raw: RawWord) -> tuple[str, bool, tuple[ShellWord, ...]]:
        """Name, whether it appends, and the value: not split at blanks, unlike the words of a command."""
        match = _ASSIGNMENT.match(raw.parts[0].text)
        assert match is not None, "_is_assignment was asked"
        if raw.items is not None:
            return match[1], bool(match[2]), tuple(word for item in raw.items for word in self._expand(item))
        first = replace(raw.parts[0], text=raw.parts[0].text[match.end() :])
        return match[1], bool(match[2]), (self._joined((first, *raw.parts[1:]), raw.line),)

    def _joined(self, parts: Sequence[Part], line: int) -> ShellWord:
        """All parts as one word, whatever blanks are in it."""
        found = [word for part, _ in self._resolved(parts) for word in self._value(part, line)]
        unknown = next((word.unknown for word in found if word.unknown), "")
        return ShellWord("".join(word.text for word in found), line, unknown)

    def _expand(self, raw: RawWord) -> list[ShellWord]:
        """The words that one word becomes: none for an empty $X, several for `$X` with blanks or "${X[@]}"."""
        words: list[ShellWord] = []
        current: ShellWord | None = None
        for part, splits in self._resolved(raw.parts):
            for number, value in enumerate(self._value(part, raw.line)):
                texts = _BLANKS.split(value.text) if splits and not value.unknown else [value.text]
                for index, text in enumerate(texts):
                    if (number or index) and current is not None:
                        words.append(current)
                        current = None
                    if text or not splits:
                        before = current or ShellWord("", raw.line)
                        current = ShellWord(before.text + text, raw.line, before.unknown or value.unknown)
        return words if current is None else [*words, current]

    def _resolved(self, parts: Sequence[Part]) -> Iterator[tuple[Part, bool]]:
        """Parts, defaults in the place of what is not set; and for each whether blanks in it part words."""
        for part in parts:
            value = self.values.get(part.name)
            if part.default is None or (value is not None and any(word.text for word in value)):
                yield part, part.expands and not part.quoted
            else:
                for inner, splits in self._resolved(part.default):
                    yield inner, not part.quoted and (splits or not inner.quoted)
                if part.assigns:
                    self.values[part.name] = (self._joined(part.default, 0),)

    def _value(self, part: Part, line: int) -> list[ShellWord]:
        if not part.expands:
            return [ShellWord(part.text, line)]
        if not part.name:
            return [ShellWord(part.text, line, f"{part.text} is known only where it runs")]
        value = self.values.get(part.name)
        if value is None:
            return [self._missing(part.name, part.text, line)]
        return list(value) if part.spread else list(value[:1])

    def _missing(self, name: str, written: str, line: int) -> ShellWord:
        return ShellWord(written, line, f"${name} is not set in the script")


def _is_assignment(raw: RawWord) -> bool:
    return not raw.parts[0].quoted and not raw.parts[0].expands and bool(_ASSIGNMENT.match(raw.parts[0].text))
