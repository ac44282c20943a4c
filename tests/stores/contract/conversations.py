"""Conversations through `Memories`: listings, titles, and messages that are sent twice."""

import itertools
import random
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from clock import Clock
from contract.samples import HISTORY, SPACE, T0, OpenStore, everything, pool
from memories import Memories
from memories.embedders.fake import FakeEmbedder
from memories.errors import InvalidInput, NotFound, RequestError
from memories.read.turns import TurnDraft
from memories.stores import Store
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.migrate import migrate
from memories.write.turns import split

HOUR = timedelta(hours=1)


def long_text(size: int) -> str:
    """Return a text of this many characters with different sentences."""
    sentences = (f"The ferry leaves harbour {number} at nine. " for number in itertools.count())
    text = "".join(itertools.islice(sentences, size // 30 + 1))
    return f"{text[: size - 1]}x"


def of(store: Store, namespace: str = "ann", *, shared: bool = True) -> Memories:
    """Return memories over a store."""
    return Memories(
        store, namespace=namespace, shared=shared, embedder=FakeEmbedder(), clock=Clock()
    )


def store_conversations(memories: Memories, count: int) -> list[str]:
    """Store conversations, an hour apart; return their names, the newest first."""
    names = [f"talk {number}" for number in range(count)]
    for number, name in enumerate(names):
        drafts = [
            TurnDraft("when do we ship?", speaker="Ann", created_at=T0 + number * HOUR),
            TurnDraft(
                "on Friday",
                role="assistant",
                speaker=f"Bot {number % 2}",
                created_at=T0 + number * HOUR,
            ),
        ]
        memories.add_turns(name, drafts)
    return names[::-1]


class Conversations:
    """The part of the contract that is about conversations."""

    def test_pages_list_all_conversations_newest_first(self, store: Store) -> None:
        memories = of(store)
        names = store_conversations(memories, 7)
        seen, cursor = [], None
        while True:
            page = memories.list_conversations(limit=3, cursor=cursor)
            seen += [entry.id for entry in page.conversations]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == names
        assert len(memories.conversations(limit=3, cursor=None)) == 3
        with pytest.raises(InvalidInput, match="was not returned by an earlier list"):
            memories.list_conversations(cursor="7")

    def test_a_conversation_has_a_title_a_user_and_tags(self, store: Store) -> None:
        memories = of(store)
        store_conversations(memories, 3)
        changed = memories.update_conversation(
            "talk 1", title=" Release of May ", user="ann", tags={"project": "shop"}
        )
        assert (changed.title, changed.user, dict(changed.tags)) == (
            "Release of May",
            "ann",
            {"project": "shop"},
        )
        assert memories.conversation("talk 1") == changed
        assert (changed.turn_count, changed.namespace) == (2, "ann")
        other = memories.update_conversation("talk 1", tags={"team": "blue"}, user="")
        assert (other.title, other.user, dict(other.tags)) == (
            "Release of May",
            None,
            {"project": "shop", "team": "blue"},
        )
        assert memories.update_conversation("talk 1", remove_tags=["team"]).tags == {
            "project": "shop"
        }
        assert [entry.id for entry in memories.conversations(title="RELEASE of")] == ["talk 1"]
        assert [entry.id for entry in memories.conversations(tags={"project": "shop"})] == [
            "talk 1"
        ]
        assert memories.conversations(user="ann") == []
        assert [entry.title for entry in memories.conversations()] == [None, "Release of May", None]

    def test_the_title_of_a_conversation_is_not_part_of_its_turns(self, store: Store) -> None:
        memories = of(store)
        store_conversations(memories, 1)
        before = memories.turns("talk 0")
        memories.update_conversation(
            "talk 0", title="Quokka", user="numbat", tags={"wombat": "yes"}
        )
        assert memories.turns("talk 0") == before
        assert (
            memories.search("quokka numbat wombat", scope="history", tags={"wombat": "yes"}) == ()
        )
        assert memories.status().turn_count == 2

    def test_a_title_stays_when_the_first_turns_are_forgotten(self, store: Store) -> None:
        memories = of(store)
        store_conversations(memories, 1)
        memories.add_turns("talk 0", ["bye", "bye bye"])
        memories.update_conversation("talk 0", title="Release", user="ann", tags={"k": "v"})
        memories.forget_turns("talk 0", index=0)
        assert memories.conversation("talk 0").title == "Release"
        memories.forget_where("content = 'on Friday' or content = bye", scope="history")
        kept = memories.conversation("talk 0")
        assert (kept.turn_count, kept.title, kept.user, dict(kept.tags)) == (
            1,
            "Release",
            "ann",
            {"k": "v"},
        )
        memories.forget_turns("talk 0")
        memories.add_turns("talk 0", ["hello again"])
        assert memories.conversation("talk 0").title is None

    def test_conversations_are_filtered_by_speaker_and_time(self, store: Store) -> None:
        memories = of(store)
        names = store_conversations(memories, 4)

        def ids(**filters: object) -> list[str]:
            return [entry.id for entry in memories.conversations(**filters)]  # type: ignore[arg-type]

        assert ids(speaker="Ann") == names
        assert ids(speaker="Bot 1") == ["talk 3", "talk 1"]
        assert ids(role="assistant", speaker="Bot 0") == ["talk 2", "talk 0"]
        assert ids(role="user", speaker="Bot 0") == []
        assert ids(since=T0 + HOUR, until=T0 + 2 * HOUR) == ["talk 2", "talk 1"]
        with pytest.raises(InvalidInput, match='role "robot" is not one of'):
            ids(role="robot")
        with pytest.raises(InvalidInput, match='there is no filter "colour" for conversations'):
            ids(colour="red")

    def test_the_title_of_a_shared_conversation_can_be_changed_only_in_its_namespace(
        self, store: Store
    ) -> None:
        shared, ann = of(store, "shared"), of(store)
        shared.add_turns("team", ["hello"])
        shared.update_conversation("team", title="Team")
        assert ann.conversation("team").title == "Team"
        with pytest.raises(
            RequestError, match='Conversation "team" is in namespace shared, but you write to ann'
        ):
            ann.update_conversation("team", title="Mine")
        for alone in (of(store, shared=False), of(store, "bob", shared=False)):
            with pytest.raises(NotFound):
                alone.update_conversation("team", title="Mine")
            with pytest.raises(NotFound):
                alone.conversation("team")
        assert shared.conversation("team").title == "Team"

    @pytest.mark.parametrize(
        "given",
        [
            {}, {"title": "a\nb"}, {"title": 5}, {"user": "x" * 257}, {"tags": {"a b": "c"}},
            {"remove_tags": ["a b"]},
            {"tags": {f"k{number}": "v" for number in range(101)}},
        ],
        ids=lambda given: str(given)[:30],
    )  # fmt: skip
    def test_invalid_titles_are_refused(self, store: Store, given: dict[str, object]) -> None:
        memories = of(store)
        memories.add_turns("talk", ["hello"])
        with pytest.raises(InvalidInput):
            memories.update_conversation("talk", **given)  # type: ignore[arg-type]
        assert memories.conversation("talk").title is None

    def test_a_title_moves_with_its_conversation(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        store, copy = open_store(SPACE), SQLiteStore(tmp_path / "copy.db", SPACE)
        memories = of(store)
        store_conversations(memories, 2)
        memories.update_conversation("talk 0", title="Release", user="ann", tags={"k": "v"})
        migrate(store, copy, FakeEmbedder(), progress=lambda *_: None)
        memories.update_conversation("talk 0", title="Release of June")
        migrate(store, copy, FakeEmbedder(), progress=lambda *_: None)
        moved = of(copy)
        assert moved.conversations() == memories.conversations()
        assert moved.conversation("talk 0").title == "Release of June"
        copy.close()

    # --- messages are stored once, and each outcome is reported

    def test_the_outcome_of_each_message_is_reported(self, store: Store) -> None:
        memories = of(store)
        drafts = [
            TurnDraft("one", message_id="a"),
            TurnDraft("two"),
            TurnDraft("one", message_id="a"),
        ]
        assert [turn.status for turn in memories.add_turns("talk", drafts)] == [
            "stored",
            "stored",
            "known",
        ]
        other = [
            TurnDraft("ONE", message_id="a"),
            TurnDraft("three", message_id="b"),
            TurnDraft("one", message_id="a"),
        ]
        refused, stored, known = memories.add_turns("talk", other)
        assert (refused.status, refused.id, refused.content) == ("refused", "talk#0", "one")
        assert refused.reason is not None
        assert 'message id "a" belongs to talk#0, which has different content' in refused.reason
        assert (stored.status, stored.reason, known.status, known.reason) == (
            "stored",
            None,
            "known",
            None,
        )
        assert [turn.content for turn in memories.turns("talk")] == ["one", "two", "three"]
        assert {turn.status for turn in memories.turns("talk")} == {None}

    def test_a_message_stored_with_a_secret_is_recognized_again(self, store: Store) -> None:
        memories, text = of(store), "my password is hunter2-Qx81kkP9"
        for redact in (True, True, False):
            [turn] = memories.add_turns("talk", [TurnDraft(text, message_id="a")], redact=redact)
            assert turn.status == ("refused" if not redact else turn.status)
        memories.add_turns("talk", [TurnDraft(text, message_id="b")], redact=False)
        [again] = memories.add_turns("talk", [TurnDraft(text, message_id="b")])
        assert (again.status, again.content) == ("known", text)

    def test_a_conversation_is_in_one_namespace(self, store: Store) -> None:
        shared, ann, bob = of(store, "shared"), of(store), of(store, "bob")
        shared.add_turns("team", ["hello"])
        with pytest.raises(
            RequestError, match='Conversation "team" is in namespace shared, but you write to ann'
        ):
            ann.add_turns("team", ["hello from Ann"])
        assert [turn.content for turn in ann.turns("team")] == ["hello"]
        ann.add_turns("own", ["of Ann"])
        bob.add_turns("own", ["of Bob"])  # nothing reveals that ann has one
        shared.add_turns("own", ["of all"])
        ann.add_turns("own", ["more of Ann"])
        assert [turn.content for turn in ann.tail_turns("own")] == ["of Ann", "more of Ann"]
        assert [hit.content for hit in bob.search("of", scope="history", conversation="own")] == [
            "of Bob"
        ]
        assert [turn.content for turn in of(store, "eve").turns("own")] == ["of all"]

    def test_a_turn_keeps_its_time_zone(self, store: Store) -> None:
        memories = of(store)
        given = [
            "2025-12-25T23:30:00+09:00",
            "2025-12-25T10:00:00-03:30",
            "2025-12-25T12:00:00+00:00",
        ]
        memories.add_turns(
            "talk", [TurnDraft(text, created_at=datetime.fromisoformat(text)) for text in given]
        )
        assert [turn.created_at.isoformat() for turn in memories.turns("talk")] == given
        hits = memories.search("2025", scope="history")
        assert {hit.date.isoformat() for hit in hits} == set(given)
        conversation = memories.conversation("talk")
        assert (conversation.first_at.isoformat(), conversation.last_at.isoformat()) == (
            given[0],
            given[2],
        )
        since = datetime.fromisoformat("2025-12-25T13:45:00+01:00")
        assert [turn.index for turn in memories.turns("talk", since=since)] == [0, 1]
        assert [turn.index for turn in memories.turns("talk", until=since)] == [2]

    def test_turns_are_filtered_by_speaker_and_time(self, store: Store) -> None:
        memories = of(store)
        drafts = [
            TurnDraft(f"ferry {number}", speaker=("Ann", "Bob")[number % 2],
                      created_at=T0 + number * HOUR,
                      role=("user", "user", "assistant")[number % 3])
            for number in range(12)
        ]  # fmt: skip
        memories.add_turns("talk", drafts)
        assert [turn.index for turn in memories.tail_turns("talk", speaker="Ann", limit=3)] == [
            6,
            8,
            10,
        ]
        assert [
            turn.index for turn in memories.turns("talk", start=3, role="assistant", limit=2)
        ] == [5, 8]
        assert [
            turn.index for turn in memories.turns("talk", since=T0 + 9 * HOUR, speaker="Bob")
        ] == [9, 11]
        hits = memories.search("ferry", scope="history", role="assistant", speaker="Bob", limit=20)
        assert {hit.turn.index for hit in hits} == {5, 11}
        for wrong in ({"role": "robot"}, {"speaker": ""}, {"colour": "red"}, {"since": "some day"}):
            with pytest.raises(InvalidInput):
                memories.turns("talk", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="speaker works only in a search of the history"):
            memories.search("ferry", speaker="Ann")

    # --- long messages

    def test_a_long_message_is_one_turn(self, store: Store) -> None:
        memories, text = of(store), long_text(148_469)
        memories.add_turns(
            "talk",
            ["before", TurnDraft(text, speaker="Ann", message_id="a", tags={"k": "v"}), "after"],
        )
        before, message, after = memories.turns("talk")
        assert (message.content, message.index, message.message_id) == (text, 1, "a")
        assert (message.speaker, dict(message.tags), message.part) == ("Ann", {"k": "v"}, None)
        assert (before.id, message.id, after.index) == ("talk#0", "talk#1", 1 + message.parts)
        assert (before.part, before.parts) == (None, 1)
        assert memories.tail_turns("talk", limit=2) == [message, after]
        assert memories.tail_turns("talk", limit=1) == [after]
        assert memories.turns("talk", start=1, limit=1) == [message]
        assert memories.turns("talk", start=2, limit=1) == [after]
        assert (memories.conversation("talk").turn_count, memories.status().turn_count) == (3, 3)
        assert [
            turn.status for turn in memories.add_turns("talk", [TurnDraft(text, message_id="a")])
        ] == ["known"]
        assert [
            turn.status
            for turn in memories.add_turns("talk", [TurnDraft(text[1:], message_id="a")])
        ] == ["refused"]

    def test_a_long_message_is_found_once_by_any_part(self, store: Store) -> None:
        memories = of(store)
        text = long_text(51_000) + " The quokka eats a purple plum. " + long_text(51_000)
        memories.add_turns("talk", ["before", TurnDraft(text, message_id="a"), "a plum is a fruit"])
        hits = memories.search("quokka purple plum", scope="history")
        assert sorted(hit.id for hit in hits if "plum" in hit.content)[0] == "talk#1"
        result = hits[0].turn
        assert (result.id, result.index, result.message_id) == ("talk#1", 1, "a")
        assert "The quokka eats a purple plum." in result.content
        assert len(result.content) <= 5_000
        parts = split(text)
        assert (result.part, result.parts) == (parts.index(result.content) + 1, len(parts))
        assert 1 < result.part < result.parts
        assert len({hit.id for hit in hits}) == len(hits)
        many = memories.search("ferry", scope="history", limit=50)
        assert [hit.id for hit in many].count("talk#1") == 1
        considered = memories.explain("ferry", scope="history", limit=50).considered
        assert len({item.id for item in considered if not item.dropped}) == len(many)

    def test_a_long_message_does_not_crowd_out_others(self, store: Store) -> None:
        memories = of(store)
        memories.add_turns("long", ["the ferry leaves. " * 10_000])
        for number in range(12):
            memories.add_turns(f"talk {number}", [f"the ferry leaves at {number}"])
        hits = memories.search("when does the ferry leave?", scope="history", limit=13)
        assert {hit.conversation_id for hit in hits} == {
            "long",
            *(f"talk {number}" for number in range(12)),
        }

    def test_a_long_message_is_forgotten_as_a_whole(self, store: Store) -> None:
        memories, text = of(store), long_text(101_000)
        memories.add_turns("talk", [text, text, "after"])
        second = memories.turns("talk", start=1)[0].index
        assert memories.forget_turns("talk", index=second, dry_run=True).versions == 1
        assert (
            memories.forget_turns("talk", index=second + 3).versions == 1
        )  # no part can be erased by itself
        assert [len(turn.content) for turn in memories.turns("talk")] == [len(text), 5]
        assert memories.forget_where(
            "content ~ 'harbour 7'", scope="history", dry_run=True
        ).counts == {"forget": 1}
        assert memories.forget_where("content ~ 'harbour 7'", scope="history").counts == {
            "forget": 1
        }
        assert [turn.content for turn in memories.turns("talk")] == ["after"]
        memories.add_turns("talk", [TurnDraft(text, message_id="a")])
        assert memories.forget_where("key = a", scope="history").counts == {"forget": 1}
        memories.add_turns("talk", [text])
        assert memories.forget_turns("talk").versions == 2
        assert everything(store, pool(collection=HISTORY)) == []

    def test_a_long_message_is_moved_and_exported_whole(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        store, copy = open_store(SPACE), SQLiteStore(tmp_path / "copy.db", SPACE)
        memories, text = of(store), long_text(101_000)
        memories.add_turns("talk", ["before", TurnDraft(text, message_id="a"), "after"])
        migrate(store, copy, FakeEmbedder(), progress=lambda *_: None)
        assert of(copy).turns("talk") == memories.turns("talk")
        lines: list[str] = []
        export(store, lines.append, namespaces=None, progress=lambda *_: None)
        copy.close()
        again = SQLiteStore(tmp_path / "again.db", SPACE)
        done = import_(again, (line.encode() for line in lines), FakeEmbedder(), namespaces=None)
        assert done.conflict_count == 0
        assert of(again).turns("talk") == memories.turns("talk")
        assert of(again).search("harbour 77", scope="history")[0].id == "talk#1"
        again.close()

    @pytest.mark.parametrize(
        "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))]
    )
    def test_pages_and_tails_are_right_with_multi_part_messages(
        self, store: Store, seed: int
    ) -> None:
        memories, chance = of(store), random.Random(seed)
        texts = [long_text(100_500 if chance.random() < 0.4 else 50) for _ in range(9)]
        memories.add_turns("talk", texts)
        everything_said = memories.turns("talk", limit=100)
        assert [turn.content for turn in everything_said] == texts
        for limit in (1, 2, 4, 9):
            assert memories.tail_turns("talk", limit=limit) == everything_said[-limit:]
            start, seen = 0, []
            while page := memories.turns("talk", start=start, limit=limit):
                seen += page
                start = page[-1].index + 1
            assert seen == everything_said
