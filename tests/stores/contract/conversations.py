"""Conversations through the service: what a listing shows, what they are called, and what is once in them."""

from datetime import timedelta
from pathlib import Path

import pytest

from contract.log import Clock
from contract.samples import SPACE, T0, OpenStore
from memories import Memories
from memories.embedders.fake import FakeEmbedder
from memories.errors import InvalidInput, NotFound, RequestError
from memories.stores import Store
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.migrate import migrate
from memories.turns import TurnDraft

HOUR = timedelta(hours=1)


def of(store: Store, namespace: str = "ann", *, shared: bool = True) -> Memories:
    return Memories(store, namespace=namespace, shared=shared, embedder=FakeEmbedder(), clock=Clock())


def talks(memories: Memories, count: int) -> list[str]:
    """Hold some conversations, an hour after each other; return their names, the newest first."""
    names = [f"talk {number}" for number in range(count)]
    for number, name in enumerate(names):
        drafts = [
            TurnDraft("when do we ship?", speaker="Ann", created_at=T0 + number * HOUR),
            TurnDraft("on Friday", role="assistant", speaker=f"Bot {number % 2}", created_at=T0 + number * HOUR),
        ]
        memories.add_turns(name, drafts)
    return names[::-1]


class Conversations:
    """The part of the contract that is about conversations."""

    def test_pages_go_through_all_conversations_newest_first(self, store: Store) -> None:
        memories = of(store)
        names = talks(memories, 7)
        seen, cursor = [], None
        while True:
            found = memories.list_conversations(limit=3, cursor=cursor)
            seen += [each.id for each in found.conversations]
            cursor = found.next_cursor
            if cursor is None:
                break
        assert seen == names
        assert len(memories.conversations(limit=3, cursor=None)) == 3
        with pytest.raises(InvalidInput, match="not one that a listing returned"):
            memories.list_conversations(cursor="7")

    def test_a_conversation_has_a_title_a_user_and_tags(self, store: Store) -> None:
        memories = of(store)
        talks(memories, 3)
        changed = memories.update_conversation("talk 1", title=" Release of May ", user="ann", tags={"project": "shop"})
        assert (changed.title, changed.user, dict(changed.tags)) == ("Release of May", "ann", {"project": "shop"})
        assert memories.conversation("talk 1") == changed
        assert (changed.turn_count, changed.namespace) == (2, "ann")
        other = memories.update_conversation("talk 1", tags={"team": "blue"}, user="")
        assert (other.title, other.user, dict(other.tags)) == (
            "Release of May",
            None,
            {"project": "shop", "team": "blue"},
        )
        assert memories.update_conversation("talk 1", remove_tags=["team"]).tags == {"project": "shop"}
        assert [each.id for each in memories.conversations(title="release")] == ["talk 1"]
        assert [each.id for each in memories.conversations(tags={"project": "shop"})] == ["talk 1"]
        assert memories.conversations(user="ann") == []
        assert [each.title for each in memories.conversations()] == [None, "Release of May", None]

    def test_what_a_conversation_is_called_is_no_part_of_its_turns(self, store: Store) -> None:
        memories = of(store)
        talks(memories, 1)
        before = memories.turns("talk 0")
        memories.update_conversation("talk 0", title="Quokka", user="numbat", tags={"wombat": "yes"})
        assert memories.turns("talk 0") == before
        assert memories.search("quokka numbat wombat", scope="history", tags={"wombat": "yes"}) == ()
        assert memories.status().turn_count == 2

    def test_a_title_stays_when_the_first_turns_are_forgotten(self, store: Store) -> None:
        memories = of(store)
        talks(memories, 1)
        memories.add_turns("talk 0", ["bye", "bye bye"])
        memories.update_conversation("talk 0", title="Release", user="ann", tags={"k": "v"})
        memories.forget_turns("talk 0", index=0)
        assert memories.conversation("talk 0").title == "Release"
        memories.forget_where("content = 'on Friday' or content = bye", scope="history")
        kept = memories.conversation("talk 0")
        assert (kept.turn_count, kept.title, kept.user, dict(kept.tags)) == (1, "Release", "ann", {"k": "v"})
        memories.forget_turns("talk 0")
        memories.add_turns("talk 0", ["hello again"])
        assert memories.conversation("talk 0").title is None

    def test_conversations_are_filtered_by_who_spoke_and_when(self, store: Store) -> None:
        memories = of(store)
        names = talks(memories, 4)

        def ids(**filters: object) -> list[str]:
            return [each.id for each in memories.conversations(**filters)]  # type: ignore[arg-type]

        assert ids(speaker="Ann") == names
        assert ids(speaker="Bot 1") == ["talk 3", "talk 1"]
        assert ids(role="assistant", speaker="Bot 0") == ["talk 2", "talk 0"]
        assert ids(role="user", speaker="Bot 0") == []
        assert ids(since=T0 + HOUR, until=T0 + 2 * HOUR) == ["talk 2", "talk 1"]
        with pytest.raises(InvalidInput, match='role "robot" is not one of'):
            ids(role="robot")
        with pytest.raises(InvalidInput, match='there is no filter "colour" of conversations'):
            ids(colour="red")

    def test_a_conversation_that_is_only_read_keeps_its_title(self, store: Store) -> None:
        shared, ann = of(store, "shared"), of(store)
        shared.add_turns("team", ["hello"])
        shared.update_conversation("team", title="Team")
        assert ann.conversation("team").title == "Team"
        with pytest.raises(RequestError, match='Conversation "team" is in namespace shared and this writes to ann'):
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
            {}, {"title": "a\nb"}, {"title": 5}, {"user": "x" * 257}, {"tags": {"a b": "c"}}, {"remove_tags": ["a b"]},
            {"tags": {f"k{number}": "v" for number in range(101)}},
        ],
        ids=lambda given: str(given)[:30],
    )  # fmt: skip
    def test_what_a_conversation_can_not_be_called_is_refused(self, store: Store, given: dict[str, object]) -> None:
        memories = of(store)
        memories.add_turns("talk", ["hello"])
        with pytest.raises(InvalidInput):
            memories.update_conversation("talk", **given)  # type: ignore[arg-type]
        assert memories.conversation("talk").title is None

    def test_a_title_moves_with_its_conversation(self, open_store: OpenStore, tmp_path: Path) -> None:
        store, copy = open_store(SPACE), SQLiteStore(tmp_path / "copy.db", SPACE)
        memories = of(store)
        talks(memories, 2)
        memories.update_conversation("talk 0", title="Release", user="ann", tags={"k": "v"})
        migrate(store, copy, FakeEmbedder(), progress=lambda *_: None)
        memories.update_conversation("talk 0", title="Release of June")
        migrate(store, copy, FakeEmbedder(), progress=lambda *_: None)
        moved = of(copy)
        assert moved.conversations() == memories.conversations()
        assert moved.conversation("talk 0").title == "Release of June"
        copy.close()
