"""The library's class `Memories`: every verb, over a real store."""

import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clock import Clock
from memories import (
    AmbiguousId,
    Draft,
    EmbedderMismatch,
    Forgotten,
    InvalidInput,
    Memories,
    Memory,
    NotFound,
    NotReinforceable,
    RequestError,
    StoreBusy,
    load_config,
)
from memories.embedders.fake import FakeEmbedder
from memories.embedders.minilm import MiniLM
from memories.stores import open_store
from memories.stores.sqlite import connection

pytestmark = pytest.mark.usefixtures("home")

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)

REALISTIC = {
    "The user prefers Python over Go for command line tools": "which programming language does she like for scripts?",
    "Deploys to production happen on Tuesday mornings": "when do we release?",
    "The payments team is led by Alice": "who is in charge of billing?",
    "The user is allergic to peanuts": "what food is dangerous for her?",
    "Commit messages follow the conventional commits format": "how should I word my git commits?",
    "The staging database is reset every night at two": "when is the test data wiped?",
    "The frontend is written in React with TypeScript": "what framework does the user interface use?",
    "The user lives in Berlin with two cats": "does she have pets?",
    "Tests must pass before anything is merged to main": "what is required before merging a pull request?",
    "The API rate limit is one hundred requests per minute": "how often may clients call us?",
    "Logs are kept for thirty days": "how long is the log retention?",
    "The user dislikes long meetings": "how does he feel about lengthy calls?",
    "Passwords are stored with argon2": "how do we hash credentials?",
    "The office is closed between Christmas and New Year": "is anybody at work during the winter holidays?",
    "Customer data must never leave the European Union": "where may we host personal information?",
    "The mobile app supports Android 10 and newer": "which phones can run it?",
    "Bob is on parental leave until June": "why is Bob away?",
    "The search service runs on four machines": "how many servers answer queries?",
    "The user learns Japanese in the evenings": "which foreign language is she studying?",
    "Invoices are sent on the first day of the month": "when do customers get their bills?",
}
STRANGERS = [
    "The kitchen has a new coffee machine", "The printer on the second floor is broken", "The parking lot is paved",
    "A new carpet was laid in the lobby", "The plants are watered on Mondays", "The elevator was inspected in May",
    "The company picnic was rained out", "The meeting room is named after a mountain", "The window cleaner came by",
    "The vending machine takes coins only", "The fire drill took nine minutes", "The roof has solar panels",
    "The bicycle stand holds thirty bikes", "The library got new shelves", "The canteen serves soup on Thursdays",
    "The flag is at half mast", "The doorbell was replaced", "The garden has an apple tree",
    "The cellar is dry again", "The clock in the hall is five minutes late",
]  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    """A clock that a test moves."""
    return Clock(START)


@pytest.fixture
def memories(tmp_path: Path, clock: Clock) -> Iterator[Memories]:
    """Memories that use the clock."""
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake", clock=clock) as found:
        yield found


def add(memories: Memories, content: str, **fields: object) -> Memory:
    """Store a memory without the duplicate check."""
    made = memories.create(content, force=True, **fields).memory  # type: ignore[arg-type]
    assert made is not None
    return made


def contents(found: object) -> list[str]:
    """Return the contents of memories, of hits, or of a page."""
    return [getattr(item, "memory", item).content for item in getattr(found, "memories", found)]  # type: ignore[call-overload]


# --- verbs


def test_a_memory_can_be_created_updated_deleted_restored_and_forgotten(
    memories: Memories, clock: Clock
) -> None:
    made = memories.create(
        "The port is 8080", tags={"project": "shop"}, decay="contextual", confidence=0.8
    )
    assert made.stored
    memory = made.memory
    assert memory is not None
    assert (memory.created_at, memory.confidence, memory.base_confidence) == (START, 0.8, 0.8)
    assert memories.get(memory.id) == memory
    clock.move()
    changed = memories.update(
        memory.id, "The port is 9090", tags={"sure": "yes"}, remove_tags=["project"]
    )
    assert (changed.content, changed.tags, changed.version) == (
        "The port is 9090",
        {"sure": "yes"},
        2,
    )
    assert (changed.created_at, changed.updated_at) == (START, START + DAY)
    clock.move()
    assert memories.delete(memory.id).deleted
    with pytest.raises(NotFound, match=r"^Memory not found: it was deleted; to restore it"):
        memories.get(memory.id)
    with pytest.raises(NotFound):
        memories.delete(memory.id)
    clock.move()
    restored = memories.restore(memory.id)
    assert (restored.content, restored.version, restored.deleted) == ("The port is 9090", 3, False)
    assert [version.operation for version in memories.history(memory.id).versions] == [
        "create",
        "update",
        "restore",
    ]
    assert memories.forget(memory.id) == Forgotten(memory.id, 3, ())
    for verb in (memories.get, memories.history, memories.restore, memories.forget):
        with pytest.raises(NotFound):
            verb(memory.id)


