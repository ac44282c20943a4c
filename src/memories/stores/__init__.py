"""Stores keep records; `open_store` finds the right one for a URL."""

from pathlib import Path

from memories.config import Config, without_password
from memories.errors import ConfigError
from memories.stores.protocol import Store
from memories.stores.records import Space

__all__ = ["Store", "open_store"]


def open_store(url: str, space: Space | None, config: Config | None = None) -> Store:
    """Return the store of a URL; nothing is opened or written yet.

    Args:
        url: `sqlite:///path` or `files:///folder`, with three slashes before a relative path and four before an
            absolute one; `postgresql://…`; `chroma://host:port/collection`; `qdrant://host:port/collection` or
            `qdrant:///folder`.
        space: The space of the vectors that will be written and searched; None in keyword-only mode.
        config: Settings that a URL leaves open: the name of the collection, and when files move to which store.

    Raises:
        ConfigError: There is no store of that kind, the URL is not acceptable, or an extra is not installed.
    """
    kind, separator, rest = url.partition("://")
    path = Path(rest[1:]).expanduser().absolute() if rest.startswith("/") and len(rest) > 1 else None
    if kind == "sqlite" and path:
        from memories.stores.sqlite.store import SQLiteStore

        return SQLiteStore(path, space)
    if kind == "files" and path:
        from memories.stores.files.store import open_files

        return open_files(path, space, config)
    if kind in ("postgresql", "postgres") and separator:
        from memories.stores.postgres.store import PostgresStore

        return PostgresStore(url, space)
    if kind == "chroma" and rest:
        from memories.stores.chroma.store import ChromaStore

        return ChromaStore(url, space, config.collection_name if config else None)
    if kind == "qdrant" and rest:
        from memories.stores.qdrant.store import QdrantStore

        return QdrantStore(url, space, config.collection_name if config else None)
    raise ConfigError(
        f'"{without_password(url)[:80]}" is not a store; use sqlite:///path, postgresql://…, chroma://host:port, '
        "qdrant://host:port, or files:///folder"
    )
