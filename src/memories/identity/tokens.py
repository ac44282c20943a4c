"""Tokens of the server: who may ask it for what. The file holds only their hashes; `memory tokens`
writes it.
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

from memories.core.disk import locked, make_folder, read_file, replacing
from memories.core.times import parse_time, to_iso
from memories.core.trust import others_may_write, read_secret
from memories.errors import ConfigError, InvalidInput, NotFound
from memories.guard.validate import namespace as checked_namespace
from memories.guard.validate import one_line

PREFIX = "mem_"  # so that scanners, and our own redaction, know a token when they see one
ALL = "*"  # every namespace that has no grant of its own
LEVELS: Mapping[str, int] = {"r": 1, "rw": 2, "admin": 3}
_FILE, _OWN = "tokens.json", "server.token"
_MAX_TOKENS = 1_000


class Token(NamedTuple):
    """What is known of a token; the token itself is told once, when it is made.

    Attributes:
        namespaces: For each namespace, or `*` for all others, `r`, `rw` or `admin`.
    """

    id: str
    name: str
    hash: str
    namespaces: Mapping[str, str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None

    def expired(self, now: datetime) -> bool:
        """Return whether it is no longer valid."""
        return self.expires_at is not None and self.expires_at <= now


def digest(token: str) -> str:
    """Return the hash under which a token is kept; it is random, so no salt is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def parse_grants(given: Sequence[str]) -> dict[str, str]:
    """Return what is granted by texts such as `bob:rw`, `shared:r` or `*:admin`; a bare name may be
    read and written.

    Raises:
        InvalidInput: One is not of that form, or a namespace stands there twice.
    """
    grants: dict[str, str] = {}
    for text in given:
        name, separator, level = text.partition(":")
        level = level if separator else "rw"
        if level not in LEVELS:
            raise InvalidInput(
                f'"{text}" grants nothing that is known; write NAMESPACE:r, :rw or :admin'
            )
        name = name if name == ALL else checked_namespace(name)
        if name in grants:
            raise InvalidInput(f"namespace {name} is granted twice; name it once")
        grants[name] = level
    if not grants:
        raise InvalidInput("a token needs a namespace; add --allow NAMESPACE:rw")
    return grants


def create(
    home: Path, name: str, grants: Mapping[str, str], expires_at: datetime | None = None
) -> tuple[str, Token]:
    """Make a token; return it with what is kept of it.

    Args:
        home: The folder of the file.
        name: What it is called: what is written with it tells this name.
        grants: See `Token.namespaces`.
        expires_at: When it ends, if it does.

    Raises:
        InvalidInput: The name is not acceptable or in use, or the time is over.
    """
    now = datetime.now(UTC)
    name = one_line(name, "name")
    if expires_at is not None and expires_at <= now:
        raise InvalidInput(f"{to_iso(expires_at)} is over; give a time to come")
    secret = PREFIX + secrets.token_urlsafe(32)
    made = Token(secrets.token_hex(4), name, digest(secret), dict(grants), now, expires_at, None)
    with _changing(home) as known:
        if any(each.name == name for each in known):
            raise InvalidInput(
                f'there is a token "{name}"; revoke it first, or choose another name'
            )
        if len(known) >= _MAX_TOKENS:
            raise InvalidInput(f"there are {_MAX_TOKENS} tokens, the limit; revoke one")
        known.append(made)
    return secret, made


def revoke(home: Path, which: str) -> Token:
    """Remove the token with this id or name.

    Raises:
        NotFound: There is none.
    """
    with _changing(home) as known:
        found = next((each for each in known if which in (each.id, each.name)), None)
        if found is None:
            raise NotFound(f'there is no token "{which}"; memory tokens list shows them')
        known.remove(found)
    return found


def used(home: Path, when: Mapping[str, datetime]) -> None:
    """Note when tokens were last used, each by its id."""
    with _changing(home) as known:
        known[:] = [
            each._replace(last_used_at=when.get(each.id, each.last_used_at)) for each in known
        ]


def read(home: Path) -> list[Token]:
    """Return all tokens.

    Raises:
        ConfigError: The file can't be read, or others may write it.
    """
    file = home / _FILE
    try:
        if doubt := others_may_write(file):
            raise ConfigError(f"{file} {doubt}")
        rows = json.loads(read_file(file))["tokens"]
        return [_token(row) for row in rows]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"cannot read {file}: {exc}; remove it and make your tokens again"
        ) from exc


def stamp(home: Path) -> tuple[int, int, int]:
    """Return what changes with the file, so that a server that looks at it needs no restart."""
    try:
        found = (home / _FILE).stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def own_file(home: Path) -> Path:
    """Return where the token of the server's user is kept; see `own`."""
    return home / _OWN


def own(home: Path) -> str:
    """Return the token of the user who runs the server, which may do everything; it is made if it
    is not there.

    It is kept as it is, in a file that nobody else can read: the command and the page's link take
    it from there.

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


def found(known: Sequence[Token], token: str, now: datetime) -> Token | None:
    """Return which token somebody shows; None if it is unknown or has expired. It takes as long for
    any of them.
    """
    shown, match = digest(token), None
    for each in known:
        if hmac.compare_digest(each.hash, shown):
            match = each
    return None if match is None or match.expired(now) else match


def shape(token: Token) -> dict[str, Any]:
    """Return the JSON of a token, without its hash."""
    times = {name: getattr(token, name) for name in ("created_at", "expires_at", "last_used_at")}
    return {
        "id": token.id,
        "name": token.name,
        "namespaces": dict(token.namespaces),
        **{name: at and to_iso(at) for name, at in times.items()},
    }


@contextmanager
def _changing(home: Path) -> Iterator[list[Token]]:
    make_folder(home)
    with locked(home / f"{_FILE}.lock"):
        known = read(home)
        yield known
        with replacing(home / _FILE) as stream:
            rows = [shape(each) | {"hash": each.hash} for each in known]
            stream.write(json.dumps({"tokens": rows}, indent=1).encode())


def _token(row: Mapping[str, Any]) -> Token:
    now = datetime.now(UTC)
    times = [
        row[name] and parse_time(row[name], now)
        for name in ("created_at", "expires_at", "last_used_at")
    ]
    grants = {str(name): str(level) for name, level in row["namespaces"].items()}
    if not all(level in LEVELS for level in grants.values()):
        raise ValueError(f"token {row['id']} grants what is not known")
    return Token(str(row["id"]), str(row["name"]), str(row["hash"]), grants, *times)
