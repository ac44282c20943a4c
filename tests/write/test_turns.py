"""Turns of conversations: appended once and in order, separate by conversation, found by a search
of the history.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import apsw
import pytest

from memories import InvalidInput, Memories, RequestError, load_config
from memories.embedders.minilm import MiniLM
from memories.errors import Conflict, NotFound
from memories.read.turns import TurnDraft
from memories.stores.records import Collection, Filter, Record, Ref
from memories.write import turns as sessions
from memories.write.turns import MAX_TURN_CHARACTERS, SESSION_TURNS
from tables import failures_of

pytestmark = pytest.mark.usefixtures("home")

START = datetime(2026, 5, 1, 9, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - the error under test

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a store that doesn't exist yet."""
    return f"sqlite:///{tmp_path}/m.db"


@pytest.fixture
def memories(url: str) -> Iterator[Memories]:
    """An empty store."""
    with Memories(url, embedder="fake", clock=lambda: START) as found:
        yield found


def draft_turn(content: str, minutes: float = 0.0, **fields: Any) -> TurnDraft:
    """Return a draft of a turn this many minutes after the start."""
    return TurnDraft(content, created_at=START + minutes * MINUTE, **fields)


def everything(memories: Memories, *namespaces: str) -> list[Any]:
    """Return all turns in the store, of any conversation."""
    where = Filter(Collection.HISTORY, namespaces or ("shared",), state="any")
    return memories._store.scan(where, limit=10_000)


def contents(hits: Any) -> list[str]:
    """Return the contents of hits."""
    return [hit.content for hit in hits]


# --- appending


def test_turns_are_numbered_from_0_without_gaps(memories: Memories) -> None:
    for batch in (["one"], ["two", "three"], [], ["four"]):
        memories.add_turns("talk", batch)
    memories.add_turns("other", ["five"])
    turns = memories.tail_turns("talk")
    assert [(turn.index, turn.content) for turn in turns] == list(
        enumerate(["one", "two", "three", "four"])
    )
    assert [turn.id for turn in turns] == ["talk#0", "talk#1", "talk#2", "talk#3"]
    assert [turn.id for turn in memories.tail_turns("other")] == ["other#0"]


def test_a_turn_is_returned_as_it_was_written(memories: Memories) -> None:
    draft = TurnDraft(
        "Ünïcode 日本 🎉\n\ttwo lines",
        role="assistant",
        speaker="  Zoë Lee ",
        created_at=START.astimezone(timezone(timedelta(hours=9))),
        message_id="m-1",
        tags={"channel": "work"},
    )
    [written] = memories.add_turns("talk", [draft])
    assert [written] == memories.tail_turns("talk")
    assert (written.conversation_id, written.index, written.namespace) == ("talk", 0, "shared")
    assert (written.content, written.role, written.speaker) == (
        "Ünïcode 日本 🎉\n\ttwo lines",
        "assistant",
        "Zoë Lee",
    )
    assert (written.created_at, written.session, written.message_id) == (START, 0, "m-1")
    assert dict(written.tags) == {"channel": "work"}


def test_the_role_defaults_to_user_and_the_time_to_now(memories: Memories) -> None:
    [turn] = memories.add_turns("talk", ["hello"])
    assert (turn.role, turn.speaker, turn.created_at, turn.message_id) == (
        "user",
        None,
        START,
        None,
    )
    assert dict(turn.tags) == {}


def test_equivalent_spellings_name_one_conversation(memories: Memories) -> None:
    memories.add_turns("Caf\u00e9", ["one"])
    memories.add_turns("  Cafe\u0301 ", ["two"])
    assert [turn.content for turn in memories.tail_turns("Café")] == ["one", "two"]


def test_the_tail_is_the_last_turns_with_the_oldest_first(memories: Memories) -> None:
    memories.add_turns("talk", [f"turn {number}" for number in range(30)])
    assert [turn.index for turn in memories.tail_turns("talk", limit=3)] == [27, 28, 29]
    assert [turn.index for turn in memories.tail_turns("talk")] == list(range(20, 30))
    assert [turn.index for turn in memories.tail_turns("talk", limit=1000)] == list(range(30))
    assert memories.tail_turns("nothing") == []


# --- once only


