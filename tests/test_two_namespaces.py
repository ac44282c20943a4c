"""Two namespaces contain the same ids, keys and conversations: a write changes only its own
namespace.
"""

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memories import Draft, InvalidInput, Memories, NotFound, RequestError, StoreBusy, TurnDraft
from memories.errors import AmbiguousId
from memories.models import Page
from memories.stores.records import Collection, Filter, Record, Ref
from memories.stores.sqlite import connection
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.intake import Intake
from memories.write import rollback

BEGINNING = "01a1fdf1-92cd-7000-8000-00000000000"
START = datetime(2026, 5, 1, tzinfo=UTC)


class Ids(NamedTuple):
    """Memories that `shared` and `bob` both have."""

    main: str
    older: str
    newer: str
    gone: str
    replaced: str
    waiting: str
    from_talk: str


class Same(NamedTuple):
    """A folder with a store in which two namespaces have the same ids."""

    url: str
    folder: Path
    ids: Ids


def open_as(url: str, namespace: str, **options: Any) -> Memories:
    """Open the memories of a namespace, with a clock that is later than all earlier writes."""
    seconds = itertools.count(100_000)  # after all earlier writes
    return Memories(
        url,
        namespace=namespace,
        embedder="fake",
        clock=lambda: START + timedelta(seconds=next(seconds)),
        **options,
    )


def contents(memories: Memories, namespace: str) -> list[Any]:
    """Return all records of a namespace, including its log, without access counts."""
    found = (
        memories._store.scan(Filter(kind, (namespace,), state="any"), limit=10_000)
        for kind in (Collection.MEMORY, Collection.HISTORY, Collection.LOG)
    )
    return [record._replace(accesses=0) for records in found for record in records]


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Same:
    """A store in which `shared` and `bob` have the same ids."""
    folder = tmp_path_factory.mktemp("two")
    url = f"sqlite:///{folder}/m.db"
    seconds = itertools.count()
    with Memories(
        url,
        namespace="shared",
        embedder="fake",
        clock=lambda: START + timedelta(seconds=next(seconds)),
    ) as shared:

        def add(content: str, **options: Any) -> str:
            created = shared.create(content, **options)
            assert created.stored
            assert created.id is not None
            return created.id

        main = add("the build runs on Monday", key="build/day", decay="reinforceable")
        shared.update(main, "the build runs on Tuesday", tags={"type": "fact"})
        older = add("the staging server listens on port 8080")
        newer = add("the staging server listens on port 9090")
        assert shared.get(newer).corrects == older
        gone = add("apples are ripe in autumn")
        shared.delete(gone)
        replaced = add("the office is in Bonn")
        add("the office moved to Berlin", supersedes=replaced)
        waiting = add("lunch is served at noon", pending=True)
        shared.add_turns(
            "standup", [TurnDraft("one plum", message_id="a"), "two pears", "three figs"]
        )
        from_talk = add("a plum was counted", source="standup#0")
        shared.create_many([Draft("a quince of shared", id=f"{BEGINNING}1")], force=True)
        lines: list[str] = []
        export(shared._store, lines.append, namespaces=("shared",), progress=lambda *_: None)
        intake = Intake(into="bob")
        done = import_(
            shared._store, (line.encode() for line in lines), None, namespaces=None, intake=intake
        )
        assert done.conflict_count == 0
    with open_as(url, "bob") as bob:
        bob.forget(f"{BEGINNING}1")
        bob.create_many([Draft("a medlar of bob", id=f"{BEGINNING}2")], force=True)
    return Same(url, folder, Ids(main, older, newer, gone, replaced, waiting, from_talk))


