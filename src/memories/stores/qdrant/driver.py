"""What is kept where in Qdrant, and which requests keep and find it; how they get there is the matter of a `Transport`.

The requests are those of the REST API of Qdrant 1.17 and later.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from memories.batches import by_count, by_weight
from memories.errors import StoreBusy, StoreDamaged, StoreError
from memories.stores.documents.driver import FIELDS, Condition, Kind, Part, Point, Value, Where
from memories.stores.records import Collection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.words import Term

OLDEST = (1, 17)  # the first that can insert without overwriting
_MARK = "memories"  # the key in a collection's metadata that says whose it is
_SPACE_SIGN = "~"  # before the letters of a space in the name of a collection; no setting can have it
_PAGE, _IDS_PAGE = 1_000, 10_000  # points in one answer
_MAX_BYTES = 24_000_000  # of one request; the server takes 32 MiB
_MAX_PARTS = 1_000_000
_TRIES = 20

# Ours beside the fields of a payload: the part, the name in it, a word that each change replaces, the tokens in order,
# and what terms are looked up by. A token begins with a letter, a digit or a symbol, never with "^".
PART, NAME, _TURN, _WORDS, _START = "_part", "_id", "_rev", "_words", "^"
_STATE = "state"
_LEAN = {"exclude": [_WORDS]}

_TENANT = {"type": "keyword", "is_tenant": True}
RECORD_INDEXES: Mapping[str, Mapping[str, Any]] = {
    PART: _TENANT,
    _TURN: {"type": "keyword"},
    _WORDS: {"type": "keyword"},
    **{field: {"type": "integer" if kind is int else "keyword"} for field, kind in FIELDS.items()},
}
VECTOR_INDEXES: Mapping[str, Mapping[str, Any]] = {PART: _TENANT}
_RANGES = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


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


class Request(NamedTuple):
    """One request.

    Attributes:
        verb: What it asks for.
        collection: Of which collection; empty where it is about all.
        body: The JSON object that the REST API documents for it; None where it has none.
    """

    verb: Verb
    collection: str = ""
    body: Mapping[str, Any] | None = None


class NoCollection(StoreError):
    """The collection that a request names does not exist."""


class Transport(Protocol):
    """Carries requests to where the collections are."""

    @property
    def url(self) -> str:
        """Where they are, without a key and without a collection."""
        ...

    @property
    def remains(self) -> tuple[str, ...]:
        """What may still hold the bytes of points that were deleted, and until when."""
        ...

    def ask(self, request: Request) -> Any:
        """Return the `result` of the answer, as the REST API documents it.

        What was written is safe and seen by every later request. A collection that is to be created and exists, or to
        be removed and is gone, is no error.

        Raises:
            NoCollection: The collection does not exist; nothing was made.
            StoreError: It could not be done.
        """
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class QdrantDriver:
    """Implements `Driver` with two kinds of collections.

    One, of the name that was given, has the records, the labels and the state as points without vectors; it is one
    shard, so that each write is one entry of one log, done wholly or not at all. For every space of vectors there is
    another one with its own dimension, sharded as the server does by default. Every request is narrowed by `_part`,
    which the server indexes as its tenant.

    Words: a keyword index over the tokens, so that they are those of every other store; the terms that are only the
    beginning of a word look for their first signs.

    What is left open:

    - Points of more than some 24 MB in one call are cut into several requests; if that is cut short, some are written.
    - Of two writers that change one point at the same moment, both changes are made, one after the other; then a call
      of several points with different changes may be seen done in part.
    - Vectors that several shards keep are not written in one step; nothing refers to them before all are there.
    - Where the server keeps replicas, reads see every acknowledged write only if its `write_consistency_factor` asks
      all of them.
    """

    max_batch = 256

    def __init__(self, transport: Transport, name: str) -> None:
        """Prepare; nothing is asked yet.

        Args:
            transport: Carries the requests.
            name: The collection of the records; those of the vectors begin with it.
        """
        self._transport = transport
        self._name = name
        self._made: set[str] = set()  # collections that are known to be as they should

    @property
    def url(self) -> str:
        """The address of the store, without a key."""
        return f"{self._transport.url}/{self._name}"

    @property
    def collection(self) -> str:
        """See `Driver.collection`."""
        return self._name

    @property
    def remains(self) -> tuple[str, ...]:
        """See `Driver.remains`."""
        return self._transport.remains

    # --- the state --------------------------------------------------------------------------------------------------

    def state(self) -> Mapping[str, str]:
        """See `Driver.state`."""
        values, _ = self._state()
        return values

    def claim(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """See `Driver.claim`; the server decides who is first."""
        for _ in range(_TRIES):
            standing, turn = self._state()
            merged = {**values, **standing}
            if turn is not None and merged == standing:
                return standing
            if turn is None:
                self._put_state(merged, {"update_mode": "insert_only"})
            else:
                self._put_state(merged, {"update_mode": "update_only", "update_filter": _turns([turn])})
        raise self._busy()

    def set_state(self, values: Mapping[str, str]) -> None:
        """See `Driver.set_state`."""
        self._put_state(values, {})

    def _state(self) -> tuple[Mapping[str, str], str | None]:
        """Return the state, and the word that its next change replaces; None if there is no state yet."""
        body = {"ids": [_point_id(_STATE, "")], "with_payload": True, "with_vector": False}
        try:
            found = self._transport.ask(Request(Verb.GET, self._name, body))
            if not found:
                self._check_ours(self._transport.ask(Request(Verb.INFO, self._name)))
        except NoCollection:
            return {}, None
        if not found:
            return {}, None
        payload = found[0].get("payload") or {}
        try:
            values: dict[str, str] = json.loads(payload["values"])
            return values, payload[_TURN]
        except (KeyError, TypeError, ValueError) as exc:
            raise StoreDamaged(f"the state of {self.url} can't be read; restore a snapshot of the collection") from exc

    def _put_state(self, values: Mapping[str, str], mode: Mapping[str, Any]) -> None:
        payload = {PART: _STATE, NAME: "", _TURN: _word(), "values": json.dumps(dict(values))}
        point = {"id": _point_id(_STATE, ""), "vector": {}, "payload": payload}
        self._write(Request(Verb.UPSERT, self._name, {"points": [point], **mode}))

    # --- parts -------------------------------------------------------------------------------------------------------

    def parts(self) -> list[Part]:
        """See `Driver.parts`."""
        found: list[Part] = []
        for entry in self._transport.ask(Request(Verb.COLLECTIONS))["collections"]:
            base, sign, space = entry["name"].partition(_SPACE_SIGN)
            if base == self._name:
                body = {"key": PART, "limit": _MAX_PARTS, "exact": True}
                hits = self._read(Request(Verb.FACET, entry["name"], body)) or {"hits": []}
                names = [str(hit["value"]) for hit in hits["hits"]]
                found += [_part(name, space if sign else "") for name in names if name != _STATE]
        return found

    def drop(self, part: Part) -> None:
        """See `Driver.drop`; the collection of a space goes with the last of its parts."""
        name = self._collection(part)
        if self._read(Request(Verb.DELETE, name, {"filter": _filter(part, [])})) is None:
            return
        if part.kind is Kind.VECTORS:
            left = self._read(Request(Verb.COUNT, name, {"exact": True}))
            if left is not None and left["count"] == 0:
                self._made.discard(name)
                self._transport.ask(Request(Verb.REMOVE, name))

    # --- writing -----------------------------------------------------------------------------------------------------

    def add(self, part: Part, points: Sequence[Point]) -> None:
        """See `Driver.add`."""
        dimension = len(points[0].vector) if points and points[0].vector is not None else 0
        for some in _in_requests([_stored(part, point) for point in points], self.max_batch):
            body = {"points": some, "update_mode": "insert_only"}
            self._write(Request(Verb.UPSERT, self._collection(part), body), dimension)

    def update(self, part: Part, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """See `Driver.update`."""
        names = list(changes)
        for start in range(0, len(names), self.max_batch):
            some = {name: changes[name] for name in names[start : start + self.max_batch]}
            first = next(iter(some.values()))
            if all(change == first for change in some.values()):
                ids = {"must": [{"has_id": [_point_id(_part_name(part), name) for name in some]}]}
                body = {"payload": {**first, _TURN: _word()}, "filter": ids}
                self._read(Request(Verb.SET_PAYLOAD, self._collection(part), body))
            else:
                self._replace(part, some)

    def _replace(self, part: Part, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """Write points anew that change in different ways, in one request; what others changed meanwhile, once more."""
        collection, waiting = self._collection(part), dict(changes)
        for _ in range(_TRIES):
            found = {entry["payload"][NAME]: entry for entry in self._entries(part, list(waiting), True)}
            if not found:
                return
            turn = _word()
            points = [
                {
                    "id": entry["id"],
                    "vector": entry.get("vector") or {},
                    "payload": _set({**entry["payload"], _TURN: turn}, waiting[name]),
                }
                for name, entry in found.items()
            ]
            seen = _turns([entry["payload"][_TURN] for entry in found.values()])
            for some in _in_requests(points, self.max_batch):
                body = {"points": some, "update_mode": "update_only", "update_filter": seen}
                self._read(Request(Verb.UPSERT, collection, body))
            now = self._entries(part, list(found), {"include": [PART, NAME, _TURN]})
            late = {entry["payload"][NAME] for entry in now if entry["payload"][_TURN] != turn}
            waiting = {name: changes[name] for name in late}
            if not waiting:
                return
        raise self._busy()

    def delete(self, part: Part, ids: Iterable[str]) -> None:
        """See `Driver.delete`."""
        points = [_point_id(_part_name(part), name) for name in ids]
        for start in range(0, len(points), _PAGE):
            body = {"points": points[start : start + _PAGE]}
            self._read(Request(Verb.DELETE, self._collection(part), body))

    # --- reading -----------------------------------------------------------------------------------------------------

    def get(self, part: Part, ids: Sequence[str]) -> list[Point]:
        """See `Driver.get`."""
        return [_point(entry) for entry in self._entries(part, ids, _LEAN)]

    def find(self, part: Part, where: Where, *, limit: int | None = None) -> list[Point]:
        """See `Driver.find`; the first ones are those whose ids the server sorts first."""
        return [_point(entry) for entry in self._scroll(part, _filter(part, where), _LEAN, limit)]

    def ids(self, part: Part, where: Where) -> list[str]:
        """See `Driver.ids`."""
        return [_name(entry) for entry in self._scroll(part, _filter(part, where), {"include": [NAME]}, None)]

    def count(self, part: Part) -> int:
        """See `Driver.count`."""
        body = {"filter": _filter(part, []), "exact": True}
        found = self._read(Request(Verb.COUNT, self._collection(part), body))
        return 0 if found is None else int(found["count"])

    def holders(self, part: Part, term: "Term") -> list[str]:
        """See `Driver.holders`."""
        *leading, last = term.tokens
        keys = {*leading, _beginning(last) if term.open_ended else last}
        body = _filter(part, [])
        body["must"] += [{"key": _WORDS, "match": {"value": key}} for key in sorted(keys)]
        return [_name(entry) for entry in self._scroll(part, body, {"include": [NAME]}, None)]

    def nearest(self, part: Part, vector: "NDArray[np.float32]", *, k: int) -> list[tuple[str, float]]:
        """See `Driver.nearest`; codes of 8 bits find twice as many, and the vectors themselves score these."""
        if k < 1:
            return []
        body = {
            "query": vector.astype(float).tolist(),
            "filter": _filter(part, []),
            "params": {"hnsw_ef": max(256, k), "quantization": {"rescore": True, "oversampling": 2.0}},
            "limit": k,
            "with_payload": {"include": [NAME]},
            "with_vector": False,
        }
        answer = self._read(Request(Verb.QUERY, self._collection(part), body)) or {"points": []}
        found = [(_name(entry), float(entry["score"])) for entry in answer["points"]]
        return sorted(found, key=lambda entry: -entry[1])

    def vectors(self, part: Part, ids: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """See `Driver.vectors`."""
        import numpy as np

        found = self._entries(part, ids, {"include": [PART, NAME]}, vectors=True)
        return {_name(entry): np.array(entry["vector"], dtype=np.float32) for entry in found}

    def close(self) -> None:
        """See `Driver.close`."""
        self._transport.close()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _collection(self, part: Part) -> str:
        return f"{self._name}{_SPACE_SIGN}{part.space}" if part.kind is Kind.VECTORS else self._name

    def _read(self, request: Request) -> Any:
        """Ask for what makes nothing; None if the collection is not there."""
        try:
            return self._transport.ask(request)
        except NoCollection:
            return None

    def _write(self, request: Request, dimension: int = 0) -> None:
        """Ask for what makes the collection where it is missing, also where somebody removed it meanwhile."""
        self._make(request.collection, dimension)
        try:
            self._transport.ask(request)
        except NoCollection:
            self._made.discard(request.collection)
            self._make(request.collection, dimension)
            self._transport.ask(request)

    def _entries(
        self, part: Part, ids: Sequence[str], payload: Mapping[str, Any] | bool, *, vectors: bool = False
    ) -> list[dict[str, Any]]:
        name = _part_name(part)
        found: list[dict[str, Any]] = []
        for some in by_count(list(dict.fromkeys(ids)), _PAGE):
            body = {"ids": [_point_id(name, one) for one in some], "with_payload": payload, "with_vector": vectors}
            found += self._read(Request(Verb.GET, self._collection(part), body)) or []
        return [entry for entry in found if (entry.get("payload") or {}).get(PART, name) == name]

    def _scroll(
        self, part: Part, narrowed: Mapping[str, Any], payload: Mapping[str, Any], limit: int | None
    ) -> Iterator[dict[str, Any]]:
        page = _IDS_PAGE if payload.get("include") == [NAME] else _PAGE
        body = {"filter": narrowed, "with_payload": payload, "with_vector": False}
        left = limit
        while left is None or left > 0:
            body["limit"] = page if left is None else min(page, left)
            answer = self._read(Request(Verb.SCROLL, self._collection(part), body))
            if answer is None:
                return
            yield from answer["points"]
            left = None if left is None else left - len(answer["points"])
            if answer.get("next_page_offset") is None:
                return
            body["offset"] = answer["next_page_offset"]

    def _make(self, name: str, dimension: int) -> None:
        """Make a collection as it should be, or what is missing of it after a crash, or of an older program's."""
        if name in self._made:
            return
        info = self._read(Request(Verb.INFO, name))
        if info is None:
            self._check_version()
            self._transport.ask(Request(Verb.CREATE, name, _settings(dimension)))
            info = self._transport.ask(Request(Verb.INFO, name))
        self._check_ours(info)
        for field, schema in (VECTOR_INDEXES if dimension else RECORD_INDEXES).items():
            if field not in info["payload_schema"]:
                self._transport.ask(Request(Verb.INDEX, name, {"field_name": field, "field_schema": schema}))
        self._made.add(name)

    def _check_ours(self, info: Mapping[str, Any]) -> None:
        if not (info["config"].get("metadata") or {}).get(_MARK):
            raise StoreError(f"the collection {self.url} is not one of Memories; choose another name")

    def _check_version(self) -> None:
        """Refuse a server that would ignore how points are to be written, and overwrite them."""
        version = str(self._transport.ask(Request(Verb.VERSION))["version"])
        major, minor, *_ = [int(number) if number.isdecimal() else 0 for number in (version + ".0.0").split(".")]
        if (major, minor) < OLDEST:
            needed = ".".join(map(str, OLDEST))
            raise StoreError(f"{self._transport.url} is Qdrant {version[:20]}; update it to {needed} or later")

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"others keep changing the same records of {self.url}; try again")