def test_reinforce_resets_decay(memories: Memories, clock: Clock) -> None:
    memory = add(memories, "content", decay="reinforceable")
    clock.move(15 * DAY)
    assert memories.get(memory.id).confidence == 0.5
    reinforced = memories.reinforce(memory.id)
    assert (reinforced.confidence, reinforced.last_reinforced_at) == (1.0, START + 15 * DAY)
    clock.move(3 * DAY)
    assert memories.get(memory.id).confidence == 0.9
    for decay in ("stable", "contextual"):
        with pytest.raises(NotReinforceable, match=decay):
            memories.reinforce(add(memories, f"content {decay}", decay=decay).id)


def test_an_update_restarts_decay(memories: Memories, clock: Clock) -> None:
    memory = add(memories, "content", decay="contextual")
    clock.move(15 * DAY)
    assert memories.update(memory.id, "new content").confidence == 1.0


def test_a_search_counts_reads_and_does_not_reinforce(memories: Memories, clock: Clock) -> None:
    memory = add(memories, "apples", decay="reinforceable")
    clock.move(3 * DAY)
    memories.search("apples")
    memories.search("apples", as_of=clock.now)
    memories.status()  # it counts the waiting reads, as a write does
    found = memories.get(memory.id)
    assert (found.access_count, found.confidence, found.last_reinforced_at) == (1, 0.9, None)


def test_tags_and_status_return_counts(memories: Memories) -> None:
    add(memories, "one", tags={"project": "a"})
    add(memories, "two", tags={"project": "b", "type": "fact"})
    memories.delete(add(memories, "three", tags={"project": "b"}).id)
    assert memories.tags() == {"project": 2, "type": 1}
    assert memories.tags("project") == {"a": 1, "b": 1}
    status = memories.status()
    assert (status.memory_count, status.deleted_count, status.embedder) == (2, 1, "fake/1")


