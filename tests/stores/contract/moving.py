"""Moves of a whole store to another store or another embedder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.samples import (
    HISTORY,
    MEMORY,
    OTHER,
    SPACE,
    Opened,
    OpenStore,
    at,
    by_other,
    by_words,
    embed,
    embed_other,
    everything,
    matching,
    pool,
    record,
    refs_of,
    search,
    seen,
    stage_all,
    turn,
    turns,
    unit_vectors,
    unstaged,
)
from memories.core.ids import new_id
from memories.embedders.fake import FakeEmbedder
from memories.errors import Conflict, EmbedderMismatch
from memories.stores import Store
from memories.stores.protocol import refuse_other_model
from memories.stores.records import SEARCHED, SPEAKER, Patch, Ref, Space, TurnQuery
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.export import export
from memories.transfer.migrate import migrate, reembed


class Moving(Opened):
    """Tests of spaces, copies and moves."""

    # --- spaces

    @pytest.mark.parametrize(
        "other",
        [
            SPACE._replace(model="other/1"),
            SPACE._replace(dimension=32),
            SPACE._replace(model="x", dimension=8),
        ],
    )
    def test_vectors_of_another_space_are_refused(
        self, open_store: OpenStore, other: Space
    ) -> None:
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
        with pytest.raises(EmbedderMismatch, match="fake/1"):
            refuse_other_model(store, other, pool())

    def test_a_mismatch_in_the_middle_of_an_append_adds_nothing(
        self, open_store: OpenStore
    ) -> None:
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

    def test_a_store_without_an_embedder_searches_by_words(self, open_store: OpenStore) -> None:
        open_store(SPACE).append([record("m", text="apple")])
        plain = open_store(None)
        plain.append([record("n", text="apple", vectors=None)])
        assert set(by_words(plain, ["apple"])) == {"m", "n"}

    # --- moving a whole store

    def test_only_namespaces_with_records_are_listed(self, store: Store) -> None:
        """Ended records count too; memories and turns are counted separately."""
        ended: dict[str, Any] = {"ended_at": at(5), "ended_by": "delete"}
        store.append([record("m", namespace=name) for name in ("zoe", "ann", "shared", "an")])
        store.append([record("m", namespace="past", **ended), turn(1, namespace="talker")])
        assert store.namespaces(MEMORY) == ["an", "ann", "past", "shared", "zoe"]
        assert store.namespaces(HISTORY) == ["talker"]

    def test_a_namespace_disappears_with_its_last_record(self, store: Store) -> None:
        store.append(
            [
                record("m", namespace="ann"),
                record("n", namespace="ann"),
                record("m", namespace="bob"),
            ]
        )
        store.append([turn(1, namespace="ann")])
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        assert store.namespaces(MEMORY) == ["ann", "bob"]
        store.remove([Ref(MEMORY, "ann", "n", 1)])
        assert store.namespaces(MEMORY) == ["bob"]
        assert store.namespaces(HISTORY) == ["ann"]

    def test_a_moved_record_keeps_its_access_count(self, store: Store) -> None:
        store.append([record("m", accesses=7), record("n"), turn(1, accesses=3)])
        store.touch([Ref(MEMORY, "ann", "m", 1), Ref(MEMORY, "ann", "n", 1)])
        assert [entry.accesses for entry in store.scan(pool(), limit=9)] == [8, 1]
        assert [entry.accesses for entry in store.scan(turns(), limit=9)] == [3]

    def test_returned_vectors_are_close_to_the_stored_ones(self, open_store: OpenStore) -> None:
        """This holds for any space that the store was opened with."""
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
        missing = [
            Ref(MEMORY, "ann", "none", 1),
            Ref(MEMORY, "ann", "three", 1),
            Ref(HISTORY, "ann", "one", 1),
        ]
        for space in (SPACE, None, OTHER):
            results = open_store(space).vectors([*missing, *refs])
            assert results.keys() == set(refs)
            for ref, vectors in results.items():
                assert vectors.dtype == np.float32
                assert vectors.shape == windows[ref.group].shape
                assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-3)
                assert (vectors * windows[ref.group]).sum(axis=1) == pytest.approx(1.0, abs=0.01)
        assert open_store(SPACE).vectors([]) == {}

    def test_repeatedly_moved_vectors_stay_equally_precise(self, store: Store) -> None:
        vectors = first = unit_vectors(1)
        for number in range(5):
            ref = Ref(MEMORY, "ann", f"m{number}", 1)
            store.append([record(ref.group, vectors=vectors)])
            vectors = store.vectors([ref])[ref]
        assert float(first[0] @ vectors[0]) == pytest.approx(1.0, abs=0.01)

    def test_a_whole_store_can_be_copied_here_and_back(self, store: Store, tmp_path: Path) -> None:
        """It moves through two SQLite files, and every store exports the same bytes."""
        first, last = (
            SQLiteStore(tmp_path / "first.db", SPACE),
            SQLiteStore(tmp_path / "last.db", SPACE),
        )
        ended: dict[str, Any] = {"ended_at": at(7.5), "ended_by": "update"}
        ids = [new_id(at(number)) for number in range(5)]
        values: dict[str, Any] = {
            "labels": {"who": "ann", "項目": "値=,;", "empty": ""},
            "fields": {
                "half": 0.5,
                "flag": True,
                "whole": 2**40,
                "text": "ü",
                "none": False,
                "zero": 0,
            },
        }
        first.append([record(ids[0], 1, key="k", text='Ünï 日本 🎉 "x"\n\t', **ended, **values)])
        first.append([record(ids[0], 2, key="k", accesses=3), record(ids[1], vectors=None)])
        first.append([record(ids[number], namespace="bob", **values) for number in (2, 3)])
        first.append(
            [turn(number, key=f"talk\x1f{number}", labels={SPEAKER: "Zoë"}) for number in range(30)]
        )
        first.append(
            [turn(0, group=name) for name in (ids[4], "about", "zebra", "0" * 36, "Talk", "über")]
        )
        exported: list[list[str]] = []
        for source, target in ((first, store), (store, last)):
            done = migrate(source, target, FakeEmbedder(), progress=_no_progress)
            assert (done.copied, done.without_vector) == (41, 0)
            assert migrate(source, target, FakeEmbedder(), progress=_no_progress).copied == 0
        for entry in (first, store, last):
            lines: list[str] = []
            export(entry, lines.append, namespaces=None, progress=_no_progress)
            exported.append(lines)
        assert exported[0] == exported[1] == exported[2]
        assert search(store, "note zebra 0", turns(group="zebra"))[
            "zebra"
        ].similarity == pytest.approx(1.0, abs=0.01)
        first.patch([Patch(Ref(MEMORY, "ann", ids[0], 2), at(9), "delete", {"mark": 1})])
        first.append([record(ids[1], 2, key="k")])
        done = migrate(first, store, FakeEmbedder(), progress=_no_progress)
        assert (done.copied, done.changed) == (1, 1)
        first.close()
        last.close()

    # --- changing the space

    @pytest.fixture
    def embedded(self, store: Store) -> Store:
        """A store of two namespaces with memories (one ended) and turns, all with vectors."""
        texts = ["apple pie", "banana bread", "cherry cake", "date syrup"]
        store.append([record(f"m{number}", text=text) for number, text in enumerate(texts)])
        store.append([record("m0", 2, text="apple tart", ended_at=at(9), ended_by="update")])
        store.append([record("b0", namespace="bob", text="apple juice")])
        store.append([turn(number, text=text) for number, text in enumerate(texts)])
        return store

    def test_records_without_vectors_of_the_current_space_are_unstaged(
        self, embedded: Store
    ) -> None:
        assert (
            embedded.unstaged(SPACE, MEMORY, limit=9)
            == embedded.unstaged(SPACE, HISTORY, limit=9)
            == []
        )
        bare: dict[str, Any] = {"vectors": None}
        embedded.append(
            [
                record("x1", text="elder tea", **bare),
                record("x2", namespace="bob", **bare),
                turn(9, **bare),
            ]
        )
        embedded.append([record("x3", ended_at=at(5), ended_by="delete", **bare)])
        assert unstaged(embedded, SPACE) == {"x1", "x2", "x3"}
        assert unstaged(embedded, SPACE, HISTORY) == {"talk"}
        assert len(embedded.unstaged(SPACE, MEMORY, limit=2)) == 2
        (result,) = [
            entry for entry in embedded.unstaged(SPACE, MEMORY, limit=9) if entry.ref.group == "x1"
        ]
        assert result == embedded.read([result.ref])[0]

    def test_staged_vectors_of_the_current_space_are_searched_at_once(
        self, embedded: Store
    ) -> None:
        embedded.append(
            [record("x1", text="elder tea", vectors=None), turn(9, text="elder tea", vectors=None)]
        )
        assert search(embedded, "elder tea")["x1"].similarity is None
        stage_all(embedded, SPACE)
        assert search(embedded, "elder tea")["x1"].similarity == pytest.approx(1.0, abs=0.01)
        matches = matching(embedded, "elder tea")
        assert matches.position[int(np.nanargmax(matches.similarity))] == 9
        assert embedded.info(pool()).without_vector_count == 0
        embedded.switch(SPACE)
        assert embedded.info(pool()).model == SPACE.model

    def test_vectors_of_the_first_space_are_searched_at_once(self, open_store: OpenStore) -> None:
        plain = open_store(None)
        plain.append(
            [record("m", text="apple", vectors=None), record("n", text="pear", vectors=None)]
        )
        assert plain.info(pool()).model is None
        assert unstaged(plain, SPACE) == {"m", "n"}
        plain.stage(SPACE, {Ref(MEMORY, "ann", "m", 1): embed("apple")})
        assert plain.info(pool()).model == SPACE.model
        assert unstaged(plain, SPACE) == {"n"}
        hits = search(open_store(SPACE), "apple")
        assert hits["m"].similarity == pytest.approx(1.0, abs=0.01)

    def test_staged_vectors_do_not_affect_searches(
        self, open_store: OpenStore, embedded: Store
    ) -> None:
        where = [pool("ann", "bob", state="any"), turns()]
        before = [seen(embedded, entry) for entry in where]
        total = sum(embedded.count(entry._replace(state="any")) for entry in where)
        assert len(stage_all(embedded)) == total
        assert [seen(embedded, entry) for entry in where] == before
        assert embedded.info(pool()).model == SPACE.model
        assert {
            len(vectors[0]) for vectors in embedded.vectors([Ref(MEMORY, "ann", "m1", 1)]).values()
        } == {64}
        with pytest.raises(EmbedderMismatch):
            by_other(open_store(OTHER), "apple pie")

    def test_staging_resumes_where_it_stopped(self, open_store: OpenStore, embedded: Store) -> None:
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
            hits = by_other(store, "apple pie")
            assert hits["m0"] == pytest.approx(1.0, abs=0.01)
            assert hits["m2"] == pytest.approx(
                float(embed_other("cherry cake")[0] @ embed_other("apple pie")[0]), abs=0.01
            )
            assert by_other(store, "apple tart", pool(state="ended"))["m0"] == pytest.approx(
                1.0, abs=0.01
            )
            assert by_other(store, "apple juice", pool("bob"))["b0"] == pytest.approx(1.0, abs=0.01)
            matches = store.matches(turns(), TurnQuery(embed_other("date syrup")[0], [], 50))
            assert matches.position[int(np.nanargmax(matches.similarity))] == 3
            assert (
                store.unstaged(OTHER, MEMORY, limit=9)
                == store.unstaged(OTHER, HISTORY, limit=9)
                == []
            )
            (vectors,) = store.vectors([Ref(MEMORY, "ann", "m1", 1)]).values()
            assert float(vectors[0] @ embed_other("banana bread")[0]) == pytest.approx(
                1.0, abs=0.01
            )
            assert by_words(store, ["banana"]).keys() == {"m1"}
        early.append([record("new", text="elder tea", vectors=embed_other("elder tea"))])
        assert by_other(early, "elder tea")["new"] == pytest.approx(1.0, abs=0.01)

    def test_an_open_store_can_use_another_space(
        self, open_store: OpenStore, embedded: Store
    ) -> None:
        stage_all(embedded)
        embedded.switch(OTHER)
        for store in (embedded, open_store(None)):
            store.use_space(OTHER)
            assert by_other(store, "apple pie")["m0"] == pytest.approx(1.0, abs=0.01)
            store.append([record(f"new {id(store)}", vectors=embed_other("elder tea"))])

    def test_a_store_opened_with_the_old_space_gets_a_mismatch(
        self, open_store: OpenStore, embedded: Store
    ) -> None:
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
    def test_a_switch_before_everything_is_staged_is_refused(
        self, embedded: Store, missing: str
    ) -> None:
        left_out = {
            "memory": {Ref(MEMORY, "ann", "m1", 1)},
            "turn": {Ref(HISTORY, "ann", "talk", 2)},
            "ended": {Ref(MEMORY, "ann", "m0", 2)},
        }
        where = [pool("ann", "bob", state="any"), turns()]
        before = [seen(embedded, each) for each in where]
        if missing != "everything":
            for collection in SEARCHED:
                records = embedded.unstaged(OTHER, collection, limit=99)
                embedded.stage(
                    OTHER,
                    {
                        entry.ref: embed_other(entry.text)
                        for entry in records
                        if entry.ref not in left_out[missing]
                    },
                )
        with pytest.raises(Conflict):
            embedded.switch(OTHER)
        assert [seen(embedded, each) for each in where] == before
        stage_all(embedded)
        embedded.switch(OTHER)
        assert embedded.info(pool()).model == OTHER.model

    def test_records_written_while_staging_are_staged_too(
        self, open_store: OpenStore, embedded: Store
    ) -> None:
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

    def test_the_embedder_can_be_changed_during_writes(
        self, open_store: OpenStore, embedded: Store
    ) -> None:
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
        assert reembed(open_store(None), Another(), progress=write).embedded in (
            total + 1,
            total + 2,
        )
        store = open_store(OTHER)
        assert by_other(store, "elder tea")["late"] == pytest.approx(1.0, abs=0.01)
        assert store.info(pool("ann", "bob", state="any")).without_vector_count == 0
        assert store.info(turns(state="any")).without_vector_count == 0

    def test_removed_records_have_no_staged_vectors(
        self, open_store: OpenStore, embedded: Store
    ) -> None:
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

    def test_missing_records_are_not_staged(self, store: Store) -> None:
        nowhere = [
            Ref(MEMORY, "ann", "m", 2),
            Ref(HISTORY, "ann", "m", 1),
            Ref(MEMORY, "bob", "m", 1),
        ]
        store.stage(SPACE, dict.fromkeys(nowhere, embed("apple")))
        store.append([record("m", text="apple", vectors=None)])
        store.stage(SPACE, {})
        store.stage(SPACE, dict.fromkeys(nowhere, embed("apple")))
        assert store.info(pool()).model is None
        assert store.info(pool()).without_vector_count == 1
        store.stage(
            OTHER, {ref: embed_other("apple") for ref in [*nowhere, Ref(MEMORY, "ann", "m", 1)]}
        )
        assert store.vectors([*nowhere, Ref(MEMORY, "ann", "m", 1)]).keys() == {
            Ref(MEMORY, "ann", "m", 1)
        }

    def test_vectors_staged_again_replace_earlier_ones(
        self, open_store: OpenStore, embedded: Store
    ) -> None:
        ref = Ref(MEMORY, "ann", "m1", 1)
        embedded.stage(SPACE, {ref: embed("elder tea")})
        assert search(embedded, "elder tea")["m1"].similarity == pytest.approx(1.0, abs=0.01)
        embedded.stage(OTHER, {ref: embed_other("something else")})
        embedded.stage(
            OTHER, {ref: np.concatenate([embed_other("fig jam"), embed_other("banana bread")])}
        )
        assert "m1" not in unstaged(embedded)
        stage_all(embedded)
        embedded.switch(OTHER)
        assert by_other(open_store(OTHER), "banana bread")["m1"] == pytest.approx(1.0, abs=0.01)
        assert embedded.vectors([ref])[ref].shape == (2, OTHER.dimension)

    def test_vectors_staged_for_a_third_space_are_dropped(self, embedded: Store) -> None:
        third = OTHER._replace(model="third/1")
        stage_all(embedded)
        embedded.stage(third, {Ref(MEMORY, "ann", "m1", 1): embed_other("banana bread")})
        assert unstaged(embedded, third) == {"m0", "m2", "m3", "b0"}
        assert unstaged(embedded, OTHER) == {"m0", "m1", "m2", "m3", "b0"}
        with pytest.raises(Conflict):
            embedded.switch(OTHER)

    def test_a_space_can_be_changed_back(self, open_store: OpenStore, embedded: Store) -> None:
        before = [seen(embedded, entry) for entry in (pool("ann", "bob", state="any"), turns())]
        for space in (OTHER, SPACE):
            stage_all(embedded, space)
            embedded.switch(space)
        store = open_store(SPACE)
        assert [
            seen(store, entry) for entry in (pool("ann", "bob", state="any"), turns())
        ] == before

    def test_an_emptied_store_can_change_its_space(self, open_store: OpenStore) -> None:
        store = open_store(SPACE)
        store.append([record("m")])
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        store.switch(OTHER)
        other = open_store(OTHER)
        other.append([record("n", text="apple", vectors=embed_other("apple"))])
        assert by_other(other, "apple")["n"] == pytest.approx(1.0, abs=0.01)

    def test_many_records_can_be_staged_in_any_order_and_are_found_after_the_switch(
        self, open_store: OpenStore
    ) -> None:
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
            (result,) = other.candidates(pool(), vector=vectors[number], terms=[], k=1)
            assert result.record.ref == refs[number]
            matches = other.matches(turns(), TurnQuery(vectors[count + number], [], 5))
            assert refs_of(matches)[int(np.nanargmax(matches.similarity))] == refs[count + number]

    def test_late_vectors_are_found_among_many(self, store: Store) -> None:
        """Half of the records have no vectors at first; the staged ones come between the existing
        ones.
        """
        count = 200
        vectors = unit_vectors(count, seed=22)
        given = [vectors[[number]] if number % 2 else None for number in range(count)]
        store.append(
            [record(f"{number:03}", text="x", vectors=given[number]) for number in range(count)]
        )
        late = [number for number in range(count) if number % 2 == 0]
        np.random.default_rng(23).shuffle(late)
        for start in range(0, len(late), 30):
            store.stage(
                SPACE,
                {
                    Ref(MEMORY, "ann", f"{number:03}", 1): vectors[[number]]
                    for number in late[start : start + 30]
                },
            )
        for number in range(0, count, 7):
            (result,) = store.candidates(pool(), vector=vectors[number], terms=[], k=1)
            assert result.record.ref.group == f"{number:03}"


def _no_progress(_what: str, _done: int, _whole: int) -> None:
    """Discard the progress."""
