"""Server tokens, which determine who may read or write which namespaces.

The file of tokens is managed with `memory tokens`. It contains only hashes of the tokens.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import locked, make_folder, others_may_write, read_file, replacing
from memories.core.times import parse_time, to_iso
from memories.core.trust import read_secret
from memories.errors import ConfigError, InvalidInput, NotFound
from memories.guard.validate import namespace as checked_namespace
from memories.guard.validate import one_line

PREFIX = "mem_"  # the prefix by which secret scanners and our own redaction recognize a token
ALL = "*"  # stands for every namespace that has no grant of its own
LEVELS: Mapping[str, int] = {"r": 1, "rw": 2, "admin": 3}
_FILE, _OWN = "tokens.json", "server.token"
_MAX_TOKENS = 1_000
_TIMES = ("created_at", "expires_at", "last_used_at")


class Token(NamedTuple):
    """A stored token. The secret itself is shown only once, when the token is created.

    Attributes:
        namespaces: The grant for each namespace: `r`, `rw` or `admin`. The key `*` stands for all
            other namespaces.
    """

    id: str
    name: str
    hash: str
    namespaces: Mapping[str, str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None

    def is_expired(self, now: datetime) -> bool:
        """Return whether the token has expired."""
        return self.expires_at is not None and self.expires_at <= now


def digest(token: str) -> str:
    """Return the hash under which a token is stored. Tokens are random, so no salt is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def parse_grants(texts: Sequence[str]) -> dict[str, str]:
    """Parse grants such as `bob:rw`, `shared:r` or `*:admin`; a bare name means `rw`.

    Raises:
        InvalidInput: A grant is malformed, or there are two grants for a namespace.
    """
    grants: dict[str, str] = {}
    for text in texts:
        name, separator, level = text.partition(":")
        level = level if separator else "rw"
        if level not in LEVELS:
            raise InvalidInput(f'"{text}" is not a grant; write NAMESPACE:r, :rw or :admin')
        name = name if name == ALL else checked_namespace(name)
        if name in grants:
            raise InvalidInput(f"namespace {name} is granted twice; grant it once")
        grants[name] = level
    if not grants:
        raise InvalidInput("a token needs a namespace; add --allow NAMESPACE:rw")
    return grants


def create(
    home: Path, name: str, grants: Mapping[str, str], expires_at: datetime | None = None
) -> tuple[str, Token]:
    """Create a token; return the secret and the stored token.

    Args:
        home: The file's folder.
        name: The token's name, which appears in the origin of writes made with it.
        grants: See `Token.namespaces`.
        expires_at: When the token expires; None for never.

    Raises:
        InvalidInput: The name is invalid or in use, or the time is in the past.
    """
    now = datetime.now(UTC)
    name = one_line(name, "name")
    if expires_at is not None and expires_at <= now:
        raise InvalidInput(f"{to_iso(expires_at)} is in the past; give a time in the future")
    secret = PREFIX + secrets.token_urlsafe(32)
    token = Token(secrets.token_hex(4), name, digest(secret), dict(grants), now, expires_at, None)
    with _change(home) as tokens:
        if any(other.name == name for other in tokens):
            raise InvalidInput(
                f'there is already a token "{name}"; revoke it first, or choose another name'
            )
        if len(tokens) >= _MAX_TOKENS:
            raise InvalidInput(
                f"there are already {_MAX_TOKENS} tokens, which is the limit; revoke one"
            )
        tokens.append(token)
    return secret, token


def revoke(home: Path, id_or_name: str) -> Token:
    """Remove the token with this id or name.

    Raises:
        NotFound: There is no such token.
    """
    with _change(home) as tokens:
        for token in tokens:
            if id_or_name in (token.id, token.name):
                tokens.remove(token)
                return token
        raise NotFound(f'there is no token "{id_or_name}"; to list all, run memory tokens list')


def record_use(home: Path, used_at: Mapping[str, datetime]) -> None:
    """Record when tokens were last used; `used_at` maps token ids to these times."""
    with _change(home) as tokens:
        tokens[:] = [
            token._replace(last_used_at=used_at.get(token.id, token.last_used_at))
            for token in tokens
        ]


def read(home: Path) -> list[Token]:
    """Return all tokens.

    Raises:
        ConfigError: The file can't be read, or other users may write to it.
    """
    file = home / _FILE
    try:
        if doubt := others_may_write(file):
            raise ConfigError(f"{file} {doubt}")
        rows = json.loads(read_file(file))["tokens"]
        return list(map(_parse, rows))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"cannot read {file}: {exc}; remove it and create your tokens again"
        ) from exc


def stamp(home: Path) -> tuple[int, int, int]:
    """Return a value that changes with the file, so that a running server can notice changes."""
    try:
        status = (home / _FILE).stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def own_file(home: Path) -> Path:
    """Return the path of the file that contains the token of the server's user; see `own`."""
    return home / _OWN


def own(home: Path) -> str:
    """Return the token of the user who runs the server; it allows everything.

    The token is created if it doesn't exist. It is kept in plain text, in a file that only the user
    can read, because the command and links to the web page need it.

    Raises:
        ConfigError: The file is empty, or others may read or write it.
    """
    file = own_file(home)
    make_folder(home)
    with locked(home / f"{_FILE}.lock"):
        if not file.exists():
            with replacing(file) as stream:
                stream.write(f"{PREFIX}{secrets.token_urlsafe(32)}\n".encode())
    return read_secret(file)


def match(tokens: Sequence[Token], secret: str, now: datetime) -> Token | None:
    """Return the token that has this secret; None if there is none, or if it has expired.

    The secret is compared in constant time.
    """
    shown = digest(secret)
    matching = None
    for token in tokens:
        if hmac.compare_digest(token.hash, shown):
            matching = token
    return None if matching is None or matching.is_expired(now) else matching


def shape(token: Token) -> dict[str, Any]:
    """Return a token as a JSON object, without its hash."""
    fields: dict[str, Any] = {
        "id": token.id,
        "name": token.name,
        "namespaces": dict(token.namespaces),
    }
    for name in _TIMES:
        moment = getattr(token, name)
        fields[name] = None if moment is None else to_iso(moment)
    return fields


@contextmanager
def _change(home: Path) -> Iterator[list[Token]]:
    """Lock the file, yield its tokens to the block, and write them back."""
    make_folder(home)
    with locked(home / f"{_FILE}.lock"):
        tokens = read(home)
        yield tokens
        rows = [{**shape(token), "hash": token.hash} for token in tokens]
        with replacing(home / _FILE) as stream:
            stream.write(json.dumps({"tokens": rows}, indent=1).encode())


def _parse(row: Mapping[str, Any]) -> Token:
    times = [row[name] and parse_time(row[name]) for name in _TIMES]
    grants = {str(name): str(level) for name, level in row["namespaces"].items()}
    if not all(level in LEVELS for level in grants.values()):
        raise ValueError(f"token {row['id']} has an unknown level")
    return Token(str(row["id"]), str(row["name"]), str(row["hash"]), grants, *times)
