"""The suite that every store passes unchanged; it checks the rules of `memories.stores.protocol.Store`.

A backend's test file inherits `StoreContract` and gives it one fixture:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            ...
            yield open_one      # open_one(space) returns a store; each call opens the same, at first missing, storage
            ...                 # close what was opened

Vectors are those of the `FakeEmbedder` or random ones of its space.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memories.embedders.fake import FakeEmbedder
from memories.errors import Conflict, EmbedderMismatch, MemoriesError
from memories.ids import new_id
from memories.stores import Store
from memories.stores.records import (
    SPEAKER,
    Candidate,
    Collection,
    Filter,
    Matches,
    Patch,
    Record,
    Ref,
    Space,
    TurnQuery,
)
from memories.stores.sqlite.store import SQLiteStore
from memories.text import query_terms
from memories.transfer.export import export
from memories.transfer.migrate import migrate
from memories.transfer.reembed import reembed

MEMORY, HISTORY = Collection.MEMORY, Collection.HISTORY
SPACE = FakeEmbedder.space
OTHER = SPACE._replace(model="other/1", dimension=32)  # a space to change over to
T0 = datetime(2026, 1, 1, tzinfo=UTC)
OpenStore = Callable[[Space | None], Store]


# --- what the tests are written in -----------------------------------------------------------------------------------


def at(seconds: float) -> datetime:
    """Return a time so many seconds after the first."""
    return T0 + timedelta(seconds=seconds)


def embed(text: str) -> Any:
    """Return the vectors of a text, shape (1, dimension)."""
    return FakeEmbedder().embed(text)


def embed_other(text: str) -> Any:
    """Return the vectors of a text in the other space, shape (1, dimension)."""
    folded = embed(text).reshape(2, OTHER.dimension)[:1] + 2 * embed(text).reshape(2, OTHER.dimension)[1:]
    folded[0, 0] += 1e-3  # so that none is zero
    return folded / np.linalg.norm(folded)


def record(
    group: str, position: int = 1, *, namespace: str = "ann", collection: Collection = MEMORY, **values: Any
) -> Record:
    """Return a record with a vector of its text, unless `vectors` says otherwise."""
    text = values.pop("text", f"note {group} {position}")
    values.setdefault("created_at", at(position))
    values.setdefault("vectors", embed(text))
    return Record(ref=Ref(collection, namespace, group, position), text=text, **values)


def pool(*namespaces: str, collection: Collection = MEMORY, **conditions: Any) -> Filter:
    """Return a filter; of the namespace `ann` if none is named."""
    return Filter(collection, namespaces or ("ann",), **conditions)


def everything(store: Store, where: Filter, *, limit: int = 10_000, newest_first: bool = False) -> list[Record]:
    """Return all records of a filter, whether they ended or not."""
    return store.scan(where._replace(state="any"), limit=limit, newest_first=newest_first)


def pages(store: Store, where: Filter, *, size: int, newest_first: bool) -> list[Record]:
    """Return what a scan in pages of that size comes to."""
    found: list[Record] = []
    after = None
    while True:
        page = store.scan(where, limit=size, after=after, newest_first=newest_first)
        assert len(page) <= size
        if not page:
            return found
        found += page
        after = (page[-1].ref.group, page[-1].ref.position)


def search(store: Store, query: str, where: Filter | None = None, *, k: int = 10) -> dict[str, Candidate]:
    """Return the candidates for a query, by words and by vector, by the name of their group."""
    found = store.candidates(where or pool(), vector=embed(query)[0], terms=query_terms(query), k=k)
    by_group = {candidate.record.ref.group: candidate for candidate in found}
    assert len(by_group) == len(found), "a record came twice"
    return by_group


def by_words(store: Store, terms: Sequence[str], where: Filter | None = None, *, k: int = 10) -> dict[str, float]:
    """Return the word scores of the candidates for terms alone."""
    found = store.candidates(where or pool(), vector=None, terms=terms, k=k)
    return {candidate.record.ref.group: candidate.words for candidate in found}


def by_other(store: Store, query: str, where: Filter | None = None, *, k: int = 10) -> dict[str, float | None]:
    """Return the similarities of the candidates in the other space."""
    found = store.candidates(where or pool(), vector=embed_other(query)[0], terms=[], k=k)
    return {candidate.record.ref.group: candidate.similarity for candidate in found}


def stage_all(store: Store, space: Space = OTHER, *, limit: int = 7) -> list[Ref]:
    """Stage vectors of all that have none of a space; return their addresses."""
    make = embed if space == SPACE else embed_other
    staged: list[Ref] = []
    for collection in Collection:
        for _ in range(10_000):
            found = store.unstaged(space, collection, limit=limit)
            assert len(found) <= limit
            if not found:
                break
            assert not {entry.ref for entry in found} & set(staged), "what is staged came again"
            store.stage(space, {entry.ref: make(entry.text) for entry in found})
            staged += [entry.ref for entry in found]
    return staged


def unstaged(store: Store, space: Space = OTHER, collection: Collection = MEMORY) -> set[str]:
    """Return the groups of what has no vectors of a space."""
    return {entry.ref.group for entry in store.unstaged(space, collection, limit=1000)}


def turn(position: int, *, group: str = "talk", **values: Any) -> Record:
    """Return a turn of a conversation, of the session that begins at 0 unless `session` says otherwise."""
    values.setdefault("session", 0)
    return record(group, position, collection=HISTORY, **values)


def turns(*namespaces: str, **conditions: Any) -> Filter:
    """Return a filter of turns; of the namespace `ann` if none is named."""
    return pool(*namespaces, collection=HISTORY, **conditions)


def matching(store: Store, query: str, where: Filter | None = None, *, k: int = 100) -> Matches:
    """Return what matches a query, by words and by vector."""
    return store.matches(where or turns(), TurnQuery(embed(query)[0], query_terms(query), k))


def refs_of(matches: Matches, collection: Collection = HISTORY) -> list[Ref]:
    """Return the address of each row."""
    places = zip(matches.group.tolist(), matches.position.tolist(), strict=True)
    named = [(*matches.groups[group], position) for group, position in places]
    return [Ref(collection, namespace, group, position) for namespace, group, position in named]


def holders(matches: Matches, term: str) -> set[int]:
    """Return the positions of the rows that have a term."""
    return set(matches.position[matches.holds[list(matches.terms).index(term)]].tolist())


def unit_vectors(count: int, seed: int = 1) -> Any:
    """Return random unit vectors of the space, shape (count, dimension)."""
    drawn = np.random.default_rng(seed).standard_normal((count, SPACE.dimension)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def seen(store: Store, where: Filter) -> Any:
    """Return everything that a store tells about a filter, in a form that compares."""
    records = everything(store, where)
    return (
        [(entry.ref, entry.text, entry.ended_at, entry.ended_by, entry.key, entry.accesses) for entry in records],
        [(dict(entry.labels), dict(entry.fields)) for entry in records],
        store.groups(where._replace(state="any"), limit=1000),
        store.count(where),
        dict(store.labels(where, None)),
        dict(store.labels(where, "who")),
        sorted(
            (found.record.ref, round(found.similarity or 0.0, 3))
            for found in store.candidates(where, vector=embed("common words")[0], terms=["common"], k=50)
        ),
        sorted(refs_of(store.matches(where, TurnQuery(None, ["common"], 50)), where.collection)),
        store.values(where.collection, where.namespaces, "who"),
        store.info(where).without_vector_count,
    )


@contextmanager
def failing() -> Iterator[None]:
    """Swallow the failure that a test provokes."""
    with pytest.raises(ZeroDivisionError):
        yield


class StoreContract:
    """What holds for every store."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError("a backend's test file gives this fixture")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        return open_store(SPACE)

    # --- a store that does not exist -------------------------------------------------------------------------------

    def test_a_missing_store_reads_as_empty(self, store: Store) -> None:
        assert store.scan(pool(), limit=10) == []
        assert store.groups(pool(), limit=10) == []
        assert store.count(pool(state="any")) == 0
        assert store.labels(pool(), None) == {}
        assert store.labels(pool(), "who") == {}
        assert search(store, "anything") == {}
        assert refs_of(matching(store, "anything")) == []
        assert store.read([Ref(MEMORY, "ann", "m", 1)]) == []
        assert store.values(HISTORY, ["ann"], SPEAKER) == []
        assert store.namespaces(MEMORY) == store.namespaces(HISTORY) == []
        assert store.vectors([Ref(MEMORY, "ann", "m", 1)]) == {}
        assert store.unstaged(SPACE, MEMORY, limit=5) == store.unstaged(OTHER, HISTORY, limit=5) == []
        info = store.info(pool())
        assert (info.model, info.without_vector_count) == (None, 0)

    def test_reading_does_not_create_a_store(self, open_store: OpenStore) -> None:
        first = open_store(SPACE)
        search(first, "anything")
        first.scan(pool(), limit=1)
        version = first.info(pool()).schema_version
        assert open_store(SPACE).info(pool()).schema_version == version is None

    def test_a_reader_that_came_before_the_store_sees_what_is_written_later(self, open_store: OpenStore) -> None:
        reader, writer = open_store(SPACE), open_store(SPACE)
        assert reader.count(pool()) == 0
        writer.append([record("m")])
        assert reader.count(pool()) == 1

    # --- whole records ---------------------------------------------------------------------------------------------

    def test_a_record_comes_back_as_it_was_written(self, open_store: OpenStore) -> None:
        written = Record(
            ref=Ref(MEMORY, "ann", new_id(T0), 7),
            text="Ünïcode 日本語 🎉 'quotes' \"double\" \\ %s {x}\n\ttwo lines",
            created_at=at(1.234),
            ended_at=at(5.678),
            ended_by="update",
            key="user/editor",
            labels={"who": "ann", "項目": "値=,;", "empty": ""},
            fields={"number": 1.5, "text": "x", "flag": True, "whole": 2**40},
            vectors=None,
            accesses=99,
        )
        open_store(SPACE).append([written])
        (found,) = everything(open_store(SPACE), pool())
        assert found._replace(labels=dict(found.labels), fields=dict(found.fields)) == written

    def test_vectors_are_not_given_back(self, store: Store) -> None:
        store.append([record("m")])
        assert store.scan(pool(), limit=1)[0].vectors is None
        assert search(store, "note m")["m"].record.vectors is None

    @pytest.mark.parametrize("year", [1, 1969, 1970, 2038, 9999])
    def test_times_of_any_year_are_kept(self, store: Store, year: int) -> None:
        moment = datetime(year, 6, 1, 12, 30, 15, 250_000, tzinfo=UTC)
        store.append([record("m", created_at=moment, ended_at=moment, ended_by="delete")])
        (found,) = everything(store, pool())
        assert (found.created_at, found.ended_at) == (moment, moment)
        assert found.created_at.utcoffset() == timedelta(0)

    def test_a_long_text_is_kept_whole(self, store: Store) -> None:
        text = "long text " * 100_000
        store.append([record("m", text=text, vectors=None)])
        assert store.scan(pool(), limit=1)[0].text == text

    def test_nothing_to_append_is_no_error(self, store: Store) -> None:
        store.append([])
        assert store.count(pool()) == 0

    def test_what_was_written_is_there_for_another_opening(self, open_store: OpenStore) -> None:
        first = open_store(SPACE)
        first.append([record("m")])
        first.close()
        assert open_store(SPACE).count(pool()) == 1

    # --- isolation -------------------------------------------------------------------------------------------------

    @pytest.fixture
    def twins(self, store: Store) -> Store:
        """A store in which two namespaces, and their two collections, hold the same names and texts."""
        for namespace in ("ann", "bob"):
            for collection in (MEMORY, HISTORY):
                store.append(
                    [
                        record(
                            f"g{number}",
                            position,
                            namespace=namespace,
                            collection=collection,
                            text=f"common words of g{number} {namespace}",
                            key=f"key{number}" if position == 2 else None,
                            labels={"who": namespace, "secret": f"{namespace}-{number}", "kind": "x"},
                            ended_at=at(9) if position == 1 else None,
                            ended_by="update" if position == 1 else None,
                        )
                        for number in range(5)
                        for position in (1, 2)
                    ]
                )
        return store

    @pytest.mark.parametrize("collection", Collection)
    @pytest.mark.parametrize(
        "conditions",
        [
            {},
            {"state": "any"},
            {"state": "ended"},
            {"state": "ended", "ended_by": "update"},
            {"labels": {"kind": "x"}},
            {"labels": {"who": "bob"}},
            {"labels": {"secret": "bob-1"}, "state": "any"},
            {"as_of": at(5)},
            {"since": T0, "until": at(100)},
            {"group": "g1", "state": "any"},
            {"group": "g", "prefix": True, "state": "any"},
            {"group": "", "prefix": True, "state": "any"},
            {"key": "key1"},
        ],
        ids=str,
    )
    def test_no_read_reaches_another_namespace_or_collection(
        self, twins: Store, collection: Collection, conditions: Mapping[str, Any]
    ) -> None:
        where = pool("ann", collection=collection, **conditions)
        own = [entry for entry in everything(twins, pool("ann", "bob", collection=collection)) if _means(where, entry)]
        found = twins.scan(where, limit=1000)
        assert sorted(entry.ref for entry in found) == sorted(entry.ref for entry in own)
        assert {entry.ref.namespace for entry in found} <= {"ann"}
        assert {entry.ref.collection for entry in found} <= {collection}
        assert twins.count(where) == len(own)
        assert set(twins.groups(where, limit=100)) == {("ann", entry.ref.group) for entry in own}
        assert set(twins.labels(where, "secret")) == {entry.labels["secret"] for entry in own}
        assert twins.labels(where, None) == ({key: len(own) for key in ("kind", "secret", "who")} if own else {})
        candidates = twins.candidates(where, vector=embed("common words bob")[0], terms=["common", "bob"], k=50)
        assert {candidate.record.ref for candidate in candidates} == {entry.ref for entry in own}
        matches = twins.matches(where, TurnQuery(embed("common words bob")[0], ["common", "bob"], 50))
        assert sorted(refs_of(matches, collection)) == sorted(entry.ref for entry in own)
        assert {label.get("who") for label in matches.labels} <= {"ann"}
        assert twins.values(collection, ["ann"], "secret") == [f"ann-{number}" for number in range(5)]
        assert twins.values(collection, ["ann"], "who") == ["ann"]

    @pytest.mark.parametrize("namespaces", [(), ("%",), ("*",), ("ANN",), ("an",), ("ann ",), ("ann','bob",), ("",)])
    def test_only_a_namespace_that_is_named_exactly_is_read(self, twins: Store, namespaces: tuple[str, ...]) -> None:
        where = Filter(MEMORY, namespaces, state="any")
        assert twins.scan(where, limit=100) == []
        assert twins.groups(where, limit=100) == []
        assert twins.count(where) == 0
        assert twins.labels(where, None) == {}
        assert twins.labels(where, "secret") == {}
        assert twins.candidates(where, vector=embed("common words")[0], terms=["common"], k=50) == []
        assert refs_of(matching(twins, "common words", where)) == []
        assert twins.values(MEMORY, namespaces, "secret") == []
        assert twins.read([Ref(MEMORY, namespace, "g1", 1) for namespace in namespaces]) == []
        assert twins.info(where).without_vector_count == 0

    def test_two_namespaces_are_read_as_one(self, twins: Store) -> None:
        assert twins.count(pool("ann", "bob")) == 10
        assert twins.labels(pool("ann", "bob"), "who") == {"ann": 5, "bob": 5}

    def test_no_write_reaches_another_namespace_or_collection(self, twins: Store) -> None:
        others = [pool("bob"), pool("bob", collection=HISTORY), pool("ann", collection=HISTORY)]
        before = [seen(twins, where) for where in others]
        refs = [entry.ref for entry in everything(twins, pool("ann"))]
        twins.touch(refs)
        twins.patch([Patch(ref, at(50), "delete", {"mark": 1}) for ref in refs])
        twins.append([record("g9", text="common words", labels={"who": "ann"})])
        assert [seen(twins, where) for where in others] == before
        twins.remove(refs)
        assert [seen(twins, where) for where in others] == before
        assert [group for _, group in twins.groups(pool("ann", state="any"), limit=10)] == ["g9"]

    def test_a_ref_whose_namespace_does_not_fit_changes_nothing(self, store: Store) -> None:
        """The group and position are those of a record of `bob`; the namespace or collection is another."""
        store.append([record("only-bob", namespace="bob", text="common words")])
        before = seen(store, pool("bob"))
        wrong = [
            Ref(MEMORY, "ann", "only-bob", 1),
            Ref(HISTORY, "bob", "only-bob", 1),
            Ref(MEMORY, "%", "only-bob", 1),
            Ref(MEMORY, "bob", "only-bob", 2),
        ]
        store.patch([Patch(ref, at(50), "delete", {"mark": 1}) for ref in wrong])
        store.touch(wrong)
        store.remove(wrong)
        assert seen(store, pool("bob")) == before
        assert store.count(pool("ann", state="any")) == 0

    def test_better_matches_of_another_namespace_do_not_crowd_out_ones_own(self, store: Store) -> None:
        store.append([record(f"b{number}", namespace="bob", text="red green blue") for number in range(60)])
        store.append([record("mine", text="red with several other words that make it match less well")])
        assert set(search(store, "red green blue", k=3)) == {"mine"}

    def test_keys_and_positions_of_two_namespaces_do_not_collide(self, store: Store) -> None:
        for namespace in ("ann", "bob"):
            for collection in Collection:
                store.append([record("m", namespace=namespace, collection=collection, key="user/editor")])
        assert store.count(pool("bob", key="user/editor")) == 1

    def test_how_many_have_no_vector_is_counted_in_the_own_namespace(self, store: Store) -> None:
        store.append([record("a1"), record("a2", vectors=None), record("b1", namespace="bob", vectors=None)])
        store.append([record("b2", namespace="bob", vectors=None)])
        assert store.info(pool("ann")).without_vector_count == 1
        assert store.info(pool("bob")).without_vector_count == 2

    # --- order and pages -------------------------------------------------------------------------------------------

    @pytest.fixture(params=["ids", "names", "mixed"])
    def groups(self, request: pytest.FixtureRequest) -> list[str]:
        """Names of groups in order: ids of memories, names of conversations, or both."""
        ids = sorted(new_id(at(number)) for number in range(6))
        names = sorted(["main", "2026-01-01", "Main", "über", "日本", "a/b:c", "0" * 36, "session-10", "session-9"])
        return {"ids": ids, "names": names, "mixed": [*ids, *names]}[request.param]

    @pytest.fixture
    def filled(self, store: Store, groups: list[str]) -> Store:
        shuffled = [record(group, position) for group in groups for position in (0, 1, 2, 10)]
        np.random.default_rng(3).shuffle(shuffled)  # type: ignore[arg-type]
        store.append(shuffled)
        return store

    def test_a_scan_is_in_order_of_group_and_position(self, filled: Store, groups: list[str]) -> None:
        found = [(entry.ref.group, entry.ref.position) for entry in filled.scan(pool(), limit=1000)]
        names = list(dict.fromkeys(group for group, _ in found))
        assert found == [(group, position) for group in names for position in (0, 1, 2, 10)]
        assert sorted(names) == sorted(groups)
        for kind in (True, False):  # ids come in order among ids, names among names
            of_kind = [name for name in names if (name.startswith("019") and len(name) == 36) is kind]
            assert of_kind == sorted(of_kind)

    def test_newest_first_is_the_reverse(self, filled: Store) -> None:
        forwards = filled.scan(pool(), limit=1000)
        assert filled.scan(pool(), limit=1000, newest_first=True) == forwards[::-1]

    @pytest.mark.parametrize("newest_first", [False, True])
    @pytest.mark.parametrize("size", [1, 3, 7, 1000])
    def test_pages_join_to_the_whole(self, filled: Store, size: int, newest_first: bool) -> None:
        whole = filled.scan(pool(), limit=1000, newest_first=newest_first)
        assert pages(filled, pool(), size=size, newest_first=newest_first) == whole

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_pages_of_two_namespaces_join_to_the_whole(self, store: Store, newest_first: bool) -> None:
        ids = sorted(new_id(at(number)) for number in range(20))
        store.append([record(group, namespace="ann" if at % 3 else "bob") for at, group in enumerate(ids)])
        found = pages(store, pool("bob", "ann"), size=3, newest_first=newest_first)
        assert [entry.ref.group for entry in found] == (ids[::-1] if newest_first else ids)

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_where_namespaces_share_a_group_each_record_comes(self, store: Store, newest_first: bool) -> None:
        """`after` goes behind a position in all of them."""
        for namespace in ("bob", "ann"):
            store.append([record("main", position, namespace=namespace) for position in (1, 2, 3)])
        where = pool("ann", "bob")
        forwards = [(entry.ref.position, entry.ref.namespace) for entry in store.scan(where, limit=10)]
        assert forwards == [(position, namespace) for position in (1, 2, 3) for namespace in ("ann", "bob")]
        backwards = [
            (entry.ref.position, entry.ref.namespace) for entry in store.scan(where, limit=10, newest_first=True)
        ]
        assert backwards == forwards[::-1]
        behind = store.scan(where, limit=10, after=("main", 2), newest_first=newest_first)
        assert {entry.ref.position for entry in behind} == {1 if newest_first else 3}
        assert len(behind) == 2

    def test_after_may_name_what_is_not_there(self, store: Store) -> None:
        store.append([record("b", 1), record("d", 1)])
        assert [entry.ref.group for entry in store.scan(pool(), limit=9, after=("c", 5))] == ["d"]
        backwards = store.scan(pool(), limit=9, after=("c", 5), newest_first=True)
        assert [entry.ref.group for entry in backwards] == ["b"]
        assert [entry.ref.group for entry in store.scan(pool(), limit=9, after=("b", 0))] == ["b", "d"]

    def test_groups_come_in_the_order_of_a_scan_each_once(self, filled: Store) -> None:
        scanned = list(dict.fromkeys(("ann", entry.ref.group) for entry in filled.scan(pool(), limit=1000)))
        assert filled.groups(pool(), limit=1000) == scanned
        assert filled.groups(pool(), limit=4) == scanned[:4]

    def test_groups_of_the_same_name_come_once_for_each_namespace(self, store: Store) -> None:
        for namespace in ("bob", "ann"):
            store.append([record("main", position, namespace=namespace) for position in (1, 2)])
        assert store.groups(pool("ann", "bob"), limit=9) == [("ann", "main"), ("bob", "main")]

    # --- uniqueness ------------------------------------------------------------------------------------------------

    def test_the_second_writer_of_a_position_gets_a_conflict(self, open_store: OpenStore) -> None:
        open_store(SPACE).append([record("m", text="first")])
        with pytest.raises(Conflict):
            open_store(SPACE).append([record("m", text="second")])
        assert [entry.text for entry in everything(open_store(SPACE), pool())] == ["first"]

    def test_a_position_is_taken_by_an_ended_record_too(self, store: Store) -> None:
        store.append([record("m", ended_at=at(5), ended_by="delete")])
        with pytest.raises(Conflict):
            store.append([record("m")])

    def test_only_one_live_record_has_a_key(self, store: Store) -> None:
        store.append([record("m1", key="user/editor")])
        with pytest.raises(Conflict):
            store.append([record("m2", key="user/editor")])
        assert [entry.ref.group for entry in everything(store, pool())] == ["m1"]

    def test_a_key_may_be_taken_again_after_its_record_ended(self, store: Store) -> None:
        store.append([record("m1", key="user/editor")])
        store.patch([Patch(Ref(MEMORY, "ann", "m1", 1), at(5), "delete", {})])
        store.append([record("m2", key="user/editor")])
        assert [entry.ref.group for entry in store.scan(pool(key="user/editor"), limit=9)] == ["m2"]

    def test_a_record_is_not_made_live_again_while_another_has_its_key(self, store: Store) -> None:
        store.append([record("m1", key="k", ended_at=at(5), ended_by="delete"), record("m2", key="k")])
        store.append([record("m3")])
        with pytest.raises(Conflict):
            store.patch(
                [
                    Patch(Ref(MEMORY, "ann", "m3", 1), at(6), "delete", {"mark": 1}),
                    Patch(Ref(MEMORY, "ann", "m1", 1), None, None, {}),
                ]
            )
        assert [entry.ref.group for entry in store.scan(pool(), limit=9)] == ["m2", "m3"]
        assert not store.scan(pool(group="m3"), limit=1)[0].fields

    def test_any_number_of_records_have_no_key(self, store: Store) -> None:
        store.append([record(f"m{number}") for number in range(3)])
        assert store.count(pool()) == 3

    @pytest.mark.parametrize("in_transaction", [False, True])
    def test_an_append_with_a_conflict_in_the_middle_adds_nothing(self, store: Store, in_transaction: bool) -> None:
        """Also when the conflict is caught inside a transaction that then ends well."""
        store.append([record("taken", text="alpha")])
        batch = [
            record("new1", text="beta gamma", labels={"colour": "red"}),
            record("taken", text="beta gamma"),
            record("new2", text="beta gamma"),
        ]
        if in_transaction:
            with store.transaction():
                store.append([record("before")])
                with pytest.raises(Conflict):
                    store.append(batch)
                store.append([record("behind")])
        else:
            with pytest.raises(Conflict):
                store.append(batch)
        kept = {"taken", "before", "behind"} if in_transaction else {"taken"}
        assert {entry.ref.group for entry in everything(store, pool())} == kept
        assert store.labels(pool(state="any"), None) == {}
        assert by_words(store, ["gamma"]) == {}
        assert set(search(store, "beta gamma", k=50)) <= kept

    # --- transactions ----------------------------------------------------------------------------------------------

    def test_a_transaction_that_ends_well_is_kept(self, open_store: OpenStore) -> None:
        store, other = open_store(SPACE), open_store(SPACE)
        store.append([record("m")])
        with store.transaction():
            store.append([record("n")])
            store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(9), "delete", {})])
            assert [entry.ref.group for entry in store.scan(pool(), limit=9)] == ["n"]
            assert [entry.ref.group for entry in other.scan(pool(), limit=9)] == ["m"]
        assert [entry.ref.group for entry in other.scan(pool(), limit=9)] == ["n"]

    def test_a_transaction_that_fails_undoes_everything(self, store: Store) -> None:
        store.append([record("m", text="common words", labels={"who": "ann"})])
        before = seen(store, pool())
        with failing(), store.transaction():
            store.append([record("n", text="common words", labels={"who": "someone"}, key="k")])
            store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(9), "delete", {"mark": 1})])
            store.touch([Ref(MEMORY, "ann", "m", 1)])
            raise ZeroDivisionError
        assert seen(store, pool()) == before
        store.append([record("n", key="k")])

    def test_the_first_transaction_of_a_store_may_fail(self, store: Store) -> None:
        with failing(), store.transaction():
            store.append([record("m")])
            raise ZeroDivisionError
        assert store.count(pool(state="any")) == 0
        assert store.info(pool()).model is None

    def test_of_nested_transactions_the_outermost_counts(self, store: Store) -> None:
        with failing(), store.transaction():
            with store.transaction():
                store.append([record("inner")])
            store.append([record("outer")])
            raise ZeroDivisionError
        assert store.count(pool(state="any")) == 0
        with store.transaction():
            with store.transaction():
                store.append([record("inner")])
            store.append([record("outer")])
        assert store.count(pool()) == 2

    def test_no_writer_comes_between_a_read_and_a_write_of_one_transaction(self, open_store: OpenStore) -> None:
        """Four writers give the next free position 15 times each; none is given twice."""
        open_store(SPACE).append([record("m", 0)])
        failures: list[BaseException] = []

        def write() -> None:
            try:
                store = open_store(SPACE)
                for _ in range(15):
                    with store.transaction():
                        (last,) = store.scan(pool(group="m"), limit=1, newest_first=True)
                        store.append([record("m", last.ref.position + 1)])
            except BaseException as exc:  # noqa: BLE001 - shown by the test
                failures.append(exc)

        _run_threads([write] * 4)
        assert failures == []
        assert [entry.ref.position for entry in open_store(SPACE).scan(pool(), limit=99)] == list(range(61))

    # --- filters ---------------------------------------------------------------------------------------------------

    @pytest.fixture
    def varied(self, store: Store) -> Store:
        store.append(
            [
                record("m1", 1, created_at=at(10), ended_at=at(20), ended_by="update", labels={"a": "1"}, text="apple"),
                record("m1", 2, created_at=at(20), labels={"a": "1", "b": "2"}, text="apple tree"),
                record("m2", 1, created_at=at(15), ended_at=at(30), ended_by="delete", labels={"a": "2"}, text="apple"),
                record("m3", 1, created_at=at(25), labels={"b": "2"}, key="k3", text="pear apple"),
                record("m4", 1, created_at=at(25), ended_at=at(25), ended_by="update", key="k3", text="apple"),
                record("m4", 2, created_at=at(25), text="apple", vectors=None),
            ]
        )
        return store

    @pytest.mark.parametrize(
        ("conditions", "expected"),
        [
            ({}, "m1.2 m3.1 m4.2"),
            ({"state": "ended"}, "m1.1 m2.1 m4.1"),
            ({"state": "any"}, "m1.1 m1.2 m2.1 m3.1 m4.1 m4.2"),
            ({"state": "ended", "ended_by": "delete"}, "m2.1"),
            ({"state": "any", "ended_by": "update"}, "m1.1 m4.1"),
            ({"state": "any", "ended_by": "supersede"}, ""),
            ({"labels": {"a": "1"}}, "m1.2"),
            ({"labels": {"a": "1"}, "state": "any"}, "m1.1 m1.2"),
            ({"labels": {"a": "1", "b": "2"}, "state": "any"}, "m1.2"),
            ({"labels": {"a": "3"}}, ""),
            ({"labels": {"1": "a"}}, ""),
            ({"labels": {"a": "%"}}, ""),
            ({"since": at(25)}, "m3.1 m4.2"),
            ({"since": at(25.001)}, ""),
            ({"until": at(20)}, "m1.2"),
            ({"until": at(19.999)}, ""),
            ({"since": at(15), "until": at(20), "state": "any"}, "m1.2 m2.1"),
            ({"as_of": at(9.999)}, ""),
            ({"as_of": at(10)}, "m1.1"),
            ({"as_of": at(19.999)}, "m1.1 m2.1"),
            ({"as_of": at(20)}, "m1.2 m2.1"),
            ({"as_of": at(25)}, "m1.2 m2.1 m3.1 m4.2"),
            ({"as_of": at(30)}, "m1.2 m3.1 m4.2"),
            ({"as_of": at(19), "state": "ended"}, "m1.1 m2.1"),
            ({"as_of": at(19), "labels": {"a": "2"}}, "m2.1"),
            ({"key": "k3"}, "m3.1"),
            ({"key": "k3", "state": "any"}, "m3.1"),
            ({"key": "K3"}, ""),
            ({"group": "m1"}, "m1.2"),
            ({"group": "m1", "state": "any"}, "m1.1 m1.2"),
            ({"group": "m"}, ""),
            ({"group": "m", "prefix": True}, "m1.2 m3.1 m4.2"),
            ({"group": "m3", "prefix": True}, "m3.1"),
            ({"group": "m3x", "prefix": True}, ""),
            ({"group": "%", "prefix": True}, ""),
        ],
        ids=str,
    )
    def test_a_filter_means_the_same_in_every_read(
        self, varied: Store, conditions: Mapping[str, Any], expected: str
    ) -> None:
        where = pool(**conditions)
        found = varied.scan(where, limit=99)
        assert " ".join(f"{entry.ref.group}.{entry.ref.position}" for entry in found) == expected
        assert varied.count(where) == len(found)
        assert varied.count(where, at_most=2) == min(2, len(found))
        assert varied.groups(where, limit=99) == [("ann", g) for g in dict.fromkeys(entry.ref.group for entry in found)]
        counted: dict[str, int] = {}
        for entry in found:
            for key in entry.labels:
                counted[key] = counted.get(key, 0) + 1
        assert varied.labels(where, None) == counted
        for vector, terms in ((embed("apple")[0], []), (None, ["apple"]), (embed("apple")[0], ["apple"])):
            candidates = varied.candidates(where, vector=vector, terms=terms, k=50)
            embedded = [entry.ref for entry in found if entry.ref != ("memory", "ann", "m4", 2) or terms]
            assert sorted(candidate.record.ref for candidate in candidates) == sorted(embedded)
            assert set(embedded) <= set(refs_of(varied.matches(where, TurnQuery(vector, terms, 50)), MEMORY))
        matches = varied.matches(where, TurnQuery(embed("apple")[0], ["apple"], 50))
        assert sorted(refs_of(matches, MEMORY)) == sorted(entry.ref for entry in found)
        assert varied.info(where).without_vector_count == ("m4.2" in expected)

    def test_a_group_is_found_by_how_its_name_begins(self, store: Store) -> None:
        ids = [
            "01a1fdf1-92cd-72f2-8000-000000000001",
            "01a1fdf1-92cd-72f2-8000-000000000002",
            "01a1fdf1-92ce-72f2-8000-000000000003",
        ]
        names = ["01a1fdf1-notes", "session-1", "session-10", "Session-1", "sess%"]
        store.append([record(name) for name in (*ids, *names)])

        def beginning(prefix: str) -> set[str]:
            return {group for _, group in store.groups(pool(group=prefix, prefix=True), limit=99)}

        assert beginning("01a1fdf1") == {*ids, "01a1fdf1-notes"}
        assert beginning("01a1fdf1-92c") == set(ids)
        assert beginning("01a1fdf1-92cd-72f2-8000-00000000000") == set(ids[:2])
        assert beginning(ids[0]) == {ids[0]}
        assert beginning(ids[0] + "0") == set()
        assert beginning("session-1") == {"session-1", "session-10"}
        assert beginning("sess") == {"session-1", "session-10", "sess%"}
        assert beginning("sess%") == {"sess%"}
        assert beginning("zzz") == set()
        assert beginning("") == {*ids, *names}

    def test_labels_counts_keys_and_values_of_what_the_filter_means(self, store: Store) -> None:
        store.append([record(f"m{number}", labels={"type": "fact", "n": str(number % 2)}) for number in range(4)])
        store.append([record("m9", labels={"type": "event"}, ended_at=at(9), ended_by="delete")])
        assert store.labels(pool(), None) == {"n": 4, "type": 4}
        assert store.labels(pool(), "type") == {"fact": 4}
        assert store.labels(pool(state="any"), "type") == {"event": 1, "fact": 4}
        assert store.labels(pool(), "n") == {"0": 2, "1": 2}
        assert store.labels(pool(), "missing") == {}

    # --- candidates by vector --------------------------------------------------------------------------------------

    def test_a_similarity_is_the_cosine_within_one_hundredth(self, store: Store) -> None:
        vectors = unit_vectors(300)
        store.append([record(f"m{number:03}", text="x", vectors=vectors[[number]]) for number in range(300)])
        query = unit_vectors(1, seed=2)[0]
        found = store.candidates(pool(), vector=query, terms=[], k=300)
        exact = vectors @ query
        assert len(found) == 300
        for candidate in found:
            assert candidate.similarity == pytest.approx(exact[int(candidate.record.ref.group[1:])], abs=0.01)
            assert candidate.words == 0.0

    def test_of_several_windows_the_best_counts(self, store: Store) -> None:
        near, far, other = unit_vectors(3)
        store.append([record("windows", text="x", vectors=np.stack([far, -near, near]))])
        store.append([record("single", text="x", vectors=other[np.newaxis])])
        found = store.candidates(pool(), vector=near, terms=[], k=10)
        scores = {candidate.record.ref.group: candidate.similarity for candidate in found}
        assert scores["windows"] == pytest.approx(1.0, abs=0.01)
        assert scores["single"] == pytest.approx(float(near @ other), abs=0.01)
        assert len(found) == 2

    def test_an_opposite_vector_has_a_similarity_of_minus_one(self, store: Store) -> None:
        vector = unit_vectors(1)
        store.append([record("m", text="x", vectors=-vector)])
        (found,) = store.candidates(pool(), vector=vector[0], terms=[], k=1)
        assert found.similarity == pytest.approx(-1.0, abs=0.01)

    def test_so_many_of_the_best_by_vector_come(self, store: Store) -> None:
        vectors = unit_vectors(60)
        store.append([record(f"m{number:02}", text="x", vectors=vectors[[number]]) for number in range(60)])
        query = unit_vectors(1, seed=2)[0]
        found = store.candidates(pool(), vector=query, terms=[], k=5)
        best = sorted(range(60), key=lambda number: -float(vectors[number] @ query))
        assert len(found) == 5
        assert {int(candidate.record.ref.group[1:]) for candidate in found} <= set(best[:7])
        assert best[0] in {int(candidate.record.ref.group[1:]) for candidate in found}

    def test_a_record_without_a_vector_has_no_similarity(self, store: Store) -> None:
        store.append([record("with", text="apple"), record("without", text="apple", vectors=None)])
        found = search(store, "apple")
        assert found["without"].similarity is None
        assert found["with"].similarity == pytest.approx(1.0, abs=0.01)

    # --- candidates by words ---------------------------------------------------------------------------------------

    def test_a_better_match_of_words_has_a_larger_score(self, store: Store) -> None:
        store.append([record("both", text="red apple"), record("one", text="green apple"), record("none", text="pear")])
        scores = by_words(store, ["red", "apple"])
        assert scores["both"] > scores["one"] > 0.0
        assert "none" not in scores

    def test_rare_words_tell_more_than_common_ones(self, store: Store) -> None:
        store.append([record(f"m{number:02}", text="weekly report sales") for number in range(20)])
        store.append([record("rare", text="weekly report zanzibar")])
        scores = by_words(store, ["weekly", "zanzibar"], k=5)
        assert max(scores, key=scores.__getitem__) == "rare"

    def test_so_many_of_the_best_by_words_come(self, store: Store) -> None:
        store.append([record(f"m{number:02}", text="apple", vectors=None) for number in range(30)])
        assert len(by_words(store, ["apple"], k=7)) == 7

    def test_candidates_are_the_union_of_both_kinds(self, store: Store) -> None:
        near, far = unit_vectors(2)
        store.append([record("by-vector", text="banana", vectors=near[np.newaxis])])
        store.append([record("by-words", text="zanzibar", vectors=far[np.newaxis])])
        found = store.candidates(pool(), vector=near, terms=["zanzibar"], k=1)
        scores = {candidate.record.ref.group: candidate for candidate in found}
        assert set(scores) == {"by-vector", "by-words"}
        assert scores["by-words"].words > 0.0 == scores["by-vector"].words
        assert scores["by-words"].similarity == pytest.approx(float(near @ far), abs=0.01)

    def test_without_a_query_vector_there_is_no_similarity(self, store: Store) -> None:
        store.append([record("m", text="apple")])
        (found,) = store.candidates(pool(), vector=None, terms=["apple"], k=5)
        assert found.similarity is None

    def test_neither_vector_nor_terms_find_nothing(self, store: Store) -> None:
        store.append([record("m", text="apple")])
        assert store.candidates(pool(), vector=None, terms=[], k=5) == []

    def test_a_phrase_matches_only_its_words_in_order(self, store: Store) -> None:
        store.append([record("in-order", text="the red apple pie"), record("else", text="apple that is red")])
        assert set(by_words(store, ["red apple"])) == {"in-order"}

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("Der Käse ist im Kühlschrank", "kase"),
            ("the deploys happened", "deploy"),
            ("東京で会議があります", "会議"),
            ("we use C++ here", "C++"),
            ("mail ann.b@example.com about it", "ann.b@example.com"),
            ("see /usr/local/bin/tool", "/usr/local/bin"),
            ("ship it 🚀", "🚀"),
        ],
    )
    def test_words_of_any_script_are_found(self, store: Store, text: str, query: str) -> None:
        store.append([record("m", text=text, vectors=None), record("other", text="nothing alike", vectors=None)])
        assert set(by_words(store, query_terms(query))) == {"m"}

    @pytest.mark.parametrize(
        "term",
        [
            '"',
            "'",
            "*",
            "(",
            ")",
            "NEAR(",
            "NEAR(a b, 2)",
            "AND",
            "OR",
            "NOT",
            "a AND",
            "-x",
            "a:b",
            "text:b",
            "^a",
            "{",
            *(
                "",
                " ",
                "don't",
                "C++",
                "a@b.com",
                "/usr/bin",
                "50%",
                "[x]",
                "`",
                "\\",
                ";",
                "--",
                '""',
                '" OR "',
            ),
            *("rowid", "rank", "text", "x" * 4000, "$1", ":a", "?1", "%s", "a\0b", "\u200b", "()" * 300, "' OR 1=1 --"),
        ],
    )
    def test_no_sign_in_a_term_is_an_operator(self, store: Store, term: str) -> None:
        store.append([record("m", text="plain words"), record("b", namespace="bob", text="plain words")])
        assert by_words(store, [term]) == {}
        assert set(by_words(store, [term, "plain"])) == {"m"}

    @pytest.mark.parametrize("word", ["near", "and", "or", "not", "text", "rank"])
    def test_a_word_that_is_an_operator_elsewhere_is_a_word(self, store: Store, word: str) -> None:
        store.append([record("m", text=f"it says {word} there", vectors=None), record("n", text="other", vectors=None)])
        assert set(by_words(store, [word])) == {"m"}

    def test_a_term_that_ends_in_a_star_matches_any_ending(self, store: Store) -> None:
        store.append([record("m", text="xylophone"), record("n", text="xenon"), record("o", text="a xylograph")])
        assert set(by_words(store, ["xylo*"])) == {"m", "o"}
        assert by_words(store, ["xylo"]) == {}
        assert by_words(store, ["*"]) == by_words(store, ["**"]) == by_words(store, ['"*']) == {}

    def test_many_terms_are_no_error(self, store: Store) -> None:
        store.append([record("m", text="w7", vectors=None)])
        assert set(by_words(store, [f"w{number}" for number in range(64)])) == {"m"}

    # --- matches ---------------------------------------------------------------------------------------------------

    @pytest.fixture
    def talks(self, store: Store) -> Store:
        """A store of 60 turns in three conversations and as many memories, of few words in many mixtures."""
        drawn = np.random.default_rng(4)
        words = "apple banana cherry date elder fig grape hazel iris juniper".split()
        values: list[dict[str, Any]] = [{}, {"vectors": None}]
        for collection in (HISTORY, MEMORY):
            store.append(
                [
                    record(
                        f"talk{number % 3}",
                        number,
                        collection=collection,
                        text=" ".join(drawn.choice(words, size=int(drawn.integers(1, 12)))),
                        labels={"role": ("user", "tool")[number % 2]} if number % 5 else {},
                        session=number // 10 * 10 if number % 7 else None,
                        **values[number % 11 == 0],
                    )
                    for number in range(60)
                ]
            )
        return store

    def test_the_columns_of_matches_agree(self, talks: Store) -> None:
        matches = matching(talks, "apple banana cherry")
        rows = len(matches.group)
        assert rows >= 50
        for column in (matches.position, matches.session, matches.created_at, matches.label):
            assert column.shape == (rows,)
            assert column.dtype == np.int64
        for scores in (matches.words, matches.similarity):
            assert scores.shape == (rows,)
            assert scores.dtype == np.float64
        assert matches.holds.shape == (len(matches.terms), rows)
        assert matches.holds.dtype == np.bool_
        assert sorted(matches.groups) == [("ann", f"talk{number}") for number in range(3)]
        assert set(matches.group.tolist()) == {0, 1, 2}
        assert len(matches.labels) == 3 == len({tuple(labels.items()) for labels in matches.labels})
        assert matches.searched >= 60

    def test_a_row_of_matches_tells_what_its_record_tells(self, talks: Store) -> None:
        matches = matching(talks, "apple")
        records = {entry.ref: entry for entry in everything(talks, turns())}
        assert len(matches.group) >= 50
        for row, ref in enumerate(refs_of(matches)):
            entry = records.pop(ref)
            assert matches.session[row] == (-1 if entry.session is None else entry.session)
            assert T0 + timedelta(milliseconds=int(matches.created_at[row]) - T0.timestamp() * 1000) == entry.created_at
            assert matches.labels[matches.label[row]] == entry.labels

    @pytest.mark.parametrize("collection", Collection)
    @pytest.mark.parametrize("conditions", [{}, {"labels": {"role": "tool"}}, {"group": "talk1"}, {"since": at(30)}])
    def test_matches_score_as_candidates_do(
        self, talks: Store, collection: Collection, conditions: Mapping[str, Any]
    ) -> None:
        where = pool(collection=collection, **conditions)
        query = 'apple fig "cherry date" hazel'
        matches = matching(talks, query, where)
        scores = zip(matches.words.tolist(), matches.similarity.tolist(), strict=True)
        rows = dict(zip(refs_of(matches, collection), scores, strict=True))
        found = talks.candidates(where, vector=embed(query)[0], terms=query_terms(query), k=60)
        assert len(found) > 10
        assert rows.keys() >= {candidate.record.ref for candidate in found}
        for candidate in found:
            words, similarity = rows[candidate.record.ref]
            assert words == pytest.approx(candidate.words, abs=0.01)
            if candidate.similarity is None:
                assert np.isnan(similarity)
            else:
                assert similarity == pytest.approx(candidate.similarity, abs=0.01)

    def test_holds_says_which_records_have_which_term(self, store: Store) -> None:
        texts = ["the red apple pie", "apple that is red", "apples deployed", "xylophone", "日本語 C++", "nothing"]
        store.append([turn(number, text=text) for number, text in enumerate(texts)])
        expected = {
            "red": {0, 1},
            "red apple": {0},
            "apple": {0, 1, 2},
            "deploy": {2},
            "xylo*": {3},
            "xylo": set(),
            "日本": {4},
            "cplusplus": {4},
            "zanzibar": set(),
            "*": set(),
            '"': set(),
            "AND": set(),
        }
        matches = store.matches(turns(), TurnQuery(None, list(expected), 50))
        assert set(matches.terms) == set(expected)
        assert {term: holders(matches, term) for term in matches.terms} == expected
        assert set(matches.position[matches.words > 0].tolist()) == {0, 1, 2, 3, 4}

    def test_a_term_is_held_by_what_is_live_and_by_what_ended(self, store: Store) -> None:
        ended: dict[str, Any] = {"ended_at": at(9), "ended_by": "delete"}
        store.append([turn(1, text="apple"), turn(2, text="apple", **ended), turn(3, text="pear", **ended)])
        for state, expected in (("live", {1}), ("ended", {2}), ("any", {1, 2})):
            matches = store.matches(turns(state=state), TurnQuery(None, ["apple"], 50))
            assert holders(matches, "apple") == expected

    @pytest.mark.parametrize("vector", [False, True])
    def test_matches_hold_the_best_by_words_and_by_vector(self, talks: Store, vector: bool) -> None:
        asked = embed("banana iris")[0] if vector else None
        found = talks.candidates(turns(), vector=asked, terms=[] if vector else ["banana", "iris"], k=5)
        matches = talks.matches(turns(), TurnQuery(asked, [] if vector else ["banana", "iris"], 5))
        assert set(refs_of(matches)) >= {candidate.record.ref for candidate in found}

    def test_matches_name_groups_as_they_were_written(self, store: Store) -> None:
        names = [
            new_id(T0),
            new_id(at(1)).upper(),
            "0" * 36,
            "01",
            "null",
            "a/b:c",
            "über",
            "日本 🎉",
            "it's",
            "x" * 256,
        ]
        store.append([turn(1, group=name, text="apple") for name in names])
        matches = matching(store, "apple")
        assert sorted(matches.groups) == sorted(("ann", name) for name in names)
        assert sorted(ref.group for ref in refs_of(matches)) == sorted(names)

    def test_matches_of_two_namespaces_keep_conversations_of_one_name_apart(self, store: Store) -> None:
        for namespace in ("ann", "bob"):
            store.append([turn(number, namespace=namespace, text=f"apple {namespace}") for number in range(3)])
        matches = matching(store, "apple", turns("ann", "bob"))
        assert sorted(matches.groups) == [("ann", "talk"), ("bob", "talk")]
        assert len(set(refs_of(matches))) == 6

    def test_without_a_query_vector_matches_have_no_similarity(self, talks: Store) -> None:
        matches = talks.matches(turns(), TurnQuery(None, ["apple"], 50))
        assert np.isnan(matches.similarity).all()
        assert (matches.words > 0).any()

    def test_a_turn_without_a_vector_matches_by_words_only(self, store: Store) -> None:
        store.append([turn(1, text="apple", vectors=None), turn(2, text="apple")])
        matches = matching(store, "apple")
        similarity = dict(zip(matches.position.tolist(), matches.similarity.tolist(), strict=True))
        assert np.isnan(similarity[1])
        assert similarity[2] == pytest.approx(1.0, abs=0.01)
        assert holders(matches, "apple") == {1, 2}

    def test_neither_vector_nor_terms_are_no_error(self, talks: Store) -> None:
        matches = talks.matches(turns(), TurnQuery(None, [], 5))
        assert (list(matches.terms), float(matches.words.sum())) == ([], 0.0)

    def test_a_turns_words_include_its_speaker_and_a_memorys_do_not(self, store: Store) -> None:
        labels = {SPEAKER: "Zanzibar Lee"}
        store.append([turn(1, text="we ship", labels=labels), record("m", text="we ship", labels=labels)])
        for terms in (["zanzibar"], ["zanzibar lee"]):
            assert holders(store.matches(turns(), TurnQuery(None, terms, 5)), terms[0]) == {1}
            assert by_words(store, terms, turns()).keys() == {"talk"}
            assert by_words(store, terms) == {}
            assert not store.matches(pool(), TurnQuery(None, terms, 5)).holds.any()

    # --- read and values -------------------------------------------------------------------------------------------

    def test_read_returns_the_records_at_these_addresses(self, store: Store) -> None:
        names = [new_id(T0), "0" * 36, "01", "1e5", "null", "[1]", "it's", "日本 🎉", "x" * 256]
        for namespace in ("ann", "bob"):
            store.append([turn(at, group=name, namespace=namespace, key=None) for name in names for at in (0, 1, 7)])
        store.append([record(names[0], 1, text="a memory", labels={"a": "b"}, fields={"n": 1}, key="k")])
        wanted = [Ref(HISTORY, "ann", name, position) for name in names for position in (0, 7)]
        wanted.append(Ref(MEMORY, "ann", names[0], 1))
        found = {entry.ref: entry for entry in store.read(wanted)}
        assert found.keys() == set(wanted)
        known = [*everything(store, turns()), *everything(store, pool())]
        assert found == {entry.ref: entry for entry in known if entry.ref in found}

    def test_read_leaves_out_what_is_not_there(self, store: Store) -> None:
        store.append([turn(1), turn(2, ended_at=at(9), ended_by="delete")])
        missing = [
            Ref(HISTORY, "ann", "talk", 3),
            Ref(HISTORY, "bob", "talk", 1),
            Ref(HISTORY, "%", "talk", 1),
            Ref(MEMORY, "ann", "talk", 1),
            Ref(HISTORY, "ann", "Talk", 1),
            Ref(HISTORY, "ann", new_id(T0), 1),
        ]
        assert store.read(missing) == store.read([]) == []
        there = [Ref(HISTORY, "ann", "talk", position) for position in (1, 2)]
        assert sorted(entry.ref for entry in store.read([*missing, *there])) == there

    def test_values_are_those_of_a_collection_and_of_namespaces(self, store: Store) -> None:
        for number, name in enumerate(("Zoë", "Bob", "Ann", "Bob", "ann")):
            store.append([turn(number, labels={SPEAKER: name, "other": "Eve"})])
        store.append([turn(0, namespace="bob", labels={SPEAKER: "Carl"}), record("m", labels={SPEAKER: "Dora"})])
        assert store.values(HISTORY, ["ann"], SPEAKER) == sorted(["Ann", "Bob", "Zoë", "ann"])
        assert store.values(HISTORY, ["bob"], SPEAKER) == ["Carl"]
        assert store.values(HISTORY, ["bob", "ann"], SPEAKER) == sorted(["Ann", "Bob", "Carl", "Zoë", "ann"])
        assert store.values(MEMORY, ["ann"], SPEAKER) == ["Dora"]
        assert store.values(MEMORY, ["bob"], SPEAKER) == store.values(HISTORY, ["ann"], "missing") == []
        assert store.values(HISTORY, [], SPEAKER) == []

    def test_a_value_is_gone_with_the_last_record_that_has_it(self, store: Store) -> None:
        store.append([turn(number, labels={SPEAKER: "Ann" if number else "Bob"}) for number in range(3)])
        store.append([record("m", labels={SPEAKER: "Ann"}), turn(0, namespace="bob", labels={SPEAKER: "Bob"})])
        store.remove([Ref(HISTORY, "ann", "talk", position) for position in (0, 1)])
        assert store.values(HISTORY, ["ann"], SPEAKER) == ["Ann"]
        store.remove([Ref(HISTORY, "ann", "talk", 2)])
        assert store.values(HISTORY, ["ann"], SPEAKER) == []
        assert store.values(MEMORY, ["ann"], SPEAKER) == ["Ann"]
        assert store.values(HISTORY, ["bob"], SPEAKER) == ["Bob"]
        store.append([turn(5, labels={SPEAKER: "Carl"})])
        assert store.values(HISTORY, ["ann"], SPEAKER) == ["Carl"]

    def test_a_value_of_a_failed_transaction_is_not_known(self, store: Store) -> None:
        with failing(), store.transaction():
            store.append([turn(0, labels={SPEAKER: "Ann"})])
            raise ZeroDivisionError
        assert store.values(HISTORY, ["ann"], SPEAKER) == []

    # --- two collections in one store ------------------------------------------------------------------------------

    def test_turns_do_not_change_how_rare_the_words_of_memories_are(self, store: Store) -> None:
        store.append([record(f"m{number}", text=f"weekly report {number}") for number in range(20)])
        store.append([record("rare", text="weekly report of zanzibar")])
        before = by_words(store, ["weekly", "zanzibar"], k=50)
        store.append([turn(number, text="the weekly report of zanzibar") for number in range(200)])
        assert by_words(store, ["weekly", "zanzibar"], k=50) == before
        store.remove([Ref(HISTORY, "ann", "talk", position) for position in range(100)])
        assert by_words(store, ["weekly", "zanzibar"], k=50) == before

    def test_memories_do_not_change_how_rare_the_words_of_turns_are(self, store: Store) -> None:
        store.append([turn(number, text=f"weekly report {number}") for number in range(20)])
        before = matching(store, "weekly report").words.tolist()
        store.append([record(f"m{number}", text="the weekly report") for number in range(50)])
        store.patch([Patch(Ref(MEMORY, "ann", f"m{number}", 1), at(99), "delete", {}) for number in range(25)])
        assert matching(store, "weekly report").words.tolist() == before

    def test_a_search_of_one_collection_finds_nothing_of_the_other(self, store: Store) -> None:
        """Nor do nearer ones of the other crowd out its own."""
        store.append([turn(number, text="red green blue") for number in range(60)])
        store.append([record("mine", text="red with several other words that make it match less well")])
        assert set(search(store, "red green blue", k=3)) == {"mine"}
        store.append([record(f"m{number}", text="red green blue") for number in range(60)])
        store.append([turn(99, group="other", text="red with several other words that make it match less well")])
        where = turns(group="other")
        assert refs_of(matching(store, "red green blue", where, k=3)) == [Ref(HISTORY, "ann", "other", 99)]
        assert set(search(store, "red green blue", where, k=3)) == {"other"}

    def test_memories_and_turns_that_are_written_by_turns_are_all_found(self, store: Store) -> None:
        """So many of each, written together and apart, that a store puts them into an index of their own."""
        count = 1_500
        vectors = unit_vectors(2 * count)
        own = {MEMORY: vectors[:count], HISTORY: vectors[count:]}
        batches = [
            [
                record(f"{number:05}", 0, collection=collection, text=f"w{number}", vectors=own[collection][[number]])
                for number in range(start, start + 50)
                for collection in (MEMORY, HISTORY)
            ]
            for start in range(0, count, 50)
        ]
        for batch in batches:
            half = len(batch) // 2
            store.append(batch[:half])
            store.append([entry for entry in batch[half:] if entry.ref.collection is HISTORY])
            store.append([entry for entry in batch[half:] if entry.ref.collection is MEMORY])

        def nearest(collection: Collection, number: int) -> list[int]:
            query, where = own[collection][number], pool(collection=collection)
            (found,) = store.candidates(where, vector=query, terms=[], k=1)
            matches = store.matches(where, TurnQuery(query, [], 1))
            best = refs_of(matches, collection)[int(np.nanargmax(matches.similarity))]
            assert {found.record.ref.collection, best.collection} == {collection}
            return [int(found.record.ref.group), int(best.group)]

        some = (0, 1, 49, 50, 700, 1023, 1024, 1025, 1450, count - 1)
        for collection in (MEMORY, HISTORY):
            assert [nearest(collection, number) for number in some] == [[number, number] for number in some]
        gone = (1, 700, 1024, 1450)
        store.remove([Ref(HISTORY, "ann", f"{number:05}", 0) for number in gone])
        assert store.count(turns()) == count - len(gone)
        for number in some:
            assert nearest(MEMORY, number) == [number, number]
            assert (number in nearest(HISTORY, number)) is (number not in gone)

    # --- spaces ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "other", [SPACE._replace(model="other/1"), SPACE._replace(dimension=32), SPACE._replace(model="x", dimension=8)]
    )
    def test_vectors_of_another_space_are_refused(self, open_store: OpenStore, other: Space) -> None:
        open_store(SPACE).append([record("m", text="apple")])
        store = open_store(other)
        vector = np.eye(other.dimension, dtype=np.float32)
        with pytest.raises(EmbedderMismatch, match="fake/1"):
            store.append([record("n", vectors=vector[:1])])
        with pytest.raises(EmbedderMismatch, match="fake/1"):
            store.candidates(pool(), vector=vector[0], terms=["apple"], k=5)
        with pytest.raises(EmbedderMismatch, match="fake/1"):
            store.matches(turns(), TurnQuery(vector[0], ["apple"], 5))
        assert everything(store, pool()) == everything(open_store(SPACE), pool())
        assert by_words(store, ["apple"]) != {}

    def test_a_mismatch_in_the_middle_of_an_append_adds_nothing(self, open_store: OpenStore) -> None:
        open_store(SPACE).append([record("m")])
        other = open_store(SPACE._replace(model="other/1"))
        with pytest.raises(EmbedderMismatch):
            other.append([record("n", vectors=None), record("o")])
        assert other.count(pool(state="any")) == 1

    def test_a_store_knows_the_model_of_its_vectors(self, open_store: OpenStore) -> None:
        store = open_store(SPACE)
        store.append([record("m", vectors=None)])
        assert store.info(pool()).model is None
        store.append([record("n")])
        assert open_store(None).info(pool()).model == "fake/1"

    def test_a_store_without_an_embedder_goes_by_words(self, open_store: OpenStore) -> None:
        open_store(SPACE).append([record("m", text="apple")])
        plain = open_store(None)
        plain.append([record("n", text="apple", vectors=None)])
        assert set(by_words(plain, ["apple"])) == {"m", "n"}

    # --- moving a whole store --------------------------------------------------------------------------------------

    def test_namespaces_are_those_that_have_records(self, store: Store) -> None:
        """Ended ones count; those of turns and of memories are apart."""
        ended: dict[str, Any] = {"ended_at": at(5), "ended_by": "delete"}
        store.append([record("m", namespace=name) for name in ("zoe", "ann", "shared", "an")])
        store.append([record("m", namespace="past", **ended), turn(1, namespace="talker")])
        assert store.namespaces(MEMORY) == ["an", "ann", "past", "shared", "zoe"]
        assert store.namespaces(HISTORY) == ["talker"]

    def test_a_namespace_goes_with_its_last_record(self, store: Store) -> None:
        store.append([record("m", namespace="ann"), record("n", namespace="ann"), record("m", namespace="bob")])
        store.append([turn(1, namespace="ann")])
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        assert store.namespaces(MEMORY) == ["ann", "bob"]
        store.remove([Ref(MEMORY, "ann", "n", 1)])
        assert store.namespaces(MEMORY) == ["bob"]
        assert store.namespaces(HISTORY) == ["ann"]

    def test_accesses_are_kept_with_a_record_that_is_moved(self, store: Store) -> None:
        store.append([record("m", accesses=7), record("n"), turn(1, accesses=3)])
        store.touch([Ref(MEMORY, "ann", "m", 1), Ref(MEMORY, "ann", "n", 1)])
        assert [entry.accesses for entry in store.scan(pool(), limit=9)] == [8, 1]
        assert [entry.accesses for entry in store.scan(turns(), limit=9)] == [3]

    def test_vectors_come_back_nearly_as_they_were(self, open_store: OpenStore) -> None:
        """Whatever space the store was opened with."""
        given = unit_vectors(6)
        windows = {"one": given[:1], "three": given[1:4], "ended": given[4:5]}
        ended: dict[str, Any] = {"ended_at": at(9), "ended_by": "delete"}
        store = open_store(SPACE)
        store.append([record("one", vectors=windows["one"]), record("none", vectors=None)])
        store.append([record("three", namespace="bob", vectors=windows["three"])])
        store.append([record("ended", collection=HISTORY, vectors=windows["ended"], **ended)])
        refs = [
            Ref(MEMORY, "ann", "one", 1),
            Ref(MEMORY, "bob", "three", 1),
            Ref(HISTORY, "ann", "ended", 1),
        ]
        missing = [Ref(MEMORY, "ann", "none", 1), Ref(MEMORY, "ann", "three", 1), Ref(HISTORY, "ann", "one", 1)]
        for space in (SPACE, None, OTHER):
            found = open_store(space).vectors([*missing, *refs])
            assert found.keys() == set(refs)
            for ref, vectors in found.items():
                assert vectors.dtype == np.float32
                assert vectors.shape == windows[ref.group].shape
                assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-3)
                assert (vectors * windows[ref.group]).sum(axis=1) == pytest.approx(1.0, abs=0.01)
        assert open_store(SPACE).vectors([]) == {}

    def test_vectors_that_are_moved_again_and_again_stay_as_good(self, store: Store) -> None:
        vectors = first = unit_vectors(1)
        for number in range(5):
            ref = Ref(MEMORY, "ann", f"m{number}", 1)
            store.append([record(ref.group, vectors=vectors)])
            vectors = store.vectors([ref])[ref]
        assert float(first[0] @ vectors[0]) == pytest.approx(1.0, abs=0.01)

    def test_a_whole_store_is_moved_here_and_away_again(self, store: Store, tmp_path: Path) -> None:
        """By way of two SQLite files; what every store holds is exported as the same bytes."""
        first, last = SQLiteStore(tmp_path / "first.db", SPACE), SQLiteStore(tmp_path / "last.db", SPACE)
        ended: dict[str, Any] = {"ended_at": at(7.5), "ended_by": "update"}
        ids = [new_id(at(number)) for number in range(5)]
        values: dict[str, Any] = {
            "labels": {"who": "ann", "項目": "値=,;", "empty": ""},
            "fields": {"half": 0.5, "flag": True, "whole": 2**40, "text": "ü", "none": False, "zero": 0},
        }
        first.append([record(ids[0], 1, key="k", text='Ünï 日本 🎉 "x"\n\t', **ended, **values)])
        first.append([record(ids[0], 2, key="k", accesses=3), record(ids[1], vectors=None)])
        first.append([record(ids[number], namespace="bob", **values) for number in (2, 3)])
        first.append([turn(number, key=f"talk\x1f{number}", labels={SPEAKER: "Zoë"}) for number in range(30)])
        first.append([turn(0, group=name) for name in (ids[4], "about", "zebra", "0" * 36, "Talk", "über")])
        exported: list[list[str]] = []
        for source, target in ((first, store), (store, last)):
            done = migrate(source, target, FakeEmbedder(), progress=_quiet)
            assert (done.copied, done.without_vector) == (41, 0)
            assert migrate(source, target, FakeEmbedder(), progress=_quiet).copied == 0
        for each in (first, store, last):
            lines: list[str] = []
            export(each, lines.append, namespaces=None, progress=_quiet)
            exported.append(lines)
        assert exported[0] == exported[1] == exported[2]
        assert search(store, "note zebra 0", turns(group="zebra"))["zebra"].similarity == pytest.approx(1.0, abs=0.01)
        first.patch([Patch(Ref(MEMORY, "ann", ids[0], 2), at(9), "delete", {"mark": 1})])
        first.append([record(ids[1], 2, key="k")])
        done = migrate(first, store, FakeEmbedder(), progress=_quiet)
        assert (done.copied, done.changed) == (1, 1)
        first.close()
        last.close()

    # --- changing the space ----------------------------------------------------------------------------------------

    @pytest.fixture
    def embedded(self, store: Store) -> Store:
        """A store of two namespaces with memories, one of which ended, and turns, all with vectors."""
        texts = ["apple pie", "banana bread", "cherry cake", "date syrup"]
        store.append([record(f"m{number}", text=text) for number, text in enumerate(texts)])
        store.append([record("m0", 2, text="apple tart", ended_at=at(9), ended_by="update")])
        store.append([record("b0", namespace="bob", text="apple juice")])
        store.append([turn(number, text=text) for number, text in enumerate(texts)])
        return store

    def test_what_has_no_vectors_of_the_space_in_use_is_unstaged(self, embedded: Store) -> None:
        assert embedded.unstaged(SPACE, MEMORY, limit=9) == embedded.unstaged(SPACE, HISTORY, limit=9) == []
        bare: dict[str, Any] = {"vectors": None}
        embedded.append(
            [record("x1", text="elder tea", **bare), record("x2", namespace="bob", **bare), turn(9, **bare)]
        )
        embedded.append([record("x3", ended_at=at(5), ended_by="delete", **bare)])
        assert unstaged(embedded, SPACE) == {"x1", "x2", "x3"}
        assert unstaged(embedded, SPACE, HISTORY) == {"talk"}
        assert len(embedded.unstaged(SPACE, MEMORY, limit=2)) == 2
        (found,) = [entry for entry in embedded.unstaged(SPACE, MEMORY, limit=9) if entry.ref.group == "x1"]
        assert found == embedded.read([found.ref])[0]

    def test_vectors_of_the_space_in_use_are_used_at_once(self, embedded: Store) -> None:
        embedded.append([record("x1", text="elder tea", vectors=None), turn(9, text="elder tea", vectors=None)])
        assert search(embedded, "elder tea")["x1"].similarity is None
        stage_all(embedded, SPACE)
        assert search(embedded, "elder tea")["x1"].similarity == pytest.approx(1.0, abs=0.01)
        matches = matching(embedded, "elder tea")
        assert matches.position[int(np.nanargmax(matches.similarity))] == 9
        assert embedded.info(pool()).without_vector_count == 0
        embedded.switch(SPACE)
        assert embedded.info(pool()).model == SPACE.model

    def test_the_first_space_of_a_store_is_used_at_once(self, open_store: OpenStore) -> None:
        plain = open_store(None)
        plain.append([record("m", text="apple", vectors=None), record("n", text="pear", vectors=None)])
        assert plain.info(pool()).model is None
        assert unstaged(plain, SPACE) == {"m", "n"}
        plain.stage(SPACE, {Ref(MEMORY, "ann", "m", 1): embed("apple")})
        assert plain.info(pool()).model == SPACE.model
        assert unstaged(plain, SPACE) == {"n"}
        found = search(open_store(SPACE), "apple")
        assert found["m"].similarity == pytest.approx(1.0, abs=0.01)

    def test_staged_vectors_change_no_search(self, open_store: OpenStore, embedded: Store) -> None:
        where = [pool("ann", "bob", state="any"), turns()]
        before = [seen(embedded, each) for each in where]
        total = sum(embedded.count(each._replace(state="any")) for each in where)
        assert len(stage_all(embedded)) == total
        assert [seen(embedded, each) for each in where] == before
        assert embedded.info(pool()).model == SPACE.model
        assert {len(vectors[0]) for vectors in embedded.vectors([Ref(MEMORY, "ann", "m1", 1)]).values()} == {64}
        with pytest.raises(EmbedderMismatch):
            by_other(open_store(OTHER), "apple pie")

    def test_staging_goes_on_where_it_was(self, open_store: OpenStore, embedded: Store) -> None:
        first = embedded.unstaged(OTHER, MEMORY, limit=4)
        embedded.stage(OTHER, {entry.ref: embed_other(entry.text) for entry in first})
        again = open_store(None)
        rest = again.unstaged(OTHER, MEMORY, limit=9)
        assert len(rest) == 2
        assert not {entry.ref for entry in first} & {entry.ref for entry in rest}
        assert set(stage_all(again)) >= {entry.ref for entry in rest}
        again.switch(OTHER)
        assert open_store(OTHER).info(pool()).model == OTHER.model

    @pytest.mark.parametrize("opened", [None, SPACE, OTHER])
    def test_after_the_switch_the_other_space_is_searched(
        self, open_store: OpenStore, embedded: Store, opened: Space | None
    ) -> None:
        early = open_store(OTHER)
        with pytest.raises(EmbedderMismatch):
            by_other(early, "apple pie")
        mover = open_store(opened)
        stage_all(mover)
        mover.switch(OTHER)
        for store in (early, open_store(OTHER)):
            assert store.info(pool()).model == OTHER.model
            assert store.info(pool("ann", "bob", state="any")).without_vector_count == 0
            found = by_other(store, "apple pie")
            assert found["m0"] == pytest.approx(1.0, abs=0.01)
            assert found["m2"] == pytest.approx(
                float(embed_other("cherry cake")[0] @ embed_other("apple pie")[0]), abs=0.01
            )
            assert by_other(store, "apple tart", pool(state="ended"))["m0"] == pytest.approx(1.0, abs=0.01)
            assert by_other(store, "apple juice", pool("bob"))["b0"] == pytest.approx(1.0, abs=0.01)
            matches = store.matches(turns(), TurnQuery(embed_other("date syrup")[0], [], 50))
            assert matches.position[int(np.nanargmax(matches.similarity))] == 3
            assert store.unstaged(OTHER, MEMORY, limit=9) == store.unstaged(OTHER, HISTORY, limit=9) == []
            (vectors,) = store.vectors([Ref(MEMORY, "ann", "m1", 1)]).values()
            assert float(vectors[0] @ embed_other("banana bread")[0]) == pytest.approx(1.0, abs=0.01)
            assert by_words(store, ["banana"]).keys() == {"m1"}
        early.append([record("new", text="elder tea", vectors=embed_other("elder tea"))])
        assert by_other(early, "elder tea")["new"] == pytest.approx(1.0, abs=0.01)

    def test_who_has_the_store_open_with_the_old_space_is_told(self, open_store: OpenStore, embedded: Store) -> None:
        old = open_store(SPACE)
        assert search(old, "apple pie")
        stage_all(embedded)
        embedded.switch(OTHER)
        for store in (old, embedded):
            with pytest.raises(EmbedderMismatch, match="other/1"):
                search(store, "apple pie")
            with pytest.raises(EmbedderMismatch, match="other/1"):
                matching(store, "apple pie")
            with pytest.raises(EmbedderMismatch, match="other/1"):
                store.append([record("late")])
            assert by_words(store, ["banana"]).keys() == {"m1"}
        assert unstaged(old, SPACE) == {"m0", "m1", "m2", "m3", "b0"}

    @pytest.mark.parametrize("missing", ["memory", "turn", "ended", "everything"])
    def test_a_switch_before_all_is_staged_is_refused(self, embedded: Store, missing: str) -> None:
        left_out = {
            "memory": {Ref(MEMORY, "ann", "m1", 1)},
            "turn": {Ref(HISTORY, "ann", "talk", 2)},
            "ended": {Ref(MEMORY, "ann", "m0", 2)},
        }
        where = [pool("ann", "bob", state="any"), turns()]
        before = [seen(embedded, each) for each in where]
        if missing != "everything":
            for collection in Collection:
                found = embedded.unstaged(OTHER, collection, limit=99)
                embedded.stage(
                    OTHER, {entry.ref: embed_other(entry.text) for entry in found if entry.ref not in left_out[missing]}
                )
        with pytest.raises(Conflict):
            embedded.switch(OTHER)
        assert [seen(embedded, each) for each in where] == before
        stage_all(embedded)
        embedded.switch(OTHER)
        assert embedded.info(pool()).model == OTHER.model

    def test_what_is_written_while_staging_is_staged_too(self, open_store: OpenStore, embedded: Store) -> None:
        stage_all(embedded)
        open_store(SPACE).append([record("late", text="elder tea"), turn(7, text="elder tea")])
        open_store(None).append([record("bare", text="fig jam", vectors=None)])
        assert unstaged(embedded) == {"late", "bare"}
        assert unstaged(embedded, OTHER, HISTORY) == {"talk"}
        with pytest.raises(Conflict):
            embedded.switch(OTHER)
        with embedded.transaction():
            assert len(stage_all(embedded)) == 3
            embedded.switch(OTHER)
        assert by_other(open_store(OTHER), "elder tea")["late"] == pytest.approx(1.0, abs=0.01)
        assert by_other(open_store(OTHER), "fig jam")["bare"] == pytest.approx(1.0, abs=0.01)

    def test_the_embedder_is_changed_while_somebody_writes(self, open_store: OpenStore, embedded: Store) -> None:
        class Another(FakeEmbedder):
            space = OTHER

            def embed(self, text: str) -> Any:
                return embed_other(text)

        writer, waiting = open_store(SPACE), [1]

        def write(_what: str, _done: int, _whole: int) -> None:
            assert search(writer, "cherry cake")["m2"].similarity == pytest.approx(1.0, abs=0.01)
            if waiting:
                waiting.pop()
                writer.append([record("late", text="elder tea"), turn(7, text="elder tea")])
                writer.remove([Ref(MEMORY, "ann", "m3", 1)])

        total = embedded.count(pool("ann", "bob", state="any")) + embedded.count(turns())
        assert reembed(open_store(None), Another(), progress=write).embedded in (total + 1, total + 2)
        store = open_store(OTHER)
        assert by_other(store, "elder tea")["late"] == pytest.approx(1.0, abs=0.01)
        assert store.info(pool("ann", "bob", state="any")).without_vector_count == 0
        assert store.info(turns(state="any")).without_vector_count == 0

    def test_what_is_removed_has_no_staged_vectors_either(self, open_store: OpenStore, embedded: Store) -> None:
        stage_all(embedded)
        ref = Ref(MEMORY, "ann", "m1", 1)
        embedded.remove([ref])
        embedded.append([record("m1", text="elder tea")])
        assert unstaged(embedded) == {"m1"}
        embedded.stage(OTHER, {ref: embed_other("elder tea")})
        embedded.remove([Ref(HISTORY, "ann", "talk", 1)])
        embedded.switch(OTHER)
        store = open_store(OTHER)
        assert by_other(store, "elder tea")["m1"] == pytest.approx(1.0, abs=0.01)
        assert by_other(store, "banana bread")["m1"] < 0.9  # type: ignore[operator]

    def test_what_does_not_exist_is_not_staged(self, store: Store) -> None:
        nowhere = [Ref(MEMORY, "ann", "m", 2), Ref(HISTORY, "ann", "m", 1), Ref(MEMORY, "bob", "m", 1)]
        store.stage(SPACE, dict.fromkeys(nowhere, embed("apple")))
        store.append([record("m", text="apple", vectors=None)])
        store.stage(SPACE, {})
        store.stage(SPACE, dict.fromkeys(nowhere, embed("apple")))
        assert store.info(pool()).model is None
        assert store.info(pool()).without_vector_count == 1
        store.stage(OTHER, {ref: embed_other("apple") for ref in [*nowhere, Ref(MEMORY, "ann", "m", 1)]})
        assert store.vectors([*nowhere, Ref(MEMORY, "ann", "m", 1)]).keys() == {Ref(MEMORY, "ann", "m", 1)}

    def test_vectors_that_are_staged_again_replace_those_before(self, open_store: OpenStore, embedded: Store) -> None:
        ref = Ref(MEMORY, "ann", "m1", 1)
        embedded.stage(SPACE, {ref: embed("elder tea")})
        assert search(embedded, "elder tea")["m1"].similarity == pytest.approx(1.0, abs=0.01)
        embedded.stage(OTHER, {ref: embed_other("something else")})
        embedded.stage(OTHER, {ref: np.concatenate([embed_other("fig jam"), embed_other("banana bread")])})
        assert "m1" not in unstaged(embedded)
        stage_all(embedded)
        embedded.switch(OTHER)
        assert by_other(open_store(OTHER), "banana bread")["m1"] == pytest.approx(1.0, abs=0.01)
        assert embedded.vectors([ref])[ref].shape == (2, OTHER.dimension)

    def test_what_was_staged_for_a_third_space_is_dropped(self, embedded: Store) -> None:
        third = OTHER._replace(model="third/1")
        stage_all(embedded)
        embedded.stage(third, {Ref(MEMORY, "ann", "m1", 1): embed_other("banana bread")})
        assert unstaged(embedded, third) == {"m0", "m2", "m3", "b0"}
        assert unstaged(embedded, OTHER) == {"m0", "m1", "m2", "m3", "b0"}
        with pytest.raises(Conflict):
            embedded.switch(OTHER)

    def test_a_space_may_be_changed_back(self, open_store: OpenStore, embedded: Store) -> None:
        before = [seen(embedded, each) for each in (pool("ann", "bob", state="any"), turns())]
        for space in (OTHER, SPACE):
            stage_all(embedded, space)
            embedded.switch(space)
        store = open_store(SPACE)
        assert [seen(store, each) for each in (pool("ann", "bob", state="any"), turns())] == before

    def test_a_store_that_was_emptied_may_change_its_space(self, open_store: OpenStore) -> None:
        store = open_store(SPACE)
        store.append([record("m")])
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        store.switch(OTHER)
        other = open_store(OTHER)
        other.append([record("n", text="apple", vectors=embed_other("apple"))])
        assert by_other(other, "apple")["n"] == pytest.approx(1.0, abs=0.01)

    def test_many_records_are_staged_in_any_order_and_found_after_the_switch(self, open_store: OpenStore) -> None:
        store = open_store(SPACE)
        count = 300
        store.append([record(f"{number:03}", text=f"note w{number}") for number in range(count)])
        store.append([turn(number, text=f"note w{number}") for number in range(count)])
        drawn = np.random.default_rng(21)
        vectors = drawn.standard_normal((2 * count, OTHER.dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        refs = [Ref(MEMORY, "ann", f"{number:03}", 1) for number in range(count)]
        refs += [Ref(HISTORY, "ann", "talk", number) for number in range(count)]
        order = drawn.permutation(2 * count)
        for piece in np.array_split(order, 13):
            store.stage(OTHER, {refs[number]: vectors[[number]] for number in piece})
        for number in (5, 150):
            assert next(iter(search(store, f"note w{number}", k=1))) == f"{number:03}"
        gone = {3, 77, 299}
        store.remove([refs[number] for number in gone])
        store.switch(OTHER)
        other = open_store(OTHER)
        assert other.info(pool(state="any")).without_vector_count == 0
        for number in (0, 4, 76, 78, 150, 298):
            (found,) = other.candidates(pool(), vector=vectors[number], terms=[], k=1)
            assert found.record.ref == refs[number]
            matches = other.matches(turns(), TurnQuery(vectors[count + number], [], 5))
            assert refs_of(matches)[int(np.nanargmax(matches.similarity))] == refs[count + number]

    def test_vectors_that_come_late_are_found_among_many(self, store: Store) -> None:
        """Half of the records have none at first; what is staged for them lies between what is there."""
        count = 200
        vectors = unit_vectors(count, seed=22)
        given = [vectors[[number]] if number % 2 else None for number in range(count)]
        store.append([record(f"{number:03}", text="x", vectors=given[number]) for number in range(count)])
        late = [number for number in range(count) if number % 2 == 0]
        np.random.default_rng(23).shuffle(late)
        for start in range(0, len(late), 30):
            store.stage(
                SPACE, {Ref(MEMORY, "ann", f"{number:03}", 1): vectors[[number]] for number in late[start : start + 30]}
            )
        for number in range(0, count, 7):
            (found,) = store.candidates(pool(), vector=vectors[number], terms=[], k=1)
            assert found.record.ref.group == f"{number:03}"

    # --- patch, touch, remove --------------------------------------------------------------------------------------

    def test_a_patch_sets_the_end_and_fields(self, store: Store) -> None:
        store.append([record("m", fields={"kept": 1, "changed": "a", "dropped": True})])
        ref = Ref(MEMORY, "ann", "m", 1)
        store.patch([Patch(ref, at(9), "delete", {"changed": "b", "dropped": None, "added": 2.5, "absent": None})])
        (found,) = everything(store, pool())
        assert (found.ended_at, found.ended_by) == (at(9), "delete")
        assert found.fields == {"kept": 1, "changed": "b", "added": 2.5}
        assert store.count(pool()) == 0

    def test_a_patch_makes_a_record_live_again(self, store: Store) -> None:
        store.append([record("m", text="apple", ended_at=at(9), ended_by="delete", key="k", labels={"a": "1"})])
        store.patch([Patch(Ref(MEMORY, "ann", "m", 1), None, None, {})])
        (found,) = store.scan(pool(key="k"), limit=9)
        assert (found.ended_at, found.ended_by, found.text, found.labels) == (None, None, "apple", {"a": "1"})
        assert set(search(store, "apple")) == {"m"}

    def test_a_patch_leaves_out_what_does_not_exist(self, store: Store) -> None:
        store.append([record("m")])
        refs = [Ref(MEMORY, "ann", "missing", 1), Ref(MEMORY, "ann", "m", 1), Ref(MEMORY, "nobody", "m", 1)]
        store.patch([Patch(ref, at(9), "delete", {}) for ref in refs])
        assert [entry.ref.group for entry in everything(store, pool(state="ended"))] == ["m"]
        assert store.count(pool("ann", "nobody", state="any")) == 1

    def test_two_patches_of_one_record_add_up(self, store: Store) -> None:
        store.append([record("m")])
        ref = Ref(MEMORY, "ann", "m", 1)
        store.patch([Patch(ref, at(8), "update", {"a": 1}), Patch(ref, at(9), "delete", {"b": 2})])
        (found,) = everything(store, pool())
        assert (found.ended_at, found.ended_by, found.fields) == (at(9), "delete", {"a": 1, "b": 2})

    def test_a_touch_counts_one_access(self, store: Store) -> None:
        store.append([record("m"), record("n")])
        refs = [Ref(MEMORY, "ann", "m", 1), Ref(MEMORY, "ann", "missing", 1)]
        store.touch(refs)
        store.touch(refs)
        store.touch([])
        assert [entry.accesses for entry in store.scan(pool(), limit=9)] == [2, 0]

    def test_what_is_removed_is_gone_from_every_read(self, store: Store) -> None:
        store.append([record("m", text="apple", key="k", labels={"colour": "red"}), record("n", text="apple")])
        remains = store.remove([Ref(MEMORY, "ann", "m", 1), Ref(MEMORY, "ann", "missing", 1)])
        assert isinstance(remains, tuple) and all(isinstance(place, str) and place for place in remains)
        assert [entry.ref.group for entry in everything(store, pool())] == ["n"]
        assert store.groups(pool(state="any"), limit=9) == [("ann", "n")]
        assert store.count(pool(state="any")) == 1
        assert store.labels(pool(state="any"), None) == {}
        assert store.labels(pool(state="any"), "colour") == {}
        assert set(search(store, "apple")) == {"n"}
        assert by_words(store, ["apple"]).keys() == {"n"}
        assert store.count(pool(key="k")) == 0

    def test_a_removed_address_may_be_written_again(self, store: Store) -> None:
        store.append([record("m", text="apple", key="k", labels={"a": "1"})])
        store.touch([Ref(MEMORY, "ann", "m", 1)])
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        store.append([record("m", text="pear", key="k")])
        (found,) = store.scan(pool(), limit=9)
        assert (found.text, found.accesses, dict(found.labels)) == ("pear", 0, {})
        assert by_words(store, ["apple"]) == {}

    def test_the_last_record_may_be_removed(self, store: Store) -> None:
        store.append([record("m", text="apple")])
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        assert search(store, "apple") == {}
        store.append([record("n", text="apple")])
        assert set(search(store, "apple")) == {"n"}

    # --- several at once -------------------------------------------------------------------------------------------

    def test_eight_threads_use_one_store_at_once(self, store: Store) -> None:
        failures: list[BaseException] = []

        def use(worker: int) -> None:
            try:
                for turn in range(12):
                    group = f"w{worker}-{turn:02}"
                    store.append([record(group, text=f"shared words of {group}", labels={"w": str(worker)})])
                    own = store.scan(pool(labels={"w": str(worker)}), limit=99)
                    assert [entry.ref.group for entry in own] == [f"w{worker}-{past:02}" for past in range(turn + 1)]
                    assert group in search(store, f"shared words of {group}", k=200)
                    store.touch([own[0].ref])
                    store.patch([Patch(own[-1].ref, None, None, {"turn": turn})])
                    assert store.count(pool()) > turn
            except BaseException as exc:  # noqa: BLE001 - shown by the test
                failures.append(exc)

        _run_threads([lambda worker=worker: use(worker) for worker in range(8)])
        assert failures == []
        found = store.scan(pool(), limit=999)
        assert len({entry.ref for entry in found}) == len(found) == 96
        assert all(entry.fields == {"turn": int(entry.ref.group[-2:])} for entry in found)

    def test_no_error_is_a_drivers_own(self, store: Store) -> None:
        store.append([record("m", key="k")])
        for wrong in (record("m"), record("n", key="k")):
            with pytest.raises(MemoriesError):
                store.append([wrong])


def _means(where: Filter, entry: Record) -> bool:
    """Say in Python what a filter means."""
    if where.as_of is not None:
        current = entry.created_at <= where.as_of and (entry.ended_at is None or entry.ended_at > where.as_of)
    else:
        current = where.state == "any" or (where.state == "live") == (entry.ended_at is None)
    group = where.group or ""
    return (
        current
        and entry.ref.namespace in where.namespaces
        and where.labels.items() <= entry.labels.items()
        and (where.ended_by is None or entry.ended_by == where.ended_by)
        and (where.since is None or entry.created_at >= where.since)
        and (where.until is None or entry.created_at <= where.until)
        and (entry.ref.group.startswith(group) if where.prefix else group in ("", entry.ref.group))
        and (where.key is None or (entry.key == where.key and entry.ended_at is None))
    )


def _quiet(_what: str, _done: int, _whole: int) -> None:
    """Say nothing of how far it is."""


def _run_threads(targets: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
