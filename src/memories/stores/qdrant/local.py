"""Collections in the local mode of Qdrant's client, with a payload index and JSON files."""

import array
import base64
import functools
import importlib.util
import json
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from memories.errors import StoreDamaged
from memories.stores.qdrant.driver import NAME, RECORD_INDEXES, VECTOR_INDEXES, Body, Verb

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

    from qdrant_client import QdrantClient

_COMPARISONS = {"lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge}
_MAX_COMPARED = 1_000  # maximum number of matching points that are compared one by one
_GROWTH = 4  # factor by which the next search grows if too few of the nearest points match
_COMPLETED = {"status": "completed"}


class PayloadIndex:
    """An index that finds a collection's points by the values of some fields.

    Attributes:
        names: The names of the points, keyed by id.
    """

    def __init__(self, fields: Iterable[str], name: str) -> None:
        """Create an empty index.

        Args:
            fields: The fields that filters may use.
            name: The field that contains a point's name.
        """
        self.names: dict[str, Any] = {}
        self._name = name
        self._holders: dict[str, dict[Any, set[str]]] = {field: {} for field in fields}
        self._values: dict[str, dict[str, list[Any]]] = {}  # each point's values, keyed by field

    def __len__(self) -> int:
        return len(self.names)

    def put(self, point_id: str, payload: Mapping[str, Any]) -> None:
        """Add a point to the index, or replace its payload there."""
        self.drop(point_id)
        self.names[point_id] = payload.get(self._name)
        values: dict[str, list[Any]] = {}
        for field, holders in self._holders.items():
            value = payload.get(field)
            if value is None:
                continue
            values[field] = value if isinstance(value, list) else [value]
            for value in values[field]:
                holders.setdefault(value, set()).add(point_id)
        self._values[point_id] = values

    def drop(self, point_id: str) -> None:
        """Remove a point, if it is in the index."""
        self.names.pop(point_id, None)
        for field, values in self._values.pop(point_id, {}).items():
            holders = self._holders[field]
            for value in values:
                points = holders.get(value, set())
                points.discard(point_id)
                if not points:
                    holders.pop(value, None)

    def counts(self, field: str) -> dict[Any, int]:
        """Return the number of points with each value of a field."""
        return {value: len(holders) for value, holders in self._holders[field].items()}

    def find(self, where: Mapping[str, Any] | None) -> set[str]:
        """Return the ids of the points that match a Qdrant filter; only `must` is supported."""
        ranges: list[Mapping[str, Any]] = []
        sets: list[set[str]] = []
        for condition in (where or {}).get("must", ()):
            if "range" in condition:
                ranges.append(condition)
            else:
                sets.append(self._find_values(condition))
        ids = set.intersection(*sorted(sets, key=len)) if sets else set(self.names)
        for condition in ranges:
            ids = {point for point in ids if self._is_in_range(point, condition)}
        return ids

    def _find_values(self, condition: Mapping[str, Any]) -> set[str]:
        """Return the ids of the points that a condition selects by value or by id."""
        if "has_id" in condition:
            return {point for point in condition["has_id"] if point in self.names}
        match, holders = condition["match"], self._holders[condition["key"]]
        values = match["any"] if "any" in match else [match["value"]]
        found: set[str] = set()
        for value in values:
            found |= holders.get(value, set())
        return found

    def _is_in_range(self, point_id: str, condition: Mapping[str, Any]) -> bool:
        bounds = condition["range"].items()
        for value in self._values[point_id].get(condition["key"], ()):
            if all(_COMPARISONS[name](value, bound) for name, bound in bounds):
                return True
        return False


class LocalCollection:
    """A collection that local mode stores, with its own index for filters.

    Local mode would check a filter on each point, which takes 120 ms for ten thousand points.
    """

    def __init__(self, client: "QdrantClient", name: str) -> None:
        """Read the collection's points.

        Args:
            client: The only client that writes to the collection.
            name: The collection's name.
        """
        self._client = client
        self._name = name
        has_vectors = bool(client.get_collection(name).config.params.vectors)
        self._fields = list(VECTOR_INDEXES if has_vectors else RECORD_INDEXES)
        self._index = PayloadIndex(self._fields, NAME)
        self._handlers: Mapping[Verb, Callable[[Body], Any]] = {
            Verb.INFO: self._describe,
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
        limit = max(1, client.count(name).count)
        entries, _ = client.scroll(name, limit=limit, with_payload=[NAME, *self._fields])
        for entry in entries:
            self._index.put(str(entry.id), entry.payload or {})

    def ask(self, verb: Verb, body: Body) -> Any:
        """Run a request on the collection; return its `result`."""
        return self._handlers[verb](body)

    def _make_index(self, body: Body) -> Any:  # noqa: ARG002 - all indexes that the driver needs are always there
        return _COMPLETED

    def _upsert(self, body: Body) -> Any:
        from qdrant_client import models

        request = models.PointsList.model_validate(body)
        try:
            self._client.upsert(
                self._name,
                request.points,
                update_filter=request.update_filter,
                update_mode=request.update_mode,
            )
        finally:
            self._reindex([str(point.id) for point in request.points])
        return _COMPLETED

    def _set_payload(self, body: Body) -> Any:
        from qdrant_client import models

        request = models.SetPayload.model_validate(body)
        ids = sorted(self._index.find(body["filter"]))
        try:
            self._client.set_payload(
                self._name, request.payload, points=models.PointIdsList(points=list(ids))
            )
        finally:
            self._reindex(ids)
        return _COMPLETED

    def _delete(self, body: Body) -> Any:
        from qdrant_client import models

        ids = body.get("points", [])
        if "filter" in body:
            ids = sorted(self._index.find(body["filter"]))
        try:
            self._client.delete(self._name, models.PointIdsList(points=ids))
        finally:
            self._reindex(ids)
        return _COMPLETED

    def _reindex(self, ids: Sequence[str]) -> None:
        """Update the index from the points in the collection, even after a failed write."""
        entries = self._client.retrieve(self._name, ids, with_payload=[NAME, *self._fields])
        payloads = {str(entry.id): entry.payload or {} for entry in entries}
        for point in ids:
            if point in payloads:
                self._index.put(point, payloads[point])
            else:
                self._index.drop(point)

    def _describe(self, body: Body) -> Any:  # noqa: ARG002
        return self._client.get_collection(self._name).model_dump(mode="json")

    def _get(self, body: Body) -> Any:
        return self._entries(body["ids"], body)

    def _count(self, body: Body) -> Any:
        return {"count": len(self._index.find(body.get("filter")))}

    def _facet(self, body: Body) -> Any:
        counts = self._index.counts(body["key"])
        return {"hits": [{"value": value, "count": count} for value, count in counts.items()]}

    def _scroll(self, body: Body) -> Any:
        ids = sorted(self._index.find(body["filter"]))
        if body.get("offset") is not None:
            ids = [point for point in ids if point >= body["offset"]]
        limit = body["limit"]
        next_offset = ids[limit] if len(ids) > limit else None
        return {"points": self._entries(ids[:limit], body), "next_page_offset": next_offset}

    def _entries(self, ids: Sequence[str], body: Body) -> list[dict[str, Any]]:
        from qdrant_client import models

        if body["with_payload"] == {"include": [NAME]} and not body["with_vector"]:
            names = self._index.names
            return [
                {"id": point, "payload": {NAME: names[point]}} for point in ids if point in names
            ]
        request = models.PointRequest(ids=list(ids), with_payload=body["with_payload"])
        entries = self._client.retrieve(
            self._name,
            request.ids,
            with_payload=request.with_payload or False,
            with_vectors=body["with_vector"],
        )
        return [
            {"id": entry.id, "payload": entry.payload, "vector": entry.vector} for entry in entries
        ]

    def _query(self, body: Body) -> Any:
        import numpy as np

        matching, limit = self._index.find(body["filter"]), body["limit"]
        vector = np.array(body["query"], dtype=np.float32)
        if len(matching) == len(self._index):
            scores = self._nearest(vector, limit)
        elif len(matching) <= _MAX_COMPARED:
            entries = self._client.retrieve(
                self._name, sorted(matching), with_payload=False, with_vectors=True
            )
            scores = {str(entry.id): float(np.array(entry.vector) @ vector) for entry in entries}
        else:
            count, scores = limit, {}
            while len(scores) < limit and count < len(self._index) * _GROWTH:
                count *= _GROWTH
                nearest = self._nearest(vector, count)
                scores = {point: score for point, score in nearest.items() if point in matching}
        best = sorted(scores, key=scores.__getitem__, reverse=True)[:limit]
        names = self._index.names
        points = [
            {"id": point, "score": scores[point], "payload": {NAME: names[point]}} for point in best
        ]
        return {"points": points}

    def _nearest(self, vector: Any, limit: int) -> dict[str, float]:
        answer = self._client.query_points(
            self._name, vector, limit=max(1, limit), with_payload=False
        )
        return {str(hit.id): hit.score for hit in answer.points}


class _Json:
    """Stands in for the module `pickle` where the client's local mode writes and reads points."""

    @staticmethod
    def dumps(value: Any, protocol: int | None = None) -> bytes:  # noqa: ARG004 - the client passes it
        """Return a point or a point's id as JSON; vectors are packed as float32."""
        if isinstance(value, int | str):
            return json.dumps(value).encode()
        shape = {"id": value.id, "vector": _pack(value.vector), "payload": value.payload}
        return json.dumps(shape, ensure_ascii=False, separators=(",", ":")).encode()

    @staticmethod
    def loads(data: bytes) -> Any:
        """Return the point that is stored as JSON.

        Raises:
            StoreDamaged: The data is not a point in JSON, for example a pickled object.
        """
        from qdrant_client import models

        try:
            shape = json.loads(data)
            return models.PointStruct(
                id=shape["id"], vector=_unpack(shape["vector"]), payload=shape["payload"]
            )
        except (ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                "a point in a Qdrant folder is damaged, or was written by another program; the "
                "points of other programs are not read, since they are pickled objects, which can "
                "run code"
            ) from exc


@functools.cache
def persistence() -> ModuleType:
    """Return a copy of the client's module for storing points that uses JSON, not `pickle`."""
    spec = cast("ModuleSpec", importlib.util.find_spec("qdrant_client.local.persistence"))
    module = importlib.util.module_from_spec(spec)
    cast("Loader", spec.loader).exec_module(module)
    module.pickle = _Json  # type: ignore[attr-defined]
    return module


def keep_as_json(folder: Path) -> None:
    """Make the client's local mode write and read a folder's points as JSON.

    Other folders are not affected.
    """
    from qdrant_client.local import local_collection

    if not _folders:
        original = local_collection.CollectionPersistence  # type: ignore[attr-defined]

        def open_persistence(location: str, *more: Any) -> Any:
            parents = Path(location).absolute().parents
            is_ours = any(folder in parents for folder in _folders)
            persistence_class = persistence().CollectionPersistence if is_ours else original
            return persistence_class(location, *more)

        local_collection.CollectionPersistence = open_persistence  # type: ignore[assignment,attr-defined]
    _folders.add(folder.absolute())


_folders: set[Path] = set()


def _pack(vector: Any) -> Any:
    if isinstance(vector, dict):
        return {name: _pack(part) for name, part in vector.items()}
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _unpack(packed: Any) -> Any:
    if isinstance(packed, dict):
        return {str(name): _unpack(part) for name, part in packed.items()}
    numbers = array.array("f", base64.b64decode(packed, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