def test_status_counts_records_without_vectors(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as memories:
        memories.create_many(["the gate is open", "pears fell"], force=True)
        memories.add_turns("talk", ["hello"])
        status = memories.status()
    assert (status.memory_count, status.turn_count, status.without_vector_count) == (2, 1, 3)


def test_a_prefix_of_an_id_finds_the_memory(memories: Memories, clock: Clock) -> None:
    clock.move(
        timedelta(milliseconds=7_001)
    )  # its own millisecond: ids of one millisecond share their beginning
    one, two = add(memories, "one"), add(memories, "two")
    assert memories.get(one.id[:20]).id == one.id
    with pytest.raises(AmbiguousId) as caught:
        memories.get(one.id[:13])
    assert caught.value.matches == tuple(sorted((one.id, two.id)))
    sent = pickle.loads(pickle.dumps(caught.value))  # as between processes
    assert (type(sent), str(sent), vars(sent)) == (
        AmbiguousId,
        str(caught.value),
        vars(caught.value),
    )
    memories.delete(two.id)
    assert memories.get(one.id[:13]).id == one.id


def test_an_ambiguous_prefix_names_ten_memories(memories: Memories, clock: Clock) -> None:
    clock.move(timedelta(milliseconds=7_003))
    added = [add(memories, f"number {number}").id for number in range(10)]
    for count in ("10", "more than 10"):
        with pytest.raises(AmbiguousId, match=f"matches {count} memories") as caught:
            memories.get(added[0][:13])
        assert caught.value.matches == tuple(added[:10])
        added.append(add(memories, "one more").id)


def test_list_pages_contain_every_memory_once(memories: Memories, clock: Clock) -> None:
    ids = []
    for number in range(25):
        ids.append(add(memories, f"number {number}").id)
        clock.move(timedelta(milliseconds=1))
    seen: list[str] = []
    cursor = None
    while True:
        page = memories.list(limit=7, cursor=cursor)
        seen += [memory.id for memory in page.memories]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ids[::-1]


# --- many at once


def test_create_many_keeps_the_order(memories: Memories) -> None:
    drafts = [Draft(f"memory number {number}", tags={"n": str(number)}) for number in range(600)]
    made = memories.create_many(drafts, force=True)
    assert [created.memory.content for created in made if created.memory] == [
        draft.content for draft in drafts
    ]
    assert memories.status().memory_count == 600


def test_create_many_validates_all_drafts_before_writing(memories: Memories) -> None:
    for bad in (
        Draft(""),
        Draft("c", tags={"": "x"}),
        Draft("c", decay="slow"),
        Draft("c", confidence=2),
        Draft("c", key=""),
    ):
        with pytest.raises(InvalidInput):
            memories.create_many(["good", *(f"good {number}" for number in range(600)), bad])
    assert memories.status().memory_count == 0


def test_create_many_recognizes_repetitions_among_its_drafts(memories: Memories) -> None:
    made = memories.create_many(["The sky is blue", "the sky is blue.", "The sky is green today"])
    assert [created.stored for created in made] == [True, False, True]
    assert made[1].memory is not None
    assert made[0].memory is not None
    assert made[1].memory.id == made[0].memory.id


def test_a_memory_may_have_any_date(memories: Memories) -> None:
    for moment in (
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 7, 20, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ):
        made = add(memories, f"in {moment.year}", created_at=moment)
        assert memories.get(made.id).created_at == moment.replace(
            microsecond=moment.microsecond // 1000 * 1000
        )


# --- keys, chains, the past


def test_a_key_addresses_one_memory(memories: Memories) -> None:
    first = memories.create("vim", key="user/editor").memory
    second = memories.create("emacs", key="user/editor").memory
    assert first is not None
    assert second is not None
    assert (second.id, second.version, second.key) == (first.id, 2, "user/editor")
    memories.delete(first.id)
    third = memories.create("nano", key="user/editor").memory
    assert third is not None
    assert third.id != first.id
    with pytest.raises(RequestError, match='key "user/editor"'):
        memories.restore(first.id)


def test_the_past_can_be_searched_and_listed(memories: Memories, clock: Clock) -> None:
    memory = add(memories, "The office is in Bonn")
    clock.move()
    memories.update(memory.id, "The office is in Cologne")
    clock.move()
    memories.delete(memory.id)
    clock.move()
    memories.restore(memory.id)
    clock.move()
    newer = add(memories, "The office is in Berlin", supersedes=memory.id)
    clock.move()
    hour = timedelta(hours=1)
    expected = [
        (START - hour, []),
        (START, ["The office is in Bonn"]),
        (START + hour, ["The office is in Bonn"]),
        (START + DAY, ["The office is in Cologne"]),
        (START + DAY + hour, ["The office is in Cologne"]),
        (START + 2 * DAY + hour, []),
        (START + 3 * DAY + hour, ["The office is in Cologne"]),
        (START + 4 * DAY + hour, ["The office is in Berlin"]),
    ]
    for moment, known in expected:
        assert contents(memories.list(as_of=moment)) == known, moment
        assert contents(memories.search("office", as_of=moment)) == known, moment
    assert contents(memories.list()) == ["The office is in Berlin"]
    assert memories.history(memory.id).superseded_by == newer.id
    assert memories.history(newer.id).supersedes == memory.id
    assert memories.get(memory.id).superseded_by == newer.id


def test_past_confidence_is_computed_at_the_past_time(memories: Memories, clock: Clock) -> None:
    add(memories, "apples", decay="contextual")
    clock.move(90 * DAY)
    assert memories.search("apples") == ()
    [hit] = memories.search("apples", as_of=START + 3 * DAY)
    assert hit.memory.confidence == 0.9


# --- search


@pytest.fixture(scope="module")
def realistic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memories]:
    """A store with the default model and realistic memories."""
    path = tmp_path_factory.mktemp("realistic") / "m.db"
    with Memories(
        f"sqlite:///{path}", embedder=MiniLM(), config=load_config({"namespace": "shared"})
    ) as memories:
        memories.create_many([*REALISTIC, *STRANGERS], force=True)
        yield memories


