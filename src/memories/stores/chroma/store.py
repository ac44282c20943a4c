"""The store on a Chroma server."""

import re
from urllib.parse import unquote, urlsplit

from memories.core.http import Address
from memories.core.urls import without_password
from memories.errors import ConfigError
from memories.stores.chroma.driver import ChromaDriver
from memories.stores.documents.client import check_key, parse_tls
from memories.stores.documents.store import RemoteStore
from memories.stores.records import Space

_PORT = 8000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,99}")
_COLLECTION = "memories"


class ChromaStore(RemoteStore):
    """Implements `Store` on a Chroma server, 1.0 or newer; see `RemoteStore` for its limits."""

    def __init__(self, url: str, space: Space | None, collection_name: str | None = None) -> None:
        """Initialize; no request is sent yet.

        Args:
            url: `chroma://host:port`, and `/collection` unless the settings name it. A key for a
                proxy, which is sent as a bearer token, precedes the host: `chroma://:KEY@host:port`.
                `?tls=1` or `?ssl=true` turns TLS on.
            space: The space of the vectors to write and search; None in keyword-only mode.
            collection_name: The collection if the URL names none.

        Raises:
            ConfigError: The URL is invalid.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or _PORT
        except ValueError as exc:
            raise ConfigError(
                f'"{without_password(url)[:80]}" is not a Chroma URL; use chroma://host:port'
            ) from exc
        name = parts.path.strip("/") or collection_name or _COLLECTION
        if not parts.hostname or not _NAME.fullmatch(name):
            raise ConfigError(
                f'"{without_password(url)[:80]}" is not a Chroma URL; use chroma://host:port or '
                "chroma://host:port/collection, a name of 3 to 100 letters, digits, - and _"
            )
        key = check_key(
            unquote(parts.password or ""), "ChromaDB", "the part of the URL before the @"
        )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        tls = parse_tls(parts.query, "Chroma") or False
        address = Address("ChromaDB", parts.hostname, port, tls, headers, "Is Docker running?")
        super().__init__(ChromaDriver(address, name), space)
