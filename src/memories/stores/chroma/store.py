"""The store on a Chroma server."""

from urllib.parse import unquote, urlsplit

from memories.core.http import Address
from memories.core.urls import without_password
from memories.errors import ConfigError
from memories.stores.chroma.driver import ChromaDriver
from memories.stores.documents.client import check_key, parse_tls
from memories.stores.documents.store import RemoteStore
from memories.stores.records import Space

_PORT = 8000
_COLLECTION = "memories"


class ChromaStore(RemoteStore):
    """Implements `Store` on a Chroma server, version 1.0 or newer; see `RemoteStore` for what it
    can't guarantee.
    """

    def __init__(self, url: str, space: Space | None, collection_name: str | None = None) -> None:
        """Prepare; no request is sent yet.

        Args:
            url: `chroma://host:port`, followed by `/collection` if it is not the one of the
                settings. A key for a proxy stands before the host, `chroma://:KEY@host:port`, and
                is sent as a bearer token; `?tls=1` or `?ssl=true` turns TLS on.
            space: The space of the vectors to write and search; None in keyword-only mode.
            collection_name: The collection if the URL names none.

        Raises:
            ConfigError: The URL is not valid.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or _PORT
        except ValueError as exc:
            raise ConfigError(
                f'"{without_password(url)[:80]}" is not a Chroma URL; use chroma://host:port'
            ) from exc
        name = parts.path.strip("/") or collection_name or _COLLECTION
        bare = name.replace("-", "").replace("_", "").replace(".", "")
        if not parts.hostname or not (
            3 <= len(name) <= 100 and bare.isascii() and bare.isalnum() and name[0].isalnum()
        ):
            raise ConfigError(
                f'"{without_password(url)[:80]}" is not a Chroma URL; use chroma://host:port or '
                "chroma://host:port/collection, a name of 3 to 100 letters, digits, - and _"
            )
        key = check_key(
            unquote(parts.password or ""), "ChromaDB", "what stands before the @ of the URL"
        )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        tls = parse_tls(parts.query, "Chroma") or False
        address = Address("ChromaDB", parts.hostname, port, tls, headers, "Is Docker running?")
        super().__init__(ChromaDriver(address, name), space)
