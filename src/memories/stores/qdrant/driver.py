"""The driver for Qdrant: it manages collections, and sends its requests through a `Transport`.

The requests are those of Qdrant's REST API, version 1.17 or later.
"""

import hashlib
import json
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from memories.core.batches import by_count, by_weight
from memories.errors import StoreBusy, StoreDamaged, StoreError
from memories.stores.documents.driver import FIELDS, Kind, Partition, Point, Value, Where
from memories.stores.records import Collection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.words import Term

MIN_VERSION = (1, 17)  # the first version that can insert points without overwriting others
_MARK = "memories"  # the metadata key that marks our collections
# In a collection's name, separates the store's name, which can't contain it, from a space's id.
_SPACE_SIGN = "~"
_PAGE, _IDS_PAGE = 1_000, 10_000  # maximum number of points per response
_MAX_BYTES = 24_000_000  # maximum size of a request; the server accepts 32 MiB
_MAX_PARTS = 1_000_000
_TRIES = 20

# The driver's own fields in a payload: the partition, the point's name in that partition, the
# revision (each change makes a new one), and the tokens. A token that begins with "^" is the prefix
# of a word.
PART, NAME, _REVISION, _WORDS, _PREFIX_MARK = "_part", "_id", "_rev", "_words", "^"
_STATE = "state"
_WITHOUT_WORDS = {"exclude": [_WORDS]}

_TENANT = {"type": "keyword", "is_tenant": True}
RECORD_INDEXES: Mapping[str, Mapping[str, Any]] = {
    PART: _TENANT,
    _REVISION: {"type": "keyword"},
    _WORDS: {"type": "keyword"},
    **{field: {"type": "integer" if kind is int else "keyword"} for field, kind in FIELDS.items()},
}
VECTOR_INDEXES: Mapping[str, Mapping[str, Any]] = {PART: _TENANT}
_RANGES = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


Body = Mapping[str, Any]


class Verb(StrEnum):
    """The kinds of requests."""

    VERSION = "version"
    COLLECTIONS = "collections"
    INFO = "info"
    CREATE = "create"
    REMOVE = "remove"
    INDEX = "index"
    UPSERT = "upsert"
    SET_PAYLOAD = "set payload"
    DELETE = "delete"
    GET = "get"
    SCROLL = "scroll"
    COUNT = "count"
    QUERY = "query"
    FACET = "facet"


class NoCollection(StoreError):
    """Raised if the collection of a request doesn't exist."""


class Transport(Protocol):
    """Sends requests to a server or a folder."""

    @property
    def url(self) -> str:
        """The address of the server or the folder, without a key and without a collection."""

    @property
    def remains(self) -> tuple[str, ...]:
        """Where the bytes of deleted points may remain, and until when; empty if nowhere."""

    def ask(self, verb: Verb, collection: str = "", body: Body | None = None) -> Any:
        """Send a request; return the `result` of the response, as the REST API documents it.

        Writes are durable, and every later request sees them. Creating a collection that exists, or
        removing one that doesn't, is not an error.

        Args:
            verb: The kind of request.
            collection: The collection; empty for a request about all collections.
            body: The JSON object that the REST API documents; None for no body.

        Raises:
            NoCollection: The collection doesn't exist; nothing was created.
            StoreError: The request failed.
        """

    def close(self) -> None:
        """Release all resources."""


