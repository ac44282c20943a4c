"""Requests about one collection, carried out on the local mode of Qdrant's client, with an index over payloads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memories.stores.qdrant.driver import NAME, RECORD_INDEXES, VECTOR_INDEXES, Body, Verb
from memories.stores.qdrant.index import PayloadIndex

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

_FEW = 1_000  # up to this many matching points are compared one by one
_SURPLUS = 4  # this many times more is searched each time that too few of the nearest match
_DONE = {"status": "completed"}


class LocalCollection:
    """A collection of local mode, which keeps points and vectors; filters are evaluated here.

    Local mode itself checks a filter on each point, which takes 120 ms for ten thousand of them.
    """

    def __init__(self, client: "QdrantClient", name: str) -> None:
        """Read which points there are.

        Args:
            client: The only one that writes to the collection.
            name: Of the collection.
        """
        self._client = client
        self._name = name
        self._fields = list(VECTOR_INDEXES if client.get_collection(name).config.params.vectors else RECORD_INDEXES)
        self._index = PayloadIndex(self._fields, NAME)
        self._doing: Mapping[Verb, Callable[[Body], Any]] = {
            Verb.INFO: lambda _: client.get_collection(name).model_dump(mode="json"),
            Verb.INDEX: lambda _: _DONE,  # all that the driver needs are always there
            Verb.UPSERT: self._upsert,
            Verb.SET_PAYLOAD: self._set_payload,
            Verb.DELETE: self._delete,
            Verb.GET: lambda body: self._entries(body["ids"], body),
            Verb.SCROLL: self._scroll,
            Verb.COUNT: lambda body: {"count": len(self._index.find(body.get("filter")))},
            Verb.QUERY: self._query,
            Verb.FACET: lambda body: {
                "hits": [{"value": value, "count": count} for value, count in self._index.counts(body["key"]).items()]
            },
        }
        there = max(1, client.count(name).count)
        found, _ = client.scroll(name, limit=there, with_payload=[NAME, *self._fields])
        for entry in found:
            self._index.put(str(entry.id), entry.payload or {})

    def ask(self, verb: Verb, body: Body) -> Any:
        """Return the `result` of a request."""
        return self._doing[verb](body)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _upsert(self, body: Body) -> Any:
        from qdrant_client import models

        asked = models.PointsList.model_validate(body)
        try:
            self._client.upsert(
                self._name, asked.points, update_filter=asked.update_filter, update_mode=asked.update_mode
            )
        finally:
            self._look_again(str(point.id) for point in asked.points)
        return _DONE

    def _set_payload(self, body: Body) -> Any:
        from qdrant_client import models

        asked = models.SetPayload.model_validate(body)
        ids = sorted(self._index.find(body["filter"]))
        try:
            self._client.set_payload(self._name, asked.payload, points=models.PointIdsList(points=list(ids)))
        finally:
            self._look_again(ids)
        return _DONE

    def _delete(self, body: Body) -> Any:
        from qdrant_client import models

        ids = sorted(self._index.find(body["filter"])) if "filter" in body else body["points"]
        try:
            self._client.delete(self._name, models.PointIdsList(points=ids))
        finally:
            self._look_again(ids)
        return _DONE

    def _look_again(self, ids: Iterable[str]) -> None:
        """Bring the index up to date with the collection, also after a failure."""
        ids = list(ids)
        found = self._client.retrieve(self._name, ids, with_payload=[NAME, *self._fields])
        there = {str(entry.id): entry.payload or {} for entry in found}
        for point in ids:
            if point in there:
                self._index.put(point, there[point])
            else:
                self._index.drop(point)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _scroll(self, body: Body) -> Any:
        ids = sorted(self._index.find(body["filter"]))
        if body.get("offset") is not None:
            ids = [point for point in ids if point >= body["offset"]]
        page, behind = ids[: body["limit"]], ids[body["limit"] : body["limit"] + 1]
        return {"points": self._entries(page, body), "next_page_offset": behind[0] if behind else None}

    def _entries(self, ids: Sequence[str], body: Body) -> list[dict[str, Any]]:
        from qdrant_client import models

        if body["with_payload"] == {"include": [NAME]} and not body["with_vector"]:
            names = self._index.names
            return [{"id": point, "payload": {NAME: names[point]}} for point in ids if point in names]
        asked = models.PointRequest(ids=list(ids), with_payload=body["with_payload"])
        found = self._client.retrieve(
            self._name, asked.ids, with_payload=asked.with_payload or False, with_vectors=body["with_vector"]
        )
        return [{"id": entry.id, "payload": entry.payload, "vector": entry.vector} for entry in found]

    def _query(self, body: Body) -> Any:
        import numpy as np

        matching, vector = self._index.find(body["filter"]), np.array(body["query"], dtype=np.float32)
        if len(matching) == len(self._index):
            scores = self._nearest(vector, body["limit"])
        elif len(matching) <= _FEW:
            found = self._client.retrieve(self._name, sorted(matching), with_payload=False, with_vectors=True)
            scores = {str(entry.id): float(np.array(entry.vector) @ vector) for entry in found}
        else:
            looked, scores = body["limit"], {}
            while len(scores) < body["limit"] and looked < len(self._index) * _SURPLUS:
                looked *= _SURPLUS
                scores = {point: score for point, score in self._nearest(vector, looked).items() if point in matching}
        best = sorted(scores, key=scores.__getitem__, reverse=True)[: body["limit"]]
        names = self._index.names
        return {"points": [{"id": point, "score": scores[point], "payload": {NAME: names[point]}} for point in best]}

    def _nearest(self, vector: Any, limit: int) -> dict[str, float]:
        found = self._client.query_points(self._name, vector, limit=max(1, limit), with_payload=False)
        return {str(hit.id): hit.score for hit in found.points}
