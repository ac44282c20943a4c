"""The store on a Chroma server: a driver for the server's REST API, and the store's URL.

The driver doesn't use Chroma's embedded client, which loses concurrent writes.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from memories.core.batches import by_count, by_weight
from memories.core.http import Address, ServerResponse
from memories.core.urls import without_password
from memories.errors import ConfigError, StoreDamaged, StoreError
from memories.languages.text import is_latin
from memories.stores.documents.driver import (
    FIELDS,
    Kind,
    Partition,
    Point,
    StoreClient,
    Value,
    Where,
    check_key,
    parse_tls,
)
from memories.stores.documents.store import DocumentStore
from memories.stores.protocol import RefuseLost, treat_as_new
from memories.stores.records import Collection, Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.words import Term

_COLLECTIONS = "/api/v2/tenants/default_tenant/databases/default_database/collections"
_MARK = "memories.store"  # key in our collections' metadata that names their store
_BATCH = 1_000  # maximum number of ids per request; the server's SQLite allows 32,766 values
# A list of more than 5,461 strings makes the server refuse all later writes to the collection.
_MAX_WORDS, _MAX_LABELS = 4_000, 1_000
# The fields of a point that lists words: the words, whether the record has several such points, and
# the record's id.
_WORDS, _LONG, _OF = "words", "long", "of"
_SEARCHED_FIELDS = frozenset((*FIELDS, _WORDS, _LONG, _OF))
_PREFIX_LENGTH = 4  # length of the prefix by which a word can be found
_BATCH_BYTES = 16_000_000  # maximum size of a request; the server accepts 40 MB

# On 100,000 sentences, these settings reach a recall@10 of 0.99. Chroma's defaults don't, and
# neither does an ef of 128.
_VECTORS = {
    "hnsw": {"space": "cosine", "ef_construction": 200, "ef_search": 300, "max_neighbors": 24}
}
# Records are found by their metadata. Since the server requires vectors, each record gets one with
# a single number, which is never searched.
_RECORDS = {"hnsw": {"space": "l2", "ef_construction": 4, "ef_search": 4, "max_neighbors": 4}}

_RELATIONS = {
    "<": "$lt",
    "<=": "$lte",
    ">": "$gt",
    ">=": "$gte",
    "has": "$contains",
    "in": "$in",
    "=": "$eq",
}


class ChromaDriver:
    """Implements `Driver` on one server. Each partition is a collection, so searches need no
    filter.

    A filter that most points match would cost the server 4 ms for every thousand points, more than
    the search itself. The metadata of the collection with the store's name contains the store's
    state, and its points list the partitions. Creating a collection is atomic, and succeeds for
    only one client.

    A record's words are stored as a list in a second collection, which is written before the
    record. Storing these lists in the records would slow down reads. The server's own document
    search isn't used: it scans all collections, which takes 50 ms for 100,000 documents.

    This driver follows every rule of `Driver`, because the server writes a request to its log
    completely or not at all. Removed content stays in that log until 1,000 more points (Chroma's
    `sync_threshold`) have been written to the same collection. It stays in the server's SQLite file
    until `chroma vacuum --path FOLDER` is run while the server is stopped. After an interrupted
    write, the words and vectors of a record stay until the record is written again and removed.
    """

    def __init__(self, address: Address, name: str) -> None:
        """Initialize; no request is sent yet.

        Args:
            address: The server.
            name: The store's name: the prefix of its collections' names.
        """
        self.url = f"chroma://{address.url_host}:{address.port}/{name}"
        self.collection = name
        log = "its log, which `chroma vacuum` does not erase"
        self.remains = (f"the files of {address}: {log}, keeps the last 1,000 changes",)
        self._client = StoreClient(address)
        self._ids: dict[str, str] = {}

    @functools.cached_property
    def max_batch(self) -> int:
        """See `Driver.max_batch`."""
        answer = self._client.ask("GET", "/api/v2/pre-flight-checks")
        limits = self._value(answer, "reading its limits")
        return int(limits["max_batch_size"])

    def state(self) -> Mapping[str, str]:
        """See `Driver.state`."""
        collection = self._describe(self.collection)
        if collection is None:
            return {}
        metadata = collection.get("metadata") or {}
        if metadata.get(_MARK) != self.collection:
            raise StoreError(
                f'the collection "{self.collection}" of {self._client.address} belongs to another '
                "program and is left unchanged; set COLLECTION_NAME to another name"
            )
        return {name: value for name, value in metadata.items() if name != _MARK}

    def set_missing_state(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """See `Driver.set_missing_state`."""
        answer = self._client.ask("POST", _COLLECTIONS, self._base(values), writes=True)
        if answer.status == 409:
            state = self.state()
            if values.keys() - state.keys():
                self.set_state({**values, **state})
            return self.state()
        self._value(answer, "creating a collection")
        return dict(values)

    def set_state(self, values: Mapping[str, str]) -> None:
        """See `Driver.set_state`."""
        collection = self._describe(self.collection)
        if collection is None:
            self.set_missing_state(values)
            return
        body = {"new_metadata": self._base(values)["metadata"]}
        answer = self._client.ask("PUT", f"{_COLLECTIONS}/{collection['id']}", body, writes=True)
        self._value(answer, "changing the store's state")

    def _base(self, values: Mapping[str, str]) -> dict[str, Any]:
        return {"name": self.collection, "metadata": {_MARK: self.collection, **values}}

    def parts(self) -> list[Partition]:
        """See `Driver.parts`."""
        collection = self._describe(self.collection)
        if collection is None:
            return []
        path = f"{_COLLECTIONS}/{collection['id']}/get"
        answer = self._client.ask("POST", path, {"include": []})
        points = self._value(answer, "reading the store's parts")
        parts: list[Partition] = []
        try:
            for name in points["ids"]:
                kind, collection_name, namespace, space = json.loads(name)
                parts.append(Partition(Kind(kind), Collection(collection_name), namespace, space))
        except ValueError as exc:
            raise StoreDamaged(
                f'the collection "{self.collection}" of {self._client.address} is damaged; '
                "restore a backup of the server"
            ) from exc
        return parts

    def drop(self, part: Partition) -> None:
        """See `Driver.drop`."""
        names = [self._collection_name(part)]
        if part.kind is Kind.RECORDS:
            names.insert(0, self._collection_name(part, "words"))
        for name in names:
            self._ids.pop(name, None)
            answer = self._client.ask("DELETE", f"{_COLLECTIONS}/{name}", writes=True)
            if not _is_missing(answer):
                self._value(answer, "removing a collection")
        self._change_parts("delete", {"ids": [json.dumps(part)]})

    def _change_parts(self, action: str, body: Any) -> None:
        """Change the list of partitions: the points in the collection with the store's name."""
        collection = self._describe(self.collection)
        if collection is not None:
            path = f"{_COLLECTIONS}/{collection['id']}/{action}"
            answer = self._client.ask("POST", path, body, writes=True)
            self._value(answer, "listing a part")

    def _collection_name(self, part: Partition, contents: str = "") -> str:
        """Return the name of a partition's collection.

        The name contains a hash, since a namespace may contain characters that the server doesn't
        allow.

        Args:
            part: The partition.
            contents: `words` for the collection with the partition's words; empty for the one with
                its points.
        """
        return f"{self.collection}.{contents or part.kind}.{self._scope(part)}"

    def _scope(self, part: Partition) -> str:
        """Return the suffix for the names of a partition's collections and their fields."""
        scope = json.dumps([self.collection, part.collection, part.namespace, part.space])
        return hashlib.sha256(scope.encode()).hexdigest()[:32]

    def _describe(self, name: str) -> Mapping[str, Any] | None:
        answer = self._client.ask("GET", f"{_COLLECTIONS}/{quote(name)}")
        if _is_missing(answer):
            return None
        description: Mapping[str, Any] = self._value(answer, "describing a collection")
        return description

    def _find_id(self, part: Partition, contents: str) -> str | None:
        name = self._collection_name(part, contents)
        if name not in self._ids:
            collection = self._describe(name)
            if collection is None:
                return None
            self._ids[name] = collection["id"]
        return self._ids[name]

    def _create(self, part: Partition, contents: str) -> str:
        """List a new partition, create its collection, and return the collection's id."""
        name = self._collection_name(part, contents)
        self._change_parts("add", {"ids": [json.dumps(part)], "embeddings": [[0.0]]})
        body = {
            "name": name,
            "get_or_create": True,
            "metadata": {_MARK: self.collection, "part": " ".join(part)},
            "configuration": _VECTORS if part.kind is Kind.VECTORS else _RECORDS,
        }
        answer = self._client.ask("POST", _COLLECTIONS, body, writes=True)
        self._ids[name] = self._value(answer, "creating a collection")["id"]
        return self._ids[name]

    def add(self, part: Partition, points: Sequence[Point]) -> None:
        """See `Driver.add`."""
        if part.kind is Kind.RECORDS:
            word_points: list[Point] = []
            for point in points:
                lists = [value for value in point.payload.values() if isinstance(value, list)]
                if sum(map(len, lists)) > _MAX_LABELS:
                    raise StoreError(
                        f"a record has more than {_MAX_LABELS} labels, the maximum in ChromaDB; "
                        "use fewer labels"
                    )
                word_points += _word_points(point)
            self._add(part, word_points, "words")
        self._add(part, points)

    def _add(self, part: Partition, points: Sequence[Point], contents: str = "") -> None:
        scope, max_count = self._scope(part), self._batch_size(len(points))
        for batch in by_weight(points, _weight, most=max_count, heaviest=_BATCH_BYTES):
            body: dict[str, Any] = {
                "ids": [point.id for point in batch],
                "embeddings": [_pack_vector(point) for point in batch],
            }
            if part.kind is Kind.RECORDS:
                body["metadatas"] = [_to_metadata(scope, point.payload) for point in batch]
            self._write(part, "add", body, contents)

    def update(self, part: Partition, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """See `Driver.update`."""
        scope = self._scope(part)
        for names in by_count(list(changes), self._batch_size(len(changes))):
            metadatas = [_to_metadata(scope, changes[name]) for name in names]
            self._write(part, "update", {"ids": names, "metadatas": metadatas})

    def delete(self, part: Partition, ids: Iterable[str]) -> None:
        """See `Driver.delete`."""
        of_record = _field_name(self._scope(part), _OF)
        for names in by_count(list(ids), _BATCH):
            self._read(part, "delete", {"ids": names})
            if part.kind is Kind.RECORDS:
                self._read(part, "delete", {"where": {of_record: {"$in": names}}}, "words")

    def _write(self, part: Partition, action: str, body: Any, contents: str = "") -> None:
        for _ in range(2):
            collection_id = self._find_id(part, contents) or self._create(part, contents)
            path = f"{_COLLECTIONS}/{collection_id}/{action}"
            answer = self._client.ask("POST", path, body, writes=True)
            if not _is_missing(answer):
                break
            self._ids.pop(self._collection_name(part, contents), None)  # the collection was removed
        self._value(answer, "writing")

    def _batch_size(self, count: int) -> int:
        """Return how many points fit into one request.

        The server's limit is looked up only if there are many points.
        """
        return _BATCH if count <= _BATCH else self.max_batch

    def get(self, part: Partition, ids: Sequence[str]) -> list[Point]:
        """See `Driver.get`."""
        points: list[Point] = []
        for names in by_count(ids, _BATCH):
            answer = self._read(part, "get", {"ids": names, "include": ["metadatas"]})
            points += _to_points(self._scope(part), answer)
        return points

    def find(self, part: Partition, where: Where, *, limit: int | None = None) -> list[Point]:
        """See `Driver.find`."""
        scope = self._scope(part)
        page_size = _BATCH + 1 if limit is None else limit
        body = {"include": ["metadatas"], "limit": page_size, **_to_where(scope, where)}
        points = _to_points(scope, self._read(part, "get", body))
        if limit is None and len(points) == page_size:
            # There may be more points. They are read by id, because pages shift when other clients
            # write.
            points = self.get(part, self.ids(part, where))
        return points

    def ids(self, part: Partition, where: Where) -> list[str]:
        """See `Driver.ids`."""
        answer = self._read(part, "get", {"include": [], **_to_where(self._scope(part), where)})
        return [] if answer is None else list(answer["ids"])

    def count(self, part: Partition) -> int:
        """See `Driver.count`."""
        return int(self._read(part, "count", None) or 0)

    def holders(self, part: Partition, term: "Term") -> list[str]:
        """See `Driver.holders`."""
        body = {"include": [], **_has_term(self._scope(part), term)}
        answer = self._read(part, "get", body, "words")
        if answer is None:
            return []
        return list(dict.fromkeys(name.split("/", 1)[1] for name in answer["ids"]))

    def nearest(
        self, part: Partition, vector: "NDArray[np.float32]", *, k: int
    ) -> list[tuple[str, float]]:
        """See `Driver.nearest`."""
        body = {"query_embeddings": [vector.tolist()], "n_results": k, "include": ["distances"]}
        answer = self._read(part, "query", body)
        if answer is None:
            return []
        hits = zip(answer["ids"][0], answer["distances"][0], strict=True)
        return [(name, 1.0 - distance) for name, distance in hits]

    def vectors(self, part: Partition, ids: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """See `Driver.vectors`."""
        import numpy as np

        vectors: dict[str, NDArray[np.float32]] = {}
        for names in by_count(ids, _BATCH):
            answer = self._read(part, "get", {"ids": names, "include": ["embeddings"]})
            if answer is not None:
                for name, vector in zip(answer["ids"], answer["embeddings"], strict=True):
                    vectors[name] = np.array(vector, dtype=np.float32)
        return vectors

    def close(self) -> None:
        """See `Driver.close`."""
        self._client.close()

    def _read(self, part: Partition, action: str, body: Any, contents: str = "") -> Any:
        """Send a request about a partition; return None if the partition has no collection."""
        method = "GET" if body is None else "POST"
        for _ in range(2):
            collection_id = self._find_id(part, contents)
            if collection_id is None:
                return None
            path = f"{_COLLECTIONS}/{collection_id}/{action}"
            answer = self._client.ask(method, path, body, writes=action == "delete")
            if not _is_missing(answer):
                return self._value(answer, "reading")
            # The collection was removed, and perhaps created again.
            self._ids.pop(self._collection_name(part, contents), None)
        return None

    def _value(self, answer: ServerResponse, action: str) -> Any:
        if 200 <= answer.status < 300 and not isinstance(answer.value, str):
            return answer.value
        if answer.status in (404, 405, 410) and not _is_missing(answer):
            raise StoreError(
                f"{self._client.address} does not provide the API of ChromaDB 1.0 or newer; "
                "update the server, or check the address"
            )
        if answer.status in (401, 403):
            raise StoreError(
                f"{self._client.address} refused the key; put it into the URL, "
                "as in chroma://:KEY@host:port"
            )
        raise self._client.refusal(answer, action)


def _is_missing(answer: ServerResponse) -> bool:
    value = answer.value if isinstance(answer.value, dict) else {}
    return answer.status == 404 and value.get("error") == "NotFoundError"


def _field_name(scope: str, field: str) -> str:
    """Return the name under which the server stores a field of one partition.

    Each partition has its own field names, because the server has one index for all its
    collections. It looks up a condition there by the field's name and then by its value. With
    separate names, the cost of a search depends only on the size of the partition.
    """
    return f"{field}.{scope}" if field in _SEARCHED_FIELDS else field


def _to_metadata(scope: str, payload: Mapping[str, Value | None]) -> dict[str, Value | None]:
    return {_field_name(scope, field): value for field, value in payload.items()}


def _to_where(scope: str, where: Where) -> dict[str, Any]:
    conditions = [
        {_field_name(scope, field): {_RELATIONS[relation]: value}}
        for field, relation, value in where
    ]
    if not conditions:
        return {}
    if len(conditions) == 1:
        return {"where": conditions[0]}
    return {"where": {"$and": conditions}}


def _to_points(scope: str, answer: Any) -> list[Point]:
    if answer is None:
        return []
    fields = {_field_name(scope, field): field for field in _SEARCHED_FIELDS}
    points: list[Point] = []
    for name, metadata in zip(answer["ids"], answer["metadatas"], strict=True):
        payload = {fields.get(field, field): value for field, value in (metadata or {}).items()}
        points.append(Point(name, payload))
    return points


def _has_term(scope: str, term: "Term") -> dict[str, Any]:
    """Return the condition for points whose records may contain a term.

    A long record's words are spread over several points, so perhaps no single point contains all
    words of the term. A long record's points therefore match if they contain any of the words, and
    the caller checks the records.
    """
    *words, last = term.tokens
    words += _prefix(last) if term.open_ended else [last]
    if not words:
        return {}
    field = _field_name(scope, _WORDS)
    conditions = [{field: {"$contains": word}} for word in dict.fromkeys(words)]
    if len(conditions) == 1:
        return {"where": conditions[0]}
    is_long = {_field_name(scope, _LONG): 1}
    in_one_point = {"$and": conditions}
    in_several_points = {"$and": [is_long, {"$or": conditions}]}
    return {"where": {"$or": [in_one_point, in_several_points]}}


def _prefix(word: str) -> list[str]:
    """Return the prefix to index along with a word, as a list; empty if none is needed.

    Only queries in scripts other than Latin search for word prefixes.
    """
    if len(word) < _PREFIX_LENGTH or is_latin(word):
        return []
    return [f"^{word[:_PREFIX_LENGTH]}"]


def _word_points(point: Point) -> list[Point]:
    """Return the points for a record's words: several if one list can't hold all words.

    Their ids begin with a hash of the record's write, so that a failed write's words don't
    block the next write.
    """
    words = set(point.words or ())
    entries = words.union(*map(_prefix, words))
    lists = list(by_count(sorted(entries), _MAX_WORDS))
    write_hash = hashlib.sha256(str(point.payload.get("body")).encode()).hexdigest()[:16]
    points: list[Point] = []
    for number, part in enumerate(lists):
        payload: dict[str, Value] = {_WORDS: list(part), _OF: point.id}
        if len(lists) > 1:
            payload[_LONG] = 1
        points.append(Point(f"{write_hash}.{number}/{point.id}", payload))
    return points


def _pack_vector(point: Point) -> Any:
    """Return a vector in base64, the shortest format that the server accepts.

    For a point without a vector, return a list with one number derived from its id.
    """
    if point.vector is None:
        id_hash = hashlib.sha256(point.id.encode()).digest()
        return [int.from_bytes(id_hash[:3]) / 1000]
    import base64

    return base64.b64encode(point.vector.astype("<f4").tobytes()).decode()


def _weight(point: Point) -> int:
    """Return a point's approximate size in a request, in bytes."""
    text_length = sum(len(value) for value in point.payload.values() if isinstance(value, str))
    vector_bytes = 0 if point.vector is None else 6 * len(point.vector)
    return 500 + 2 * text_length + vector_bytes


_PORT = 8000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,99}")
_COLLECTION = "memories"


class ChromaStore(DocumentStore):
    """Implements `Store` on a server of Chroma 1.0 or newer; see `DocumentStore` for its limits."""

    def __init__(
        self,
        url: str,
        space: Space | None,
        collection_name: str | None = None,
        refuse_lost: RefuseLost = treat_as_new,
    ) -> None:
        """Initialize; no request is sent yet.

        Args:
            url: `chroma://host:port`, optionally followed by `/collection`. A key for a proxy goes
                before the host, as in `chroma://:KEY@host:port`, and is sent as a bearer token.
                `?tls=1` or `?ssl=true` turns TLS on.
            space: The space of the vectors to write and search; None in keyword-only mode.
            collection_name: The collection to use if the URL doesn't name one; by default
                `memories`.
            refuse_lost: Called before a server without the store is treated as new.

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
                "chroma://host:port/collection, with a name of 3 to 100 letters, digits, -, _ and ."
            )
        key = check_key(
            unquote(parts.password or ""), "ChromaDB", "the part of the URL before the @"
        )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        tls = parse_tls(parts.query, "Chroma") or False
        address = Address("ChromaDB", parts.hostname, port, tls, headers, "Is Docker running?")
        super().__init__(ChromaDriver(address, name), space, refuse_lost)