def test_a_message_with_an_id_is_stored_once_in_its_conversation(memories: Memories) -> None:
    first = memories.add_turns(
        "talk",
        [draft_turn("one", message_id="a"), draft_turn("two"), draft_turn("again", message_id="a")],
    )
    assert [turn.index for turn in first] == [0, 1, 0]
    assert [turn.status for turn in first] == ["stored", "stored", "refused"]
    second = memories.add_turns(
        "talk", [draft_turn("once more", message_id="a"), draft_turn("three", message_id="b")]
    )
    assert [turn.status for turn in second] == ["refused", "stored"]
    assert [(turn.index, turn.content) for turn in second] == [(0, "one"), (2, "three")]
    assert [turn.content for turn in memories.tail_turns("talk")] == ["one", "two", "three"]


def test_a_message_id_belongs_to_its_conversation_and_namespace(memories: Memories) -> None:
    for conversation in ("talk", "talks"):
        memories.add_turns(conversation, [draft_turn(f"of {conversation}", message_id="a")])
    with Memories(memories._store, namespace="bob", shared=False, embedder="fake") as bob:
        [turn] = bob.add_turns("talk", [draft_turn("of Bob", message_id="a")])
        assert (turn.index, turn.content, turn.namespace) == (0, "of Bob", "bob")
    assert [memories.tail_turns(name)[0].content for name in ("talk", "talks")] == [
        "of talk",
        "of talks",
    ]


def test_the_same_text_without_a_message_id_is_stored_twice(memories: Memories) -> None:
    memories.add_turns("talk", ["yes", "yes"])
    memories.add_turns("talk", ["yes"])
    assert len(memories.tail_turns("talk")) == 3


def test_a_message_id_does_not_collide_with_a_memory_key(memories: Memories) -> None:
    memories.create("a memory", key="a")
    memories.add_turns("talk", [draft_turn("a turn", message_id="a")])
    assert memories.list().memories[0].content == "a memory"


# --- sessions


PAUSES: list[tuple[list[float], list[int]]] = [
    ([0, 60, 120], [0, 0, 0]),
    ([0, 60.001, 61], [0, 1, 1]),
    ([0, 30, 200, 201, 500], [0, 0, 2, 2, 4]),
    ([0, -60, 0], [0, 0, 0]),
    ([0, -61, -60], [0, 1, 1]),
    ([0, 24 * 60, 0], [0, 1, 2]),
]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_long_pause_begins_a_session(memories: Memories, at_once: bool) -> None:
    found = []
    for number, (minutes, _) in enumerate(PAUSES):
        drafts = [draft_turn("hello", after) for after in minutes]
        for batch in [drafts] if at_once else [[draft] for draft in drafts]:
            memories.add_turns(f"talk {number}", batch)
        found.append((minutes, [turn.session for turn in memories.tail_turns(f"talk {number}")]))
    assert found == PAUSES


def test_a_session_has_a_maximum_number_of_turns(memories: Memories) -> None:
    assert SESSION_TURNS == 64
    for size in (1, 50, 131):
        for start in range(0, 131, size):
            drafts = [
                draft_turn("hello", number) for number in range(start, min(start + size, 131))
            ]
            memories.add_turns(f"talk {size}", drafts)
        turns = memories.tail_turns(f"talk {size}", limit=1000)
        assert [turn.session for turn in turns] == [number // 64 * 64 for number in range(131)], (
            size
        )


def test_sessions_of_two_conversations_are_separate(memories: Memories) -> None:
    memories.add_turns("talk", [draft_turn("hello", 0), draft_turn("hello", 100)])
    memories.add_turns("other", [draft_turn("hello", 101)])
    memories.add_turns("talk", [draft_turn("hello", 102)])
    assert [turn.session for turn in memories.tail_turns("talk")] == [0, 1, 1]
    assert [turn.session for turn in memories.tail_turns("other")] == [0]


# --- refused turns

