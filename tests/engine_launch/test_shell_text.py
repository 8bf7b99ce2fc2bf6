"""Shell scripts as a shell reads them: a real bash is the judge where there is one."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_launch.shell_text import Script, ShellError, read_script


def commands(text: str, name: str = "P") -> list[list[str]]:
    """The arguments of every command called `name`."""
    script = read_script(text)
    return [[word.text for word in c.words[1:]] for c in script.commands if c.words[0].text == name]


def bash_commands(text: str) -> list[list[str]]:
    """The same as bash has them."""
    show = """P() { for word in "$@"; do printf '%s\\0' "$word"; done; printf '\\1'; }\n"""
    # Standard input carries the script, since an argument cannot carry every text.
    done = subprocess.run(["bash"], input=show + text, capture_output=True, text=True, check=True, timeout=20)
    return [part.split("\0")[:-1] for part in done.stdout.split("\1")[:-1]]


SCRIPTS = {
    "quotes": r"""A='x y'; P $A "$A" '$A' ${A} "${A}z" a$A"b"c\ d "" '' "a\"b\\c\$A\d" """,
    "arrays": """X=(a "b c" # comment
      'd'); X+=(e); P "${X[@]}" ${X[@]} "p${X[@]}q" $X; E=(); P "${E[@]}" z""",
    "defaults": r"""A=1; P ${U:-def} "${U:-a b}" ${U:-a b} ${U-"q r"} ${U:-'s t'} ${U:-80"$A"} "${U:-'s'}" ${A:-no}""",
    "default that sets": """: ${TP:=8}; P $TP ${TP:=9}""",
    "continued lines": "P a\\\nb \"c\\\nd\" 'e\\\nf' # comment \\\nP g",
    "comments": r"""P a#b "#c" '#d' #e""",
    "escapes": r"""P $'a\tb\'c' \$x \\ "\n" 'a\nb'""",
    "appending": """A=1 B=2; A+=3; C="$A$B"; P $A $C""",
    "redirections": """P x 2>&1; P y &>/dev/stdout; P 2 >/dev/stdout 2>/dev/null; P <<< word z""",
    "here-documents": "cat <<EOF >/dev/null\nP no 'x\nEOF\ncat <<-'E' >/dev/null\n\tP no\n\tE\nP yes",
    "json": r"""P {"a":1} '{"a": [1,2]}' "{\"a\": \"b\"}" --b='{"x": "y z"}' """,
    "operators": """P a; P b && P c; (P d); { P e; }; P f & wait""",
    "blanks in variables": """A="--x 1  --y '2" B=" a "; P $A x$B"y" """,
    "subshells": """A=1; (A=2; P $A); P $A""",
    "carriage returns inside quotes": 'P "a\tb"',
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_of_bash(name: str) -> None:
    assert commands(SCRIPTS[name]) == bash_commands(SCRIPTS[name])


_PIECES = st.sampled_from(
    [
        "a",
        "b c",
        " ",
        "'x y'",
        '"x  y"',
        "$A/",
        '"$A"',
        "${A}",
        "'$A'",
        '"a$A"',
        "\\ z",
        "\\$",
        "${U:-d e}",
        "=",
        "-",
        ";P ",
        "#",
    ]
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_random_words_are_those_of_bash() -> None:
    """One bash for all examples: a process for each would take minutes."""
    lines: list[str] = []

    @given(st.lists(_PIECES, min_size=1, max_size=8))
    def collect(pieces: list[str]) -> None:
        lines.append("P " + "".join(pieces))

    collect()
    text = "A='1 2'\n" + "\n".join(lines)
    assert commands(text) == bash_commands(text)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("P $X", "$X is not set in the script"),
        ("export X; P $X", "$X is not set in the script"),
        ("P $(hostname -I | awk '{print $1}')", "$(hostname -I | awk '{print $1}') is known only where it runs"),
        ("P `hostname`", "`hostname` is known only where it runs"),
        ("P $1", "$1 is known only where it runs"),
        ('P "$@"', "$@ is known only where it runs"),
        ("X=a; P ${X%b}", "${X%b} is known only where it runs"),
        ("X=$(hostname); Y=a-$X; P $Y", "$(hostname) is known only where it runs"),
        ("for i in 0 1; do P $i; done", "$i changes with the loop of line 1"),
        ("X=1\nif test; then X=2; fi\nP $X", "$X depends on a branch (line 2)"),
        ('[ -z "$X" ] && X=2; P $X', "$X depends on a branch (line 1)"),
        ("X=1\nunset X\nP $X", "$X is not set in the script"),
        ("cd / && X=2; P $X", ""),
        ("X=2; if test; then X=2; fi; P $X", ""),
    ],
)
def test_what_a_script_does_not_say_is_named(text: str, unknown: str) -> None:
    script = read_script(text)
    (word,) = next(c.words[1:] for c in script.commands if c.words[0].text == "P")
    assert word.unknown == unknown