class QdrantDriver:
    """Implements `Driver` with two kinds of collections.

    The collection with the store's name contains the records, the labels and the state as points
    without vectors. It has one shard, so each write is one entry in one log, and is made completely
    or not at all. Every vector space has a collection with its dimension and the server's default
    number of shards. Every request is limited to one partition by the field `_part`, which the
    server indexes as the tenant.

    A keyword index on the tokens, which are the same in all stores, finds words. The beginning of a
    word is found by its first characters.

    What is not guaranteed:

    - More than about 24 MB of points in one call are split into several requests. After an
      interruption, only some of the points may be stored.
    - If two writers change a point at the same moment, both changes are made, one after the other.
      If such a call makes different changes to several points, these may become visible one by one.
    - Vectors on several shards are not written in one step, but nothing refers to them before all
      are written.
    - If the server keeps replicas, reads see every acknowledged write only if its
      `write_consistency_factor` includes all of them.
    """

    max_batch = 256

    def __init__(self, transport: Transport, name: str) -> None:
        """Initialize; no request is sent yet.

        Args:
            transport: Sends the requests.
            name: The name of the collection for the records; the other collections' names begin
                with it.
        """
        self._transport = transport
        self.collection = name
        self.url = f"{transport.url}/{name}"
        self._complete: set[str] = set()  # collections that are known to be complete

    @property
    def remains(self) -> tuple[str, ...]:
        """See `Driver.remains`."""
        return self._transport.remains

    def state(self) -> Mapping[str, str]:
        """See `Driver.state`."""
        return self._state()[0]

    def set_missing_state(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """See `Driver.set_missing_state`; if clients compete, the server decides which wins."""
        for _ in range(_TRIES):
            state, revision = self._state()
            merged = {**values, **state}
            if revision is None:
                self._put_state(merged, {"update_mode": "insert_only"})
                continue
            if merged == state:
                return state
            is_unchanged = _has_revision([revision])
            self._put_state(merged, {"update_mode": "update_only", "update_filter": is_unchanged})
        raise self._busy()

    def set_state(self, values: Mapping[str, str]) -> None:
        """See `Driver.set_state`."""
        self._put_state(values, {})

    def _state(self) -> tuple[Mapping[str, str], str | None]:
        """Return the state and its revision; None if there is no state yet."""
        body = {"ids": [_point_id(_STATE, "")], "with_payload": True, "with_vector": False}
        try:
            entries = self._transport.ask(Verb.GET, self.collection, body)
            if not entries:
                self._check_ours(self._transport.ask(Verb.INFO, self.collection))
        except NoCollection:
            return {}, None
        if not entries:
            return {}, None
        payload = entries[0].get("payload") or {}
        try:
            values: dict[str, str] = json.loads(payload["values"])
            return values, payload[_REVISION]
        except (KeyError, TypeError, ValueError) as exc:
            raise StoreDamaged(
                f"cannot read the state of {self.url}; restore a snapshot of the collection"
            ) from exc

    def _put_state(self, values: Mapping[str, str], mode: Mapping[str, Any]) -> None:
        payload = {
            PART: _STATE,
            NAME: "",
            _REVISION: _new_revision(),
            "values": json.dumps(dict(values)),
        }
        point = {"id": _point_id(_STATE, ""), "vector": {}, "payload": payload}
        self._upsert(self.collection, {"points": [point], **mode})

    def parts(self) -> list[Partition]:
        """See `Driver.parts`."""
        parts: list[Partition] = []
        for entry in self._transport.ask(Verb.COLLECTIONS)["collections"]:
            base, _, space = entry["name"].partition(_SPACE_SIGN)
            if base != self.collection:
                continue
            body = {"key": PART, "limit": _MAX_PARTS, "exact": True}
            answer = self._read(Verb.FACET, entry["name"], body) or {"hits": []}
            for hit in answer["hits"]:
                if hit["value"] != _STATE:
                    kind, collection, namespace = hit["value"].split("/", 2)
                    parts.append(Partition(Kind(kind), Collection(collection), namespace, space))
        return parts

    def drop(self, part: Partition) -> None:
        """See `Driver.drop`; dropping the last partition of a space also drops its collection."""
        name = self._collection_name(part)
        if self._read(Verb.DELETE, name, {"filter": _to_filter(part, [])}) is None:
            return
        if part.kind is Kind.VECTORS:
            remaining = self._read(Verb.COUNT, name, {"exact": True})
            if remaining is not None and remaining["count"] == 0:
                self._complete.discard(name)
                self._transport.ask(Verb.REMOVE, name)

    def add(self, part: Partition, points: Sequence[Point]) -> None:
        """See `Driver.add`."""
        dimension = 0
        if points and points[0].vector is not None:
            dimension = len(points[0].vector)
        for batch in _split([_to_entry(part, point) for point in points], self.max_batch):
            body = {"points": batch, "update_mode": "insert_only"}
            self._upsert(self._collection_name(part), body, dimension)

    def update(self, part: Partition, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """See `Driver.update`."""
        for names in by_count(list(changes), self.max_batch):
            first = changes[names[0]]
            if any(changes[name] != first for name in names):
                self._replace(part, {name: changes[name] for name in names})
                continue
            ids = [_point_id(_part_name(part), name) for name in names]
            body = {
                "payload": {**first, _REVISION: _new_revision()},
                "filter": {"must": [{"has_id": ids}]},
            }
            self._read(Verb.SET_PAYLOAD, self._collection_name(part), body)

    def _replace(self, part: Partition, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """Make different changes to several points in one request, by overwriting the points.

        If another writer changes a point in the meantime, that point is read and overwritten again.
        """
        waiting = dict(changes)
        for _ in range(_TRIES):
            entries = self._entries(part, list(waiting), True)
            if not entries:
                return
            revision = _new_revision()
            points: list[dict[str, Any]] = []
            names: list[str] = []
            revisions: list[str] = []
            for entry in entries:
                name = _name(entry)
                names.append(name)
                revisions.append(entry["payload"][_REVISION])
                payload = {**entry["payload"], _REVISION: revision, **waiting[name]}
                payload = {field: value for field, value in payload.items() if value is not None}
                points.append({"id": entry["id"], "vector": {}, "payload": payload})
            is_unchanged = _has_revision(revisions)
            for batch in _split(points, self.max_batch):
                body = {
                    "points": batch,
                    "update_mode": "update_only",
                    "update_filter": is_unchanged,
                }
                self._read(Verb.UPSERT, self._collection_name(part), body)
            waiting = {}
            for entry in self._entries(part, names, {"include": [PART, NAME, _REVISION]}):
                if entry["payload"][_REVISION] != revision:
                    waiting[_name(entry)] = changes[_name(entry)]
            if not waiting:
                return
        raise self._busy()

    def delete(self, part: Partition, ids: Iterable[str]) -> None:
        """See `Driver.delete`."""
        for points in by_count([_point_id(_part_name(part), name) for name in ids], _PAGE):
            self._read(Verb.DELETE, self._collection_name(part), {"points": points})

    def get(self, part: Partition, ids: Sequence[str]) -> list[Point]:
        """See `Driver.get`."""
        return [_to_point(entry) for entry in self._entries(part, ids, _WITHOUT_WORDS)]

    def find(self, part: Partition, where: Where, *, limit: int | None = None) -> list[Point]:
        """See `Driver.find`; the points are in the order of their ids on the server."""
        entries = self._scroll(part, _to_filter(part, where), _WITHOUT_WORDS, limit)
        return [_to_point(entry) for entry in entries]

    def ids(self, part: Partition, where: Where) -> list[str]:
        """See `Driver.ids`."""
        return self._names(part, _to_filter(part, where))

    def _names(self, part: Partition, where: Mapping[str, Any]) -> list[str]:
        return [_name(entry) for entry in self._scroll(part, where, {"include": [NAME]}, None)]

    def count(self, part: Partition) -> int:
        """See `Driver.count`."""
        body = {"filter": _to_filter(part, []), "exact": True}
        answer = self._read(Verb.COUNT, self._collection_name(part), body)
        return 0 if answer is None else int(answer["count"])

    def holders(self, part: Partition, term: "Term") -> list[str]:
        """See `Driver.holders`."""
        *leading, last = term.tokens
        words = {*leading, _prefixes(last)[-1] if term.open_ended else last}
        where = _to_filter(part, [])
        where["must"] += [{"key": _WORDS, "match": {"value": word}} for word in sorted(words)]
        return self._names(part, where)

    def nearest(
        self, part: Partition, vector: "NDArray[np.float32]", *, k: int
    ) -> list[tuple[str, float]]:
        """See `Driver.nearest`.

        The server finds twice as many windows by their 8-bit codes, and scores them exactly.
        """
        if k < 1:
            return []
        body = {
            "query": vector.astype(float).tolist(),
            "filter": _to_filter(part, []),
            "params": {
                "hnsw_ef": max(256, k),
                "quantization": {"rescore": True, "oversampling": 2.0},
            },
            "limit": k,
            "with_payload": {"include": [NAME]},
            "with_vector": False,
        }
        answer = self._read(Verb.QUERY, self._collection_name(part), body) or {"points": []}
        hits = [(_name(entry), float(entry["score"])) for entry in answer["points"]]
        return sorted(hits, key=itemgetter(1), reverse=True)

    def vectors(self, part: Partition, ids: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """See `Driver.vectors`."""
        import numpy as np

        entries = self._entries(part, ids, {"include": [PART, NAME]}, vectors=True)
        return {_name(entry): np.array(entry["vector"], dtype=np.float32) for entry in entries}

    def close(self) -> None:
        """See `Driver.close`."""
        self._transport.close()

    def _collection_name(self, part: Partition) -> str:
        if part.kind is Kind.VECTORS:
            return f"{self.collection}{_SPACE_SIGN}{part.space}"
        return self.collection

    def _read(self, verb: Verb, collection: str, body: Body | None = None) -> Any:
        """Send a request that creates nothing; return None if the collection doesn't exist."""
        try:
            return self._transport.ask(verb, collection, body)
        except NoCollection:
            return None

    def _upsert(self, collection: str, body: Body, dimension: int = 0) -> None:
        """Write points; create the collection first if it is missing."""
        self._complete_collection(collection, dimension)
        try:
            self._transport.ask(Verb.UPSERT, collection, body)
        except NoCollection:
            self._complete.discard(collection)
            self._complete_collection(collection, dimension)
            self._transport.ask(Verb.UPSERT, collection, body)

    def _entries(
        self,
        part: Partition,
        ids: Sequence[str],
        payload: Mapping[str, Any] | bool,
        *,
        vectors: bool = False,
    ) -> list[dict[str, Any]]:
        name = _part_name(part)
        entries: list[dict[str, Any]] = []
        for batch in by_count(list(dict.fromkeys(ids)), _PAGE):
            body = {
                "ids": [_point_id(name, point_name) for point_name in batch],
                "with_payload": payload,
                "with_vector": vectors,
            }
            for entry in self._read(Verb.GET, self._collection_name(part), body) or ():
                payload_part = (entry.get("payload") or {}).get(PART, name)
                if payload_part == name:
                    entries.append(entry)
        return entries

    def _scroll(
        self,
        part: Partition,
        where: Mapping[str, Any],
        payload: Mapping[str, Any],
        limit: int | None,
    ) -> Iterator[dict[str, Any]]:
        page = _IDS_PAGE if payload.get("include") == [NAME] else _PAGE
        body = {"filter": where, "with_payload": payload, "with_vector": False}
        remaining = sys.maxsize if limit is None else limit
        while remaining > 0:
            body["limit"] = min(page, remaining)
            answer = self._read(Verb.SCROLL, self._collection_name(part), body)
            if answer is None:
                return
            yield from answer["points"]
            remaining -= len(answer["points"])
            if answer.get("next_page_offset") is None:
                return
            body["offset"] = answer["next_page_offset"]

    def _complete_collection(self, name: str, dimension: int) -> None:
        """Create a collection if it is missing, and any of its indexes that are missing."""
        if name in self._complete:
            return
        info = self._read(Verb.INFO, name)
        if info is None:
            self._check_version()
            self._transport.ask(Verb.CREATE, name, _settings(dimension))
            info = self._transport.ask(Verb.INFO, name)
        self._check_ours(info)
        for field, schema in (VECTOR_INDEXES if dimension else RECORD_INDEXES).items():
            if field not in info["payload_schema"]:
                self._transport.ask(Verb.INDEX, name, {"field_name": field, "field_schema": schema})
        self._complete.add(name)

    def _check_version(self) -> None:
        """Refuse an older server, which would ignore `update_mode` and overwrite points."""
        version = str(self._transport.ask(Verb.VERSION)["version"])
        numbers = [int(part) if part.isdecimal() else 0 for part in f"{version}.0.0".split(".")]
        if (numbers[0], numbers[1]) < MIN_VERSION:
            needed = ".".join(map(str, MIN_VERSION))
            raise StoreError(
                f"{self._transport.url} is Qdrant {version[:20]}; update it to {needed} or later"
            )

    def _check_ours(self, info: Mapping[str, Any]) -> None:
        if not (info["config"].get("metadata") or {}).get(_MARK):
            raise StoreError(
                f"the collection {self.url} does not belong to Memories; choose another name"
            )

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"other writers keep changing the same records of {self.url}; try again")


def _settings(dimension: int) -> dict[str, Any]:
    """Return the settings for a collection with vectors of this dimension; 0 means no vectors."""
    shared: dict[str, Any] = {"on_disk_payload": True, "metadata": {_MARK: 1}}
    if not dimension:
        return {"vectors": {}, "shard_number": 1, **shared}
    return {
        "vectors": {"size": dimension, "distance": "Cosine", "on_disk": True},
        "hnsw_config": {"m": 16, "ef_construct": 200, "payload_m": 16},
        "quantization_config": {"scalar": {"type": "int8", "quantile": 0.99, "always_ram": True}},
        **shared,
    }


def _part_name(part: Partition) -> str:
    return f"{part.kind}/{part.collection}/{part.namespace}"


def _point_id(part_name: str, name: str) -> str:
    """Return a point's id: a hash in the form of a version 8 UUID."""
    digest = bytearray(hashlib.sha256(json.dumps([part_name, name]).encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def _to_entry(part: Partition, point: Point) -> dict[str, Any]:
    payload: dict[str, Any] = {
        **point.payload,
        PART: _part_name(part),
        NAME: point.id,
        _REVISION: _new_revision(),
    }
    if point.words is not None:
        words = set(point.words)
        payload[_WORDS] = sorted(words.union(*map(_prefixes, words)))
    vector: Any = {}
    if point.vector is not None:
        # Rounding halves the number of digits; the result is still more precise than a float32.
        vector = point.vector.astype(float).round(8).tolist()
    return {"id": _point_id(_part_name(part), point.id), "vector": vector, "payload": payload}


def _prefixes(word: str) -> list[str]:
    """Return the prefixes to index along with a word, the longest one last.

    An ASCII word gets only a prefix of one letter, since few queries search for its beginning.
    """
    prefixes = [_PREFIX_MARK + word[:1]]
    if not word.isascii() and len(word) >= 4:
        prefixes.append(_PREFIX_MARK + word[:4])
    return prefixes


def _to_point(entry: Mapping[str, Any]) -> Point:
    fields = entry.get("payload") or {}
    payload = {
        field: value
        for field, value in fields.items()
        if not field.startswith("_") and value is not None
    }
    return Point(_name(entry), payload)


def _name(entry: Mapping[str, Any]) -> str:
    try:
        return str(entry["payload"][NAME])
    except (KeyError, TypeError) as exc:
        raise StoreDamaged(
            f"the point {entry.get('id')} in Qdrant is damaged; restore a snapshot"
        ) from exc


def _to_filter(part: Partition, where: Where) -> dict[str, list[dict[str, Any]]]:
    must: list[dict[str, Any]] = [{"key": PART, "match": {"value": _part_name(part)}}]
    for field, relation, value in where:
        if relation in _RANGES:
            must.append({"key": field, "range": {_RANGES[relation]: value}})
        elif relation == "in":
            must.append({"key": field, "match": {"any": value}})
        else:
            must.append({"key": field, "match": {"value": value}})
    return {"must": must}


def _has_revision(revisions: Sequence[str]) -> dict[str, Any]:
    return {"must": [{"key": _REVISION, "match": {"any": list(revisions)}}]}


def _new_revision() -> str:
    return os.urandom(8).hex()


def _split(points: Sequence[dict[str, Any]], max_count: int) -> Iterator[list[dict[str, Any]]]:
    return by_weight(points, _estimate_bytes, most=max_count, heaviest=_MAX_BYTES)


def _estimate_bytes(point: Mapping[str, Any]) -> int:
    """Return an estimate of a point's maximum size in a request."""
    return 13 * len(point["vector"]) + len(json.dumps(point["payload"]))
