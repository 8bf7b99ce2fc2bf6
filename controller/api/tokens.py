"""Bearer tokens: a file of names, roles and hashes, read again when it changes.

    alice operate sha256:5f2c...
    prometheus read sha256:9b01...

A token is 256 random bits. Plain SHA-256 is right for it: a slow hash (bcrypt, argon2) makes guessing a *chosen*
password dear, and 2**256 values cannot be tried at any speed. It would only make each request dear.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from motor_rpc.file_stamp import stamp

log = logging.getLogger(__name__)

_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._@-]{0,62})\s+(?P<role>\S+)\s+sha256:(?P<digest>[0-9a-f]{64})")
_LARGEST = 1 << 20  # bytes; some 8,000 tokens
PREFIX = "motor_"  # so that a token found in a log or a repository is recognised as one


class Role(str, Enum):
    """What a token is good for. `operate` includes `read`."""

    READ = "read"
    OPERATE = "operate"

    def allows(self, wanted: Role) -> bool:
        return self is Role.OPERATE or wanted is Role.READ


@dataclass(frozen=True)
class Token:
    """One line of the file. `digest`: SHA-256 of the token, in hex."""

    name: str
    role: Role
    digest: str

    def line(self) -> str:
        return f"{self.name} {self.role.value} sha256:{self.digest}"


class TokenFileError(Exception):
    """The file cannot be used; the text says where, why and what to do. It never quotes a line."""


def new_token() -> str:
    """256 random bits from the operating system, as text."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def parse(text: str, file: str) -> tuple[dict[str, Token], list[str]]:
    """Tokens by name, and one sentence for each line that is none. A line with `#` is a comment."""
    tokens: dict[str, Token] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        # The line itself is not shown: someone may have written the token where its hash belongs.
        match = _LINE.fullmatch(line)
        if match is None:
            problems.append(f"{file}:{number}: expected `name role sha256:<64 hex digits>`; use `motorctl token add`")
        elif match["role"] not in (role.value for role in Role):
            problems.append(f"{file}:{number}: role: expected read or operate")
        elif match["name"] in tokens:
            problems.append(f"{file}:{number}: the name {match['name']} stands twice; remove one")
        else:
            tokens[match["name"]] = Token(match["name"], Role(match["role"]), match["digest"])
    return tokens, problems


def read_tokens(path: Path) -> tuple[dict[str, Token], list[str]]:
    """As `parse`. TokenFileError if there is no such file, or others could write tokens of their own into it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TokenFileError(
            f"{path}: cannot be read: {error.strerror}; `motorctl token add NAME --role operate --file FILE` makes it"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise TokenFileError(f"{path}: others than its owner may write it; chmod 600 {path}")
        if status.st_uid not in (0, os.geteuid()):
            raise TokenFileError(f"{path}: belongs to user id {status.st_uid}; chown it to root or to this user")
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise TokenFileError(f"{path}: is larger than {_LARGEST} bytes; remove tokens nobody uses")
    return parse(content.decode("utf-8", errors="replace"), str(path))


class TokenFile:
    """The tokens of one file, as it is now.

    A broken line counts for nothing and is called out; a file that cannot be read any more means no token at all:
    deleting it locks everyone out, which is what deleting it has to mean.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tokens: tuple[Token, ...] = ()
        self._stamp: object = None
        self._look(stamp(self.path))

    def find(self, presented: str) -> Token | None:
        """The token that was presented. Every entry is compared, each in constant time: how long it takes says
        nothing about which one was near."""
        now = stamp(self.path)
        if now != self._stamp:
            self._look(now)
        digest = digest_of(presented)
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _look(self, now: object) -> None:
        self._stamp = now
        try:
            tokens, problems = read_tokens(self.path)
        except TokenFileError as error:
            tokens, problems = {}, [f"{error}; until then no token is valid"]
        self._tokens = tuple(tokens.values())
        for problem in problems:
            log.error("%s", problem)
        log.info("%s: %d token(s)", self.path, len(self._tokens))
