"""A sound store is found sound, and a record can be addressed without being read."""

from contract.samples import MEMORY, OTHER, SPACE, OpenStore, at, embed_other, pool, record, stage_all, turn, turns
from memories.stores.records import Patch, Ref


class Health:
    """Checks, repairs and addresses."""

    def test_refs_are_those_of_the_records(self, open_store: OpenStore) -> None:
        store = open_store(SPACE)
        store.append([record("m", 1), record("m", 2), record("n", labels={"a": "b"}), record("m", namespace="bob")])
        store.append([turn(number) for number in range(3)])
        store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(5), "update", {})])
        assert store.refs(pool()) == [Ref(MEMORY, "ann", "m", 2), Ref(MEMORY, "ann", "n", 1)]
        assert store.refs(pool(group="m", state="any")) == [Ref(MEMORY, "ann", "m", 1), Ref(MEMORY, "ann", "m", 2)]
        assert store.refs(pool(labels={"a": "b"})) == [Ref(MEMORY, "ann", "n", 1)]
        assert [ref.position for ref in store.refs(turns())] == [0, 1, 2]
        assert store.refs(pool("nobody")) == []

    def test_a_sound_store_has_no_findings_and_nothing_to_repair(self, open_store: OpenStore) -> None:
        store = open_store(SPACE)
        assert list(store.check(deep=True)) == []
        assert store.repair() == []
        store.append([record(f"m{number}", labels={"n": str(number % 3)}, accesses=number) for number in range(40)])
        store.append([turn(number, labels={"speaker": "Zoë"}) for number in range(20)])
        store.append([record("bare", vectors=None), record("b", namespace="bob", text="Über 東京 don't")])
        store.patch([Patch(Ref(MEMORY, "ann", "m1", 1), at(500), "delete", {"x": 1})])
        store.patch([Patch(Ref(MEMORY, "ann", "m2", 1), at(500), "delete", {})])
        store.patch([Patch(Ref(MEMORY, "ann", "m2", 1), None, None, {"y": "z"})])
        store.touch([Ref(MEMORY, "ann", "m3", 1)])
        store.remove([Ref(MEMORY, "ann", "m4", 1)])
        store.stage(OTHER, {Ref(MEMORY, "ann", "m5", 1): embed_other("note")})
        for _ in range(2):
            assert list(store.check(deep=False)) == []
            assert list(store.check(deep=True)) == []
            assert store.repair() == []
            stage_all(store, OTHER)
            store.switch(OTHER)
        assert store.damaged.since() == ()
