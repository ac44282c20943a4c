"""Compares any sequence of operations with a model in plain Python."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from contract.samples import HISTORY, MEMORY, SPACE, T0, Opened, OpenStore
from memories import Memories, NotFound, NotReinforceable, RequestError, Turn, TurnDraft
from memories.embedders.fake import FakeEmbedder
from memories.stores import Store
from memories.stores.records import Filter
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.pages import parts_of

NAMES = ("ann", "bob", "shared")
KEYS = ("user/editor", "user/shell")
SMALL, FULL = 20, 50  # number of operations in a sequence

names = st.sampled_from(NAMES)
words = st.sampled_from(("copper", "lantern", "Österreich", "日本語", "harbour"))
tags = st.dictionaries(
    st.sampled_from(("colour", "size")), st.sampled_from(("red", "large", "値")), max_size=2
)
numbers = st.integers(0, 10_000)
openings = st.sampled_from((0, 1))


@dataclass
class Version:
    """The expected state of one version of a memory."""

    text: str
    tags: dict[str, str]
    created_at: datetime
    operation: str = "create"
    ended_at: datetime | None = None
    ended_by: str | None = None


@dataclass
class Known:
    """The expected state of a memory."""

    id: str
    namespace: str
    key: tuple[str, str | None] | None
    reinforceable: bool
    versions: list[Version]
    supersedes: str | None = None
    superseded_by: str | None = None

    @property
    def latest(self) -> Version:
        return self.versions[-1]

    @property
    def live(self) -> bool:
        return self.latest.ended_at is None

    @property
    def deleted(self) -> bool:
        return self.latest.ended_by == "delete"

    def at(self, moment: datetime) -> Version | None:
        """Return the version that was current at a time."""
        for version in self.versions:
            if version.created_at <= moment and (
                version.ended_at is None or version.ended_at > moment
            ):
                return version
        return None

    def add(self, operation: str, now: datetime, text: str, tags: dict[str, str]) -> None:
        """Add a version; even if the clock was set back, it is not older than the previous
        version.
        """
        last = self.latest
        at = max(now, last.created_at, last.ended_at or last.created_at)
        if last.ended_at is None:
            last.ended_at, last.ended_by = at, "update"
        else:
            last.ended_by, self.superseded_by = f"{last.ended_by} (restored)", None
        self.versions.append(Version(text, tags, at, operation))


@dataclass
class Said:
    """The expected state of a turn."""

    index: int
    text: str
    message_id: str | None


@dataclass
class Model:
    """The expected contents of a store."""

    memories: dict[str, Known] = field(default_factory=dict)
    turns: dict[tuple[str, str], list[Said]] = field(default_factory=dict)

    def visible(self, reader: str) -> list[Known]:
        """Return the memories that a namespace reads."""
        return [known for known in self.memories.values() if known.namespace in (reader, "shared")]

    def keyed(self, namespace: str, key: object) -> Known | None:
        """Return the current memory that has a key."""
        own = (
            known for known in self.memories.values() if known.namespace == namespace and known.live
        )
        return next((known for known in own if known.key == key), None)

    def conversation(self, reader: str, name: str) -> list[Said]:
        """Return the turns of a conversation: your own, or else the shared one of that name."""
        return self.turns.get((reader, name)) or self.turns.get(("shared", name)) or []


class Operations(RuleBasedStateMachine):
    """Random operations of three namespaces on one store, through two open connections, with a
    clock that goes forward and back.
    """

    def __init__(self, open_store: OpenStore, done: Counter[str]) -> None:
        super().__init__()
        self.done: Counter[str] = done
        self.stores: list[Store] = [open_store(SPACE), open_store(SPACE)]
        self.model = Model()
        self.now, self.made = T0, 0
        self.users = [
            {
                name: Memories(
                    store, namespace=name, embedder=FakeEmbedder(), clock=lambda: self.now
                )
                for name in NAMES
            }
            for store in self.stores
        ]

    def check_invariants(self, *arguments: Any, **options: Any) -> None:
        """Count the operations."""
        self.done["operations"] += 1
        super().check_invariants(*arguments, **options)

    @initialize()
    def begin(self) -> None:
        """Begin with an empty store."""
        empty(self.stores[0])

    def text(self, word: str) -> str:
        """Return a text that no other memory has."""
        self.made += 1
        return f"{word} number{self.made} unique{self.made}x"

    def chosen(self, number: int) -> Known | None:
        """Return one of the memories of any namespace."""
        known = list(self.model.memories.values())
        return known[number % len(known)] if known else None

    def attempt(
        self, known: Known, who: str, act: Callable[[], Any], wrong: type[Exception] | None
    ) -> bool:
        """Apply an operation; return whether it was allowed and done."""
        if known.namespace not in (who, "shared"):
            wrong = NotFound
        elif wrong is not NotFound and known.namespace != who:
            wrong = RequestError
        if wrong is None:
            act()
            return True
        with pytest.raises(wrong):
            act()
        return False

    # --- writing

    @rule(seconds=st.sampled_from((0.001, 1.0, 3600.0, 86_400.0 * 40, -2.0, -86_400.0)))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(
        who=names,
        word=words,
        tags=tags,
        on=openings,
        back=st.sampled_from((None, 0, 5_000)),
        decays=st.booleans(),
    )
    def create(
        self, who: str, word: str, tags: dict[str, str], on: int, back: int | None, decays: bool
    ) -> None:
        text, at = self.text(word), None if back is None else self.now - timedelta(seconds=back)
        decay = "reinforceable" if decays else None
        made = self.users[on][who].create(text, tags=tags, decay=decay, created_at=at, force=True)
        assert made.stored
        self.note(made.memory, who, None, Version(text, tags, at or self.now), decays)

    def note(
        self,
        memory: Any,
        who: str,
        key: tuple[str, str | None] | None,
        version: Version,
        decays: bool,
    ) -> Known:
        assert memory.id not in self.model.memories
        known = self.model.memories[memory.id] = Known(memory.id, who, key, decays, [version])
        return known

    @rule(
        who=names,
        word=words,
        tags=tags,
        on=openings,
        key=st.sampled_from(KEYS),
        project=st.booleans(),
    )
    def create_with_a_key(
        self, who: str, word: str, tags: dict[str, str], on: int, key: str, project: bool
    ) -> None:
        text, scope = self.text(word), (key, "p" if project else None)
        tags = tags | ({"project": "p"} if project else {})
        there = self.model.keyed(who, scope)
        made = self.users[on][who].create(text, tags=tags, key=key)
        assert made.stored
        assert made.memory is not None
        if there is None:
            self.note(made.memory, who, scope, Version(text, tags, self.now), False)
        else:
            assert made.memory.id == there.id
            there.add("update", self.now, text, there.latest.tags | tags)

    @rule(who=names, number=numbers, on=openings)
    def create_the_same(self, who: str, number: int, on: int) -> None:
        own = [known for known in self.model.visible(who) if known.namespace == who and known.live]
        own = [
            known for known in own if not known.reinforceable and "project" not in known.latest.tags
        ]
        if own:
            known = own[number % len(own)]
            made = self.users[on][who].create(known.latest.text)
            assert (made.stored, made.memory and made.memory.id) == (False, known.id)

    @rule(who=names, word=words, number=numbers, on=openings)
    def supersede(self, who: str, word: str, number: int, on: int) -> None:
        known = self.chosen(number)
        if known is None:
            return
        text, made = self.text(word), []

        def act() -> None:
            made.append(self.users[on][who].create(text, supersedes=known.id, force=True).memory)

        wrong = NotFound if known.deleted else None if known.live else RequestError
        if self.attempt(known, who, act, wrong):
            new = self.note(made[0], who, None, Version(text, {}, self.now), False)
            known.latest.ended_at, known.latest.ended_by = (
                max(self.now, known.latest.created_at),
                "supersede",
            )
            known.superseded_by, new.supersedes = new.id, known.id

    @rule(
        who=names,
        word=st.none() | words,
        number=numbers,
        on=openings,
        added=tags,
        removed=st.booleans(),
    )
    def update(
        self, who: str, word: str | None, number: int, on: int, added: dict[str, str], removed: bool
    ) -> None:
        known = self.chosen(number)
        if known is None or (word is None and not added and not removed):
            return
        text, gone = None if word is None else self.text(word), ["size"] if removed else []
        wrong = NotFound if known.deleted else None if known.live else RequestError
        if self.attempt(
            known,
            who,
            lambda: self.users[on][who].update(known.id, text, tags=added, remove_tags=gone),
            wrong,
        ):
            last = known.latest
            tags = {key: value for key, value in (last.tags | added).items() if key not in gone}
            if text is not None or tags != last.tags:
                known.add("update", self.now, text or last.text, tags)

    @rule(who=names, number=numbers, on=openings)
    def reinforce(self, who: str, number: int, on: int) -> None:
        known = self.chosen(number)
        if known is None:
            return
        wrong = NotFound if known.deleted else RequestError if not known.live else None
        if wrong is None and not known.reinforceable:
            wrong = NotReinforceable
        self.attempt(known, who, lambda: self.users[on][who].reinforce(known.id), wrong)

    @rule(who=names, number=numbers, on=openings)
    def delete(self, who: str, number: int, on: int) -> None:
        known = self.chosen(number)
        if known is None:
            return
        wrong = NotFound if known.deleted else None
        if self.attempt(known, who, lambda: self.users[on][who].delete(known.id), wrong):
            last = known.latest
            last.ended_at, last.ended_by = max(last.ended_at or self.now, last.created_at), "delete"

    @rule(who=names, number=numbers, on=openings)
    def restore(self, who: str, number: int, on: int) -> None:
        known = self.chosen(number)
        if known is None:
            return
        taken = known.key is not None and self.model.keyed(known.namespace, known.key) is not None
        wrong = RequestError if known.live or taken else None
        if self.attempt(known, who, lambda: self.users[on][who].restore(known.id), wrong):
            known.add("restore", self.now, known.latest.text, known.latest.tags)

    @rule(who=names, number=numbers, on=openings)
    def forget(self, who: str, number: int, on: int) -> None:
        known = self.chosen(number)
        if known is None:
            return
        gone: list[Any] = []
        if self.attempt(
            known, who, lambda: gone.append(self.users[on][who].forget(known.id)), None
        ):
            assert gone[0].versions == len(known.versions)
            del self.model.memories[known.id]

    @rule(
        who=names, name=st.sampled_from(("talk", "walk")),
        said=st.lists(words, min_size=1, max_size=3), on=openings,
        numbered=st.booleans(), number=numbers,
    )  # fmt: skip
    def add_turns(
        self, who: str, name: str, said: list[str], on: int, numbered: bool, number: int
    ) -> None:
        if (
            not self.model.turns.get((who, name))
            and who != "shared"
            and self.model.turns.get(("shared", name))
        ):
            with pytest.raises(RequestError, match="is in namespace shared, but you write to"):
                self.users[on][who].add_turns(name, said)
            return
        there = self.model.turns.setdefault((who, name), [])
        drafts, expected = [], []
        for at, word in enumerate(said):
            text, message_id = self.text(word), f"m{(number + at) % 5}" if numbered else None
            drafts.append(TurnDraft(text, message_id=message_id))
            known = next(
                (
                    turn
                    for turn in there
                    if message_id is not None and turn.message_id == message_id
                ),
                None,
            )
            if known is None:
                known = Said(there[-1].index + 1 if there else 0, text, message_id)
                there.append(known)
            expected.append(known)
        assert model_turns(self.users[on][who].add_turns(name, drafts)) == expected

    @rule(
        who=names,
        name=st.sampled_from(("talk", "walk")),
        on=openings,
        one=st.booleans(),
        number=numbers,
    )
    def forget_turns(self, who: str, name: str, on: int, one: bool, number: int) -> None:
        there = self.model.turns.get((who, name), [])
        index = there[number % len(there)].index if there and one else None
        gone = [turn for turn in there if index in (None, turn.index)]
        memories = self.users[on][who]
        if not gone:
            elsewhere = not there and who != "shared" and self.model.turns.get(("shared", name))
            with pytest.raises(
                RequestError, match="is in namespace shared" if elsewhere else "not found"
            ):
                memories.forget_turns(name, index=index)
            return
        assert memories.forget_turns(name, index=index).versions == len(gone)
        self.model.turns[who, name] = [turn for turn in there if turn not in gone]

    @rule(on=openings, emptied=st.booleans())
    def export_and_import(self, on: int, emptied: bool) -> None:
        lines: list[str] = []
        export(self.stores[on], lines.append, namespaces=None, progress=_no_progress)
        if emptied:
            empty(self.stores[on])
        done = import_(
            self.stores[on], (line.encode() for line in lines), FakeEmbedder(), namespaces=None
        )
        records = sum(len(known.versions) for known in self.model.memories.values())
        records += sum(map(len, self.model.turns.values()))
        assert (done.imported, done.known, done.conflict_count) == (
            (records, 0, 0) if emptied else (0, records, 0)
        )
        again: list[str] = []
        export(self.stores[1 - on], again.append, namespaces=None, progress=_no_progress)
        assert again == lines

    # --- reading

    @rule(who=names, on=openings, wanted=tags, limit=st.integers(1, 4))
    def list_the_present(self, who: str, on: int, wanted: dict[str, str], limit: int) -> None:
        memories, results, cursor = self.users[on][who], [], None
        while True:
            page = memories.list(tags=wanted, limit=limit, cursor=cursor)
            results += page.memories
            cursor = page.next_cursor
            assert len(page.memories) == limit or cursor is None
            if cursor is None:
                break
        expected = [known for known in self.model.visible(who) if known.live]
        expected = [known for known in expected if wanted.items() <= known.latest.tags.items()]
        assert listing(results) == {known.id: facts(known) for known in expected}
        assert len(results) == len(expected)
        deleted = memories.list(deleted=True, limit=1000).memories
        assert {memory.id for memory in deleted} == {
            known.id for known in self.model.visible(who) if known.deleted
        }

    @rule(who=names, on=openings, number=numbers, later=st.sampled_from((0, 1)))
    def list_the_past(self, who: str, on: int, number: int, later: int) -> None:
        times = [
            version.created_at
            for known in self.model.memories.values()
            for version in known.versions
        ]
        times += [version.ended_at
                  for known in self.model.memories.values() for version in known.versions
                  if version.ended_at]  # fmt: skip
        moment = times[number % len(times)] + timedelta(milliseconds=later) if times else self.now
        listed = self.users[on][who].list(as_of=moment, limit=1000).memories
        past = {known.id: known.at(moment) for known in self.model.visible(who)}
        expected = {
            name: (version.text, version.tags)
            for name, version in past.items()
            if version is not None
        }
        assert {memory.id: (memory.content, dict(memory.tags)) for memory in listed} == expected

    @rule(who=names, on=openings, number=numbers)
    def search(self, who: str, on: int, number: int) -> None:
        known = self.chosen(number)
        text = known.latest.text if known else "copper number0"
        hits = self.users[on][who].search(text, limit=1000, min_confidence=0.0)
        results = {hit.id: hit.content for hit in hits}
        expected = {entry.id: entry.latest.text for entry in self.model.visible(who) if entry.live}
        assert results.items() <= expected.items()
        assert len(results) == len(hits)
        if known and known.id in expected:
            assert hits[0].id == known.id

    @rule(who=names, on=openings, name=st.sampled_from(("talk", "walk")), number=numbers)
    def read_a_conversation(self, who: str, on: int, name: str, number: int) -> None:
        memories, expected = self.users[on][who], self.model.conversation(who, name)
        assert model_turns(memories.turns(name, limit=1000)) == expected
        assert model_turns(memories.tail_turns(name, limit=2)) == expected[-2:]
        readable = {
            (namespace, said): len(turns)
            for (namespace, said), turns in self.model.turns.items()
            if turns and namespace in (who, "shared")
        }
        listed = {
            (entry.namespace, entry.id): entry.turn_count
            for entry in memories.conversations(limit=100)
        }
        assert listed == readable
        if expected:
            wanted = expected[number % len(expected)]
            hits = memories.search(wanted.text, scope="history", limit=100)
            said = {turn.text for where in readable for turn in self.model.turns[where]}
            assert wanted.text in {hit.content for hit in hits} <= said

    @rule(who=names, on=openings, number=numbers)
    def read_one(self, who: str, on: int, number: int) -> None:
        known = self.chosen(number)
        if known is None:
            return
        memories = self.users[on][who]
        if known.namespace not in (who, "shared"):
            with pytest.raises(NotFound):
                memories.history(known.id)
            with pytest.raises(NotFound):
                memories.get(known.id)
            return
        history = memories.history(known.id)
        assert [
            Version(
                entry.content,
                dict(entry.tags),
                entry.created_at,
                entry.operation,
                entry.ended_at,
                entry.ended_by,
            )
            for entry in history.versions
        ] == known.versions
        assert [entry.version for entry in history.versions] == list(
            range(1, len(known.versions) + 1)
        )
        assert history.supersedes == known.supersedes
        if known.deleted:
            with pytest.raises(NotFound):
                memories.get(known.id)
        else:
            memory = memories.get(known.id)
            assert (memory.content, dict(memory.tags)) == (known.latest.text, known.latest.tags)
            assert memory.version == len(known.versions)
            assert 0.0 <= memory.confidence <= 1.0

    @rule(who=names, on=openings)
    def count(self, who: str, on: int) -> None:
        visible = self.model.visible(who)
        status = self.users[on][who].status()
        assert status.memory_count == sum(known.live for known in visible)
        assert status.deleted_count == sum(known.deleted for known in visible)
        said = (
            len(turns) for (name, _), turns in self.model.turns.items() if name in (who, "shared")
        )
        assert (status.turn_count, status.without_vector_count) == (sum(said), 0)
        counted: dict[str, int] = {}
        for known in visible:
            for key in known.latest.tags if known.live else ():
                counted[key] = counted.get(key, 0) + 1
        assert self.users[on][who].tags() == counted

    def teardown(self) -> None:
        """Check everything once more, through both connections."""
        for on in (0, 1):
            for who in NAMES:
                self.list_the_present(who, on, {}, 1000)
                self.count(who, on)
                self.read_a_conversation(who, on, "talk", 0)
                for number in range(len(self.model.memories)):
                    self.read_one(who, on, number)
        for store in self.stores:
            store.close()


def model_turns(turns: Iterable[Turn]) -> list[Said]:
    """Return turns in the model's form."""
    return [Said(turn.index, turn.content, turn.message_id) for turn in turns]


