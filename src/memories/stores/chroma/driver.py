"""A Chroma server as a document server, by its REST API; not by its embedded client, which loses
concurrent writes.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from memories.core.batches import by_count, by_weight
from memories.core.http import Address, Answer
from memories.errors import StoreDamaged, StoreError
from memories.languages.text import is_latin
from memories.stores.documents.client import StoreClient
from memories.stores.documents.driver import FIELDS, Kind, Part, Point, Value, Where
from memories.stores.records import Collection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.words import Term

_COLLECTIONS = "/api/v2/tenants/default_tenant/databases/default_database/collections"
_MARK = "memories.store"  # in the metadata of each of our collections: the name of its store
_READ = 1_000  # ids in one request: the SQLite in the server takes up to 32,766 values
# After a list of more than 5,461 texts the server refuses every later write to the collection as
# well.
_MOST_WORDS, _MOST_LABELS = 4_000, 1_000
_WORDS, _LONG, _OF = "words", "long", "of"
_ASKED = frozenset((*FIELDS, _WORDS, _LONG, _OF))  # the fields in conditions
_HEAD = 4  # letters that find a word by its beginning
_BATCH_BYTES = 16_000_000  # the server takes 40 MB in one request

# For a recall@10 of 0.99; Chroma's defaults, and even an ef of 128, stay below it on 100,000
# sentences.
_VECTORS = {
    "hnsw": {"space": "cosine", "ef_construction": 200, "ef_search": 300, "max_neighbors": 24}
}
# Records are found by their metadata; the vector that the server requires is one number, which is
# never searched.
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
    """Implements `Driver` on one server: each part is a collection of its own, so that a search
    needs no filter.

    A filter that most points match costs the server 4 ms for a thousand of them, more than the
    search itself. The collection with the store's name has the state as its metadata, and creating
    it is one step, which only one client can do first; its points list the parts. The words of a
    record are a list in a second collection, added before the
    record: such lists make reading slow, and the server's own search of documents goes through
        those of all
    collections, 50 ms for 100,000.

    The rules of the protocol hold: the server writes a request to its log completely or not at all.
        What is removed
    stays in its SQLite file until `chroma vacuum --path FOLDER` is run with the server stopped;
    words and vectors of an interrupted write stay until its record is written and removed.
    """

    def __init__(self, address: Address, name: str) -> None:
        """Prepare; no request is sent yet.

        Args:
            address: The server.
            name: The name of the store, with which the names of its collections begin.
        """
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"chroma://{host}:{address.port}/{name}"
        self.collection = name
        self.remains = (f"the files of {address}, until `chroma vacuum` was run on them",)
        self._client = StoreClient(address)
        self._ids: dict[str, str] = {}  # of collections, by name

    @functools.cached_property
    def max_batch(self) -> int:
        """See `Driver.max_batch`."""
        limits = self._value(
            self._client.ask("GET", "/api/v2/pre-flight-checks"), "telling its limits"
        )
        return int(limits["max_batch_size"])

    # --- the state
    # -------------------------------------------------------------------------------------------------

    def state(self) -> Mapping[str, str]:
        """See `Driver.state`."""
        collection = self._describe(self.collection)
        if collection is None:
            return {}
        metadata = collection.get("metadata") or {}
        if metadata.get(_MARK) != self.collection:
            raise StoreError(
                f'the collection "{self.collection}" of {self._client.address} was made by another program and is left '
                "as it is; set COLLECTION_NAME to another name"
            )
        return {name: value for name, value in metadata.items() if name != _MARK}

    def claim(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """See `Driver.claim`."""
        answer = self._client.ask("POST", _COLLECTIONS, self._base(values), writes=True)
        if answer.status == 409:
            state = self.state()
            if values.keys() - state.keys():
                self.set_state({**values, **state})
            return self.state()
        self._value(answer, "making a collection")
        return dict(values)

    def set_state(self, values: Mapping[str, str]) -> None:
        """See `Driver.set_state`."""
        collection = self._describe(self.collection)
        if collection is None:
            self.claim(values)
            return
        body = {"new_metadata": self._base(values)["metadata"]}
        changed = self._client.ask("PUT", f"{_COLLECTIONS}/{collection['id']}", body, writes=True)
        self._value(changed, "changing its state")

    def _base(self, values: Mapping[str, str]) -> dict[str, Any]:
        return {"name": self.collection, "metadata": {_MARK: self.collection, **values}}

    # --- parts
    # -----------------------------------------------------------------------------------------------------

    def parts(self) -> list[Part]:
        """See `Driver.parts`."""
        collection = self._describe(self.collection)
        if collection is None:
            return []
        listed = self._value(
            self._client.ask("POST", f"{_COLLECTIONS}/{collection['id']}/get", {"include": []}),
            "its parts",
        )
        try:
            parts = [json.loads(name) for name in listed["ids"]]
            return [
                Part(Kind(kind), Collection(name), namespace, space)
                for kind, name, namespace, space in parts
            ]
        except ValueError as exc:
            raise StoreDamaged(
                f'the collection "{self.collection}" of {self._client.address} is not what was written; restore a '
                "backup of the server"
            ) from exc

    def drop(self, part: Part) -> None:
        """See `Driver.drop`."""
        for beside in ("words", "") if part.kind is Kind.RECORDS else ("",):
            name = self._named(part, beside)
            self._ids.pop(name, None)
            answer = self._client.ask("DELETE", f"{_COLLECTIONS}/{name}", writes=True)
            if not _is_missing(answer):
                self._value(answer, "removing a collection")
        self._listing("delete", {"ids": [json.dumps(part)]})

    def _listing(self, what: str, body: Any) -> None:
        """Change the list of parts, which are the points of the collection with the store's
        name.
        """
        collection = self._describe(self.collection)
        if collection is not None:
            listed = self._client.ask(
                "POST", f"{_COLLECTIONS}/{collection['id']}/{what}", body, writes=True
            )
            self._value(listed, "listing a part")

    def _named(self, part: Part, beside: str = "") -> str:
        """Return the name of the collection of a part; it allows few characters, and the name of a
        namespace any.

        Args:
            part: The part.
            beside: `words` for the collection of its words.
        """
        return f"{self.collection}.{beside or part.kind}.{self._scope(part)}"

    def _scope(self, part: Part) -> str:
        """Return the suffix of the names of a part's collections and of their fields."""
        scope = json.dumps([self.collection, part.collection, part.namespace, part.space])
        return hashlib.sha256(scope.encode()).hexdigest()[:32]

    def _describe(self, name: str) -> Mapping[str, Any] | None:
        answer = self._client.ask("GET", f"{_COLLECTIONS}/{quote(name)}")
        if _is_missing(answer):
            return None
        found: Mapping[str, Any] = self._value(answer, "describing a collection")
        return found

    def _id(self, part: Part, beside: str, *, create: bool) -> str | None:
        """Return the id of a collection of a part; if it is missing, list the part and create it,
        or return None.
        """
        name = self._named(part, beside)
        if name not in self._ids:
            collection = self._describe(name)
            if collection is None and not create:
                return None
            if collection is None:
                self._listing("add", {"ids": [json.dumps(part)], "embeddings": [[0.0]]})
                body = {
                    "name": name,
                    "get_or_create": True,
                    "metadata": {_MARK: self.collection, "part": " ".join(part)},
                    "configuration": _VECTORS if part.kind is Kind.VECTORS else _RECORDS,
                }
                collection = self._value(
                    self._client.ask("POST", _COLLECTIONS, body, writes=True), "making a collection"
                )
            self._ids[name] = collection["id"]
        return self._ids[name]

    # --- writing
    # ---------------------------------------------------------------------------------------------------

    def add(self, part: Part, points: Sequence[Point]) -> None:
        """See `Driver.add`."""
        if part.kind is Kind.RECORDS:
            for point in points:
                if (
                    sum(len(value) for value in point.payload.values() if isinstance(value, list))
                    > _MOST_LABELS
                ):
                    raise StoreError(
                        f"a record has more labels than the {_MOST_LABELS} that ChromaDB takes; give it fewer"
                    )
            self._add(part, [each for point in points for each in _words_of(point)], "words")
        self._add(part, points)

    def _add(self, part: Part, points: Sequence[Point], beside: str = "") -> None:
        for batch in by_weight(
            points, _weight, most=self._size(len(points)), heaviest=_BATCH_BYTES
        ):
            body: dict[str, Any] = {
                "ids": [point.id for point in batch],
                "embeddings": [_packed(point) for point in batch],
            }
            if part.kind is Kind.RECORDS:
                body["metadatas"] = [_own(self._scope(part), point.payload) for point in batch]
            self._write(part, "add", body, beside)

    def update(self, part: Part, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """See `Driver.update`."""
        scope = self._scope(part)
        for names in by_count(list(changes), self._size(len(changes))):
            self._write(
                part,
                "update",
                {"ids": names, "metadatas": [_own(scope, changes[name]) for name in names]},
            )

    def delete(self, part: Part, ids: Iterable[str]) -> None:
        """See `Driver.delete`."""
        for names in by_count(list(ids), _READ):
            self._read(part, "delete", {"ids": names})
            if part.kind is Kind.RECORDS:
                self._read(
                    part,
                    "delete",
                    {"where": {_own_name(self._scope(part), _OF): {"$in": names}}},
                    "words",
                )

    def _write(self, part: Part, what: str, body: Any, beside: str = "") -> None:
        for _ in range(2):
            path = f"{_COLLECTIONS}/{self._id(part, beside, create=True)}/{what}"
            answer = self._client.ask("POST", path, body, writes=True)
            if not _is_missing(answer):
                break
            self._ids.pop(self._named(part, beside), None)  # somebody removed the collection
        self._value(answer, "a write")

    def _size(self, count: int) -> int:
        """Return how many points go into one request, without asking the server if they are few."""
        return _READ if count <= _READ else self.max_batch

    # --- reading
    # ---------------------------------------------------------------------------------------------------

    def get(self, part: Part, ids: Sequence[str]) -> list[Point]:
        """See `Driver.get`."""
        points: list[Point] = []
        for names in by_count(ids, _READ):
            points += _points(
                self._scope(part), self._read(part, "get", {"ids": names, "include": ["metadatas"]})
            )
        return points

    def find(self, part: Part, where: Where, *, limit: int | None = None) -> list[Point]:
        """See `Driver.find`."""
        first = _READ + 1 if limit is None else limit
        asked = {"include": ["metadatas"], "limit": first, **_where(self._scope(part), where)}
        points = _points(self._scope(part), self._read(part, "get", asked))
        if (
            limit is None and len(points) == first
        ):  # pages shift when somebody writes, so the rest is read by id
            points = self.get(part, self.ids(part, where))
        return points

    def ids(self, part: Part, where: Where) -> list[str]:
        """See `Driver.ids`."""
        answer = self._read(part, "get", {"include": [], **_where(self._scope(part), where)})
        return [] if answer is None else list(answer["ids"])

    def count(self, part: Part) -> int:
        """See `Driver.count`."""
        return int(self._read(part, "count", None) or 0)

    def holders(self, part: Part, term: "Term") -> list[str]:
        """See `Driver.holders`."""
        answer = self._read(
            part, "get", {"include": [], **_having(self._scope(part), term)}, "words"
        )
        return (
            []
            if answer is None
            else list(dict.fromkeys(name.split("/", 1)[1] for name in answer["ids"]))
        )

    def nearest(
        self, part: Part, vector: "NDArray[np.float32]", *, k: int
    ) -> list[tuple[str, float]]:
        """See `Driver.nearest`."""
        asked = {"query_embeddings": [vector.tolist()], "n_results": k, "include": ["distances"]}
        answer = self._read(part, "query", asked)
        if answer is None:
            return []
        return [
            (name, 1.0 - away)
            for name, away in zip(answer["ids"][0], answer["distances"][0], strict=True)
        ]

    def vectors(self, part: Part, ids: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """See `Driver.vectors`."""
        import numpy as np

        vectors: dict[str, NDArray[np.float32]] = {}
        for names in by_count(ids, _READ):
            answer = self._read(part, "get", {"ids": names, "include": ["embeddings"]})
            if answer is not None:
                given = zip(answer["ids"], answer["embeddings"], strict=True)
                vectors |= {name: np.array(vector, dtype=np.float32) for name, vector in given}
        return vectors

    def close(self) -> None:
        """See `Driver.close`."""
        self._client.close()

    def _read(self, part: Part, what: str, body: Any, beside: str = "") -> Any:
        """Return the answer to a request to a part's collection; None if the collection does not
        exist.
        """
        for _ in range(2):
            collection = self._id(part, beside, create=False)
            if collection is None:
                return None
            path = f"{_COLLECTIONS}/{collection}/{what}"
            answer = self._client.ask(
                "GET" if body is None else "POST", path, body, writes=what == "delete"
            )
            if not _is_missing(answer):
                return self._value(answer, "a question")
            self._ids.pop(
                self._named(part, beside), None
            )  # it was removed, and perhaps created again
        return None

    def _value(self, answer: Answer, doing: str) -> Any:
        if 200 <= answer.status < 300 and not isinstance(answer.value, str):
            return answer.value
        if answer.status in (404, 405, 410) and not _is_missing(answer):
            raise StoreError(
                f"{self._client.address} does not speak the API of ChromaDB 1.0 or newer; update the server, or "
                "something else answers there"
            )
        if answer.status in (401, 403):
            raise StoreError(
                f"{self._client.address} refused the key; put it into the URL, as in chroma://:KEY@host:port"
            )
        raise self._client.refusal(answer, doing)


def _is_missing(answer: Answer) -> bool:
    """Return whether a server answers that there is no such collection."""
    value = answer.value if isinstance(answer.value, dict) else {}
    return answer.status == 404 and value.get("error") == "NotFoundError"


def _own_name(scope: str, field: str) -> str:
    """Return the name of a field in one part.

    The server looks up conditions in an index over all of its collections, by the field's name and
    then by its value. With different names in each part, the cost depends on the size of the part
    and not on that of the server.
    """
    return f"{field}.{scope}" if field in _ASKED else field


def _own(scope: str, payload: Mapping[str, Value | None]) -> dict[str, Value | None]:
    return {_own_name(scope, field): value for field, value in payload.items()}


def _where(scope: str, where: Where) -> dict[str, Any]:
    """Return conditions as the server takes them."""
    conditions = [
        {_own_name(scope, each.field): {_RELATIONS[each.relation]: each.value}} for each in where
    ]
    return (
        {}
        if not conditions
        else {"where": conditions[0] if len(conditions) == 1 else {"$and": conditions}}
    )


def _points(scope: str, answer: Any) -> list[Point]:
    if answer is None:
        return []
    plain = {_own_name(scope, field): field for field in _ASKED}
    entries = zip(answer["ids"], answer["metadatas"], strict=True)
    return [
        Point(name, {plain.get(field, field): value for field, value in (metadata or {}).items()})
        for name, metadata in entries
    ]


def _having(scope: str, term: "Term") -> dict[str, Any]:
    """Return the condition that a record has the words of a term, or any of them if the record has
    very many words.
    """
    *whole, last = term.tokens
    words = [*whole, *(_beginning(last) if term.open_ended else [last])]
    if not words:
        return {}
    conditions = [{_own_name(scope, _WORDS): {"$contains": word}} for word in dict.fromkeys(words)]
    if len(conditions) == 1:
        return {"where": conditions[0]}
    return {
        "where": {
            "$or": [
                {"$and": conditions},
                {"$and": [{_own_name(scope, _LONG): 1}, {"$or": conditions}]},
            ]
        }
    }


def _beginning(word: str) -> list[str]:
    """Return the entry among the words that stands for all words with the same beginning.

    Only in scripts other than Latin do queries search by the beginning of a word; for others there
    is no entry.
    """
    return [] if len(word) < _HEAD or is_latin(word) else [f"^{word[:_HEAD]}"]


def _words_of(point: Point) -> list[Point]:
    """Return points with the words that find a record: several if there are too many words for one
    list.

    Their ids begin with a hash of this write of the record, so that the words of a failed write are
    not in the way of the next.
    """
    different = set(point.words or ())
    words = sorted(different | {head for word in different for head in _beginning(word)})
    writing = hashlib.sha256(str(point.payload.get("body")).encode()).hexdigest()[:16]
    pieces = list(by_count(words, _MOST_WORDS))
    long: dict[str, Value] = {_LONG: 1} if len(pieces) > 1 else {}
    return [
        Point(f"{writing}.{number}/{point.id}", {_WORDS: list(piece), _OF: point.id, **long})
        for number, piece in enumerate(pieces)
    ]


def _packed(point: Point) -> Any:
    """Return a vector in the shortest form that the server takes; without one, a number that
    spreads well.
    """
    if point.vector is None:
        return [int.from_bytes(hashlib.sha256(point.id.encode()).digest()[:3]) / 1000]
    import base64

    return base64.b64encode(point.vector.astype("<f4").tobytes()).decode()


def _weight(point: Point) -> int:
    """Return roughly how many bytes a point takes in a request."""
    texts = sum(len(value) for value in point.payload.values() if isinstance(value, str))
    return 500 + 2 * texts + (0 if point.vector is None else 6 * len(point.vector))
