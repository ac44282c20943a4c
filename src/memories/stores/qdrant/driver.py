"""What is stored where in Qdrant, and the requests that store and find it; a `Transport` carries
them.

The requests are those of the REST API of Qdrant 1.17 and later.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from memories.core.batches import by_count, by_weight
from memories.errors import StoreBusy, StoreDamaged, StoreError
from memories.stores.documents.driver import FIELDS, Kind, Part, Point, Value, Where
from memories.stores.records import Collection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.words import Term

OLDEST = (1, 17)  # the first that can insert without overwriting
_MARK = "memories"  # the key in a collection's metadata that says whose it is
# before the id of a space in the name of a collection; not allowed in the settings
_SPACE_SIGN = "~"
_PAGE, _IDS_PAGE = 1_000, 10_000  # points in one answer
_MAX_BYTES = 24_000_000  # of one request; the server takes 32 MiB
_MAX_PARTS = 1_000_000
_TRIES = 20

# Our own fields of a payload: the part, the name in it, a revision that each change replaces, and
# the tokens, which include beginnings of words after a "^". No token begins with that.
PART, NAME, _REVISION, _WORDS, _START = "_part", "_id", "_rev", "_words", "^"
_STATE = "state"
_LEAN = {"exclude": [_WORDS]}

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
    """What a request asks for."""

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
    """The collection that a request names does not exist."""


class Transport(Protocol):
    """Carries requests to where the collections are."""

    @property
    def url(self) -> str:
        """Where they are, without a key and without a collection."""

    @property
    def remains(self) -> tuple[str, ...]:
        """Where the bytes of deleted points may remain, and until when."""

    def ask(self, verb: Verb, collection: str = "", body: Body | None = None) -> Any:
        """Return the `result` of the answer, as the REST API documents it.

        What was written is durable, and every later request sees it. Creating a collection that
        exists, or removing one that does not, is no error.

        Args:
            verb: What it asks for.
            collection: The collection; empty if it is about all.
            body: The JSON object that the REST API documents for it; None if it has none.

        Raises:
            NoCollection: The collection does not exist; nothing was created.
            StoreError: The request failed.
        """

    def close(self) -> None:
        """Release all resources."""


class QdrantDriver:
    """Implements `Driver` with two kinds of collections.

    One, with the name that was given, has the records, the labels and the state as points without
    vectors; it is one shard, so that each write is one entry of one log, done completely or not at
    all. For every space of vectors there is another one with its own dimension, sharded as the
    server does by default. Every request is narrowed by `_part`, which the server indexes as its
    tenant.

    Words: a keyword index over the tokens, the same as in every other store; terms that are only
        the beginning of a
    word are looked up by its first characters.

    What is not guaranteed:

    - Points of more than some 24 MB in one call are split into several requests; an interruption
      may leave only some.
    - Of two writers that change one point at the same moment, both changes are made, one after the
      other; then a call of several points with different changes may become visible in parts.
    - Vectors on several shards are not written in one step; nothing refers to them before all are
      there.
    - If the server keeps replicas, reads see every acknowledged write only if its
      `write_consistency_factor` includes all of them.
    """

    max_batch = 256

    def __init__(self, transport: Transport, name: str) -> None:
        """Prepare; no request is sent yet.

        Args:
            transport: Carries the requests.
            name: The collection of the records; those of the vectors begin with it.
        """
        self._transport = transport
        self.collection = name
        self.url = f"{transport.url}/{name}"
        self._made: set[str] = set()  # collections that are known to be complete

    @property
    def remains(self) -> tuple[str, ...]:
        """See `Driver.remains`."""
        return self._transport.remains

    # --- the state
    # --------------------------------------------------------------------------------------------------

    def state(self) -> Mapping[str, str]:
        """See `Driver.state`."""
        return self._state()[0]

    def claim(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """See `Driver.claim`; the server decides who is first."""
        for _ in range(_TRIES):
            known, revision = self._state()
            merged = {**values, **known}
            if revision is not None and merged == known:
                return known
            if revision is None:
                self._put_state(merged, {"update_mode": "insert_only"})
            else:
                self._put_state(
                    merged, {"update_mode": "update_only", "update_filter": _unchanged([revision])}
                )
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
                f"the state of {self.url} can't be read; restore a snapshot of the collection"
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

    # --- parts
    # -------------------------------------------------------------------------------------------------------

    def parts(self) -> list[Part]:
        """See `Driver.parts`."""
        parts: list[Part] = []
        for entry in self._transport.ask(Verb.COLLECTIONS)["collections"]:
            base, sign, space = entry["name"].partition(_SPACE_SIGN)
            if base == self.collection:
                body = {"key": PART, "limit": _MAX_PARTS, "exact": True}
                hits = self._read(Verb.FACET, entry["name"], body) or {"hits": []}
                names = [str(hit["value"]) for hit in hits["hits"]]
                parts += [_part(name, space if sign else "") for name in names if name != _STATE]
        return parts

    def drop(self, part: Part) -> None:
        """See `Driver.drop`; the collection of a space goes with the last of its parts."""
        name = self._collection(part)
        if self._read(Verb.DELETE, name, {"filter": _filter(part, [])}) is None:
            return
        if part.kind is Kind.VECTORS:
            left = self._read(Verb.COUNT, name, {"exact": True})
            if left is not None and left["count"] == 0:
                self._made.discard(name)
                self._transport.ask(Verb.REMOVE, name)

    # --- writing
    # -----------------------------------------------------------------------------------------------------

    def add(self, part: Part, points: Sequence[Point]) -> None:
        """See `Driver.add`."""
        dimension = len(points[0].vector) if points and points[0].vector is not None else 0
        for some in _in_requests([_stored(part, point) for point in points], self.max_batch):
            body = {"points": some, "update_mode": "insert_only"}
            self._upsert(self._collection(part), body, dimension)

    def update(self, part: Part, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """See `Driver.update`."""
        for names in by_count(list(changes), self.max_batch):
            some = {name: changes[name] for name in names}
            first = next(iter(some.values()))
            if all(change == first for change in some.values()):
                ids = {"must": [{"has_id": [_point_id(_part_name(part), name) for name in some]}]}
                body = {"payload": {**first, _REVISION: _new_revision()}, "filter": ids}
                self._read(Verb.SET_PAYLOAD, self._collection(part), body)
            else:
                self._replace(part, some)

    def _replace(self, part: Part, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """Overwrite points that change in different ways in one request; repeat those that others
        changed meanwhile.
        """
        collection, waiting = self._collection(part), dict(changes)
        for _ in range(_TRIES):
            entries = {
                entry["payload"][NAME]: entry for entry in self._entries(part, list(waiting), True)
            }
            if not entries:
                return
            revision = _new_revision()
            points: list[dict[str, Any]] = []
            for name, entry in entries.items():
                payload = {**entry["payload"], _REVISION: revision, **waiting[name]}
                kept = {key: value for key, value in payload.items() if value is not None}
                points.append(
                    {"id": entry["id"], "vector": entry.get("vector") or {}, "payload": kept}
                )
            seen = _unchanged([entry["payload"][_REVISION] for entry in entries.values()])
            for some in _in_requests(points, self.max_batch):
                body = {"points": some, "update_mode": "update_only", "update_filter": seen}
                self._read(Verb.UPSERT, collection, body)
            now = self._entries(part, list(entries), {"include": [PART, NAME, _REVISION]})
            late = {
                entry["payload"][NAME] for entry in now if entry["payload"][_REVISION] != revision
            }
            waiting = {name: changes[name] for name in late}
            if not waiting:
                return
        raise self._busy()

    def delete(self, part: Part, ids: Iterable[str]) -> None:
        """See `Driver.delete`."""
        for points in by_count([_point_id(_part_name(part), name) for name in ids], _PAGE):
            self._read(Verb.DELETE, self._collection(part), {"points": points})

    # --- reading
    # -----------------------------------------------------------------------------------------------------

    def get(self, part: Part, ids: Sequence[str]) -> list[Point]:
        """See `Driver.get`."""
        return [_point(entry) for entry in self._entries(part, ids, _LEAN)]

    def find(self, part: Part, where: Where, *, limit: int | None = None) -> list[Point]:
        """See `Driver.find`; the first ones are those whose ids the server sorts first."""
        return [_point(entry) for entry in self._scroll(part, _filter(part, where), _LEAN, limit)]

    def ids(self, part: Part, where: Where) -> list[str]:
        """See `Driver.ids`."""
        return [
            _name(entry)
            for entry in self._scroll(part, _filter(part, where), {"include": [NAME]}, None)
        ]

    def count(self, part: Part) -> int:
        """See `Driver.count`."""
        body = {"filter": _filter(part, []), "exact": True}
        answer = self._read(Verb.COUNT, self._collection(part), body)
        return 0 if answer is None else int(answer["count"])

    def holders(self, part: Part, term: "Term") -> list[str]:
        """See `Driver.holders`."""
        *leading, last = term.tokens
        keys = {*leading, _starts(last)[-1] if term.open_ended else last}
        body = _filter(part, [])
        body["must"] += [{"key": _WORDS, "match": {"value": key}} for key in sorted(keys)]
        return [_name(entry) for entry in self._scroll(part, body, {"include": [NAME]}, None)]

    def nearest(
        self, part: Part, vector: "NDArray[np.float32]", *, k: int
    ) -> list[tuple[str, float]]:
        """See `Driver.nearest`; 8-bit codes find twice as many, which are rescored by the full
        vectors.
        """
        if k < 1:
            return []
        body = {
            "query": vector.astype(float).tolist(),
            "filter": _filter(part, []),
            "params": {
                "hnsw_ef": max(256, k),
                "quantization": {"rescore": True, "oversampling": 2.0},
            },
            "limit": k,
            "with_payload": {"include": [NAME]},
            "with_vector": False,
        }
        answer = self._read(Verb.QUERY, self._collection(part), body) or {"points": []}
        hits = [(_name(entry), float(entry["score"])) for entry in answer["points"]]
        return sorted(hits, key=lambda entry: -entry[1])

    def vectors(self, part: Part, ids: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """See `Driver.vectors`."""
        import numpy as np

        entries = self._entries(part, ids, {"include": [PART, NAME]}, vectors=True)
        return {_name(entry): np.array(entry["vector"], dtype=np.float32) for entry in entries}

    def close(self) -> None:
        """See `Driver.close`."""
        self._transport.close()

    # --- requests
    # ----------------------------------------------------------------------------------------------------

    def _collection(self, part: Part) -> str:
        return (
            f"{self.collection}{_SPACE_SIGN}{part.space}"
            if part.kind is Kind.VECTORS
            else self.collection
        )

    def _read(self, verb: Verb, collection: str, body: Body | None = None) -> Any:
        """Send a request that creates nothing; None if the collection does not exist."""
        try:
            return self._transport.ask(verb, collection, body)
        except NoCollection:
            return None

    def _upsert(self, collection: str, body: Body, dimension: int = 0) -> None:
        """Write points after creating the collection if it is missing, or was removed meanwhile."""
        self._make(collection, dimension)
        try:
            self._transport.ask(Verb.UPSERT, collection, body)
        except NoCollection:
            self._made.discard(collection)
            self._make(collection, dimension)
            self._transport.ask(Verb.UPSERT, collection, body)

    def _entries(
        self,
        part: Part,
        ids: Sequence[str],
        payload: Mapping[str, Any] | bool,
        *,
        vectors: bool = False,
    ) -> list[dict[str, Any]]:
        name = _part_name(part)
        entries: list[dict[str, Any]] = []
        for some in by_count(list(dict.fromkeys(ids)), _PAGE):
            body = {
                "ids": [_point_id(name, one) for one in some],
                "with_payload": payload,
                "with_vector": vectors,
            }
            entries += self._read(Verb.GET, self._collection(part), body) or []
        return [entry for entry in entries if (entry.get("payload") or {}).get(PART, name) == name]

    def _scroll(
        self, part: Part, narrowed: Mapping[str, Any], payload: Mapping[str, Any], limit: int | None
    ) -> Iterator[dict[str, Any]]:
        page = _IDS_PAGE if payload.get("include") == [NAME] else _PAGE
        body = {"filter": narrowed, "with_payload": payload, "with_vector": False}
        left = limit
        while left is None or left > 0:
            body["limit"] = page if left is None else min(page, left)
            answer = self._read(Verb.SCROLL, self._collection(part), body)
            if answer is None:
                return
            yield from answer["points"]
            left = None if left is None else left - len(answer["points"])
            if answer.get("next_page_offset") is None:
                return
            body["offset"] = answer["next_page_offset"]

    def _make(self, name: str, dimension: int) -> None:
        """Create a collection, or what a crash or an older program has left out of it."""
        if name in self._made:
            return
        info = self._read(Verb.INFO, name)
        if info is None:
            # An older server ignores `update_mode`, and would overwrite points.
            version = str(self._transport.ask(Verb.VERSION)["version"])
            major, minor, *_ = [
                int(number) if number.isdecimal() else 0 for number in (version + ".0.0").split(".")
            ]
            if (major, minor) < OLDEST:
                needed = ".".join(map(str, OLDEST))
                raise StoreError(
                    f"{self._transport.url} is Qdrant {version[:20]}; update it to {needed} or later"
                )
            self._transport.ask(Verb.CREATE, name, _settings(dimension))
            info = self._transport.ask(Verb.INFO, name)
        self._check_ours(info)
        for field, schema in (VECTOR_INDEXES if dimension else RECORD_INDEXES).items():
            if field not in info["payload_schema"]:
                self._transport.ask(Verb.INDEX, name, {"field_name": field, "field_schema": schema})
        self._made.add(name)

    def _check_ours(self, info: Mapping[str, Any]) -> None:
        if not (info["config"].get("metadata") or {}).get(_MARK):
            raise StoreError(
                f"the collection {self.url} is not one of Memories; choose another name"
            )

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"others keep changing the same records of {self.url}; try again")


# --- what is sent and what comes back
# --------------------------------------------------------------------------------


def _settings(dimension: int) -> dict[str, Any]:
    """Return how a collection is made: without vectors, or for those of one dimension."""
    shared: dict[str, Any] = {"on_disk_payload": True, "metadata": {_MARK: 1}}
    if not dimension:
        return {"vectors": {}, "shard_number": 1, **shared}
    return {
        "vectors": {"size": dimension, "distance": "Cosine", "on_disk": True},
        "hnsw_config": {"m": 16, "ef_construct": 200, "payload_m": 16},
        "quantization_config": {"scalar": {"type": "int8", "quantile": 0.99, "always_ram": True}},
        **shared,
    }


def _part_name(part: Part) -> str:
    return f"{part.kind}/{part.collection}/{part.namespace}"


def _part(name: str, space: str) -> Part:
    kind, collection, namespace = name.split("/", 2)
    return Part(Kind(kind), Collection(collection), namespace, space)


def _point_id(part_name: str, name: str) -> str:
    """Return the UUID of a point: version 8, whose bits are ours to choose."""
    digest = bytearray(hashlib.sha256(json.dumps([part_name, name]).encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _stored(part: Part, point: Point) -> dict[str, Any]:
    payload: dict[str, Any] = {
        **point.payload,
        PART: _part_name(part),
        NAME: point.id,
        _REVISION: _new_revision(),
    }
    if point.words is not None:
        payload[_WORDS] = sorted(
            {*point.words, *(start for word in point.words for start in _starts(word))}
        )
    vector: Any = {}
    if point.vector is not None:
        vector = (
            point.vector.astype(float).round(8).tolist()
        )  # half the digits, and still finer than a float32
    return {"id": _point_id(_part_name(part), point.id), "vector": vector, "payload": payload}


def _starts(word: str) -> list[str]:
    """Return the entries that find a word by its beginning, the best one last; few search for that
    in ASCII.
    """
    return (
        [_START + word[:1]]
        if word.isascii() or len(word) < 4
        else [_START + word[:1], _START + word[:4]]
    )


def _point(entry: Mapping[str, Any]) -> Point:
    payload = entry.get("payload") or {}
    return Point(
        _name(entry),
        {
            key: value
            for key, value in payload.items()
            if not key.startswith("_") and value is not None
        },
    )


def _name(entry: Mapping[str, Any]) -> str:
    try:
        return str(entry["payload"][NAME])
    except (KeyError, TypeError) as exc:
        raise StoreDamaged(
            f"the point {entry.get('id')} in Qdrant is not what was written; restore a snapshot"
        ) from exc


def _filter(part: Part, where: Where) -> dict[str, list[dict[str, Any]]]:
    must: list[dict[str, Any]] = [{"key": PART, "match": {"value": _part_name(part)}}]
    for field, relation, value in where:
        if relation in _RANGES:
            must.append({"key": field, "range": {_RANGES[relation]: value}})
        else:
            must.append({"key": field, "match": {"any" if relation == "in" else "value": value}})
    return {"must": must}


def _unchanged(revisions: Sequence[str]) -> dict[str, Any]:
    """Return the filter of points that still have these revisions."""
    return {"must": [{"key": _REVISION, "match": {"any": list(revisions)}}]}


def _new_revision() -> str:
    return os.urandom(8).hex()


def _in_requests(points: Sequence[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    """Yield points in lists that fit into one request each."""

    def size(point: Mapping[str, Any]) -> int:  # in bytes, rather too many
        return 13 * len(point["vector"]) + len(json.dumps(point["payload"]))

    return by_weight(points, size, most=most, heaviest=_MAX_BYTES)