def test_a_memory_is_the_first_hit_for_its_exact_words(realistic: Memories) -> None:
    asked = {content: content for content in (*REALISTIC, *STRANGERS)}
    asked |= {f"{content.upper()}?": content for content in [*REALISTIC][::4]}
    first = {query: contents(realistic.search(query))[:1] for query in asked}
    assert [
        (query, first[query]) for query, content in asked.items() if first[query] != [content]
    ] == []


def test_a_paraphrase_finds_its_memory_among_the_first_five(realistic: Memories) -> None:
    found = {query: contents(realistic.search(query, limit=5)) for query in REALISTIC.values()}
    assert [
        (query, found[query]) for content, query in REALISTIC.items() if content not in found[query]
    ] == []


def test_nonsense_finds_nothing(realistic: Memories) -> None:
    queries = ["asdf qwer zxcv", "xyzzy plugh", "qqqqqq", "%%% ###", "blorptang frobnicate wug"]
    found = {query: contents(realistic.search(query)) for query in queries}
    assert found == {query: [] for query in queries}


@pytest.mark.parametrize("embedder", ["minilm", "none"])
def test_texts_in_any_script_are_found(tmp_path: Path, embedder: str) -> None:
    pairs = {
        "用户住在柏林": "柏林",
        "本社は東京にあります": "東京",
        "사용자는 베를린에 산다": "베를린",
        "ผู้ใช้ชอบกาแฟดำ": "กาแฟ",
        "Команда выпускает релиз по вторникам": "релиз",
        "الفريق يجتمع يوم الاثنين": "الاثنين",
        "टीम सोमवार को मिलती है": "सोमवार",
        "Das Büro schließt früh": "büro",
        "The release is done 🎉": "🎉",
        "We write C++ here": "C++",
        "The scripts are in C# there": "C#",
        "The column user_id is null": "user_id",
    }
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder=embedder) as memories:
        memories.create_many(list(pairs), force=True)
        for content, query in pairs.items():
            assert contents(memories.search(query))[:1] == [content], query
            assert contents(memories.search(content))[:1] == [content], content


