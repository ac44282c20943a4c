"""The URL of a PostgreSQL store: libpq's options, and two of ours."""

import re
from typing import NamedTuple
from urllib.parse import unquote

from memories.core.urls import without_password
from memories.errors import ConfigError

MAX_PARTITIONS = 64
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCHEME = re.compile(r"postgres(?:ql)?://")
_OUR_OPTIONS = ("schema", "partitions")
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
        masked_url: The URL without its password.
        password: The password in the URL, if any.
        schema: The schema that contains the tables.
        partitions: How many partitions a new store gets; None if the URL does not specify it.
    """

    full: str
    masked_url: str
    password: str
    schema: str
    partitions: int | None


def parse_url(url: str) -> StoreURL:
    """Take our own options out of a URL, and add defaults for libpq, which parses the rest.

    Raises:
        ConfigError: The URL is invalid.
    """
    masked_url = without_password(url)
    scheme = _SCHEME.match(url)
    user, location, query = _split(url[scheme.end() :] if scheme else "")
    if scheme is None or location.count("[") != location.count("]"):
        raise ConfigError(
            "the URL of the PostgreSQL store is invalid; write postgresql://user@host/database"
        )
    options: dict[str, str] = {}
    libpq_pairs: list[str] = []
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        options[unquote(name)] = unquote(value)
        if pair and unquote(name) not in _OUR_OPTIONS:
            libpq_pairs.append(pair)
    schema = options.get("schema", "memories")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise ConfigError(
            f'schema "{schema[:80]}" in {masked_url} must consist of lower-case letters, '
            "digits and _"
        )
    for name, value in _DEFAULTS.items():
        if name not in options:
            libpq_pairs.append(f"{name}={value}")
    if any("password" in name for name in options):
        masked_url = masked_url.partition("?")[0]
    partitions = None
    if "partitions" in options:
        partitions = parse_partitions(options["partitions"], f"in {masked_url} ")
    password = options.get("password") or unquote(user.removesuffix("@").partition(":")[2])
    full = f"{scheme[0]}{user}{location}?{'&'.join(libpq_pairs)}"
    return StoreURL(full, masked_url, password, schema, partitions)


def parse_partitions(number: str | int, source: str = "") -> int:
    """Check a number of partitions, and return it.

    Args:
        number: The number, possibly as text.
        source: Where the number was set, for the message.

    Raises:
        ConfigError: The value isn't a number from 1 to 64.
    """
    text = str(number)
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MAX_PARTITIONS:
        raise ConfigError(
            f"partitions={text[:20]} {source}must be a number from 1 to {MAX_PARTITIONS}"
        )
    return int(text)


def _split(url: str) -> tuple[str, str, str]:
    """Split the part of a URL after the scheme into user, location and options, as libpq does.

    The user is everything up to an @ that precedes any slash, including the @.
    """
    user, at, _ = url.partition("/")[0].partition("@")
    user = f"{user}@" if at else ""
    location, _, query = url[len(user) :].partition("?")
    return user, location, query