# --- what is sent and what comes back --------------------------------------------------------------------------------


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
    payload: dict[str, Any] = {**point.payload, PART: _part_name(part), NAME: point.id, _TURN: _word()}
    if point.words is not None:
        payload[_WORDS] = sorted({*point.words, *(start for word in point.words for start in _starts(word))})
    vector: Any = {}
    if point.vector is not None:
        vector = point.vector.astype(float).round(8).tolist()  # half the digits, and far below what a float32 tells
    return {"id": _point_id(_part_name(part), point.id), "vector": vector, "payload": payload}


def _starts(word: str) -> list[str]:
    """Return what a word is found by if only its beginning is known; few look for that in ASCII."""
    return [_START + word[:1]] if word.isascii() or len(word) < 4 else [_START + word[:1], _START + word[:4]]


def _beginning(start: str) -> str:
    """Return one of the `_starts` that all words have that begin so."""
    return _START + (start[:1] if start.isascii() or len(start) < 4 else start[:4])


def _point(entry: Mapping[str, Any]) -> Point:
    payload = entry.get("payload") or {}
    return Point(
        _name(entry), {key: value for key, value in payload.items() if not key.startswith("_") and value is not None}
    )


def _name(entry: Mapping[str, Any]) -> str:
    try:
        return str(entry["payload"][NAME])
    except (KeyError, TypeError) as exc:
        raise StoreDamaged(
            f"the point {entry.get('id')} in Qdrant is not what was written; restore a snapshot"
        ) from exc


