"""Repetitions through `Memories` are merged into the stored memory, even during other writes."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from clock import Clock
from contract.samples import OpenStore
from memories import Memories
from memories.embedders.fake import FakeEmbedder
from memories.stores import Store

TEXT = "The deploys of the harbour happen on Tuesdays"
DAY = timedelta(days=1)
WRITERS = 4


def open_memories(store: Store, clock: Clock) -> Memories:
    """Return Ann's memories over a store."""
    return Memories(store, namespace="ann", shared=False, embedder=FakeEmbedder(), clock=clock)


class Repetitions:
    """Tests of a text that is stored again."""

    def test_additions_from_a_repetition_are_merged_and_searchable(
        self, open_store: OpenStore
    ) -> None:
        clock = Clock()
        memories = open_memories(open_store(FakeEmbedder.space), clock)
        made = memories.create(TEXT, tags={"type": "fact"}, decay="contextual", confidence=0.5)
        clock.now += DAY
        again = memories.create(
            f"{TEXT}.",
            tags={"type": "decision", "a": "b"},
            decay="reinforceable",
            confidence=0.9,
            source="standup#3",
        )
        assert (again.stored, again.id, again.reinforced) == (False, made.id, True)
        assert again.merged == ("tags", "decay", "confidence", "source")
        assert again.not_merged == {"tags": {"type": "decision"}}
        for reader in (memories, open_memories(open_store(FakeEmbedder.space), clock)):
            [kept] = reader.list().memories
            assert (kept.content, kept.tags, kept.version) == (TEXT, {"type": "fact", "a": "b"}, 2)
            assert (kept.decay_policy, kept.base_confidence, kept.source) == (
                "reinforceable",
                0.9,
                "standup#3",
            )
            assert (kept.confidence, kept.last_reinforced_at) == (0.9, clock.now)
            [hit] = reader.search(TEXT)
            assert hit.similarity is not None
            assert hit.similarity > 0.98
            [then] = reader.search(TEXT, as_of=clock.now - DAY / 2)
            assert (then.memory.tags, then.memory.decay_policy) == ({"type": "fact"}, "contextual")
        assert [version.operation for version in memories.history(kept.id).versions] == [
            "create",
            "update",
        ]
        assert memories.create(TEXT, tags={"a": "b"}).merged == ()
        assert not [check.problem for check in memories.verify_log() if check.problem]

    def test_repeating_a_corrected_memory_makes_it_current_again(
        self, open_store: OpenStore
    ) -> None:
        clock = Clock()
        memories = open_memories(open_store(FakeEmbedder.space), clock)
        ids = []
        for text in ("The API listens on port 8080.", "The API listens on port 9090."):
            ids.append(memories.create(text).id)
            clock.now += DAY
        again = memories.create("The API listens on port 8080.")
        assert (again.id, again.merged, again.corrects) == (ids[0], ("corrects",), ids[1])
        hits = memories.search("Which port does the API listen on?")
        assert [(hit.id, hit.memory.corrected_by) for hit in hits] == [
            (ids[0], None),
            (ids[1], ids[0]),
        ]

    def test_a_corrected_memory_is_current_again_when_its_correction_expires(
        self, open_store: OpenStore
    ) -> None:
        clock = Clock()
        memories = open_memories(open_store(FakeEmbedder.space), clock)
        older = memories.create("The API listens on port 8080.").id
        clock.now += DAY / 2
        newer = memories.create("The API listens on port 9090.", valid_until=clock.now + DAY).id
        assert newer is not None

        def find_current() -> set[str]:
            hits = memories.search("Which port does the API listen on?", include_corrected=False)
            return {hit.id for hit in hits}

        assert find_current() == {newer}
        clock.now += 2 * DAY
        assert find_current() == {older, newer}
        memories.update(newer, valid_until="")
        assert find_current() == {newer}
        memories.delete(newer)
        assert find_current() == {older}
        memories.restore(newer)
        assert find_current() == {newer}

    def test_concurrent_repetitions_lose_nothing(self, open_store: OpenStore) -> None:
        clock = Clock()
        writers = [open_memories(open_store(FakeEmbedder.space), clock) for _ in range(WRITERS)]
        writers[0].create(TEXT)

        def say(writer: int) -> list[tuple[str, ...]]:
            said = [
                writers[writer].create(TEXT, tags={f"w{writer}": "1", f"n{turn}": "1"})
                for turn in range(3)
            ]
            return [entry.merged for entry in said]

        with ThreadPoolExecutor(WRITERS) as pool:
            merged = list(pool.map(say, range(WRITERS)))
        assert [entry[0] for entry in merged] == [("tags",)] * WRITERS
        [kept] = writers[0].list().memories
        assert set(kept.tags) == {f"w{writer}" for writer in range(WRITERS)} | {"n0", "n1", "n2"}
        assert kept.version == 1 + sum(entry == ("tags",) for of_one in merged for entry in of_one)