BAD: list[tuple[Mapping[str, Any], str]] = [
    ({"content": ""}, "content is empty"),
    ({"content": " \n\u200b"}, "content has no visible text"),
    ({"content": "a\0b"}, "content contains a NUL character at position 1"),
    ({"content": "a\ud800"}, "content is not valid Unicode at position 1"),
    (
        {"content": "x" * 4_000_001},
        "content is 4000001 characters; a turn can have at most 4000000; shorten it",
    ),
    ({"content": "x" + " " * 200_000 + "x"}, "consecutive invisible characters"),
    ({"content": 5}, "content is of type int; pass a string"),
    ({"content": None}, "content is of type NoneType; pass a string"),
    ({"role": "robot"}, 'role "robot" is not one of user, assistant, system, tool'),
    ({"role": "User"}, 'role "User" is not one of'),
    ({"role": ""}, 'role "" is not one of'),
    ({"role": None}, "is not one of"),
    ({"role": ["user"]}, "is not one of"),
    ({"speaker": ""}, "speaker"),
    ({"speaker": "a\nb"}, "speaker"),
    ({"speaker": "x" * 257}, "is 257 characters; the limit is 256"),
    ({"speaker": 5}, "pass a string"),
    ({"created_at": NAIVE}, "must be a datetime with a time zone"),
    ({"message_id": ""}, "message id is empty"),
    ({"message_id": "a\x1fb"}, "message id contains a line break or another control character"),
    ({"message_id": "x" * 257}, "message id is 257 characters; the limit is 256"),
    ({"message_id": 5}, "message id is of type int"),
    ({"tags": {"speaker": "Ann"}}, '"speaker"; use the argument speaker instead'),
    ({"tags": {" role ": "user"}}, '"role"; use the argument role instead'),
    ({"tags": {"a b": "c"}}, "leave out spaces"),
    ({"tags": {"a": 1}}, "pass a string"),
    ({"tags": ["a=b"]}, "tags are of type list"),
    ({"tags": None}, "tags are of type NoneType"),
    ({"tags": {f"k{number}": "v" for number in range(101)}}, "101 tags were given"),
]


def test_an_invalid_turn_is_refused_and_nothing_is_stored(memories: Memories) -> None:
    failures = []
    for fields, part in BAD:
        bad = TurnDraft(**{"content": "hello", **fields})
        with pytest.raises(InvalidInput) as alone:
            memories.add_turns("talk", [bad])
        with pytest.raises(InvalidInput) as among:
            memories.add_turns("talk", ["good", bad, "good"])
        messages = (str(alone.value), str(among.value))
        expected = (
            part in messages[0] and messages[1] == f"turn 2: {messages[0]}; nothing was stored"
        )
        if not expected or len(messages[1]) >= 300:
            failures.append((str(fields)[:60], part, *messages))
    assert failures == []
    assert everything(memories) == []


OUT_OF_RANGE: list[Any] = [
    "2026-01-01",
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
    datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
]


def test_a_time_that_cannot_be_stored_is_refused(memories: Memories) -> None:
    for moment in OUT_OF_RANGE:
        with pytest.raises(InvalidInput):
            memories.add_turns("talk", [TurnDraft("hello", created_at=moment)])
    assert everything(memories) == []


BAD_NAMES: list[tuple[Any, str]] = [
    ("", "conversation id is empty"),
    ("  ", "conversation id is empty"),
    ("a\nb", "conversation id contains a line break"),
    ("a\x1fb", "conversation id contains a line break or another control character"),
    ("a\0b", "conversation id contains a NUL character at position 1"),
    ("a\ud800", "conversation id is not valid Unicode at position 1"),
    ("x" * 257, "conversation id is 257 characters; the limit is 256"),
    (5, "conversation id is of type int; pass a string"),
    (None, "conversation id is of type NoneType; pass a string"),
]


def test_an_invalid_conversation_name_is_refused(memories: Memories) -> None:
    calls: dict[str, Callable[[Any], object]] = {
        "add": lambda name: memories.add_turns(name, ["hello"]),
        "tail": memories.tail_turns,
        "search": lambda name: memories.search("hello", scope="history", conversation=name),
    }
    failures = []
    for name, part in BAD_NAMES:
        for verb, call in calls.items():
            if verb == "search" and name is None:
                continue  # an empty name searches all conversations
            with pytest.raises(InvalidInput) as caught:
                call(name)
            if part not in str(caught.value):
                failures.append((verb, name, part, str(caught.value)))
    assert failures == []
    assert everything(memories) == []


@pytest.mark.parametrize("blank", ["", " ", " \t "])
def test_a_blank_title_or_user_of_a_conversation_removes_it(memories: Memories, blank: str) -> None:
    memories.add_turns("talk", ["hello"])
    named = memories.update_conversation("talk", title="Deploys", user="ann")
    assert (named.title, named.user) == ("Deploys", "ann")
    assert memories.update_conversation("talk", title=blank).title is None
    left = memories.update_conversation("talk", user=blank)
    assert (left.title, left.user) == (None, None)


def test_a_single_text_is_refused_as_a_list_of_turns(memories: Memories) -> None:
    with pytest.raises(InvalidInput, match="put a single one in a list"):
        memories.add_turns("talk", "hello")
    assert everything(memories) == []


