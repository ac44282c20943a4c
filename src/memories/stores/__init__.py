"""Stores keep records; `open_store` finds the right one for a URL.

To add a store, write a package with the files of the others and add its scheme to the table.
"""

import importlib
from typing import cast

from memories.core.urls import local_path, without_password
from memories.errors import ConfigError
from memories.settings import Config
from memories.stores.protocol import Store
from memories.stores.records import Space

__all__ = ["Store", "local_path", "open_store"]

# What opens the store of each scheme: a class or function, imported only when it is asked for.
_STORES = {
    "sqlite": "sqlite.store.SQLiteStore",
    "files": "files.store.FilesStore",
    "postgresql": "postgres.store.PostgresStore",
    "postgres": "postgres.store.PostgresStore",
    "chroma": "chroma.store.ChromaStore",
    "qdrant": "qdrant.store.QdrantStore",
    "http": "http.store.HttpStore",
    "https": "http.store.HttpStore",
}


def open_store(url: str, space: Space | None, config: Config | None = None) -> Store:
    """Return the store at a URL; nothing is opened or written yet.

    Args:
        url: `sqlite:///path` or `files:///folder`, with three slashes before a relative path and
            four before an absolute one; `postgresql://…`; `chroma://host:port/collection`;
            `qdrant://host:port/collection` or `qdrant:///folder`; `http://host:port` or
            `https://host` of a server.
        space: The space of the vectors to write and search; None in keyword-only mode.
        config: Settings that a URL leaves open: the name of the collection, when files move to
            which store, and whether vectors are compact.

    Raises:
        ConfigError: There is no store of that kind, the URL is not valid, or a package is not
            installed.
    """
    scheme, separator, rest = url.partition("://")
    path = local_path(url)
    complete = {
        "sqlite": path,
        "files": path,
        "chroma": rest,
        "qdrant": rest,
        "http": rest,
        "https": rest,
    }.get(scheme, separator)
    if scheme not in _STORES or not complete:
        raise ConfigError(
            f'"{without_password(url)[:80]}" is not a store; use sqlite:///path, postgresql://…, chroma://host:port, '
            "qdrant://host:port, files:///folder, or http://host:port of a server"
        )
    module, _, name = _STORES[scheme].rpartition(".")
    found = getattr(importlib.import_module(f"memories.stores.{module}"), name)
    if scheme == "files":
        return cast("Store", found(path, space, config, open_store))
    if scheme in ("chroma", "qdrant"):
        return cast("Store", found(url, space, config.collection_name if config else None))
    if scheme in ("http", "https"):
        return cast("Store", found(url, space, config))
    if scheme == "sqlite":
        return cast("Store", found(path, space, compact=config is not None and config.compact))
    return cast("Store", found(url, space))