def test_given_variables_win() -> None:
    text = "if test; then X=2; fi; P $X $Y ${Z:-3}"
    script = read_script(text, {"X": "7", "Y": "8 9"})
    assert [(word.text, word.unknown) for word in script.commands[-1].words[1:]] == [
        ("7", ""),
        ("8", ""),
        ("9", ""),
        ("3", ""),
    ]


def test_words_and_commands_know_their_lines() -> None:
    script = read_script("# one\nA=1\nP a \\\n  b \\\n  'c\nd' e\nQ")
    assert [[word.line for word in command.words] for command in script.commands] == [[3, 3, 4, 5, 6], [7]]


def exports(script: Script) -> dict[str, str]:
    return {name: word.text for name, word in script.commands[-1].exports.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export A=1 B='2 3'; C=4; P", {"A": "1", "B": "2 3"}),
        ("A=1; export A; A=2; P", {"A": "2"}),
        ("A=1 P", {"A": "1"}),
        ("A=1 P; P", {}),
        ("declare -x A=1; declare B=2; P", {"A": "1"}),
        ("export A=1; unset A; P", {}),
        ("(export A=1; Q); P", {}),
        ("export A=$A:x; P", {"A": "$A:x"}),
    ],
)
def test_exports(text: str, expected: dict[str, str]) -> None:
    assert exports(read_script(text)) == expected


def test_branches_are_read_once_and_said() -> None:
    text = "if [ $1 = 0 ]; then\nP a\nelse\nP b\nfi\ncase $1 in\nx|y) P c;;\n(z) P d;;\nesac\nf() { P e; }"
    script = read_script(text)
    assert commands(text) == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert script.remarks == (
        (1, "`if`: everything in it is read, once"),
        (6, "`case`: everything in it is read, once"),
        (10, "the body of the function f is read where it stands"),
    )


def test_a_here_document_is_said() -> None:
    assert read_script("cat <<EOF\nP\nEOF").remarks == ((1, "a here-document is not read"),)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("P a\nP 'b\nc", 2, "a ' has no end"),
        ('P a\nP "b\nc', 2, 'a " has no end'),
        ("P $(a\nb", 1, "$( has no end"),
        ("P ${a", 1, "${ has no end"),
        ("X=(a\nb", 1, "an array has no end"),
        ("P\ncat <<EOF\nx", 3, "a here-document has no end"),
        ("P >", 1, "nothing behind >"),
        ("P a \\ \n  b", 1, "the command ends here: only a backslash that ends the line continues it"),
        ("P a \\ # b\n  c", 1, "the command ends here: only a backslash that ends the line continues it"),
    ],
)
def test_what_is_no_script(text: str, line: int, what: str) -> None:
    with pytest.raises(ShellError) as caught:
        read_script(text)
    assert (caught.value.line, caught.value.what) == (line, what)


def test_windows_line_ends() -> None:
    assert commands("P a \\\r\n  b\r\nP c\r\n") == [["a", "b"], ["c"]]


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_script(text)
    except ShellError as error:
        assert 1 <= error.line <= text.count("\n") + 1