def test_a_tail_has_a_limit(memories: Memories) -> None:
    limits: list[Any] = [0, -1, 1001, 2.5, "5", True]
    for limit in limits:
        with pytest.raises(InvalidInput, match="limit must be a whole number from 1 to 1000"):
            memories.tail_turns("talk", limit=limit)


def test_the_longest_turn_is_kept(memories: Memories) -> None:
    text = "ü" * MAX_TURN_CHARACTERS
    memories.add_turns("talk", [text])
    assert memories.tail_turns("talk")[0].content == text
    assert len(everything(memories)) == 1  # only a longer one is stored in parts
    memories.add_turns("longer", [f"{text}ü"])
    assert memories.tail_turns("longer")[0].content == f"{text}ü"
    assert len(everything(memories)) > 2


def test_a_long_message_is_stored_whole_or_not_at_all(memories: Memories, tmp_path: Path) -> None:
    memories.add_turns("talk", ["before"])
    db = apsw.Connection(f"{tmp_path}/m.db")
    refuse = (
        "CREATE TRIGGER third BEFORE INSERT ON record WHEN NEW.position = 3 "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    db.execute(refuse)
    long = "ü" * (2 * MAX_TURN_CHARACTERS)
    with pytest.raises(Conflict, match="version 3 of talk"):
        memories.add_turns("talk", ["beside it", long])
    assert [turn.content for turn in memories.tail_turns("talk")] == ["before"]
    assert len(everything(memories)) == 1
    db.execute("DROP TRIGGER third")
    db.close()
    memories.add_turns("talk", ["beside it", long])
    assert [turn.content for turn in memories.tail_turns("talk")] == ["before", "beside it", long]


# --- many writers


def test_eight_threads_append_to_one_conversation(memories: Memories) -> None:
    errors: list[BaseException] = []

    def write(name: int) -> None:
        try:
            for number in range(15):
                batch = [f"{name} {number} {part}" for part in range(1 + number % 2)]
                turns = memories.add_turns("talk", batch)
                assert [turn.content for turn in turns] == batch
                assert turns[-1].index - turns[0].index == len(batch) - 1
        except BaseException as exc:  # noqa: BLE001 - asserted below
            errors.append(exc)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert errors == []
    turns = memories.tail_turns("talk", limit=1000)
    assert [turn.index for turn in turns] == list(range(8 * 22))
    for name in range(8):
        own = [turn.content for turn in turns if turn.content.startswith(f"{name} ")]
        assert own == [
            f"{name} {number} {part}" for number in range(15) for part in range(1 + number % 2)
        ]


WRITER = """
import sys, threading
from memories import Memories
from memories.read.turns import TurnDraft
url, name = sys.argv[1:]
failed = []
with Memories(url, embedder="fake") as memories:
    def write(part):
        try:
            for number in range(8):
                speaker = f"{name}{part}"
                draft = TurnDraft(f"{speaker} {number}", speaker=speaker)
                [turn] = memories.add_turns("talk", [draft])
                assert turn.content == f"{name}{part} {number}"
                memories.add_turns("talk", [TurnDraft("said once", message_id=f"once {number}")])
        except BaseException as exc:
            failed.append(exc)
    threads = [threading.Thread(target=write, args=(part,)) for part in (0, 1)]
    print("ready", flush=True)
    input()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(failed)
"""


def test_two_processes_append_to_one_conversation(
    url: str, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env=clean_environment,
        )
        for name in "ab"
    ]
    assert [process.stdout.readline() for process in running if process.stdout] == ["ready\n"] * 2
    for process in running:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=300)[0] for process in running] == ["[]\n"] * 2
    with Memories(url, embedder="fake") as memories:
        turns = memories.tail_turns("talk", limit=1000)
        assert [turn.index for turn in turns] == list(range(4 * 8 + 8))
        for name in ("a0", "a1", "b0", "b1"):
            own = [turn.content for turn in turns if turn.speaker == name]
            assert own == [f"{name} {number}" for number in range(8)]
        once = [turn.message_id for turn in turns if turn.message_id]
        assert once == [f"once {number}" for number in range(8)]


@pytest.mark.thorough
def test_appending_to_a_long_conversation_costs_no_more(memories: Memories) -> None:
    """Counts the steps of SQLite's virtual machine; the median leaves out the reorganization of its
    index.
    """
    taken: list[int] = []

    def step() -> bool:
        taken[-1] += 1
        return False

    def append(number: int) -> None:
        taken.append(0)
        memories.add_turns(
            "talk", [draft_turn(f"turn {number}", number, message_id=f"m{number}", speaker="Ann")]
        )

    append(0)
    memories._raw_store._file._connection().set_progress_handler(step, 1)  # type: ignore[attr-defined]
    for number in range(1, 160):
        append(number)
    early, late = sorted(taken[10:60])[25], sorted(taken[-50:])[25]
    assert 0 < late < 1.1 * early


