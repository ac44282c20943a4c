"""Records, filters and reads for the contract's tests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from memories.embedders.fake import FakeEmbedder
from memories.languages.text import query_terms
from memories.stores import Store
from memories.stores.records import (
    SEARCHED,
    Candidate,
    Collection,
    Filter,
    Matches,
    Record,
    Ref,
    Space,
    TurnQuery,
)

MEMORY, HISTORY = Collection.MEMORY, Collection.HISTORY
SPACE = FakeEmbedder.space
OTHER = SPACE._replace(model="other/1", dimension=32)  # a space to change to
T0 = datetime(2026, 1, 1, tzinfo=UTC)
OpenStore = Callable[[Space | None], Store]


def at(seconds: float) -> datetime:
    """Return the time this many seconds after the first."""
    return T0 + timedelta(seconds=seconds)


def embed(text: str) -> Any:
    """Return the vectors of a text, shape (1, dimension)."""
    return FakeEmbedder().embed(text)


def embed_other(text: str) -> Any:
    """Return the vectors of a text in the other space, shape (1, dimension)."""
    folded = (
        embed(text).reshape(2, OTHER.dimension)[:1]
        + 2 * embed(text).reshape(2, OTHER.dimension)[1:]
    )
    folded[0, 0] += 1e-3  # so that no vector is zero
    return folded / np.linalg.norm(folded)


def record(
    group: str,
    position: int = 1,
    *,
    namespace: str = "ann",
    collection: Collection = MEMORY,
    **values: Any,
) -> Record:
    """Return a record with a vector of its text, unless `vectors` says otherwise."""
    text = values.pop("text", f"note {group} {position}")
    values.setdefault("created_at", at(position))
    values.setdefault("vectors", embed(text))
    return Record(ref=Ref(collection, namespace, group, position), text=text, **values)


def pool(*namespaces: str, collection: Collection = MEMORY, **conditions: Any) -> Filter:
    """Return a filter for these namespaces, or for `ann` if none is given."""
    return Filter(collection, namespaces or ("ann",), **conditions)


def everything(
    store: Store, where: Filter, *, limit: int = 10_000, newest_first: bool = False
) -> list[Record]:
    """Return all records of a filter, live and ended."""
    return store.scan(where._replace(state="any"), limit=limit, newest_first=newest_first)


def pages(store: Store, where: Filter, *, size: int, newest_first: bool) -> list[Record]:
    """Return the records of a scan that is read in pages of this size."""
    results: list[Record] = []
    after = None
    while True:
        page = store.scan(where, limit=size, after=after, newest_first=newest_first)
        assert len(page) <= size
        if not page:
            return results
        results += page
        after = (page[-1].ref.group, page[-1].ref.position)


def search(
    store: Store, query: str, where: Filter | None = None, *, k: int = 10
) -> dict[str, Candidate]:
    """Return the candidates for a query, searched by words and by vector, keyed by their group."""
    candidates = store.candidates(
        where or pool(), vector=embed(query)[0], terms=query_terms(query), k=k
    )
    by_group = {candidate.record.ref.group: candidate for candidate in candidates}
    assert len(by_group) == len(candidates), "a record was returned twice"
    return by_group


def by_words(
    store: Store, terms: Sequence[str], where: Filter | None = None, *, k: int = 10
) -> dict[str, float]:
    """Return the word scores of the candidates for terms, without a vector."""
    candidates = store.candidates(where or pool(), vector=None, terms=terms, k=k)
    return {candidate.record.ref.group: candidate.word_score for candidate in candidates}


def by_other(
    store: Store, query: str, where: Filter | None = None, *, k: int = 10
) -> dict[str, float | None]:
    """Return the similarities of the candidates for a query in the other space."""
    candidates = store.candidates(where or pool(), vector=embed_other(query)[0], terms=[], k=k)
    return {candidate.record.ref.group: candidate.similarity for candidate in candidates}


def stage_all(store: Store, space: Space = OTHER, *, limit: int = 7) -> list[Ref]:
    """Stage vectors for all records without vectors of a space; return their addresses."""
    make = embed if space == SPACE else embed_other
    staged: list[Ref] = []
    for collection in SEARCHED:
        for _ in range(10_000):
            records = store.unstaged(space, collection, limit=limit)
            assert len(records) <= limit
            if not records:
                break
            assert not {entry.ref for entry in records} & set(staged), (
                "a staged record was returned again"
            )
            store.stage(space, {entry.ref: make(entry.text) for entry in records})
            staged += [entry.ref for entry in records]
    return staged


def unstaged(store: Store, space: Space = OTHER, collection: Collection = MEMORY) -> set[str]:
    """Return the groups of the records without vectors of a space."""
    return {entry.ref.group for entry in store.unstaged(space, collection, limit=1000)}


def turn(position: int, *, group: str = "talk", **values: Any) -> Record:
    """Return a turn of a conversation; its session begins at 0 unless `session` says otherwise."""
    values.setdefault("session", 0)
    return record(group, position, collection=HISTORY, **values)


def turns(*namespaces: str, **conditions: Any) -> Filter:
    """Return a filter for the turns of these namespaces, or of `ann` if none is given."""
    return pool(*namespaces, collection=HISTORY, **conditions)


def matching(store: Store, query: str, where: Filter | None = None, *, k: int = 100) -> Matches:
    """Return the matches of a query, by words and by vector."""
    return store.matches(where or turns(), TurnQuery(embed(query)[0], query_terms(query), k))


def refs_of(matches: Matches, collection: Collection = HISTORY) -> list[Ref]:
    """Return the address of each row."""
    places = zip(matches.group.tolist(), matches.position.tolist(), strict=True)
    named = [(*matches.groups[group], position) for group, position in places]
    return [Ref(collection, namespace, group, position) for namespace, group, position in named]


def holders(matches: Matches, term: str) -> set[int]:
    """Return the positions of the rows that contain a term."""
    return set(matches.position[matches.holds[list(matches.terms).index(term)]].tolist())


def unit_vectors(count: int, seed: int = 1) -> Any:
    """Return random unit vectors of the space, shape (count, dimension)."""
    drawn = np.random.default_rng(seed).standard_normal((count, SPACE.dimension)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def seen(store: Store, where: Filter) -> Any:
    """Return all answers of a store for a filter, in a comparable form."""
    records = everything(store, where)
    return (
        [
            (entry.ref, entry.text, entry.ended_at, entry.ended_by, entry.key, entry.accesses)
            for entry in records
        ],
        [(dict(entry.labels), dict(entry.fields)) for entry in records],
        store.groups(where._replace(state="any"), limit=1000),
        store.count(where),
        dict(store.labels(where, None)),
        dict(store.labels(where, "who")),
        sorted(
            (found.record.ref, round(found.similarity or 0.0, 3))
            for found in store.candidates(
                where, vector=embed("common words")[0], terms=["common"], k=50
            )
        ),
        sorted(refs_of(store.matches(where, TurnQuery(None, ["common"], 50)), where.collection)),
        store.values(where.collection, where.namespaces, "who"),
        store.info(where).without_vector_count,
    )


@contextmanager
def failing() -> Iterator[None]:
    """Expect the error with which a test ends a transaction."""
    with pytest.raises(ZeroDivisionError):
        yield


class Opened:
    """Gives each part of the contract an open store; a backend's test file has the fixture
    `open_store`.
    """

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        """An open store."""
        return open_store(SPACE)