def _set(payload: dict[str, Any], change: Mapping[str, Value | None]) -> dict[str, Any]:
    return {key: value for key, value in {**payload, **change}.items() if value is not None}


def _filter(part: Part, where: Where) -> dict[str, list[dict[str, Any]]]:
    return {"must": [{"key": PART, "match": {"value": _part_name(part)}}, *map(_condition, where)]}


def _condition(condition: Condition) -> dict[str, Any]:
    if condition.relation in _RANGES:
        return {"key": condition.field, "range": {_RANGES[condition.relation]: condition.value}}
    kind = "any" if condition.relation == "in" else "value"
    return {"key": condition.field, "match": {kind: condition.value}}


def _turns(turns: Sequence[str]) -> dict[str, Any]:
    """Return the filter of points that nobody has changed since these words were read."""
    return {"must": [{"key": _TURN, "match": {"any": list(turns)}}]}


def _word() -> str:
    return os.urandom(8).hex()


def _in_requests(points: Sequence[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    """Yield points in lists that fit into one request each."""
    return by_weight(points, _size, most=most, heaviest=_MAX_BYTES)


def _size(point: Mapping[str, Any]) -> int:
    """Return about how many bytes a point has in a request, rather too many."""
    return 13 * len(point["vector"]) + len(json.dumps(point["payload"]))