# --- namespaces


def test_other_namespaces_cannot_read_turns(url: str) -> None:
    with (
        Memories(url, embedder="fake", namespace="alice") as alice,
        Memories(url, embedder="fake", namespace="bob") as bob,
        Memories(url, embedder="fake") as shared,
    ):
        alice.add_turns("talk", [draft_turn("the launch code is xylophone", speaker="Alice")])
        for other in (bob, shared):
            assert other.tail_turns("talk") == []
            assert other.search("xylophone launch code", scope="history") == ()
            explained = other.explain(
                "what did Alice say of the launch?", scope="all", min_confidence=0
            )
            assert explained.considered == ()
            [turn] = other.add_turns("talk", [draft_turn("of their own")])
            assert (turn.index, turn.namespace) == (0, other.namespace)
        assert [turn.content for turn in alice.tail_turns("talk")] == [
            "the launch code is xylophone"
        ]
        assert contents(alice.search("xylophone", scope="history")) == [
            "the launch code is xylophone"
        ]


def test_shared_turns_can_be_read_by_all_by_default(url: str) -> None:
    with Memories(url, embedder="fake") as shared:
        shared.add_turns("standup", [draft_turn("we ship on friday", speaker="Ann")])
    with Memories(url, embedder="fake", namespace="bob") as bob:
        assert [turn.namespace for turn in bob.tail_turns("standup")] == ["shared"]
        [hit] = bob.search("friday", scope="history")
        assert (hit.turn.namespace, hit.turn.speaker) == ("shared", "Ann")
        with pytest.raises(
            RequestError, match='"standup" is in namespace shared, but you write to bob'
        ):
            bob.add_turns("standup", [draft_turn("friday is too late")])
    with Memories(url, embedder="fake", namespace="bob", shared=False) as alone:
        assert alone.search("friday", scope="history") == ()
        alone.add_turns("standup", [draft_turn("friday is too late")])
    with Memories(url, embedder="fake", namespace="bob") as bob:
        assert [turn.content for turn in bob.tail_turns("standup")] == ["friday is too late"]
        [hit] = bob.search("friday", scope="history", conversation="standup")
        assert hit.turn.namespace == "bob"
        assert len(bob.search("friday", scope="history")) == 2
        bob.add_turns("standup", [draft_turn("or not")])


# --- searching


@pytest.fixture
def filled(memories: Memories) -> Memories:
    """Two conversations and a memory that all mention the harbour."""
    memories.add_turns(
        "work",
        [
            draft_turn("good morning everybody", 0, speaker="Ann Lee"),
            draft_turn(
                "when does the ferry leave the harbour?", 1, speaker="Bob", tags={"topic": "trip"}
            ),
            draft_turn("the ferry leaves at nine", 2, speaker="Ann Lee", tags={"topic": "trip"}),
            draft_turn("I could write a poem about a ferry in a harbour", 3, role="assistant"),
        ],
    )
    memories.add_turns(
        "home", [draft_turn("the harbour is closed today", 3 * 24 * 60, speaker="Carl")]
    )
    memories.create("The harbour master is Dora", created_at=START + DAY)
    return memories


def test_a_scope_selects_memories_turns_or_both(filled: Memories) -> None:
    found = {
        scope: contents(filled.search("harbour", scope=scope))
        for scope in ("memories", "history", "all")
    }
    assert found["memories"] == contents(filled.search("harbour")) == ["The harbour master is Dora"]
    assert set(found["all"]) == set(found["memories"]) | set(found["history"])
    assert "the harbour is closed today" in found["history"]
    for hit in filled.search("harbour", scope="all"):
        if hit.content == "The harbour master is Dora":
            assert (hit.memory.content, hit.conversation_id, hit.speaker) == (
                hit.content,
                None,
                None,
            )
            with pytest.raises(TypeError, match=r"use \.memory"):
                _ = hit.turn
        else:
            assert (hit.id, hit.date) == (hit.turn.id, hit.turn.created_at)
            with pytest.raises(TypeError, match=r"use \.turn"):
                _ = hit.memory


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["work#1", "work#2", "work#3", "home#0"]),
    ({"conversation": "work"}, ["work#1", "work#2", "work#3"]),
    ({"conversation": " home "}, ["home#0"]),
    ({"conversation": "missing"}, []),
    ({"tags": {"speaker": "Bob"}}, ["work#1"]),
    ({"tags": {"role": "assistant"}}, ["work#3"]),
    ({"tags": {"topic": "trip"}}, ["work#1", "work#2"]),
    ({"tags": {"topic": "trip", "speaker": "Ann Lee"}}, ["work#2"]),
    ({"tags": {"speaker": "bob"}}, []),
    ({"since": START + DAY}, ["home#0"]),
    ({"until": START + 2 * MINUTE}, ["work#1", "work#2"]),
    ({"since": START + 2 * MINUTE, "until": START + 3 * MINUTE}, ["work#2", "work#3"]),
    ({"as_of": START + 2 * MINUTE}, ["work#1", "work#2"]),
    ({"as_of": START - MINUTE}, []),
    ({"min_confidence": 1.0}, ["work#1", "work#2", "work#3", "home#0"]),
    ({"limit": 1}, ["work#1"]),
]


