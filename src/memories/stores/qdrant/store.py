"""The Qdrant store, its URL, and the transport for a server's REST API."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from memories.core.http import Address, ServerResponse
from memories.core.urls import is_loopback
from memories.errors import ConfigError, StoreBusy, StoreError
from memories.stores.documents.driver import StoreClient, check_key, parse_tls
from memories.stores.documents.store import DocumentStore
from memories.stores.protocol import RefuseLost, treat_as_new
from memories.stores.qdrant.driver import Body, NoCollection, QdrantDriver, Transport, Verb
from memories.stores.records import Space

DEFAULT_PORT = 6333
_DEFAULT_COLLECTION = "memories"


class QdrantStore(DocumentStore):
    """Implements `Store` on a Qdrant server, or on a folder through its client's local mode.

    - `qdrant://host:port/collection`: a server, over REST. The key is in `QDRANT_API_KEY`, or in
      the URL as a password (`qdrant://:KEY@host`). With a key, https is used for any host except
      this machine; `?tls=1` and `?tls=0` (or `?ssl=true`, `?ssl=false`) override that.
    - `qdrant:///folder`: a folder that one process at a time can open; see `FolderTransport`.

    Both handle the same requests. See `QdrantDriver` for the collections, and `DocumentStore` for
    the limits. If two machines write the same position at the same time, the server accepts only
    the first write: points are inserted with `update_mode: insert_only`, and read back.

    The tests use a folder, and a REST server that validates each request against the API's models
    and runs it in the client's local mode. If `QDRANT_URL` is set, they use that server instead.
    """

    def __init__(
        self,
        url: str,
        space: Space | None,
        collection_name: str | None = None,
        refuse_lost: RefuseLost = treat_as_new,
    ) -> None:
        """Initialize; nothing is opened yet.

        Args:
            url: See the class; three slashes precede a relative path, four an absolute path.
            space: The space of the vectors to write and search; None in keyword-only mode.
            collection_name: The collection to use if the URL doesn't name one.
            refuse_lost: Called before a server or folder without the store is treated as new.

        Raises:
            ConfigError: The URL is invalid.
        """
        transport, collection = _open_transport(url)
        name = collection or collection_name or _DEFAULT_COLLECTION
        super().__init__(QdrantDriver(transport, name), space, refuse_lost)


def _open_transport(url: str) -> tuple[Transport, str]:
    """Return the transport for a URL, and the collection that the URL names, if any."""
    location = url.partition("://")[2]
    if location.startswith("/"):
        if len(location) == 1:
            raise ConfigError(
                "qdrant:/// does not name a folder; use qdrant:///folder or qdrant://host:port"
            )
        from memories.stores.qdrant.folder import FolderTransport

        return FolderTransport(Path(location[1:]).expanduser().absolute()), ""
    return _open_server(url)


def _open_server(url: str) -> tuple[Transport, str]:
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


# --- a server

# The server responds only after the shard's leader has flushed and applied the write.
_DONE = "wait=true&ordering=strong"
_ROUTES: Mapping[Verb, tuple[str, str]] = {
    Verb.VERSION: ("GET", "/"),
    Verb.COLLECTIONS: ("GET", "/collections"),
    Verb.INFO: ("GET", "/collections/{}"),
    Verb.CREATE: ("PUT", "/collections/{}"),
    Verb.REMOVE: ("DELETE", "/collections/{}"),
    Verb.INDEX: ("PUT", f"/collections/{{}}/index?{_DONE}"),
    Verb.UPSERT: ("PUT", f"/collections/{{}}/points?{_DONE}"),
    Verb.SET_PAYLOAD: ("POST", f"/collections/{{}}/points/payload?{_DONE}"),
    Verb.DELETE: ("POST", f"/collections/{{}}/points/delete?{_DONE}"),
    Verb.GET: ("POST", "/collections/{}/points"),
    Verb.SCROLL: ("POST", "/collections/{}/points/scroll"),
    Verb.COUNT: ("POST", "/collections/{}/points/count"),
    Verb.QUERY: ("POST", "/collections/{}/points/query"),
    Verb.FACET: ("POST", "/collections/{}/facet"),
}
_WRITING_POINTS = (Verb.UPSERT, Verb.SET_PAYLOAD, Verb.DELETE, Verb.INDEX)
_WRITING = (*_WRITING_POINTS, Verb.CREATE, Verb.REMOVE)


class RestTransport:
    """Implements `Transport` over HTTP; it connects when needed."""

    def __init__(self, host: str, port: int, *, key: str = "", tls: bool = False) -> None:
        """Initialize; no request is sent yet.

        Args:
            host: The name or IP address of the server.
            port: Its REST port.
            key: The API key; empty for none.
            tls: Whether to use https.
        """
        headers = {"api-key": key} if key else {}
        address = Address("Qdrant", host, port, tls, headers, "Is it running?")
        self._client = StoreClient(address)
        self._has_key = bool(key)
        self.url = f"qdrant://{address.url_host}:{port}"
        self.remains = (f"the segments of {address}, until its optimizer has rewritten them",)

    def ask(self, verb: Verb, collection: str = "", body: Body | None = None) -> Any:
        """See `Transport.ask`."""
        method, route = _ROUTES[verb]
        answer = self._client.ask(
            method, route.format(quote(collection, safe="~")), body, writes=verb in _WRITING
        )
        if answer.status == 200:
            return self._result(verb, answer)
        reason = self._reason(answer)
        if verb is Verb.CREATE and "already exists" in reason:
            return True  # another client has created it
        if answer.status == 404 and reason.startswith("Not found: Collection"):
            if verb is Verb.REMOVE:
                return False
            raise NoCollection(f"{self.url} has no collection {collection}")
        raise self._refusal(verb, answer, reason)

    def close(self) -> None:
        """See `Transport.close`."""
        self._client.close()

    def _result(self, verb: Verb, answer: ServerResponse) -> Any:
        try:
            if verb is Verb.VERSION:
                if "qdrant" not in answer.value["title"].lower():
                    raise KeyError("title")
                return answer.value
            result = answer.value["result"]
            status = result["status"] if verb in _WRITING_POINTS else "completed"
        except (LookupError, TypeError, AttributeError) as exc:
            raise self._not_qdrant() from exc
        if status != "completed":
            raise StoreBusy(
                f"{self._client.address} did not finish a write in time; check whether the write "
                "was stored"
            )
        return result

    def _refusal(self, verb: Verb, answer: ServerResponse, reason: str) -> StoreError:
        name = self._client.address
        if answer.status in (401, 403):
            problem = "refused the key" if self._has_key else "requires a key"
            return StoreError(f"{name} {problem} (status {answer.status}); set QDRANT_API_KEY")
        if self._client.is_temporary(answer):
            return self._client.temporary_error(answer, reason or "no reason given")
        if not reason:
            return self._not_qdrant()
        return StoreError(
            f"{name} refused a request ({verb}) with status {answer.status}: {reason}"
        )

    def _not_qdrant(self) -> StoreError:
        return StoreError(
            f"the server at {self._client.address.url} is not Qdrant; check the address"
        )

    def _reason(self, answer: ServerResponse) -> str:
        try:
            reason = answer.value["status"]["error"]
        except (LookupError, TypeError):
            return ""
        return self._client.address.quoted(reason) if isinstance(reason, str) else ""
