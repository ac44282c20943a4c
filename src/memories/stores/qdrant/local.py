"""Requests about one collection, carried out on the local mode of Qdrant's client, with an index over payloads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memories.stores.qdrant.driver import NAME, RECORD_INDEXES, VECTOR_INDEXES, Verb
from memories.stores.qdrant.index import PayloadIndex

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

_FEW = 1_000  # of so few points that are meant the vectors are compared one by one
_SURPLUS = 4  # so many times more is looked for each time that too few of the nearest are meant

Body = Mapping[str, Any]


class LocalCollection:
    """A collection of local mode, which keeps points and vectors; which of them a filter means is found out here.

    Local mode checks a filter on each point, which takes 120 ms for ten thousand of them.
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
            Verb.INFO: self._info,
            Verb.INDEX: self._make_index,
            Verb.UPSERT: self._upsert,
            Verb.SET_PAYLOAD: self._set_payload,
            Verb.DELETE: self._delete,
            Verb.GET: self._get,
            Verb.SCROLL: self._scroll,
            Verb.COUNT: self._count,
            Verb.QUERY: self._query,
            Verb.FACET: self._facet,
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
        return {"status": "completed"}

    def _set_payload(self, body: Body) -> Any:
        from qdrant_client import models

        asked = models.SetPayload.model_validate(body)
        ids = sorted(self._index.find(body["filter"]))
        try:
            self._client.set_payload(self._name, asked.payload, points=models.PointIdsList(points=list(ids)))
        finally:
            self._look_again(ids)
        return {"status": "completed"}

    def _delete(self, body: Body) -> Any:
        from qdrant_client import models

        ids = sorted(self._index.find(body["filter"])) if "filter" in body else body["points"]
        try:
            self._client.delete(self._name, models.PointIdsList(points=ids))
        finally:
            self._look_again(ids)
        return {"status": "completed"}

    def _look_again(self, ids: Iterable[str]) -> None:
        """Bring the index up to what the collection has, also after a failure."""
        ids = list(ids)
        found = self._client.retrieve(self._name, ids, with_payload=[NAME, *self._fields])
        there = {str(entry.id): entry.payload or {} for entry in found}
        for point in ids:
            if point in there:
                self._index.put(point, there[point])
            else:
                self._index.drop(point)

    def _make_index(self, body: Body) -> Any:
        if body["field_name"] not in self._fields:
            raise ValueError(f"no index over {body['field_name']}")
        return {"status": "completed"}  # it is always there

    # --- reading -----------------------------------------------------------------------------------------------------

    def _info(self, _: Body) -> Any:
        return self._client.get_collection(self._name).model_dump(mode="json")

    def _get(self, body: Body) -> Any:
        return self._entries(body["ids"], body)

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

    def _count(self, body: Body) -> Any:
        return {"count": len(self._index.find(body.get("filter")))}

    def _facet(self, body: Body) -> Any:
        counts = self._index.counts(body["key"])
        return {"hits": [{"value": value, "count": count} for value, count in counts.items()]}

    def _query(self, body: Body) -> Any:
        import numpy as np

        meant, vector = self._index.find(body["filter"]), np.array(body["query"], dtype=np.float32)
        if len(meant) == len(self._index):
            scores = self._nearest(vector, body["limit"])
        elif len(meant) <= _FEW:
            found = self._client.retrieve(self._name, sorted(meant), with_payload=False, with_vectors=True)
            scores = {str(entry.id): float(np.array(entry.vector) @ vector) for entry in found}
        else:
            looked, scores = body["limit"], {}
            while len(scores) < body["limit"] and looked < len(self._index) * _SURPLUS:
                looked *= _SURPLUS
                scores = {point: score for point, score in self._nearest(vector, looked).items() if point in meant}
        best = sorted(scores, key=scores.__getitem__, reverse=True)[: body["limit"]]
        names = self._index.names
        return {"points": [{"id": point, "score": scores[point], "payload": {NAME: names[point]}} for point in best]}

    def _nearest(self, vector: Any, limit: int) -> dict[str, float]:
        found = self._client.query_points(self._name, vector, limit=max(1, limit), with_payload=False)
        return {str(hit.id): hit.score for hit in found.points}
