"""Queued turns are shown after the stored turns, with the same filters."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memories import Memories, TurnDraft, load_config
from memories.read.conversations import ConversationPage
from memories.write.turn_queue import RetryQueue, files_of, with_waiting

START = datetime(2026, 5, 1, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """A conversation with one stored and two queued turns."""
    config = load_config({"store": f"sqlite:///{tmp_path}/m.db"}, environment={})
    queue = RetryQueue.of_turns(*files_of(config, "shared"))
    with Memories(config=config, embedder="none", clock=lambda: START + 9 * MINUTE) as opened:
        opened.add_turns(
            "talk", [TurnDraft("stored", role="user", speaker="Ann", created_at=START)]
        )
        for minutes, text, role, speaker in (
            (1, "asks", "user", "Ann"),
            (2, "answers", "assistant", "Bot"),
        ):
            said_at = (START + minutes * MINUTE).isoformat()
            queue.add(
                {
                    "conversation_id": "talk",
                    "role": role,
                    "speaker": speaker,
                    "text": text,
                    "ts": said_at,
                }
            )
        yield opened


@pytest.mark.parametrize(
    ("filters", "texts"),
    [
        ({}, ["stored", "asks", "answers"]),
        ({"role": "user"}, ["stored", "asks"]),
        ({"role": "assistant"}, ["answers"]),
        ({"speaker": "Bot"}, ["answers"]),
        ({"role": "assistant", "speaker": "Ann"}, []),
        ({"since": START + MINUTE}, ["asks", "answers"]),
        ({"since": START + 2 * MINUTE}, ["answers"]),
        ({"until": START + MINUTE}, ["stored", "asks"]),
    ],
)
def test_queued_turns_are_filtered_like_stored_ones(
    memories: Memories, filters: dict[str, Any], texts: list[str]
) -> None:
    found = memories.turns("talk", **filters)
    assert [turn.content for turn in found] == texts
    index = {"stored": 0, "asks": 1, "answers": 2}
    assert [turn.index for turn in found] == [index[text] for text in texts]
    assert [turn.waiting for turn in found] == [text != "stored" for text in texts]


def test_queued_turns_are_counted_only_in_their_conversation(memories: Memories) -> None:
    (own,) = memories.conversations()
    other = replace(own, namespace="bob", waiting_count=0)
    stored = ConversationPage((other, replace(own, waiting_count=0)), "more")
    waiting = [*memories.waiting_turns(), *memories.waiting_turns()]
    waiting[-1] = replace(waiting[-1], conversation_id="news")
    for first, new in ((True, [("news", "shared", 1)]), (False, [])):
        page = with_waiting(stored, waiting, first=first)
        counts = [(each.id, each.namespace, each.waiting_count) for each in page.conversations]
        assert counts == [*new, ("talk", "bob", 0), ("talk", "shared", 3)]
        assert page.next_cursor == "more"


def test_a_dry_run_counts_queued_turns_and_keeps_them(memories: Memories) -> None:
    counts = [memories.forget_where("conversation = talk", scope="all", dry_run=True).counts]
    assert len(memories.turns("talk")) == 3
    counts.append(memories.forget_where("conversation = talk", scope="all").counts)
    assert counts == [{"forget": 3}, {"forget": 3}]
    assert list(memories.conversations()) == []
