"""Requests to a Qdrant server over its REST API."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from memories.core.http import Address, Answer
from memories.errors import StoreBusy, StoreError
from memories.stores.documents.client import StoreClient
from memories.stores.qdrant.driver import Body, NoCollection, Verb

_DONE = "wait=true&ordering=strong"  # flushed to the log and applied, by the shard's leader
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
    """Implements `Transport` over HTTP; connects when needed."""

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
            return True  # another client was faster
        if answer.status == 404 and reason.startswith("Not found: Collection"):
            if verb is Verb.REMOVE:
                return False
            raise NoCollection(f"{self.url} has no collection {collection}")
        raise self._refusal(verb, answer, reason)

    def close(self) -> None:
        """See `Transport.close`."""
        self._client.close()

    def _result(self, verb: Verb, answer: Answer) -> Any:
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
                f"{self._client.address} did not finish a write in time; check whether it is stored"
            )
        return result

    def _refusal(self, verb: Verb, answer: Answer, reason: str) -> StoreError:
        name = self._client.address
        if answer.status in (401, 403):
            problem = "refused the key" if self._has_key else "wants a key"
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
            f"the server that answers as {self._client.address} is not Qdrant; check the address"
        )

    def _reason(self, answer: Answer) -> str:
        """Return the reason for a refusal; empty if it isn't in Qdrant's format."""
        try:
            reason = answer.value["status"]["error"]
        except (LookupError, TypeError):
            return ""
        return self._client.address.quoted(reason) if isinstance(reason, str) else ""