def test_a_filter_narrows_a_search_of_the_history(filled: Memories) -> None:
    failures = []
    for filters, expected in FILTERS:
        hits = filled.search("ferry harbour", scope="history", **filters)
        found, scores = (
            {hit.id for hit in hits if "morning" not in hit.content},
            [hit.score for hit in hits],
        )
        if (
            found != set(expected)
            or scores != sorted(scores, reverse=True)
            or not all(0 <= each <= 1 for each in scores)
        ):
            failures.append((filters, expected, found, scores))
    assert failures == []


def test_min_similarity_is_on_the_calibrated_scale(filled: Memories) -> None:
    hits = filled.search("the ferry leaves at nine", scope="history")
    assert hits[0].calibrated is not None
    assert hits[0].calibrated > 0.95
    for least in (0.1, 0.5, 0.9):
        kept = filled.search("the ferry leaves at nine", scope="history", min_similarity=least)
        assert {hit.id for hit in kept} == {
            hit.id for hit in hits if (hit.calibrated or 0.0) >= least
        }
    assert (
        0
        < len(filled.search("the ferry leaves at nine", scope="history", min_similarity=0.9))
        < len(hits)
    )


BAD_FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"scope": "everything"}, 'scope (--in) must be memories, history or all, not "everything"'),
    ({"scope": ""}, "must be memories, history or all"),
    ({"scope": None}, "must be memories, history or all"),
    ({"conversation": "work"}, "set scope (--in) to history"),
    ({"conversation": "work", "scope": "all"}, "set scope (--in) to history"),
    ({"conversation": "", "scope": "history"}, "conversation id is empty"),
    ({"now": "some day"}, "not a date"),
    ({"now": NAIVE}, "has no time zone"),
    ({"now": 5}, "is not a time"),
    ({"scope": ["history"]}, "must be memories, history or all"),
]


def test_an_invalid_search_filter_is_refused(memories: Memories) -> None:
    failures = []
    for filters, part in BAD_FILTERS:
        with pytest.raises(InvalidInput) as caught:
            memories.search("q", **filters)
        if part not in str(caught.value):
            failures.append((filters, part, str(caught.value)))
    assert failures == []


def test_explain_shows_the_scores_of_turns_and_memories(filled: Memories) -> None:
    explained = filled.explain("when did Ann Lee say that the ferry leaves?", scope="all")
    considered = {item.id: item for item in explained.considered}
    assert {
        item.dropped
        for item in explained.considered
        if item.id in {hit.id for hit in explained.hits}
    } == {""}
    turn, aside = considered["work#2"].features, considered["work#3"].features
    [memory] = [item.features for name, item in considered.items() if "#" not in name]
    assert turn.keys() == memory.keys()
    names = {
        "similarity",
        "words",
        "window_words",
        "session_words",
        "session_best",
        "window_similarity",
    }
    assert turn.keys() >= names | {
        "session_similarity",
        "date",
        "named",
        "aside",
        "confidence",
        "freshness",
        "boost",
    }
    assert (turn["named"], turn["aside"], turn["confidence"], turn["freshness"]) == (
        1.0,
        0.0,
        1.0,
        1.0,
    )
    assert (aside["named"], aside["aside"]) == (0.0, 1.0)
    assert [memory[name] for name in ("named", "aside", "session_best")] == [None] * 3
    assert explained.terms