@pytest.fixture
def copy_store(shared_store: Same, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Return a function that copies the store and returns the URL of the copy."""
    numbers = itertools.count()

    def copy() -> str:
        folder = tmp_path / f"copy{next(numbers)}"
        shutil.copytree(shared_store.folder, folder)
        return shared_store.url.replace(str(shared_store.folder), str(folder))

    return copy


Act = Callable[[Memories, Ids], object]
# Writes by bob, who reads `shared` too. Each must return a true value.
WRITES: dict[str, Act] = {
    "update": lambda bob, ids: bob.update(ids.main, "the build runs on Friday").version == 3,
    "update tags": lambda bob, ids: bob.update(ids.main, tags={"team": "core"}).namespace == "bob",
    "update if_version": lambda bob, ids: bob.update(ids.main, "the build is on Friday", if_version=2).version == 3,
    "update not_corrects": lambda bob, ids: bob.update(ids.newer, not_corrects=ids.older).corrects is None,
    "reinforce": lambda bob, ids: bob.reinforce(ids.main).last_reinforced_at is not None,
    "delete": lambda bob, ids: bob.delete(ids.main).namespace == "bob",
    "delete a corrected one": lambda bob, ids: bob.delete(ids.older) and bob.get(ids.newer).corrects is None,
    "delete a waiting one": lambda bob, ids: bob.delete(ids.waiting) and bob.review.count() == 0,
    "restore a deleted one": lambda bob, ids: bob.restore(ids.gone).namespace == "bob",
    "restore a replaced one": lambda bob, ids: bob.restore(ids.replaced).namespace == "bob",
    "restore version": lambda bob, ids: bob.restore(ids.main, version=1).content == "the build runs on Monday",
    "forget": lambda bob, ids: bob.forget(ids.main)[:2] == (ids.main, 2),
    "forget a deleted one": lambda bob, ids: bob.forget(ids.gone).versions == 1,
    "forget a corrected one": lambda bob, ids: bob.forget(ids.older) and bob.get(ids.newer).corrects is None,
    "forget a correcting one": lambda bob, ids: bob.forget(ids.newer) and bob.get(ids.older).corrected_by is None,
    "forget where": lambda bob, ids: bob.forget_where("content ~ plum", scope="all").counts == {"forget": 2},
    "delete where": lambda bob, ids: bob.delete_where("key = build/day").counts == {"delete": 1},
    "tag where": lambda bob, ids: bob.tag_where("key = build/day", tags={"team": "core"}).counts == {"tag": 1},
    "rollback": lambda bob, ids: bob.rollback(START + timedelta(seconds=1), where="type = fact").counts,
    "pin": lambda bob, ids: bob.pin(ids.main).pinned,
    "unpin": lambda bob, ids: bob.pin(ids.main) and not bob.unpin(ids.main).pinned,
    "accept": lambda bob, ids: bob.review.accept([ids.waiting])[0].memory.namespace == "bob",
    "accept changed": lambda bob, ids: bob.review.accept([ids.waiting], content="lunch is at one")[0].done,
    "reject": lambda bob, ids: bob.review.reject([ids.waiting])[0].done and bob.review.count() == 0,
    "restore a rejected one": lambda bob, ids: bob.review.reject([ids.waiting]) and bob.restore(ids.waiting).pending,
    "create with the key": lambda bob, ids: bob.create("the build runs on Friday", key="build/day").id == ids.main,
    "create supersedes": lambda bob, ids: bob.create("pears fell", supersedes=ids.main).memory.supersedes == ids.main,  # type: ignore[union-attr]
    "create the same superseding": lambda bob, ids: bob.create(
        "the staging server listens on port 9090", tags={"a": "b"}, supersedes=ids.older
    ).merged,
    "create the same": lambda bob, ids: bob.create("the staging server listens on port 9090", tags={"a": "b"}).merged,
    "create pending, accept": lambda bob, ids: bob.review.accept(
        [bob.create("pears fell down", supersedes=ids.main, pending=True).id or ""]
    )[0].done,
    "an edit with the id": lambda bob, ids: bob.update(bob.id_of_key("build/day"), "it runs daily").namespace == "bob",
    "add turns": lambda bob, ids: bob.add_turns("standup", ["four nuts"])[0].index == 3,
    "add a known turn": lambda bob, ids: bob.add_turns("standup", [TurnDraft("one plum", message_id="a")])[0].status
    == "known" and bob.add_turns("standup", ["four nuts"]),
    "name a conversation": lambda bob, ids: bob.update_conversation("standup", title="Daily").namespace == "bob",
    "forget turns": lambda bob, ids: bob.forget_turns("standup").versions == 3,
    "forget a turn": lambda bob, ids: bob.forget_turns("standup", index=1).versions == 1,
    "forget turns with memories": lambda bob, ids: bob.forget_turns("standup", with_memories=True).memories == 1,
    "update by a beginning that shared has too": lambda bob, ids: bob.update(BEGINNING, "sloes").id == f"{BEGINNING}2",
    "delete by a beginning that shared has too": lambda bob, ids: bob.delete(BEGINNING).id == f"{BEGINNING}2",
    "restore by a beginning that shared has too": lambda bob, ids: bob.delete(BEGINNING)
    and bob.restore(BEGINNING).id == f"{BEGINNING}2",
    "forget by a beginning that shared has too": lambda bob, ids: bob.forget(BEGINNING).id == f"{BEGINNING}2",
    "pin by a beginning that shared has too": lambda bob, ids: bob.pin(BEGINNING).id == f"{BEGINNING}2",
    "supersede by a beginning that shared has too": lambda bob, ids: bob.create(
        "sloes are blue", supersedes=BEGINNING
    ).memory.supersedes == f"{BEGINNING}2",  # type: ignore[union-attr]
}  # fmt: skip


def has_own_copy(bob: Memories, memory_id: str) -> bool:
    """Return whether bob gets his own copy of a memory."""
    return bob.get(memory_id).namespace == bob.history(memory_id).namespace == "bob"


READS: dict[str, Act] = {
    "get": lambda bob, ids: has_own_copy(bob, ids.main) and has_own_copy(bob, ids.newer) and has_own_copy(bob, ids.waiting),
    "get as of": lambda bob, ids: bob.get(ids.main, as_of=START + timedelta(hours=1)).namespace == "bob",
    "history as of": lambda bob, ids: bob.history(ids.main, as_of=START + timedelta(hours=1)).namespace == "bob",
    "history": lambda bob, ids: [each.version for each in bob.history(ids.main).versions] == [1, 2],
    "history of a deleted one": lambda bob, ids: bob.history(ids.gone).namespace == "bob",
    "key": lambda bob, ids: bob.id_of_key("build/day") == ids.main,
    "ids": lambda bob, ids: bob.ids(ids.main[:18]) == [ids.main],
    "ids of both": lambda bob, ids: bob.ids(BEGINNING[:18], limit=1) == [f"{BEGINNING}1"],
    "short ids": lambda bob, ids: ids.main.startswith(bob.short_ids([ids.main])[ids.main]),
    "tail": lambda bob, ids: {turn.namespace for turn in bob.tail_turns("standup")} == {"bob"},
    "turns": lambda bob, ids: [turn.index for turn in bob.turns("standup", start=1)] == [1, 2],
    "conversation": lambda bob, ids: bob.conversation("standup").namespace == "bob",
    "both are listed": lambda bob, ids: len(bob.list(where="key = build/day").memories) == 2,
    "both are found": lambda bob, ids: {hit.memory.namespace for hit in bob.search("build")} == {"bob", "shared"},
    "dry runs": lambda bob, ids: bob.forget_where("content ~ plum", scope="all", dry_run=True).counts == {"forget": 2}
    and bob.delete_where("key = build/day", dry_run=True).counts == {"delete": 1},
}  # fmt: skip


def beginnings(ids: Ids) -> Ids:
    """Return the beginning of each id."""
    return Ids(*(each[:18] for each in ids))


def test_a_write_changes_only_its_own_namespace(
    shared_store: Same, copy_store: Callable[[], str]
) -> None:
    wrong: list[str] = []
    for name, act in WRITES.items():
        with open_as(copy_store(), "bob") as bob:
            shared, before = contents(bob, "shared"), contents(bob, "bob")
            try:
                if not act(bob, shared_store.ids):
                    wrong.append(f"{name}: the answer is wrong")
                if contents(bob, "bob") == before:
                    wrong.append(f"{name}: bob has what he had")
            except RequestError as exc:
                wrong.append(f"{name}: {exc}")
            if contents(bob, "shared") != shared:
                wrong.append(f"{name}: shared was changed")
    assert not wrong, "\n".join(wrong)


def test_a_read_by_id_key_or_name_returns_your_own_copy(
    shared_store: Same, copy_store: Callable[[], str]
) -> None:
    wrong: list[str] = []
    with open_as(copy_store(), "bob") as bob:
        before = [contents(bob, name) for name in ("bob", "shared")]
        for name, act in READS.items():
            try:
                if not act(bob, shared_store.ids):
                    wrong.append(f"{name}: the answer is wrong")
            except RequestError as exc:
                wrong.append(f"{name}: {exc}")
        assert [contents(bob, name) for name in ("bob", "shared")] == before
    assert not wrong, "\n".join(wrong)


BY_BEGINNING: dict[str, Act] = {
    "get": lambda bob, ids: has_own_copy(bob, ids.main),
    "update": lambda bob, ids: bob.update(ids.main, "the build runs on Friday").version == 3,
    "not_corrects": lambda bob, ids: bob.update(ids.newer, not_corrects=ids.older).corrects is None,
    "reinforce": lambda bob, ids: bob.reinforce(ids.main).last_reinforced_at,
    "delete": lambda bob, ids: bob.delete(ids.main).namespace == "bob",
    "restore": lambda bob, ids: bob.restore(ids.gone).namespace == "bob",
    "restore version": lambda bob, ids: bob.restore(ids.main, version=1).version == 3,
    "forget": lambda bob, ids: bob.forget(ids.main).versions == 2,
    "pin": lambda bob, ids: bob.pin(ids.main).pinned,
    "accept": lambda bob, ids: bob.review.accept([ids.waiting])[0].done,
    "reject": lambda bob, ids: bob.review.reject([ids.waiting])[0].done,
    "supersedes": lambda bob, ids: bob.create("pears fell", supersedes=ids.main).stored,
}


def test_a_prefix_of_one_id_in_two_namespaces_is_not_ambiguous(
    shared_store: Same, copy_store: Callable[[], str]
) -> None:
    wrong: list[str] = []
    for name, act in BY_BEGINNING.items():
        with open_as(copy_store(), "bob") as bob:
            shared = contents(bob, "shared")
            try:
                if not act(bob, beginnings(shared_store.ids)):
                    wrong.append(f"{name}: the answer is wrong")
            except RequestError as exc:
                wrong.append(f"{name}: {exc}")
            if contents(bob, "shared") != shared:
                wrong.append(f"{name}: shared was changed")
    assert not wrong, "\n".join(wrong)


def test_a_prefix_of_two_ids_in_two_namespaces_is_ambiguous_to_a_read(
    copy_store: Callable[[], str],
) -> None:
    with (
        open_as(copy_store(), "bob") as bob,
        pytest.raises(AmbiguousId, match="matches 2 memories"),
    ):
        bob.get(BEGINNING)


ONLY_SHARED: dict[str, Act] = {
    "update": lambda bob, ids: bob.update(ids.main, "x y z"),
    "reinforce": lambda bob, ids: bob.reinforce(ids.main),
    "delete": lambda bob, ids: bob.delete(ids.main),
    "restore": lambda bob, ids: bob.restore(ids.gone),
    "restore version": lambda bob, ids: bob.restore(ids.main, version=1),
    "forget": lambda bob, ids: bob.forget(ids.main),
    "forget by a beginning": lambda bob, ids: bob.forget(ids.main[:18]),
    "update by a beginning": lambda bob, ids: bob.update(ids.main[:18], "x y z"),
    "pin": lambda bob, ids: bob.pin(ids.main),
    "accept": lambda bob, ids: bob.review.accept([ids.waiting]),
    "reject": lambda bob, ids: bob.review.reject([ids.waiting]),
    "supersedes": lambda bob, ids: bob.create("pears fell", supersedes=ids.main),
    "name a conversation": lambda bob, ids: bob.update_conversation("standup", title="Daily"),
    "add turns": lambda bob, ids: bob.add_turns("standup", ["four nuts"]),
    "forget turns": lambda bob, ids: bob.forget_turns("standup"),
    "forget a turn": lambda bob, ids: bob.forget_turns("standup", index=1),
}


def test_a_write_to_a_memory_of_another_namespace_names_that_namespace(
    shared_store: Same, copy_store: Callable[[], str]
) -> None:
    wrong: list[str] = []
    with open_as(copy_store(), "carl") as carl:
        shared = contents(carl, "shared")
        for name, act in ONLY_SHARED.items():
            try:
                act(carl, shared_store.ids)
                wrong.append(f"{name}: it was done")
            except RequestError as exc:
                if not re.search(
                    "is in namespace shared, but (you write|the new)",
                    str(exc),
                ):
                    wrong.append(f"{name}: {exc}")
        assert contents(carl, "shared") == shared
        assert contents(carl, "carl") == []
    assert not wrong, "\n".join(wrong)


def test_a_memory_deleted_in_your_namespace_can_be_read_in_the_other_but_not_written(
    shared_store: Same, copy_store: Callable[[], str]
) -> None:
    with open_as(copy_store(), "bob") as bob:
        bob.delete(shared_store.ids.main)
        assert bob.get(shared_store.ids.main).namespace == "shared"
        assert (
            bob.get(shared_store.ids.main, as_of=START + timedelta(days=30)).namespace == "shared"
        )
        assert bob.history(shared_store.ids.main).versions[-1].ended_by == "delete"
        for change in (bob.delete, bob.reinforce, bob.pin, lambda name: bob.update(name, "x y z")):
            with pytest.raises(NotFound, match="Memory not found"):
                change(shared_store.ids.main)
        bob.forget(shared_store.ids.main)
        assert bob.history(shared_store.ids.main).namespace == "shared"
        with pytest.raises(RequestError, match="is in namespace shared, but you write to bob"):
            bob.forget(shared_store.ids.main)


def test_a_memory_of_another_namespace_cannot_be_replaced(copy_store: Callable[[], str]) -> None:
    url = copy_store()
    with open_as(url, "shared") as shared:
        theirs = shared.create("the harbour is closed").id
    with (
        open_as(url, "bob") as bob,
        pytest.raises(
            InvalidInput, match="is in namespace shared, but the new one would be in bob"
        ),
    ):
        bob.create("the harbour is open", supersedes=theirs)


def test_an_unreadable_log_entry_is_reported_with_its_namespace(
    copy_store: Callable[[], str],
) -> None:
    with open_as(copy_store(), "bob") as bob:
        entry = Record(Ref(Collection.LOG, "bob", "log", 7), "no entry", START)
        assert list(rollback._read_entry(bob._store, entry)) == []
        assert "entry 7 of the log of bob can't be read" in str(bob._store.damaged.since())


def test_a_shared_key_never_resolves_to_a_memory_of_your_own(
    shared_store: Same, copy_store: Callable[[], str]
) -> None:
    """Bob moves his copy to another project, so that only the copy in shared has the key outside of
    projects.
    """
    with open_as(copy_store(), "bob") as bob:
        bob.update(shared_store.ids.main, tags={"project": "shop"})
        assert bob.id_of_key("build/day", project="shop") == shared_store.ids.main
        with pytest.raises(
            NotFound,
            match=r"no memory in namespace bob has the key .*; the memory with this key in shared "
            "has the same id as one of yours, so switch to shared to read it",
        ):
            bob.id_of_key("build/day")


@pytest.mark.thorough  # loads LangGraph, which takes a second
def test_a_langgraph_store_changes_only_its_own_namespace(copy_store: Callable[[], str]) -> None:
    from memories.integrations.langgraph import MemoriesStore

    url = copy_store()
    for namespace in ("shared", "bob"):
        with MemoriesStore(url, namespace=namespace, embedder="fake") as store:
            store.put(("users", "ann"), "editor", {"content": f"vim of {namespace}"})
    with MemoriesStore(url, namespace="bob", embedder="fake") as store:
        assert store.get(("users", "ann"), "editor").value == {"content": "vim of bob"}  # type: ignore[union-attr]
        store.delete(("users", "ann"), "editor")
        assert store.get(("users", "ann"), "editor") is None
    with MemoriesStore(url, namespace="shared", embedder="fake") as store:
        assert store.get(("users", "ann"), "editor").value == {"content": "vim of shared"}  # type: ignore[union-attr]


def test_a_blocked_erasure_is_finished_even_if_another_namespace_has_the_id(
    shared_store: Same, copy_store: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.2)
    url = copy_store()
    with open_as(url, "bob") as bob, open_as(url, "bob") as reader, open_as(url, "carl") as carl:
        shared = contents(bob, "shared")
        reader.get(shared_store.ids.main)
        with reader._raw_store._file.read(), pytest.raises(StoreBusy, match="forget it again"):  # type: ignore[attr-defined]
            bob.forget(shared_store.ids.main)
        with pytest.raises(
            RequestError, match="is in namespace shared"
        ):  # carl never had it, so he has no erasure to finish
            carl.forget(shared_store.ids.main)
        assert bob.status().erasing
        assert bob.forget(shared_store.ids.main) == (shared_store.ids.main, 0, (), 0, ())
        assert not bob.status().erasing
        assert contents(bob, "shared") == shared


LISTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"sort": "updated"},
    {"sort": "key"},
    {"where": "content ~ the"},
    {"project": "shop"},
    {"pending": True},
    {"as_of": START + timedelta(hours=1)},
)


def test_pages_of_a_listing_include_every_copy(copy_store: Callable[[], str]) -> None:
    wrong: list[str] = []
    with open_as(copy_store(), "bob") as bob, open_as(bob._url, "shared") as shared:
        for one in (bob, shared):
            one.create_many(
                [Draft(f"valid everywhere {one.namespace}", {"global": "true"}, id=f"{BEGINNING}9")]
            )
        for given, reverse, limit in itertools.product(LISTINGS, (False, True), (1, 3)):
            expected = ids_on(bob.list(**given, reverse=reverse, limit=100))
            assert len(set(expected)) == len(expected) > 1
            page = bob.list(**given, reverse=reverse, limit=limit)
            found, most = ids_on(page), len(page.memories)
            while page.next_cursor is not None and len(found) <= len(expected):
                page = bob.list(**given, reverse=reverse, limit=limit, cursor=page.next_cursor)
                found += ids_on(page)
                most = max(most, len(page.memories))
            if found != expected or most > limit:
                wrong.append(
                    f"{given} {reverse=} {limit=}: {len(found)} of {len(expected)}, at most {most}"
                )
    assert not wrong, "\n".join(wrong)


def ids_on(page: Page) -> list[tuple[str, str]]:
    """Return the id and namespace of each memory on a page."""
    return [(memory.id, memory.namespace) for memory in page.memories]
