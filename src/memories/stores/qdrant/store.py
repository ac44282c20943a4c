"""The Qdrant store: the server or folder that a URL names, and the store on it."""

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
    """Implements `Store` on a Qdrant server, or on a folder by the local mode of its client.

    - `qdrant://host:port/collection`: a server, by REST. A key stands in `QDRANT_API_KEY`, or in
      the URL as a password (`qdrant://:KEY@host`). With a key, https is used for any host but this
      machine; `?tls=1` and `?tls=0` (or `?ssl=true`, `?ssl=false`) override that.
    - `qdrant:///folder`: a folder that one process at a time can open; see `FolderTransport`.

    Tested: the contract in a folder, and over REST against the client's local mode as the server,
        which parses every
    request by the models of the API. It runs against a real server if `QDRANT_URL` names one to the
    tests.

    Both carry out the same requests; see `QdrantDriver` for what is stored where, and `RemoteStore`
    for what can't be guaranteed. Of two machines that write one position at once, the server takes
    the first: points are inserted with
    `update_mode: insert_only`, and read back.
    """

    def __init__(self, url: str, space: Space | None, collection_name: str | None = None) -> None:
        """Prepare; nothing is opened yet.

        Args:
            url: See above; the folder has three slashes before a relative path and four before an
                absolute one.
            space: The space of the vectors to write and search; None in keyword-only mode.
            collection_name: The collection if the URL names none.

        Raises:
            ConfigError: The URL is not valid.
        """
        transport, named = _transport(url)
        super().__init__(
            QdrantDriver(transport, named or collection_name or _DEFAULT_COLLECTION), space
        )


def _transport(url: str) -> tuple[Transport, str]:
    """Return the transport for a URL, and the collection that the URL names, if any."""
    rest = url.partition("://")[2]
    if rest.startswith("/"):
        if len(rest) == 1:
            raise ConfigError(
                "qdrant:/// names no folder; use qdrant:///folder or qdrant://host:port"
            )
        from memories.stores.qdrant.folder import FolderTransport

        return FolderTransport(Path(rest[1:]).expanduser().absolute()), ""
    from memories.stores.documents.client import check_key, parse_tls
    from memories.stores.qdrant.rest import RestTransport

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError as exc:
        raise ConfigError(
            "the address of the Qdrant store is not acceptable; use qdrant://host:port/collection"
        ) from exc
    collection = unquote(parts.path.strip("/"))
    if not host or (collection and not collection.replace("-", "").replace("_", "").isalnum()):
        raise ConfigError(
            "the address of the Qdrant store is not acceptable; use qdrant://host:port/collection"
        )
    given = unquote(parts.password or "") or os.environ.get("QDRANT_API_KEY", "").strip()
    key, tls = check_key(given, "Qdrant", "QDRANT_API_KEY"), parse_tls(parts.query, "Qdrant")
    if tls is None:
        tls = bool(key) and not is_loopback(host)
    return RestTransport(host, port, key=key, tls=tls), collection