def test_turns_of_a_named_speaker_rank_higher(memories: Memories) -> None:
    memories.add_turns(
        "talk",
        [
            draft_turn("my bicycle is red", 0, speaker="Ann"),
            draft_turn("my bicycle is red", 1, speaker="Bob"),
        ],
    )
    for name in ("Ann", "Bob"):
        assert (
            memories.search(f"what did {name} say about a bicycle?", scope="history")[
                0
            ].turn.speaker
            == name
        )


def test_a_date_in_a_question_is_relative_to_now(memories: Memories) -> None:
    memories.add_turns(
        "talk", [draft_turn("we met at the lake", day * 24 * 60) for day in (0, 30, 60)]
    )
    for day in (0, 30, 60):
        now = START + (day + 1) * DAY
        [first, *_] = memories.search(
            "where did we meet yesterday at the lake?", scope="history", now=now
        )
        assert first.date == START + day * DAY


def test_an_answer_is_found_by_the_question_before_it(url: str) -> None:
    with Memories(url, embedder=MiniLM(), clock=lambda: START) as memories:
        memories.add_turns(
            "talk",
            [draft_turn(f"it rained in week {number}", number * 120) for number in range(20)],
        )
        memories.add_turns(
            "talk",
            [
                draft_turn("what did you buy at the market?", 5_000),
                draft_turn("a red bicycle!", 5_001, speaker="Ann"),
            ],
        )
        found = contents(
            memories.search("what did Ann buy at the market?", scope="history", limit=2)
        )
        assert "a red bicycle!" in found


def test_nonsense_finds_no_turn(url: str) -> None:
    with Memories(url, embedder=MiniLM(), clock=lambda: START) as memories:
        memories.add_turns(
            "talk",
            [
                draft_turn(f"we spoke of the weather on day {number}", number)
                for number in range(30)
            ],
        )
        for query in ("asdf qwer zxcv", "%%% ###", "blorptang frobnicate wug"):
            assert memories.search(query, scope="history") == (), query


def test_turns_are_found_by_words_alone(url: str) -> None:
    with Memories(url, embedder="none", clock=lambda: START) as memories:
        memories.add_turns(
            "talk", [draft_turn("the ferry leaves at nine"), draft_turn("hello", 200)]
        )
        [hit] = memories.search("ferry", scope="history")
        assert (hit.content, hit.similarity, hit.calibrated) == (
            "the ferry leaves at nine",
            None,
            None,
        )
        with pytest.raises(InvalidInput, match="needs an embedder"):
            memories.search("ferry", scope="history", min_similarity=0.5)


def test_searching_a_store_without_turns_finds_nothing(memories: Memories) -> None:
    assert memories.search("anything", scope="history") == ()
    assert memories.search("anything", scope="all") == ()
    assert memories.explain("anything", scope="history").considered == ()
    memories.create("something")
    assert memories.search("anything", scope="history") == ()


def test_reading_turns_counts_nothing_and_changes_nothing(url: str) -> None:
    config = load_config({"namespace": "shared"}, environment={"REINFORCE_ON_RETRIEVAL": "true"})
    with Memories(url, embedder="fake", config=config) as memories:
        memories.add_turns("talk", ["apples are red"])
        made = memories.create("apples are green").memory
        assert made is not None
        before = everything(memories)
        for _ in range(3):
            memories.search("apples", scope="history")
            memories.search("apples", scope="all")
            memories.tail_turns("talk")
        assert everything(memories) == before
        assert [record.accesses for record in before] == [0]
        memories.status()  # counts waiting reads
        assert memories.get(made.id).access_count == 3


def test_turns_are_not_memories(filled: Memories) -> None:
    """No method for memories shows or counts them."""
    assert filled.status().memory_count == 1
    assert filled.status().without_vector_count == 0
    assert contents(filled.list().memories) == ["The harbour master is Dora"]
    assert filled.tags() == {}
    assert filled.tags("speaker") == {}
    with pytest.raises(InvalidInput):
        filled.get("work#1")
    assert filled.create("the harbour is closed today").stored


def test_turns_are_still_there_after_reopening(url: str) -> None:
    with Memories(url, embedder="fake", clock=lambda: START) as memories:
        written = memories.add_turns(
            "talk", [draft_turn("hello", speaker="Ann", message_id="a", tags={"a": "b"})]
        )
    with Memories(url, embedder="fake") as memories:
        assert memories.tail_turns("talk") == written
        assert json.dumps(contents(memories.search("hello", scope="history"))) == '["hello"]'


# --- pages and listings


