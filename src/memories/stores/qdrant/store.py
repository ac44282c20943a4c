"""The Qdrant store, on the server or folder that a URL names."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from memories.core.urls import is_loopback
from memories.errors import ConfigError
from memories.stores.documents.store import RemoteStore
from memories.stores.qdrant.driver import QdrantDriver, Transport
from memories.stores.records import Space

DEFAULT_PORT = 6333
_DEFAULT_COLLECTION = "memories"


class QdrantStore(RemoteStore):
    """Implements `Store` on a Qdrant server, or on a folder through its client's local mode.

    - `qdrant://host:port/collection`: a server, over REST. The key is in `QDRANT_API_KEY`, or in
      the URL as a password (`qdrant://:KEY@host`). With a key, https is used for any host except
      this machine; `?tls=1` and `?tls=0` (or `?ssl=true`, `?ssl=false`) override that.
    - `qdrant:///folder`: a folder that one process at a time can open; see `FolderTransport`.

    Both handle the same requests; see `QdrantDriver` for the collections, and `RemoteStore` for the
    missing guarantees. If two machines write the same position at the same time, the server accepts
    the
    first: points are inserted with `update_mode: insert_only`, and read back.

    The contract is tested in a folder, and over REST with a server that validates each request
    against the API's models and runs it in the client's local mode. With `QDRANT_URL`, the tests
    use a real server.
    """

    def __init__(self, url: str, space: Space | None, collection_name: str | None = None) -> None:
        """Initialize; nothing is opened yet.

        Args:
            url: See above; three slashes precede a relative path, four an absolute path.
            space: The space of the vectors to write and search; None in keyword-only mode.
            collection_name: The collection if the URL names none.

        Raises:
            ConfigError: The URL is invalid.
        """
        transport, collection = _open_transport(url)
        name = collection or collection_name or _DEFAULT_COLLECTION
        super().__init__(QdrantDriver(transport, name), space)


def _open_transport(url: str) -> tuple[Transport, str]:
    """Return the transport for a URL, and the collection that the URL names, if any."""
    location = url.partition("://")[2]
    if location.startswith("/"):
        if len(location) == 1:
            raise ConfigError(
                "qdrant:/// names no folder; use qdrant:///folder or qdrant://host:port"
            )
        from memories.stores.qdrant.folder import FolderTransport

        return FolderTransport(Path(location[1:]).expanduser().absolute()), ""
    return _open_server(url)


def _open_server(url: str) -> tuple[Transport, str]:
    from memories.stores.documents.client import check_key, parse_tls
    from memories.stores.qdrant.rest import RestTransport

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError as exc:
        raise ConfigError(
            "the address of the Qdrant store is invalid; use qdrant://host:port/collection"
        ) from exc
    collection = unquote(parts.path.strip("/"))
    if not host or (collection and not collection.replace("-", "").replace("_", "").isalnum()):
        raise ConfigError(
            "the address of the Qdrant store is invalid; use qdrant://host:port/collection"
        )
    key = unquote(parts.password or "") or os.environ.get("QDRANT_API_KEY", "").strip()
    check_key(key, "Qdrant", "QDRANT_API_KEY")
    tls = parse_tls(parts.query, "Qdrant")
    if tls is None:
        tls = bool(key) and not is_loopback(host)
    return RestTransport(host, port, key=key, tls=tls), collection
