"""Stores keep records; `open_store` opens a store by its URL.

To add a store for a SQL database, create a folder with a `store.py`, and name its other files like
those of `postgres`. For a document server, write a driver for `documents`, as `chroma` does. Stores
don't import each other, except that `files` uses SQLite for its index. Code that two stores need
belongs in this folder.

Add the URL's scheme to `_STORES` and to the docstring of `open_store`. Change the code of
`open_store` only if the URL or the constructor is unusual. CONTRIBUTING.md lists the other places
to change.
"""

import functools
import importlib
import re
from collections.abc import Callable
from typing import cast

from memories.core.urls import local_path, without_password
from memories.errors import ConfigError
from memories.guard.validate import require_storable
from memories.settings import Config
from memories.stores.protocol import RefuseLost, Store, treat_as_new
from memories.stores.records import Space

__all__ = ["Store", "open_store"]

# The class for each scheme, imported when a store with that scheme is opened.
_STORES = {
    "sqlite": "sqlite.store.SQLiteStore",
    "files": "files.store.FilesStore",
    "postgresql": "postgres.store.PostgresStore",
    "postgres": "postgres.store.PostgresStore",
    "chroma": "chroma.ChromaStore",
    "qdrant": "qdrant.store.QdrantStore",
    "http": "http.HttpStore",
    "https": "http.HttpStore",
}


def open_store(
    url: str, space: Space | None, config: Config | None = None, *, is_new: bool = False
) -> Store:
    """Return the store at a URL; nothing is opened or written yet.

    Args:
        url: `sqlite:///path` or `files:///folder`, with three slashes before a relative path and
            four before an absolute one; `postgresql://…`; `chroma://host:port/collection`;
            `qdrant://host:port/collection` or `qdrant:///folder`; `http://host:port` or
            `https://host` for a Memories server.
        space: The space of the vectors to write and search; None in keyword-only mode.
        config: Settings that a URL doesn't contain, such as the home and the collection's name.
            Without settings, a missing store is treated as if `is_new` were set.
        is_new: Whether to treat a missing store as new even if a scratchpad mirrors it.

    Raises:
        InvalidInput: The URL is not valid Unicode.
        ConfigError: The URL is invalid, no store has this scheme, or a package is missing.
    """
    require_storable(url, f'the URL "{without_password(url)[:80]}"')
    scheme, separator, rest = url.partition("://")
    path = local_path(url)
    if scheme in ("sqlite", "files"):
        is_complete = bool(path)
    elif scheme in ("postgresql", "postgres"):
        is_complete = bool(separator)  # libpq takes the rest from variables such as PGHOST
    else:
        is_complete = bool(rest)
    if scheme not in _STORES or not is_complete:
        raise ConfigError(
            f'"{without_password(url)[:80]}" is not a store; use sqlite:///path, or a URL '
            f"with one of these schemes: {', '.join(_STORES)}"
        )
    if path is not None and re.search(r"\?\w+=", url):
        raise ConfigError(
            f'"{without_password(url)[:80]}" has options after "?"; the URL of a file takes none'
        )
    module, _, name = _STORES[scheme].rpartition(".")
    store_class = getattr(importlib.import_module(f"memories.stores.{module}"), name)
    refuse_lost: RefuseLost = treat_as_new
    if config is not None and not is_new:
        refuse_lost = functools.partial(_refuse_lost, config, url)
    if scheme == "sqlite":
        is_compact = config is not None and config.compact
        return cast("Store", store_class(path, space, compact=is_compact, refuse_lost=refuse_lost))
    if scheme == "files":
        return cast("Store", store_class(path, space, config, open_store, refuse_lost))
    if scheme in ("chroma", "qdrant"):
        collection = config.collection_name if config else None
        return cast("Store", store_class(url, space, collection, refuse_lost))
    if scheme in ("http", "https"):
        return cast("Store", store_class(url, space, config))
    return cast("Store", store_class(url, space, refuse_lost))


def _refuse_lost(config: Config, url: str, is_missing: Callable[[], bool]) -> None:
    if is_missing():  # usually false, so the module below is rarely loaded
        # Stores don't depend on scratchpads, so the module is loaded by name.
        scratchpads = importlib.import_module("memories.scratchpad.file")
        scratchpads.refuse_lost(config, url, is_missing)