def test_keyword_only_mode_needs_no_model(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as memories:
        add(memories, "Deploys happen on Tuesdays")
        [hit] = memories.search("deploy")
        assert (hit.similarity, hit.calibrated, hit.score) == (None, None, 1.0)
        assert memories.search("kitchen") == ()
        with pytest.raises(InvalidInput, match="needs an embedder"):
            memories.search("deploy", min_similarity=0.5)
        status = memories.status()
        assert (status.embedder, status.store_model, status.without_vector_count) == (
            "none",
            None,
            1,
        )


def test_vectors_of_two_models_are_never_compared(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with Memories(url, embedder="fake") as memories:
        memory = add(memories, "Deploys happen")
    with Memories(url, embedder="minilm") as memories:
        for call in (
            lambda: memories.search("deploys"),
            lambda: memories.create("new"),
            lambda: memories.update(memory.id, "x"),
        ):
            with pytest.raises(EmbedderMismatch, match="fake/1"):
                call()
        assert memories.get(memory.id).version == 1
    with Memories(url, embedder="none") as memories:
        assert contents(memories.search("deploys")) == ["Deploys happen"]


def test_explain_says_why_a_candidate_was_dropped(memories: Memories, clock: Clock) -> None:
    add(memories, "apples of old", decay="contextual")
    clock.move(28 * DAY)
    add(memories, "apples of now")
    explanation = memories.explain("apples")
    assert contents(explanation.hits) == ["apples of now"]
    dropped = {item.content: item.dropped for item in explanation.considered}
    assert dropped["apples of now"] == ""
    assert "confidence" in dropped["apples of old"]
    assert explanation.terms == ("apples",)


def test_a_hit_has_a_memory_and_no_turn(memories: Memories, clock: Clock) -> None:
    memory = add(memories, "apples are red", tags={"agent": "claude", "conversation_id": "standup"})
    clock.move()
    changed = memories.update(memory.id, "apples are green")
    [hit] = memories.search("green apples")
    assert hit.found is hit.memory
    assert (hit.id, hit.content, hit.date) == (memory.id, "apples are green", changed.updated_at)
    assert (hit.speaker, hit.conversation_id) == ("claude", "standup")
    assert hit.calibrated is not None
    assert 0.9 < hit.calibrated <= 1
    with pytest.raises(TypeError, match=rf"this hit is a memory \({memory.id}\); use \.memory"):
        _ = hit.turn


def test_faded_memories_do_not_hide_current_ones(memories: Memories, clock: Clock) -> None:
    memories.create_many(
        [Draft(f"apples {number}", decay="contextual") for number in range(300)], force=True
    )
    clock.move(40 * DAY)
    add(
        memories,
        "there is one more sort of apples that grows in the garden behind the old house of my uncle",
    )
    assert len(memories.search("apples")) == 1


# --- the object


def test_namespaces_are_isolated_from_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with (
        Memories(url, embedder="fake", namespace="alice") as alice,
        Memories(url, embedder="fake", namespace="bob") as bob,
    ):
        secret = add(alice, "apples of Alice", tags={"whose": "alice"})
        assert bob.search("apples of Alice") == ()
        assert bob.list().memories == ()
        assert bob.tags() == {}
        for verb in (bob.get, bob.delete, bob.history, bob.restore, bob.forget, bob.reinforce):
            for name in (secret.id, secret.id[:18]):
                with pytest.raises(NotFound, match=r"^Memory not found$"):
                    verb(name)
        with pytest.raises(NotFound):
            bob.create("apples of Bob", supersedes=secret.id)
        assert alice.get(secret.id).version == 1


@pytest.mark.parametrize("embedder", [None, "fake"])
def test_writes_to_another_namespace_change_no_search(tmp_path: Path, embedder: str | None) -> None:
    """Two stores that differ only in the memories of ann look the same to bob."""
    statements = [
        "the merger with Initech closes in May",
        "a bike is in the hall",
        "the tyre of the bike is flat",
        "lunch is at noon",
        "the hall is painted in May",
    ]
    told: list[list[tuple[str, float]]] = []
    for of_ann in ([], [f"the merger number {number} of the bike shop" for number in range(300)]):
        url = f"sqlite:///{tmp_path}/{len(of_ann)}.db"
        config = load_config(environment={"EMBEDDER": embedder or "none"})._replace(
            count_accesses=False
        )
        with (
            Memories(url, config=config, namespace="bob", shared=False) as bob,
            Memories(url, config=config, namespace="ann", shared=False) as ann,
        ):
            bob.create_many(statements[:3], force=True)
            ann.create_many(of_ann, force=True)
            bob.create_many(statements[3:], force=True)
            hits = [
                hit
                for query in ("merger bike", "merger", "hall May")
                for hit in bob.search(query, now=START)
            ]
            told.append([(hit.memory.content, hit.score) for hit in hits])
    assert len(told[0]) > 4
    assert told[0] == told[1]


def test_a_store_that_was_passed_in_is_not_closed(tmp_path: Path) -> None:
    embedder = MiniLM()
    store = open_store(f"sqlite:///{tmp_path}/m.db", embedder.space)
    with Memories(store, embedder=embedder) as memories:
        memory = add(memories, "content")
    with Memories(store, embedder=embedder, namespace="bob") as memories:
        assert memories.get(memory.id).content == "content"
    store.close()


def test_nothing_is_created_before_something_is_stored(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/new/m.db", embedder="fake") as memories:
        assert memories.list().memories == ()
        assert memories.search("anything") == ()
        assert memories.status().memory_count == 0
    assert not (tmp_path / "new").exists()


def test_many_threads_may_use_one_object(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake") as memories:
        shared = add(memories, "shared counter")
        errors: list[BaseException] = []

        def work(name: int) -> None:
            try:
                for number in range(4):
                    made = add(memories, f"thread {name} number {number}")
                    memories.search(f"thread {name}")
                    memories.update(shared.id, f"written by {name} as {number}")
                    assert memories.get(made.id).content == f"thread {name} number {number}"
            except BaseException as exc:  # noqa: BLE001 - checked at the end of the test
                errors.append(exc)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert memories.status().memory_count == 25
        history = memories.history(shared.id)
        assert [version.version for version in history.versions] == list(range(1, 26))
        assert sum(version.ended_at is None for version in history.versions) == 1


@pytest.mark.parametrize("verb", ["since", "until", "as_of"])
def test_times_must_be_aware(memories: Memories, verb: str) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - the error under test
    calls: list[Callable[..., object]] = [
        memories.list,
        lambda **given: memories.search("q", **given),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="has no time zone"):
            call(**{verb: naive})


def test_a_replaced_memory_cannot_be_changed(memories: Memories) -> None:
    old = add(memories, "apples are red", decay="reinforceable")
    new = add(memories, "apples are green", supersedes=old.id)
    for change in (
        lambda: memories.update(old.id, "apples are blue"),
        lambda: memories.reinforce(old.id),
    ):
        with pytest.raises(RequestError, match=new.id):
            change()


def test_long_texts_are_not_compared_word_by_word(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing texts of this size takes seconds, and other writers would wait."""
    text = "a b c " * 2_000
    judged: list[str] = []
    monkeypatch.setattr(
        "memories.write.compare.duplicates.compare_words", lambda *_: judged.append("judged")
    )
    assert add(memories, text).id == memories.create(text + "\n").memory.id  # type: ignore[union-attr]
    assert memories.create(text + "d").stored
    assert judged == []


def test_a_tag_is_removed_only_by_its_full_name(memories: Memories) -> None:
    memory = add(memories, "apples", tags={"project": "shop", "pro": "yes"})
    assert memories.update(memory.id, remove_tags="project").tags == {"pro": "yes"}


def test_forgetting_again_finishes_an_erasure_that_a_reader_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.2)
    url = f"sqlite:///{tmp_path}/m.db"
    with Memories(url, embedder="fake") as writer, Memories(url, embedder="fake") as reader:
        memory = add(writer, "apples are a secret")
        reader.get(memory.id)
        with reader._raw_store._file.read(), pytest.raises(StoreBusy, match="forget it again"):  # type: ignore[attr-defined]
            writer.forget(memory.id)
        assert writer.search("apples") == ()
        assert writer.status().erasing
        assert writer.forget(memory.id).versions == 0
        assert not writer.status().erasing
        with pytest.raises(NotFound):
            writer.forget(memory.id)


# --- concurrent writes by others


class Interrupting(FakeEmbedder):
    """An embedder that runs a function once while it embeds a text, like a concurrent process."""

    meanwhile: Callable[[], object] | None = None

    def embed(self, text: str) -> "NDArray[np.float32]":
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        return super().embed(text)


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[tuple[Memories, Memories, Interrupting]]:
    """Two memories over one store, and the embedder of the first, which can run a call of the
    second.
    """
    embedder = Interrupting()
    config = load_config({"namespace": "shared"}, environment={"REINFORCE_ON_RETRIEVAL": "true"})
    url = f"sqlite:///{tmp_path}/m.db"
    with (
        Memories(url, embedder=embedder, config=config) as ours,
        Memories(url, embedder="fake") as theirs,
    ):
        yield ours, theirs, embedder


def test_a_change_of_tags_does_not_undo_a_change_of_content(interrupted: Any) -> None:
    ours, theirs, embedder = interrupted
    memory = add(ours, "port is 5432")
    embedder.meanwhile = lambda: theirs.update(memory.id, "port is 5433")
    assert ours.update(memory.id, tags={"a": "b"}).content == "port is 5433"
    [hit] = ours.search("port is 5433")
    assert hit.similarity > 0.99


def test_a_memory_restored_during_a_change_has_the_vector_of_its_content(interrupted: Any) -> None:
    ours, theirs, embedder = interrupted
    memory = add(ours, "alpha beta")
    ours.delete(memory.id)

    def meanwhile() -> None:
        theirs.restore(memory.id)
        theirs.update(memory.id, "gamma delta")
        theirs.delete(memory.id)

    embedder.meanwhile = meanwhile
    assert ours.restore(memory.id).content == "gamma delta"
    [hit] = ours.search("gamma delta")
    assert hit.similarity > 0.99


def test_a_search_does_not_restore_a_memory_deleted_in_the_meantime(
    interrupted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs, _ = interrupted
    memory = add(ours, "apples are red", decay="reinforceable")
    monkeypatch.setattr(ours, "_count_access", lambda _: theirs.delete(memory.id))
    assert len(ours.search("apples")) == 1
    monkeypatch.undo()
    assert ours.search("apples") == ()
    assert ours.status().memory_count == 0


# --- decay and repetition


def test_a_repetition_of_a_faded_memory_is_stored(memories: Memories, clock: Clock) -> None:
    add(memories, "the build is broken", decay="contextual")
    clock.move(60 * DAY)
    assert memories.create("the build is broken", decay="contextual").stored
    assert len(memories.search("build broken")) == 1


def test_creating_with_the_same_key_restarts_decay(memories: Memories, clock: Clock) -> None:
    add(memories, "the team uses tabs", decay="contextual", key="style/indent")
    clock.move(20 * DAY)
    again = memories.create("the team uses tabs", key="style/indent").memory
    assert again is not None
    assert (again.version, again.confidence, again.decay_policy) == (2, 1.0, "contextual")


def test_each_project_has_its_own_keys(memories: Memories) -> None:
    one = add(memories, "port is 1", key="db/port", tags={"project": "one"})
    other = add(memories, "port is 2", key="db/port", tags={"project": "other"})
    assert one.id != other.id
    assert {memories.get(one.id).content, memories.get(other.id).content} == {
        "port is 1",
        "port is 2",
    }


def test_ended_versions_do_not_make_a_word_common(memories: Memories) -> None:
    memory = add(memories, "zanzibar is far")
    for number in range(20):
        add(memories, f"note {number}")
    before = memories.explain("zanzibar").considered[0].features["words"]
    other = add(memories, "zanzibar 0")
    for number in range(1, 20):
        memories.update(other.id, f"zanzibar {number}")
    memories.delete(other.id)
    assert memories.explain("zanzibar").considered[0].id == memory.id
    assert memories.explain("zanzibar").considered[0].features["words"] == before


def test_the_past_is_found_by_its_words(memories: Memories, clock: Clock) -> None:
    memory = add(memories, "the port is five thousand")
    clock.move()
    memories.update(memory.id, "the port is six thousand")
    assert [hit.memory.content for hit in memories.search("five", as_of=START)] == [
        "the port is five thousand"
    ]


def test_past_confidence_ignores_later_reinforcement(memories: Memories, clock: Clock) -> None:
    memory = add(memories, "apples", decay="reinforceable")
    clock.move(15 * DAY)
    memories.reinforce(memory.id)
    [hit] = memories.search("apples", as_of=START + 10 * DAY)
    assert hit.memory.confidence == 0.6667


def test_a_successor_ends_the_replaced_memory_when_it_begins(memories: Memories) -> None:
    old = add(memories, "the capital is Bonn", created_at=START - 60 * DAY)
    add(memories, "the capital is Berlin", created_at=START - 30 * DAY, supersedes=old.id)
    assert [hit.memory.content for hit in memories.search("capital", as_of=START - 20 * DAY)] == [
        "the capital is Berlin"
    ]


def test_shared_memories_are_changed_only_in_their_namespace(memories: Memories) -> None:
    shared = add(memories, "apples")
    with Memories(memories._store, namespace="bob", embedder="fake") as bob:
        for change in (bob.delete, bob.forget, lambda found: bob.update(found, "pears")):
            with pytest.raises(RequestError, match="namespace shared"):
                change(shared.id)
    assert memories.get(shared.id).content == "apples"


def test_memories_from_the_same_millisecond_are_listed_newest_first(tmp_path: Path) -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=lambda: now) as memories:
        contents = [f"statement {number}" for number in range(600)]
        memories.create_many(contents[:300], force=True)
        for content in contents[300:330]:
            memories.create(content, force=True)
        memories.create_many(
            [Draft(content, created_at=now) for content in contents[330:]], force=True
        )
        listed = memories.list(limit=1000).memories
    assert [found.content for found in listed] == contents[::-1]


def test_a_quota_limits_a_namespace(tmp_path: Path) -> None:
    config = load_config(
        {"namespace_quota": "memories=2,bob.memories=1", "embedder": "none"},
        environment={"MEMORY_HOME": str(tmp_path)},
    )
    for name, most in (("ann", 2), ("bob", 1)):
        with Memories(config=config, namespace=name, embedder="none") as memories:
            for number in range(most):
                memories.create(f"fact {number}", force=True)
            with pytest.raises(RequestError, match=f"its quota is {most}"):
                memories.create("one too many", force=True)
            assert len(memories.list().memories) == most