def test_a_conversation_can_be_read_in_pages(memories: Memories) -> None:
    memories.add_turns("talk", [f"turn {number}" for number in range(25)])
    memories.add_turns("talk-2", ["another"])
    pages = [memories.turns("talk", start=start, limit=10) for start in (0, 10, 20, 30)]
    assert [[turn.index for turn in page] for page in pages] == [
        list(range(10)), list(range(10, 20)), list(range(20, 25)), [],
    ]  # fmt: skip
    assert memories.turns("nobody") == []


def test_a_page_begins_at_an_index(memories: Memories) -> None:
    starts: list[Any] = [-1, 1.5, True, "1", None]
    for start in starts:
        with pytest.raises(InvalidInput, match="start must be a whole number, 0 or more"):
            memories.turns("talk", start=start)


@pytest.mark.parametrize("index", [-1, 1.5, True, "1"])
def test_the_index_of_a_turn_to_forget_must_be_a_whole_number(
    memories: Memories, index: Any
) -> None:
    memories.add_turns("talk", ["a turn", "another"])
    with pytest.raises(InvalidInput, match="index must be a whole number, 0 or more"):
        memories.forget_turns("talk", index=index)
    assert len(memories.turns("talk")) == 2


def test_conversations_are_listed_newest_first_with_counts_and_dates(
    url: str, memories: Memories
) -> None:
    memories.add_turns("old", [draft_turn("a"), draft_turn("b", 5)])
    memories.add_turns("new", [draft_turn("c", 3), draft_turn("d", 60), draft_turn("e", 61)])
    with Memories(url, namespace="ann", embedder="fake") as ann:
        ann.add_turns("mine", [draft_turn("f", 30)])
        seen = [(each.id, each.namespace, each.turn_count) for each in ann.conversations()]
    assert seen == [("new", "shared", 3), ("mine", "ann", 1), ("old", "shared", 2)]
    [newest, oldest] = memories.conversations()
    assert (newest.first_at, newest.last_at) == (START + 3 * MINUTE, START + 61 * MINUTE)
    assert oldest.id == "old"
    assert [each.id for each in memories.conversations(limit=1)] == ["new"]


def test_as_of_before_a_conversation_says_when_it_began(url: str, memories: Memories) -> None:
    memories.add_turns("talk", [draft_turn("a", 5)])
    with Memories(url, namespace="ann", embedder="fake") as ann:
        with pytest.raises(NotFound, match="it did not exist until"):
            ann.conversation("talk", as_of=START)
        assert ann.conversation("talk", as_of=START + 5 * MINUTE).turn_count == 1


def test_your_own_conversation_hides_a_shared_one_with_the_same_name(
    url: str, memories: Memories
) -> None:
    with Memories(url, namespace="ann", embedder="fake") as ann:
        ann.add_turns("talk", ["own 0"])
        memories.add_turns("talk", ["shared 0", "shared 1", "shared 2"])
        assert [turn.content for turn in ann.turns("talk")] == ["own 0"]
        assert [turn.content for turn in ann.tail_turns("talk")] == ["own 0"]
        assert ann.turns("talk", start=1) == []
        ann.add_turns("talk", ["own 1"])
        assert [turn.content for turn in ann.turns("talk")] == ["own 0", "own 1"]
        assert [turn.content for turn in memories.turns("talk", start=1)] == [
            "shared 1",
            "shared 2",
        ]


def test_a_session_ends_with_a_pause_or_when_it_is_full() -> None:
    last = Record(Ref(Collection.HISTORY, "bob", "talk", 9), "hello", START, session=5)
    pause = sessions.SESSION_PAUSE
    rows = [
        (10, START, None, 10),
        (10, START, last._replace(session=None), 10),
        (10, START, last, 5),
        (10, START + pause, last, 5),
        (10, START - pause, last, 5),
        (10, START + pause + MINUTE, last, 10),
        (10, START - pause - MINUTE, last, 10),
        (5 + SESSION_TURNS - 1, START, last, 5),
        (5 + SESSION_TURNS, START, last, 5 + SESSION_TURNS),
    ]
    assert failures_of(rows, sessions._session_of) == []


def test_a_page_of_one_turn_contains_all_parts_of_a_long_message(memories: Memories) -> None:
    long = " ".join(
        f"sentence {number} of the message." for number in range(4 * MAX_TURN_CHARACTERS // 30)
    )
    memories.add_turns("talk", [draft_turn("before"), draft_turn(long, 1), draft_turn("after", 2)])
    [turn] = memories.turns("talk", start=1, limit=1)
    assert turn.parts > 2
    assert turn.content == long
