"""The URL of the PostgreSQL store: every form that libpq takes, with two options of our own."""

import re
from typing import NamedTuple
from urllib.parse import unquote

from memories.core.urls import without_password
from memories.errors import ConfigError

MAX_PARTITIONS = 64
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCHEME = re.compile(r"postgres(?:ql)?://")
_OURS = ("schema", "partitions")
_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "memories",
    "keepalives_idle": "30",
    "tcp_user_timeout": "60000",
}


class StoreURL(NamedTuple):
    """The parts of a store's URL.

    Attributes:
        full: The URL for libpq.
        shown: The URL without its password.
        password: The password in it, if it has one.
        schema: The schema that holds the tables.
        partitions: How many partitions a new store gets; None if the URL does not say.
    """

    full: str
    shown: str
    password: str
    schema: str
    partitions: int | None


def parse_url(url: str) -> StoreURL:
    """Take our own options out of a URL and add defaults; the rest is left to libpq as it stands.

    Raises:
        ConfigError: It is not valid.
    """
    shown = without_password(url)
    scheme = _SCHEME.match(url)
    user, place, query = _parts(url[scheme.end() :] if scheme else "")
    if scheme is None or place.count("[") != place.count("]"):
        raise ConfigError("the URL of the PostgreSQL store is not one; write postgresql://user@host/database")
    options = [(unquote(pair.partition("=")[0]), pair) for pair in query.split("&") if pair]
    given = {name: unquote(pair.partition("=")[2]) for name, pair in options}
    schema, partitions = given.get("schema", "memories"), given.get("partitions")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise ConfigError(f'schema "{schema[:80]}" in {shown} must consist of lower-case letters, digits and _')
    pairs = [pair for name, pair in options if name not in _OURS]
    pairs += [f"{name}={value}" for name, value in _DEFAULTS.items() if name not in given]
    if any("password" in name for name in given):
        shown = shown.partition("?")[0]
    return StoreURL(
        full=f"{scheme[0]}{user}{place}?{'&'.join(pairs)}",
        shown=shown,
        password=given.get("password") or unquote(user.removesuffix("@").partition(":")[2]),
        schema=schema,
        partitions=None if partitions is None else checked_partitions(partitions, f"in {shown} "),
    )


def checked_partitions(number: str | int, where: str = "") -> int:
    """Return a number of partitions.

    Args:
        number: As it was given.
        where: Where it was, for the message.

    Raises:
        ConfigError: It is none from 1 to 64.
    """
    text = str(number)
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MAX_PARTITIONS:
        raise ConfigError(f"partitions={text[:20]} {where}must be a number from 1 to {MAX_PARTITIONS}")
    return int(text)


def _parts(rest: str) -> tuple[str, str, str]:
    """Return user and password with their @, hosts and database, and the options, as libpq divides them."""
    at = next((number for number, sign in enumerate(rest) if sign in "@/"), len(rest))
    user = rest[: at + 1] if rest[at : at + 1] == "@" else ""
    place, _, query = rest[len(user) :].partition("?")
    return user, place, query
