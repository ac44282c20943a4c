"""Stores keep records; `open_store` finds the right one for a URL."""

from pathlib import Path

from memories.config import without_password
from memories.embedders.base import Space
from memories.errors import ConfigError
from memories.stores.base import Store

__all__ = ["Store", "open_store"]

_PLANNED = ("postgresql", "qdrant", "chroma", "files", "http", "https")


def open_store(url: str, space: Space | None) -> Store:
    """Return the store of a URL; nothing is opened or written yet.

    Args:
        url: `sqlite:///path`; three slashes before a relative path, four before an absolute one.
        space: The space of the vectors that will be written and searched; None in keyword-only mode.

    Raises:
        ConfigError: There is no store of that kind.
    """
    kind, separator, rest = url.partition("://")
    if kind == "sqlite" and separator and rest.startswith("/") and len(rest) > 1:
        from memories.stores.sqlite import SQLiteStore

        return SQLiteStore(Path(rest[1:]).expanduser().absolute(), space)
    if kind in _PLANNED:
        raise ConfigError(f"{kind} stores are not in this release; use sqlite:///path, or leave the store unset")
    raise ConfigError(f'"{without_password(url)[:80]}" is not a store; use sqlite:///path')