def listing(memories: Iterable[Any]) -> dict[str, Any]:
    """Return the lines of a listing of memories."""
    return {
        memory.id: (memory.namespace, memory.content, dict(memory.tags), memory.version, memory.key)
        for memory in memories
    }


def facts(known: Known) -> Any:
    """Return the expected line of a memory in a listing."""
    key = None if known.key is None else known.key[0]
    return known.namespace, known.latest.text, known.latest.tags, len(known.versions), key


def empty(store: Store) -> None:
    """Erase everything in a store."""
    for part in parts_of(store):
        for collection in (MEMORY, HISTORY):
            where = Filter(collection, (part.namespace,), state="any")
            store.remove([record.ref for record in store.scan(where, limit=100_000)])


def _no_progress(_what: str, _done: int, _whole: int) -> None:
    """Discard the progress."""


class AsTheModelSays(Opened):
    """A test of random operations."""

    sequences = 200  # at full size; a backend with slow operations sets a lower number

    @pytest.mark.torture
    def test_any_sequence_of_operations_matches_the_model(
        self, open_store: OpenStore, figures: dict[str, Any]
    ) -> None:
        share = os.environ.get("TORTURE")
        sequences = 6 if share is None else max(5, round(self.sequences * float(share)))
        done: Counter[str] = Counter()
        run_state_machine_as_test(
            lambda: Operations(open_store, done),
            settings=settings(
                max_examples=sequences,
                stateful_step_count=SMALL if share is None else FULL,
                deadline=None,
                database=None,
                derandomize=share is None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
        figures |= {"sequences": sequences, **done}
