"""The audit log of a store: its entries, the detection of tampering, and past reinforcements."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from clock import Clock
from contract.samples import SPACE, T0, Opened, OpenStore, everything, pool, record
from memories import Memories
from memories.embedders.fake import FakeEmbedder
from memories.errors import StoreError
from memories.models import Change, LogCheck
from memories.stores import Store
from memories.stores.audit_log import CHAIN, chain_entry, chain_of, parse_entry, record_of
from memories.stores.records import Collection, Record, Ref
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.migrate import migrate

DAY = timedelta(days=1)


def open_memories(store: Store, clock: Callable[[], datetime] | None = None) -> Memories:
    """Return the memories of `ann` over a store."""
    more = {} if clock is None else {"clock": clock}
    return Memories(store, namespace="ann", shared=False, embedder=FakeEmbedder(), **more)


def chain(store: Store) -> list[Record]:
    """Return the records of a log's entries, oldest first."""
    return store.scan(chain_of("ann"), limit=10_000)


def check(memories: Memories, against: str | None = None) -> LogCheck:
    """Return the result of a check of the log."""
    (result,) = memories.verify_log(against=against)
    return result


def replace(store: Store, records: list[Record]) -> None:
    """Replace the records of a log."""
    store.remove([entry.ref for entry in chain(store)])
    store.append(records)


def logged_changes(memories: Memories) -> list[tuple[str, int, int]]:
    """Return the changes in a log, oldest first: actions with their first and last version or
    turn.
    """
    return [
        (each.action, each.first, each.last)
        for entry in memories.log(limit=100)[::-1]
        for each in entry.changes
    ]


