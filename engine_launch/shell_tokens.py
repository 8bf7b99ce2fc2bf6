"""Text of a shell script -> words and operators, with quotes, comments, line continuations and expansions read as a
POSIX shell or bash reads them. Nothing is run and nothing is looked up: shell_text.py does the expanding.

The standard library's shlex takes quotes away and does not say what stood in them, so `'$X'` and `"$X"` look alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

_BLANK = " \t"
_OPERATORS = ("&&", "||", ";;&", ";;", ";&", "|&", "\n", ";", "&", "|", "(", ")")
_ENDS_WORD = frozenset(" \t\n;&|()<>")
_REDIRECT = re.compile(r"(?:\d+|&)?(?:>>|>\||>&|<<<|<<-|<<|<&|<>|>|<)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = re.compile(r"[0-9@*#?$!-]")  # $1, $@, $? and the like
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[@*]\])?(?:(:?[-=])(.*))?\Z", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\Z")
_LOST_CONTINUATION = re.compile(r"\\[ \t]+(?=\n|#|\Z)")
_ANSI = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


class ShellError(ValueError):
    """Text that cannot be read as a script; `line` counts from 1."""

    def __init__(self, line: int, what: str, *, got: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.line = line
        self.what = what
        self.got = got
        self.expected = expected
        self.fix = fix


@dataclass(frozen=True)
class Part:
    """A piece of a word: literal text, or an expansion."""

    text: str  # as written; of literal text without its quotes
    quoted: bool
    expands: bool = False
    name: str = ""  # the variable; an expansion without one cannot be known: $(...), $1, ${X%...}
    spread: bool = False  # "${X[@]}": a word for each item
    default: tuple[Part, ...] | None = None  # of ${X:-default}
    assigns: bool = False  # ${X:=default} sets X


@dataclass(frozen=True)
class RawWord:
    """A word before expansion. `items` holds the words of an array: NAME=(...)."""

    parts: tuple[Part, ...]
    line: int
    items: tuple[RawWord, ...] | None = None

    @property
    def plain(self) -> str:
        """The text of a word without quotes and expansions, else nothing: only such a word can be `if` or `fi`."""
        return self.parts[0].text if len(self.parts) == 1 and not (p := self.parts[0]).quoted and not p.expands else ""


@dataclass(frozen=True)
class Operator:
    """What ends a command."""

    text: str
    line: int


@dataclass(frozen=True)
class Tokens:
    tokens: tuple[RawWord | Operator, ...]
    here_documents: tuple[int, ...]  # lines of texts that are fed to a command; they are not read


def tokenize(text: str) -> Tokens:
    """ShellError for open quotes, and for what a shell would read otherwise than it looks."""
    return _Lexer(text.replace("\r\n", "\n")).run()


@dataclass
class _Lexer:
    text: str
    at: int = 0
    line: int = 1
    tokens: list[RawWord | Operator] = field(default_factory=list)
    waiting: list[tuple[str, bool]] = field(default_factory=list)  # here-documents that begin after this line
    here_documents: list[int] = field(default_factory=list)

    def run(self) -> Tokens:
        while self._skip_blanks():
            if operator := next((op for op in _OPERATORS if self.text.startswith(op, self.at)), ""):
                if not self._redirect():  # &> begins like &
                    self.tokens.append(Operator(operator, self.line))
                    self._advance(len(operator))
                    if operator == "\n":
                        self._skip_here_documents()
            elif not self._redirect():
                self.tokens.append(self._word())
        return Tokens(tuple(self.tokens), tuple(self.here_documents))

    def _advance(self, count: int) -> str:
        taken = self.text[self.at : self.at + count]
        self.line += taken.count("\n")
        self.at += count
        return taken

    def _skip_blanks(self) -> bool:
        """Blanks, continued lines and comments; False at the end of the text."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self._advance(2)
            elif self.text[self.at] in _BLANK:
                self._advance(1)
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self._advance((len(self.text) if end < 0 else end) - self.at)
            else:
                return True
        return False

    def _redirect(self) -> bool:
        """Skips `> file`, `2>&1`, `<<END` and the like; True if there was one."""
        match = _REDIRECT.match(self.text, self.at)
        if match is None:
            return False
        line = self.line
        self._advance(len(match.group()))
        self._skip_blanks()
        if self.at >= len(self.text) or self.text[self.at] in _ENDS_WORD:
            raise ShellError(line, f"nothing behind {match.group()}", expected="a file", fix="complete it")
        target = self._word()
        if match.group().endswith(("<<", "<<-")):
            self.waiting.append(("".join(part.text for part in target.parts), match.group().endswith("-")))
            self.here_documents.append(line)
        return True

    def _skip_here_documents(self) -> None:
        for end_word, tabs in self.waiting:
            start = self.line
            while True:
                if self.at >= len(self.text):
                    raise ShellError(start, "a here-document has no end", expected=f"a line {end_word!r}")
                end = self.text.find("\n", self.at)
                row = self._advance((len(self.text) if end < 0 else end + 1) - self.at).rstrip("\n")
                if (row.lstrip("\t") if tabs else row) == end_word:
                    break
        self.waiting.clear()

    def _word(self) -> RawWord:
        line = self.line
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in _ENDS_WORD:
            self._piece(parts, False)
        if self.text.startswith("(", self.at) and len(parts) == 1 and _ARRAY.match(parts[0].text):
            return RawWord(tuple(parts), line, self._items())
        return RawWord(tuple(parts), line)

    def _piece(self, parts: list[Part], quoted: bool) -> None:
        """The next piece of a word. Inside double quotes a single quote is a letter."""
        char = self.text[self.at]
        if char == "'" and not quoted:
            parts.append(Part(self._until_quote("'"), True))
        elif char == '"':
            parts += self._double_quoted()
        elif self.text.startswith("$'", self.at) and not quoted:
            parts.append(Part(self._ansi_quoted(), True))
        elif char in "$`":
            parts.append(self._expansion(quoted))
        elif char == "\\":
            self._escaped(parts)
        else:
            _add(parts, self._advance(1), quoted)

    def _escaped(self, parts: list[Part]) -> None:
        if _LOST_CONTINUATION.match(self.text, self.at):
            raise ShellError(
                self.line,
                "the command ends here: only a backslash that ends the line continues it",
                got="a backslash with blanks behind it",
                fix="delete what stands behind it",
            )
        taken = self._advance(2)
        if taken == "\\":  # at the end of the text
            _add(parts, "\\", True)
        elif taken != "\\\n":
            _add(parts, taken[1], True)

    def _until_quote(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            self._open(quote)
        return self._advance(end + 1 - self.at)[1:-1]

    def _open(self, quote: str) -> NoReturn:
        raise ShellError(self.line, f"a {quote} has no end", expected=f"a closing {quote}", fix="close it")

    def _double_quoted(self) -> list[Part]:
        start = self.line
        self._advance(1)
        parts: list[Part] = []
        while not self.text.startswith('"', self.at):
            if self.at >= len(self.text):
                self.line = start
                self._open('"')
            char = self.text[self.at]
            if char in "$`":
                parts.append(self._expansion(True))
            elif char == "\\" and self.text[self.at + 1 : self.at + 2] in ("\\", '"', "$", "`", "\n"):
                taken = self._advance(2)
                _add(parts, "" if taken == "\\\n" else taken[1], True)
            else:
                _add(parts, self._advance(1), True)
        self._advance(1)
        return parts or [Part("", True)]  # "" is a word too

    def _ansi_quoted(self) -> str:
        self._advance(2)
        text = ""
        while not self.text.startswith("'", self.at):
            if self.at >= len(self.text):
                self._open("$'")
            char = self._advance(1)
            if char != "\\":
                text += char
            elif (escape := self._advance(1)) in _ANSI:
                text += _ANSI[escape]
            else:
                expected = "one of \\n \\t \\\\ \\' \\\""
                raise ShellError(self.line, "this escape is not read", got=f"\\{escape}", expected=expected)
        self._advance(1)
        return text

    def _expansion(self, quoted: bool) -> Part:
        rest = self.text[self.at + 1 : self.at + 2]
        if self.text.startswith("`", self.at):
            return Part(f"`{self._until_quote('`')}`", quoted, True)
        if rest in ("(", "{"):
            return self._bracketed(quoted, "()" if rest == "(" else "{}")
        if match := _NAME.match(self.text, self.at + 1):
            return Part(self._advance(1 + len(match.group())), quoted, True, match.group())
        if _SPECIAL.match(rest):
            return Part(self._advance(2), quoted, True)
        return Part(self._advance(1), quoted)

    def _bracketed(self, quoted: bool, pair: str) -> Part:
        """$(...), $((...)) and ${...}, with brackets and quotes inside."""
        start, line, depth = self.at, self.line, 0
        self._advance(1)
        while True:
            if self.at >= len(self.text):
                raise ShellError(line, f"${pair[0]} has no end", expected=f"a closing {pair[1]}", fix="close it")
            char = self.text[self.at]
            if char == "'" and not (quoted and pair == "{}"):
                self._until_quote("'")
                continue
            taken = self._advance(2 if char == "\\" else 1)
            depth += (taken == pair[0]) - (taken == pair[1])
            if not depth:
                break
        written = self.text[start : self.at]
        match = _BRACED.match(written[2:-1]) if pair == "{}" else None
        if match is None:
            return Part(written, quoted, True)
        default = _Lexer(match[4], line=line)._default(quoted) if match[3] else None
        return Part(written, quoted, True, match[1], bool(match[2]), default, (match[3] or "").endswith("="))

    def _default(self, quoted: bool) -> tuple[Part, ...]:
        """The whole text as one word; blanks and operators are letters here."""
        parts: list[Part] = []
        while self.at < len(self.text):
            self._piece(parts, quoted)
        return tuple(parts)

    def _items(self) -> tuple[RawWord, ...]:
        """The words of an array; line breaks count as blanks."""
        line = self.line
        self._advance(1)
        items: list[RawWord] = []
        while True:
            while self._skip_blanks() and self.text[self.at] == "\n":
                self._advance(1)
            if self.at >= len(self.text):
                raise ShellError(line, "an array has no end", expected="a closing )", fix="close it")
            if self.text[self.at] == ")":
                self._advance(1)
                return tuple(items)
            if self.text[self.at] in _ENDS_WORD:
                raise ShellError(self.line, "an array holds words only", got=self.text[self.at])
            items.append(self._word())


def _add(parts: list[Part], text: str, quoted: bool) -> None:
    """Appends literal text to the last part where both are literal and alike."""
    if parts and not parts[-1].expands and parts[-1].quoted == quoted:
        parts[-1] = Part(parts[-1].text + text, quoted)
    else:
        parts.append(Part(text, quoted))
