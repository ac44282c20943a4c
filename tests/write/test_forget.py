"""Forgetting leaves no byte of a memory's text in the home, even where the text was repeated."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from memories import Memories, NotFound, StoreBusy
from memories.stores.protocol import scan_pages
from memories.write import forget as forget_module

pytestmark = pytest.mark.usefixtures("home")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECRET = "zanzibar"


@pytest.fixture
def now() -> list[datetime]:
    """The time that the memories read; a test changes it."""
    return [NOW]


@pytest.fixture
def memories(now: list[datetime]) -> Iterator[Memories]:
    """Memories of a person."""
    with Memories(
        embedder="none", place=lambda: None, clock=lambda: now[0], channel="http"
    ) as opened:
        yield opened


def create(memories: Memories, content: str, **options: object) -> str:
    """Create a memory; return its id."""
    created = memories.create(content, force=True, **options)  # type: ignore[arg-type]
    assert created.id is not None
    return created.id


def files_with(home: Path, text: str) -> list[str]:
    """Return the names of the files in the home that contain a text."""
    files = (file for file in home.rglob("*") if file.is_file())
    return [file.name for file in files if text.encode() in file.read_bytes()]


def forget(memories: Memories, memory_id: str) -> object:
    """Forget a memory by its id."""
    return memories.forget(memory_id)


def forget_where(memories: Memories, memory_id: str) -> object:
    """Forget a memory by an expression."""
    return memories.forget_where(f"id = {memory_id}")


def forget_source(memories: Memories, _: str) -> object:
    """Forget a memory together with the conversation from which it was made."""
    return memories.forget_turns("talk", with_memories=True)


def move(memories: Memories, memory_id: str) -> object:
    """Move a memory to another namespace, which erases it in its own, and forget it there."""
    memories.move([memory_id], "bob")
    with Memories(namespace="bob", embedder="none") as others:
        return others.forget(memory_id)


Erase = Callable[[Memories, str], object]
erasing = pytest.mark.parametrize("erase", [forget, forget_where, forget_source, move])


@erasing
@pytest.mark.parametrize("decision", ["none", "accept", "reject", "restore"])
def test_forgetting_a_memory_erases_the_proposals_to_delete_it(
    memories: Memories, now: list[datetime], home: Path, erase: Erase, decision: str
) -> None:
    text = f"The {SECRET} gateway listens on port 7741"
    memory_id = create(memories, text, valid_until="2026-05-02", source="talk#0")
    now[0] += timedelta(days=3)
    [(_, proposal)] = memories.truth.tidy()
    if decision == "accept":
        memories.review.accept([proposal])
    elif decision != "none":
        memories.review.reject([proposal])
    if decision == "restore":
        memories.restore(proposal)
    erase(memories, memory_id)
    assert files_with(home, SECRET) == []
    assert memories.review.page().memories == ()


@erasing
@pytest.mark.parametrize("which", [0, 1])
def test_forgetting_either_memory_erases_the_proposal_to_link_them(
    memories: Memories, home: Path, erase: Erase, which: int
) -> None:
    texts = ["Deploys happen on Mondays", "Deploys happen on Fridays"]
    sources = ["talk#0" if number == which else None for number in range(2)]
    ids = [
        create(memories, text, source=source) for text, source in zip(texts, sources, strict=True)
    ]
    assert len(memories.truth.tidy()) == 1
    erase(memories, ids[which])
    assert files_with(home, texts[which]) == []
    assert memories.get(ids[1 - which]).content == texts[1 - which]


def test_a_proposal_rewritten_by_a_person_is_kept_without_the_proposed_text(
    memories: Memories, now: list[datetime], home: Path
) -> None:
    memory_id = create(memories, f"The {SECRET} sale runs", valid_until="2026-05-02")
    now[0] += timedelta(days=3)
    [(_, proposal)] = memories.truth.tidy()
    memories.review.accept([proposal], content="The sale has ended")
    memories.forget(memory_id)
    assert files_with(home, SECRET) == []
    assert [each.content for each in memories.history(proposal).versions] == ["The sale has ended"]


@erasing
@pytest.mark.parametrize("key", [None, "gate"])
def test_forgetting_a_memory_erases_an_accepted_memory_merged_into_it(
    memories: Memories, now: list[datetime], home: Path, erase: Erase, key: str | None
) -> None:
    text = f"The {SECRET} gate is green"
    memory_id = create(memories, text, source="talk", key=key)
    now[0] += timedelta(days=1)
    waiting = create(memories, text, pending=True, key=key)
    [reviewed] = memories.review.accept([waiting])
    assert reviewed.memory.id == memory_id
    erase(memories, memory_id)
    assert files_with(home, SECRET) == []


def test_forgetting_a_memory_keeps_an_accepted_memory_that_it_superseded(
    memories: Memories, now: list[datetime]
) -> None:
    older = create(memories, "The gate is green", pending=True)
    now[0] += timedelta(days=1)
    memories.review.accept([older])
    now[0] += timedelta(days=1)
    newer = create(memories, "The gate was painted", supersedes=older)
    forgotten = memories.forget(newer)
    assert forgotten.versions == 1
    assert memories.get(older).content == "The gate is green"


def test_a_source_names_a_turn_unless_only_a_conversation_has_that_name(memories: Memories) -> None:
    memories.add_turns("talk", ["Good morning"])
    for name in ("talk#0", "chat#0"):
        memories.add_turns(name, ["The bike is blue"])
    of_turn = create(memories, "From turn 0 of talk", source="talk#0")
    of_other = create(memories, "From turn 0 of the other talk", source="talk#0#0")
    labelled = create(memories, "From the other talk", tags={"conversation_id": "talk#0"})
    of_chat = create(memories, "From the chat", source="chat#0")
    assert memories.forget_turns("talk", index=0, with_memories=True, dry_run=True).memories == 1
    assert memories.forget_turns("talk#0", with_memories=True).memories == 2
    assert memories.forget_turns("chat#0", with_memories=True).memories == 1
    assert [memory.id for memory in memories.list().memories] == [of_turn]
    for erased in (of_other, labelled, of_chat):
        with pytest.raises(NotFound):
            memories.get(erased)
    assert memories.forget_turns("talk", with_memories=True).memories == 1


def test_a_conversation_in_a_label_is_not_read_as_a_turn(memories: Memories) -> None:
    memories.add_turns("talk", ["Good morning"])
    create(memories, "From the other talk", tags={"conversation_id": "talk#0"})
    for index in (0, None):
        planned = memories.forget_turns("talk", index=index, with_memories=True, dry_run=True)
        assert planned.memories == 0
    assert len(memories.list(where="source = talk#0").memories) == 1
    assert len(memories.list(where="source = talk").memories) == 0


def test_forgetting_reads_no_memory_that_was_accepted_and_is_current(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        created = memories.create(f"Fact number {number}", pending=True, force=True)
        assert created.id is not None
        memories.review.accept([created.id])
    [*_, memory_id] = [memory.id for memory in memories.list().memories]
    pages: list[object] = []

    def scan(*arguments: object) -> Iterator[object]:
        for page in scan_pages(*arguments):  # type: ignore[arg-type]
            pages.append(page)
            yield page

    monkeypatch.setattr(forget_module, "scan_pages", scan)
    memories.forget(memory_id)
    assert [page for page in pages if page] == []


@pytest.mark.parametrize(
    "forget", [Memories.forget, lambda memories, name: memories.forget_where(f"id = {name}")]
)
def test_a_failed_erasure_says_that_the_links_were_removed(
    forget: Callable[[Memories, str], object], memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = memories.create("The API listens on port 8080.").id
    newer = memories.create("The API listens on port 9090.")
    assert newer.id is not None and newer.corrects == older
    problem = StoreBusy("another program kept it busy; nothing was written; try again")
    with monkeypatch.context() as patched:
        patched.setattr(type(memories._raw_store), "remove", Mock(side_effect=problem))
        with pytest.raises(StoreBusy) as raised:
            forget(memories, newer.id)
    assert str(raised.value) == (
        "links to other memories were removed, but not the content (another program kept it busy); "
        "forget it again"
    )
    memories.forget(newer.id)
    assert [memory.id for memory in memories.list().memories] == [older]
