"""A person's decision about waiting memories applies to the version that they saw, or not at
all.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clock import MovingClock
from memories import Draft, Memories
from memories.answers.fields import plain
from memories.answers.shapes import accept_result
from memories.embedders.fake import FakeEmbedder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

pytestmark = pytest.mark.usefixtures("home")

START = datetime(2026, 5, 1, 9, tzinfo=UTC)


class Interrupted(FakeEmbedder):
    """An embedder that runs another writer's change during its first call."""

    meanwhile: Callable[[], object] | None = None

    def embed(self, text: str) -> "NDArray[np.float32]":
        """Run the change once; return the vector of a text."""
        doing, self.meanwhile = self.meanwhile, None
        if doing is not None:
            doing()
        return super().embed(text)


def test_a_memory_that_another_person_changed_in_the_meantime_is_not_accepted(
    tmp_path: Path,
) -> None:
    clock, embedder, url = (
        MovingClock(timedelta(days=1), START),
        Interrupted(),
        f"sqlite:///{tmp_path}/m.db",
    )
    with (
        Memories(url, embedder="fake", clock=clock) as other,
        Memories(url, embedder=embedder, clock=clock) as memories,
    ):
        waits = memories.create("The door is red", pending=True).memory
        assert waits is not None
        before = clock()

        def decide() -> None:
            other.review.accept([waits.id], content="The door is blue")
            other.rollback(before)

        embedder.meanwhile = decide
        assert memories.review.accept([waits.id]) == []
        [still] = memories.review.page().memories
        assert (still.id, still.version, still.content) == (waits.id, 3, "The door is red")
        [accepted] = memories.review.accept([waits.id])
        assert accepted.done


def test_a_page_has_the_length_of_its_limit_and_the_next_page_continues(tmp_path: Path) -> None:
    texts = ["The red door", "A blue bike", "The red boat", "A blue cup", "The red hat"]
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake") as memories:
        for text in texts:
            memories.create(text, pending=True, force=True)
        first = memories.review.page(limit=2, match="red")
        assert [each.content for each in first.memories] == [texts[4], texts[2]]
        rest = memories.review.page(limit=2, match="red", cursor=first.next_cursor)
        assert [each.content for each in rest.memories] == [texts[0]]
        assert rest.next_cursor is None


def test_a_draft_accepted_as_a_version_keeps_its_dates(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake") as memories:
        memories.create("The port is 5433", key="port")
        draft = Draft("The port is 5434", key="port", valid_until="2099-01-01", recheck="90d")
        [created] = memories.create_many([replace(draft, pending=True)])
        assert created.memory is not None
        [accepted] = memories.review.accept([created.memory.id])
        assert accepted.memory.valid_until == created.memory.valid_until is not None
        assert (accepted.memory.version, accepted.memory.recheck_days) == (2, 90)


def test_the_answer_names_the_date_that_an_identical_memory_lacks(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake") as memories:
        draft = Draft("The door is red", pending=True, valid_until="2099-01-01")
        [created] = memories.create_many([draft], force=True)
        assert created.memory is not None
        memories.create("The door is red", force=True)
        reviewed = memories.review.accept([created.memory.id])
    [result] = accept_result(reviewed, dry_run=False)["results"]
    assert result["not_merged"] == {"valid_until": plain(created.memory.valid_until)}
