"""Memories that wait for review: no store shows them before they are accepted, and each of them is
either waiting or accepted.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from clock import Clock
from contract.samples import T0, OpenStore
from memories import Draft, Memories, Memory, NotFound, RequestError
from memories.context.context import ContextBuilder
from memories.context.gateway import ENGINE, MemoryGateway
from memories.context.memories_backend import MemoriesBackend
from memories.embedders.fake import FakeEmbedder
from memories.stores import Store
from memories.write import review

TEXT = "Deploys of the harbour service happen on Tuesdays"
QUERY = "when do deploys of the harbour service happen?"
HOUR = timedelta(hours=1)


def open_memories(
    store: Store, clock: Callable[[], datetime] | None = None, *, channel: str = "python"
) -> Memories:
    """Return the memories of `ann` over a store."""
    more = {} if clock is None else {"clock": clock}
    return Memories(
        store, namespace="ann", shared=False, embedder=FakeEmbedder(), channel=channel, **more
    )


def store_waiting(memories: Memories, text: str = TEXT, **values: object) -> Memory:
    """Store a waiting memory; return it."""
    created = memories.create(text, pending=True, **values)  # type: ignore[arg-type]
    assert created.stored
    assert created.memory is not None
    assert created.memory.pending
    return created.memory


def ids(memories: Memories, **filters: object) -> list[str]:
    """Return the ids of a listing."""
    return [memory.id for memory in memories.list(limit=100, **filters).memories]  # type: ignore[arg-type]


class Review:
    """Tests that waiting memories are shown only on request, and that accepted ones are like newly
    stored ones.
    """

    def test_waiting_memories_are_found_only_on_request(self, open_store: OpenStore) -> None:
        clock = Clock()
        memories = open_memories(open_store(FakeEmbedder.space), clock)
        other = memories.create("The user prefers Python", tags={"kind": "fact"}).memory
        assert other is not None
        waits = store_waiting(
            memories, tags={"kind": "fact", "only": "waiting"}, key="harbour/deploys"
        )
        clock.now += HOUR
        assert ids(memories) == ids(memories, tags={"kind": "fact"}) == [other.id]
        assert ids(memories, deleted=True) == []
        for moment in (T0, T0 + HOUR / 2, T0 + HOUR):
            assert waits.id not in ids(memories, as_of=moment)
            assert waits.id not in [hit.id for hit in memories.search(QUERY, as_of=moment)]
        words = Memories(open_store(None), namespace="ann", shared=False, embedder="none")
        for entry in (memories, words):
            assert waits.id not in [hit.id for hit in entry.search(QUERY)]
            assert waits.id not in [hit.id for hit in entry.search(QUERY, scope="all")]
            assert waits.id not in [item.id for item in entry.explain(QUERY).considered]
            assert [hit.id for hit in entry.search(QUERY, pending=True)] == [waits.id]
        assert memories.tags() == {"kind": 1}
        assert memories.tags("only") == {}
        status = memories.status()
        assert (status.memory_count, status.deleted_count, status.pending_count) == (1, 0, 1)
        assert ids(memories, pending=True) == [waits.id]
        assert ids(memories, pending=True, tags={"only": "waiting"}) == [waits.id]
        assert ids(memories, pending=True, tags={"only": "other"}) == []
        assert memories.get(waits.id).pending
        told = memories.history(waits.id)
        assert (told.pending, told.versions[0].ended_by) == (True, "pending")
        assert memories.get(waits.id).tags == {"kind": "fact", "only": "waiting"}

    def test_waiting_memories_are_not_in_any_context(self, open_store: OpenStore) -> None:
        memories = open_memories(open_store(FakeEmbedder.space))
        store_waiting(memories)
        gateway = MemoryGateway(ENGINE, backend=MemoriesBackend(memories))
        built = ContextBuilder.from_config(gateway, memories.config, 2_000).build_recall(
            QUERY, None
        )
        assert built["memories"] == []

    def test_waiting_memories_are_invisible_to_other_namespaces(
        self, open_store: OpenStore
    ) -> None:
        store = open_store(FakeEmbedder.space)
        waits = store_waiting(open_memories(store))
        bob = Memories(store, namespace="bob", embedder=FakeEmbedder())
        assert ids(bob, pending=True) == []
        assert bob.search(QUERY, pending=True) == ()
        assert bob.status().pending_count == 0
        assert bob.review.select() == []
        with pytest.raises(RequestError):
            bob.review.accept([waits.id])

    def test_a_waiting_memory_does_not_claim_its_key_until_it_is_accepted(
        self, open_store: OpenStore
    ) -> None:
        memories = open_memories(open_store(FakeEmbedder.space))
        old = memories.create("The user prefers Go").memory
        assert old is not None
        waits = store_waiting(memories, key="harbour/deploys", supersedes=old.id)
        assert ids(memories) == [old.id]
        taken = memories.create("The harbour is closed on Mondays", key="harbour/deploys").memory
        assert taken is not None
        assert taken.id != waits.id
        [done] = memories.review.accept([waits.id])
        assert (done.done, done.memory.id, done.memory.version, done.memory.content) == (
            True,
            taken.id,
            2,
            TEXT,
        )
        assert ids(memories) == [taken.id]
        assert ids(memories, pending=True) == []
        assert memories.get(waits.id).superseded_by == taken.id

    def test_an_accepted_memory_is_like_any_other(self, open_store: OpenStore) -> None:
        clock = Clock()
        memories = open_memories(open_store(FakeEmbedder.space), clock, channel="hook")
        replaced = Memories(
            open_store(FakeEmbedder.space), namespace="ann", shared=False, embedder=FakeEmbedder()
        )
        old = replaced.create("The user prefers Go", created_at=T0 - HOUR).memory
        assert old is not None
        waits = store_waiting(
            memories, key="harbour/deploys", supersedes=old.id, tags={"kind": "fact"}
        )
        clock.now += HOUR
        person = open_memories(open_store(FakeEmbedder.space), clock)
        [done] = person.review.accept([waits.id])
        assert done.done
        assert done.memory == person.get(waits.id)
        assert (done.memory.pending, done.memory.deleted, done.memory.version) == (False, False, 1)
        assert done.memory.origin is not None
        assert (done.memory.origin.trust, done.memory.origin.channel) == ("captured", "hook")
        assert done.memory.accepted_at == T0 + HOUR
        assert "python" in str(done.memory.accepted_by)
        assert ids(person) == [waits.id]
        assert [hit.id for hit in person.search(QUERY)] == [waits.id]
        assert person.get(old.id).superseded_by == waits.id
        assert (person.status().memory_count, person.status().pending_count) == (1, 0)
        assert person.tags() == {"kind": 1}
        # Before it was accepted it was not current.
        assert ids(person, as_of=T0 + HOUR / 2) == [old.id]
        assert waits.id not in [hit.id for hit in person.search(QUERY, as_of=T0 + HOUR / 2)]
        assert person.tags(as_of=T0 + HOUR / 2) == {}
        assert person.tags("kind", as_of=T0 + HOUR) == {"fact": 1}
        for verb in (person.get, person.history):
            with pytest.raises(NotFound, match="it did not exist until"):
                verb(waits.id, as_of=T0 + HOUR / 2)
        assert (
            person.get(waits.id, as_of=T0 + HOUR).content
            == person.history(waits.id).versions[0].content
        )
        assert person.get(old.id, as_of=T0 + HOUR / 2).superseded_by is None
        clock.now += HOUR
        assert ids(person, as_of=T0 + 1.5 * HOUR) == [waits.id]
        person.update(waits.id, TEXT + " and Fridays")
        clock.now += HOUR
        assert ids(person, as_of=T0 + HOUR / 2) == [old.id]
        assert ids(person, as_of=T0 + 1.5 * HOUR) == [waits.id]
        changes = [
            change
            for entry in person.log(waits.id)
            for change in entry.changes
            if change.id == waits.id
        ]
        assert [change.action for change in changes] == ["update", "accept", "create"]
        assert all(each.problem is None for each in person.verify_log())

    def test_an_edit_on_acceptance_is_a_version_by_its_editor(self, open_store: OpenStore) -> None:
        clock = Clock()
        waits = store_waiting(
            open_memories(open_store(FakeEmbedder.space), clock, channel="hook"),
            tags={"kind": "fact"},
        )
        clock.now += HOUR
        person = open_memories(open_store(FakeEmbedder.space), clock)
        [done] = person.review.accept([waits.id], content="Deploys happen on Thursdays")
        assert (done.memory.id, done.memory.version, done.memory.pending) == (waits.id, 2, False)
        assert done.memory.tags == {"kind": "fact"}
        assert ids(person, as_of=T0 + HOUR / 2) == []
        told = person.history(waits.id)
        assert [version.content for version in told.versions] == [
            TEXT,
            "Deploys happen on Thursdays",
        ]
        assert [version.origin and version.origin.trust for version in told.versions] == [
            "captured",
            "agent",
        ]
        assert told.versions[0].accepted_by is not None
        assert [hit.content for hit in person.search("Deploys happen on Thursdays")] == [
            "Deploys happen on Thursdays"
        ]
        assert ids(person, pending=True) == []

    def test_a_restored_rejected_memory_waits_again(self, open_store: OpenStore) -> None:
        memories = open_memories(open_store(FakeEmbedder.space))
        waits = store_waiting(memories, key="harbour/deploys")
        [done] = memories.review.reject([waits.id])
        assert (done.done, done.memory.deleted, done.memory.pending) == (True, True, False)
        assert (ids(memories), ids(memories, pending=True), ids(memories, deleted=True)) == (
            [],
            [],
            [waits.id],
        )
        for restored in (memories.restore(waits.id), memories.get(waits.id)):
            assert (restored.pending, restored.deleted, restored.version) == (True, False, 1)
        assert (ids(memories), ids(memories, pending=True), ids(memories, deleted=True)) == (
            [],
            [waits.id],
            [],
        )
        memories.delete(waits.id)
        assert memories.restore(waits.id).pending
        memories.review.accept([waits.id])
        memories.delete(waits.id)
        restored = memories.restore(waits.id)  # once accepted, it never waits again
        assert (restored.pending, restored.version) == (False, 2)
        memories.delete(waits.id)
        assert not memories.restore(waits.id).pending
        assert ids(memories) == [waits.id]

    def test_the_same_text_waits_only_once(self, open_store: OpenStore) -> None:
        memories = open_memories(open_store(FakeEmbedder.space))
        waits = store_waiting(memories)
        for _ in range(2):
            again = memories.create(TEXT, pending=True)
            assert (again.stored, again.memory and again.memory.id) == (False, waits.id)
        assert ids(memories, pending=True) == [waits.id]
        memories.review.reject([waits.id])
        rejected = memories.create(TEXT, pending=True)
        assert (rejected.stored, rejected.memory and rejected.memory.deleted) == (False, True)
        assert ids(memories, pending=True) == []

    def test_a_current_text_does_not_also_wait(self, open_store: OpenStore) -> None:
        memories = open_memories(open_store(FakeEmbedder.space))
        waits = store_waiting(memories)
        current = memories.create(TEXT)  # a writer doesn't learn of waiting memories
        assert current.stored
        assert current.memory is not None
        again = memories.create(TEXT, pending=True)
        assert (again.stored, again.memory and again.memory.id) == (False, current.memory.id)
        [done] = memories.review.accept([waits.id])
        assert (done.done, done.memory.id) == (True, current.memory.id)
        assert ids(memories) == [current.memory.id]
        assert ids(memories, pending=True) == []

    def test_an_interrupted_batch_leaves_each_memory_waiting_or_accepted(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        memories = open_memories(open_store(FakeEmbedder.space))
        drafts = [
            Draft(f"fact {number} of the {word} harbour", pending=True)
            for number, word in enumerate("abcdefg")
        ]
        made_ids = [
            created.memory.id
            for created in memories.create_many(drafts, force=True)
            if created.memory
        ]
        monkeypatch.setattr(review, "BATCH_COMPARED", 2)
        judged = 0
        compare_draft = review.compare_draft

        def stop(*arguments: object) -> object:
            nonlocal judged
            judged += 1
            if judged == 6:
                raise KeyboardInterrupt
            return compare_draft(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(review, "compare_draft", stop)
            memories.review.accept(made_ids)
        current, waiting = set(ids(memories)), set(ids(memories, pending=True))
        assert current | waiting == set(made_ids)
        assert not current & waiting
        assert current == set(made_ids[:4])
        memories.review.accept(sorted(waiting), force=True)
        assert set(ids(memories)) == set(made_ids)

    def test_a_dry_run_changes_nothing(self, open_store: OpenStore) -> None:
        memories = open_memories(open_store(FakeEmbedder.space))
        waits, other = (
            store_waiting(memories),
            store_waiting(memories, "The user prefers Python", key="user/language"),
        )
        before = memories.log()
        done = memories.review.accept([waits.id, other.id], dry_run=True)
        assert [(entry.id, entry.done, entry.memory.pending) for entry in done] == [
            (waits.id, True, False),
            (other.id, True, False),
        ]
        assert [entry.done for entry in memories.review.reject([waits.id], dry_run=True)] == [True]
        assert set(ids(memories, pending=True)) == {waits.id, other.id}
        assert ids(memories) == []
        assert memories.log() == before

    def test_a_waiting_memory_can_be_forgotten(self, open_store: OpenStore) -> None:
        memories = open_memories(open_store(FakeEmbedder.space))
        waits = store_waiting(memories)
        assert memories.forget(waits.id).versions == 1
        assert ids(memories, pending=True) == []
        assert memories.search(QUERY, pending=True) == ()

    def test_pages_of_waiting_and_of_past_memories_are_complete(
        self, open_store: OpenStore
    ) -> None:
        clock = Clock()
        memories = open_memories(open_store(FakeEmbedder.space), clock)
        drafts = [
            Draft(f"fact {number} of {number * 7}", pending=number % 2 == 1) for number in range(12)
        ]
        all_ids = [
            created.memory.id
            for created in memories.create_many(drafts, force=True)
            if created.memory
        ]
        clock.now += HOUR
        memories.review.accept(all_ids[1::2], force=True)
        for expected, filters in (
            (all_ids[::2], {"as_of": T0 + HOUR / 2}),
            (all_ids, {"as_of": clock.now}),
        ):
            results: list[str] = []
            cursor: str | None = None
            while True:
                page = memories.list(limit=3, cursor=cursor, **filters)  # type: ignore[arg-type]
                results += [memory.id for memory in page.memories]
                cursor = page.next_cursor
                if cursor is None:
                    break
                assert len(page.memories) == 3
            assert results == sorted(expected, reverse=True)
