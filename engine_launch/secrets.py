"""What is a secret, and how everything that Motor shows looks without it.

A value is known to be secret by its name: `HF_TOKEN`, `--api-key`, `{"password": ...}`. What is shown by name loses the
value whatever it is; running text, such as an engine's log, loses the values that are known to be secret.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "***"

_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)\Z")
# As an engine prints its own arguments: 'api_key': ['x'], api_key=x, --api-key x, password: x.
_IN_TEXT = re.compile(
    r"(?P<name>(?:api[-_]?key|(?:hf|auth|access|bearer|hub)[-_]?token|password|passwd|secret(?:[-_](?:access[-_])?key)?)"
    r"""["']?\s*(?:[=:]\s*|\s)[\[(]?\s*)(?P<quote>["']?)(?P<value>[^\s"',\])}]+)""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<name>\bBearer\s+)(?P<value>[A-Za-z0-9._~+/=-]{6,})", re.IGNORECASE)
_IN_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"]+@")
_SHORTEST = 6  # characters; hiding "1" or "yes" wherever it stands would hide the text


def is_secret(name: str) -> bool:
    """True for an environment name, an option or a key of an object whose value nobody is shown."""
    return _NAME.search(name.upper().replace("-", "_")) is not None


def redact(value: Any, name: str = "") -> Any:
    """A copy of plain data without secrets; `name` is what it stands under."""
    if is_secret(name) and value is not None and not isinstance(value, bool):
        return MASK
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, str):
        return redact_urls(value)
    if isinstance(value, Sequence):
        words = all(isinstance(item, str) for item in value)
        return redact_argv(value) if words else [redact(item) for item in value]
    return value


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it is shown."""
    return {name: MASK if is_secret(name) else redact_urls(value) for name, value in env.items()}


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line as it is shown: `--api-key a b` and `--api-key=a` lose their values, JSON its secret members."""
    shown = []
    hidden = False
    for word in argv:
        if word.startswith("-") and not _is_number(word):
            option, equals, value = word.partition("=")
            hidden = is_secret(option)
            shown.append(word if not equals else f"{option}={MASK if hidden else _redact_word(value)}")
        else:
            shown.append(MASK if hidden else _redact_word(word))
    return shown


def secret_values(argv: Sequence[str], env: Mapping[str, str]) -> set[str]:
    """The values that `redact_argv` and `redact_env` hide, for looking for them in text."""
    return secrets_in(env) | secrets_in(argv)


def secrets_in(value: Any, name: str = "") -> set[str]:
    """The values that `redact` hides."""
    found = set()
    if is_secret(name):
        found = {str(item) for item in (value if isinstance(value, (list, tuple)) else [value])}
    elif isinstance(value, Mapping):
        found = set().union(*(secrets_in(item, str(key)) for key, item in value.items()))
    elif isinstance(value, str):
        with contextlib.suppress(RecursionError):
            found = secrets_in(_json(value))
    elif isinstance(value, Sequence):
        option = ""
        for item in value:
            if isinstance(item, str) and item.startswith("-") and not _is_number(item):
                option, _, item = item.partition("=")
            found |= secrets_in(item, option)
    return {text for text in found if len(text) >= _SHORTEST}


class Mask:
    """Takes secrets out of text: known values wherever they stand, and what looks like `api_key=...`."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        # The longest first: one secret may begin with another. Also as JSON and repr() write them.
        known = {form for value in values for form in (value, json.dumps(value)[1:-1], repr(value)[1:-1])}
        ordered = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    @classmethod
    def of(cls, argv: Sequence[str], env: Mapping[str, str]) -> Mask:
        return cls(secret_values(argv, env))

    def known(self, text: str) -> str:
        """Without the known values only: for sentences of Motor's own, which speak of passwords and show none."""
        return redact_urls(text if self._known is None else self._known.sub(MASK, text))

    def __call__(self, text: str) -> str:
        text = self.known(text)
        text = _IN_TEXT.sub(lambda match: f"{match['name']}{match['quote']}{MASK}", text)
        return _BEARER.sub(lambda match: f"{match['name']}{MASK}", text)


def redact_urls(text: str) -> str:
    """`http://user:password@proxy` without the user and the password."""
    return _IN_URL.sub(lambda match: f"{match['scheme']}{MASK}@", text) if "@" in text else text


def _redact_word(word: str) -> str:
    """A word of a command line: JSON in it, as `--kv-transfer-config` takes, is looked into."""
    data = _json(word)
    if data is None:
        return redact_urls(word)
    try:
        shown = redact(data)
    except RecursionError:  # nobody writes that deep; what cannot be looked into is not shown
        return MASK
    return word if shown == data else json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _json(word: str) -> Any:
    if not word.startswith(("{", "[")):
        return None
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        return None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