class Log(Opened):
    """Tests of the audit log."""

    def test_every_change_has_an_entry_with_its_writer(self, store: Store) -> None:
        memories = open_memories(store)
        first = memories.create(
            "Deploys happen on Tuesdays", decay="reinforceable", key="deploy/day"
        ).memory
        assert first is not None
        memories.update(first.id, tags={"project": "shop"})
        memories.reinforce(first.id)
        memories.delete(first.id)
        memories.restore(first.id)
        second = memories.create(
            "Releases are on Fridays now", supersedes=first.id, force=True
        ).memory
        assert second is not None
        memories.add_turns("standup", ["one", "two", "three"])
        memories.add_turns("standup", ["four"])
        memories.forget_turns("standup", index=1)
        memories.forget_turns("standup")
        memories.forget(first.id)
        entries = memories.log(limit=100)[::-1]
        assert [entry.number for entry in entries] == [*range(1, 12)]
        assert {(entry.namespace, entry.actor.channel) for entry in entries} == {("ann", "python")}
        assert all(
            entry.actor.user and entry.actor.host and entry.actor.program for entry in entries
        )
        assert [entry.previous for entry in entries] == [
            "",
            *(entry.hash for entry in entries[:-1]),
        ]
        said = entries[6].changes[0].conversation
        assert said is not None
        assert said.startswith("#")
        assert "standup" not in said
        assert [entry.changes for entry in entries] == [
            (Change("create", first.id, None, 1, 1),),
            (Change("update", first.id, None, 2, 2),),
            (Change("reinforce", first.id, None, 2, 2),),
            (Change("delete", first.id, None, 2, 2),),
            (Change("restore", first.id, None, 3, 3),),
            (Change("supersede", first.id, None, 3, 3), Change("create", second.id, None, 1, 1)),
            (Change("turns", None, said, 0, 2),),
            (Change("turns", None, said, 3, 3),),
            (Change("forget", None, said, 1, 1),),
            (Change("forget", None, said, 0, 0), Change("forget", None, said, 2, 3)),
            (Change("forget", first.id, None, 1, 3),),
        ]
        findings = check(memories)
        assert (findings.entries, findings.head, findings.problem, findings.unlogged) == (
            11,
            entries[-1].hash,
            None,
            0,
        )
        assert check(memories, against=entries[4].hash).problem is None

    def test_the_log_is_filtered_by_memory_conversation_action_and_time(self, store: Store) -> None:
        clock = Clock()
        memories = open_memories(store, clock)
        first, second = (memories.create(text, force=True).memory for text in ("apples", "pears"))
        assert first is not None
        assert second is not None
        memories.add_turns("standup", ["hello"])
        clock.now = T0 + DAY
        memories.delete(first.id)
        memories.add_turns("retro", ["bye"])
        numbers = lambda *given, **more: [entry.number for entry in memories.log(*given, **more)]  # noqa: E731
        assert numbers() == [5, 4, 3, 2, 1]
        assert numbers(limit=2) == [5, 4]
        assert numbers(first.id) == [4, 1]
        assert numbers(second.id) == [2]
        assert numbers(conversation="standup") == [3]
        assert numbers(conversation="never") == []
        assert memories.log(conversation="retro")[0].changes[0].conversation == "retro"
        assert numbers(action="create") == [2, 1]
        assert numbers(first.id, action="delete") == [4]
        assert numbers(since=T0 + DAY / 2) == [5, 4]
        assert numbers(until=T0 + DAY / 2) == [3, 2, 1]
        assert open_memories(store)._lookup.readable == ("ann",)
        assert Memories(store, namespace="bob", shared=False, embedder=FakeEmbedder()).log() == ()

    def test_many_changes_in_one_transaction_share_few_entries(self, store: Store) -> None:
        memories = open_memories(store)
        memories.create_many([f"statement number {number}" for number in range(60)], force=True)
        memories.add_turns("c", [f"turn {number}" for number in range(60)])
        assert len(chain(store)) == 2
        assert len(memories.log(action="create")[0].changes) == 60
        assert memories.log(action="turns")[0].changes[0][2:] == ("c", 0, 59)
        assert check(memories).problem is None

    def test_a_failed_change_is_not_in_the_log(self, store: Store) -> None:
        memories = open_memories(store)
        through = memories._store
        with pytest.raises(RuntimeError), through.transaction():
            through.append([record("m")])
            raise RuntimeError
        with through.transaction():
            through.append([record("n")])
            with pytest.raises(RuntimeError), through.transaction():
                through.append([record("o")])
                raise RuntimeError
        assert [
            (entry.number, [each.id for each in entry.changes]) for entry in memories.log()
        ] == [(1, ["n"])]
        assert check(memories).problem is None

    def test_a_log_has_no_content_and_no_bytes_of_forgotten_records(self, store: Store) -> None:
        memories = open_memories(store)
        made = memories.create(
            "Ann likes quokkas", tags={"animal": "wombat"}, key="ann/zoo", decay="reinforceable"
        )
        assert made.memory is not None
        memories.reinforce(made.memory.id)
        memories.add_turns("numbat diary", ["bandicoot"])
        memories.forget(made.memory.id)
        memories.forget_turns("numbat diary")
        left = everything(store, pool(collection=Collection.LOG))
        assert {found.ref.group for found in left} == {CHAIN}
        words = ("quokka", "wombat", "ann/zoo", "numbat", "bandicoot", "diary")
        assert [word for word in words for found in left if word in repr(found)] == []
        assert [each.id for entry in memories.log(action="forget") for each in entry.changes][
            -1
        ] == made.memory.id
        assert check(memories).problem is None

    # --- tampering

    def five(self, store: Store) -> tuple[Memories, list[Record]]:
        """Return memories with five entries in their log, and the records of these."""
        memories = open_memories(store)
        for number in range(5):
            memories.create(f"statement number {number}", force=True)
        return memories, chain(store)

    def test_a_changed_entry_is_detected(self, store: Store) -> None:
        memories, entries = self.five(store)
        third = parse_entry(entries[2])
        forged = third._replace(actor=third.actor._replace(user="mallory"))
        replace(store, [*entries[:2], record_of(forged, 3), *entries[3:]])
        assert "entry 3, or the one before it, was changed" in str(check(memories).problem)
        damaged = entries[2]._replace(text=entries[2].text[:-9])
        replace(store, [*entries[:2], damaged, *entries[3:]])
        assert check(memories).problem == "entry 3 is not what was written"
        memories.create("writing goes on", force=True)

    def test_a_removed_or_moved_entry_is_detected(self, store: Store) -> None:
        memories, entries = self.five(store)
        replace(store, [*entries[:2], *entries[3:]])
        assert check(memories).problem == "entry 3 is missing"
        shifted = [
            results._replace(ref=results.ref._replace(position=at))
            for at, results in enumerate(entries[3:], 3)
        ]
        replace(store, [*entries[:2], *shifted])
        assert "entry 3, or the one before it, was changed" in str(check(memories).problem)
        exchanged = [
            entries[at]._replace(ref=entries[to].ref)
            for at, to in ((0, 0), (1, 2), (2, 1), (3, 3), (4, 4))
        ]
        replace(store, exchanged)
        assert "entry 2, or the one before it, was changed" in str(check(memories).problem)
        replace(store, entries)
        assert check(memories).problem is None

    def test_a_truncated_log_is_detected_by_unlogged_records_and_by_a_saved_head(
        self, store: Store
    ) -> None:
        memories, entries = self.five(store)
        head = check(memories).head
        replace(store, entries[:4])
        assert "entries were removed" in str(check(memories).problem)
        assert check(memories).unlogged == 1
        memories.forget(
            parse_entry(entries[4]).changes[0] and memories.list(limit=1).memories[0].id
        )
        assert check(memories).problem is None
        assert "its end was cut off, or it was rewritten" in str(
            check(memories, against=head).problem
        )

    def test_a_missing_entry_is_detected_even_if_a_later_one_exists(self, store: Store) -> None:
        memories, entries = self.five(store)
        memories.update(memories.list(limit=1).memories[0].id, tags={"mood": "good"})
        replace(store, [*entries[:4], *chain(store)[5:]])
        assert "entry 5 is missing" in str(check(memories).problem)
        assert check(memories).unlogged == 1

    def test_a_rewritten_log_end_is_detected_by_a_saved_head(self, store: Store) -> None:
        memories, entries = self.five(store)
        head = check(memories).head
        last, forged = parse_entry(entries[1]), entries[:2]
        for old in entries[2:]:
            entry = parse_entry(old)
            last = chain_entry(entry._replace(actor=entry.actor._replace(user="mallory")), last)
            forged = [*forged, record_of(last, old.ref.position)]
        replace(store, forged)
        assert check(memories).problem is None
        assert "rewritten" in str(check(memories, against=head).problem)
        assert check(memories, against=parse_entry(entries[1]).hash).problem is None

    # --- several writers

    def test_writers_in_threads_share_one_chain(self, open_store: OpenStore) -> None:
        both = [open_memories(open_store(SPACE)), open_memories(open_store(SPACE))]
        both[0].create("the first statement", force=True)
        failed: list[BaseException] = []

        def write(memories: Memories, name: str) -> None:
            try:
                for number in range(5):
                    memories.create(f"{name} says {number}", force=True)
            except StoreError as exc:
                failed.append(exc)

        threads = [
            threading.Thread(target=write, args=(entry, f"writer {at}"))
            for at, entry in enumerate(both)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        findings = check(both[0])
        assert failed == []
        assert (findings.entries, findings.problem, findings.forks) == (11, None, ())

    # --- the past

    def test_as_of_is_exact_after_any_number_of_reinforcements(self, store: Store) -> None:
        clock = Clock()
        memories = open_memories(store, clock)
        made = memories.create("The office dog is called Rex", decay="reinforceable").memory
        assert made is not None
        for day in (2, 5, 9, 10, 20):
            clock.now = T0 + day * DAY
            memories.reinforce(made.id)
        clock.now = T0 + 40 * DAY
        half_life = timedelta(hours=memories.config.decay_half_life_hours)
        for day, reinforced in ((1, None), (2, 2), (4, 2), (6, 5), (9.5, 9), (19, 10), (21, 20)):
            then = T0 + day * DAY
            (listed,) = memories.list(as_of=then).memories
            (hit,) = memories.search("office dog Rex", as_of=then)
            assert hit.found == listed
            assert listed.last_reinforced_at == (
                None if reinforced is None else T0 + reinforced * DAY
            )
            age = then - T0 - (reinforced or 0) * DAY
            assert listed.confidence == pytest.approx(1 - age / half_life, abs=1e-3)

    def test_as_of_ignores_reinforcements_of_earlier_versions(self, store: Store) -> None:
        clock = Clock()
        memories = open_memories(store, clock)
        made = memories.create("The office dog is called Rex", decay="reinforceable").memory
        assert made is not None
        for day, act in enumerate(("reinforce", "update", "reinforce", "tag", "reinforce"), 1):
            clock.now = T0 + day * DAY
            if act == "reinforce":
                memories.reinforce(made.id)
            elif act == "update":
                memories.update(made.id, "The office dog is called Bello")
            else:
                memories.update(made.id, tags={"project": "shop"})
        results = [
            memories.list(as_of=T0 + day * DAY).memories[0].last_reinforced_at
            for day in (1.5, 2.5, 3.5, 4.5, 5.5)
        ]
        assert results == [T0 + DAY, None, T0 + 3 * DAY, T0 + 3 * DAY, T0 + 5 * DAY]

    def test_a_reinforcement_that_predates_the_log_is_kept(self, store: Store) -> None:
        clock = Clock()
        memories = open_memories(store, clock)
        made = memories.create("The office dog is called Rex", decay="reinforceable").memory
        assert made is not None
        clock.now = T0 + DAY
        memories.reinforce(made.id)
        store.remove(
            [Ref(Collection.LOG, "ann", made.id, 1)]
        )  # as an older version of the program wrote it
        clock.now = T0 + 3 * DAY
        memories.reinforce(made.id)
        results = [
            memories.list(as_of=T0 + day * DAY).memories[0].last_reinforced_at
            for day in (0.5, 2, 4)
        ]
        assert results == [None, T0 + DAY, T0 + 3 * DAY]

    # --- moving

    def test_a_log_is_copied_with_its_store(self, store: Store, tmp_path: Path) -> None:
        clock = Clock()
        memories = open_memories(store, clock)
        made = memories.create("The office dog is called Rex", decay="reinforceable").memory
        assert made is not None
        for day in (1, 2):
            clock.now = T0 + day * DAY
            memories.reinforce(made.id)
        memories.add_turns("standup", ["hello"])
        before, head = memories.log(), check(memories).head
        other = SQLiteStore(tmp_path / "moved.db", SPACE)
        migrate(store, other, FakeEmbedder(), progress=lambda *_: None)
        copy = open_memories(other, clock)
        assert copy.log() == before
        assert check(copy, against=head).problem is None
        assert copy.list(as_of=T0 + 1.5 * DAY).memories[0].last_reinforced_at == T0 + DAY
        copy.create("The chain goes on", force=True)
        assert check(copy, against=head)[1:2] == (5,)
        migrate(
            store,
            SQLiteStore(tmp_path / "again.db", SPACE),
            FakeEmbedder(),
            progress=lambda *_: None,
        )
        other.close()
