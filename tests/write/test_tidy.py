"""Proposals to tidy a namespace: their kinds, the effects of decisions, and that no rejected
proposal returns.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memories import Draft, Memories, TurnDraft
from memories.guard.origin import Place
from memories.models import Memory
from memories.stores.records import Collection, Record, Ref
from memories.write import bulk, forget, tidy
from memories.write.tidy import _is_statement
from tables import failures_of

pytestmark = pytest.mark.usefixtures("home")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one file."""
    top = tmp_path / "shop"
    top.mkdir()
    (top / "compose.yml").write_text("port: 5433\n")
    return top


@pytest.fixture
def now() -> list[datetime]:
    """The time that the memories read; a test changes it."""
    return [NOW]


@pytest.fixture
def memories(project: Path, now: list[datetime]) -> Iterator[Memories]:
    """Memories of a person who works in the project."""
    place = Place("shop", "main", project)
    with Memories(
        embedder="none", place=lambda: place, clock=lambda: now[0], channel="http"
    ) as opened:
        yield opened


def create(memories: Memories, content: str, **options: object) -> str:
    """Create a memory; return its id."""
    created = memories.create(content, force=True, **options)  # type: ignore[arg-type]
    assert created.id is not None
    return created.id


def waiting(memories: Memories) -> list[Memory]:
    """Return the memories that wait for review."""
    return list(memories.review.page().memories)


def kinds(memories: Memories) -> list[str]:
    """Return the kinds of the proposals."""
    return [suggestion.kind for suggestion, _ in memories.truth.tidy(dry_run=True)]


def test_a_stale_memory_is_deleted_when_its_proposal_is_accepted(
    memories: Memories, project: Path
) -> None:
    stale = create(memories, "Postgres is on 5433, see compose.yml")
    assert memories.truth.tidy() == []
    (project / "compose.yml").write_text("port: 5434\n")
    [(suggestion, proposal)] = memories.truth.tidy()
    assert suggestion.text == (
        'Delete "Postgres is on 5433, see compose.yml": compose.yml no longer contains 5433'
    )
    assert [memory.id for memory in waiting(memories)] == [proposal]
    assert not memories.get(stale).deleted
    [reviewed] = memories.review.accept([proposal])
    assert (reviewed.done, reviewed.memory.pending) == (True, False)
    assert [memory.id for memory in memories.list(deleted=True).memories] == [stale]
    assert waiting(memories) == []
    assert memories.list().memories == ()


def test_an_accepted_deletion_names_the_memories_that_are_current_again(
    memories: Memories, project: Path
) -> None:
    older = create(memories, "Postgres listens on port 5432")
    newer = str(memories.create("Postgres listens on port 5433").id)
    memories.truth.confirm(newer, anchors=["compose.yml::5433"])
    assert memories.get(older).corrected_by == newer
    (project / "compose.yml").write_text("port: 5434\n")
    [(_, proposal)] = memories.truth.tidy()
    [reviewed] = memories.review.accept([proposal])
    assert reviewed.current_again == (older,)


def test_a_rejected_proposal_does_not_return(memories: Memories, project: Path) -> None:
    create(memories, "Postgres is on 5433, see compose.yml")
    (project / "compose.yml").write_text("port: 5434\n")
    [(_, proposal)] = memories.truth.tidy()
    assert memories.truth.tidy() == []
    memories.review.reject([proposal])
    assert memories.truth.tidy() == []


def test_a_memory_that_changed_in_the_meantime_is_not_touched(
    memories: Memories, project: Path
) -> None:
    stale = create(memories, "Postgres is on 5433, see compose.yml")
    (project / "compose.yml").write_text("port: 5434\n")
    [(_, proposal)] = memories.truth.tidy()
    memories.update(stale, "Postgres is on 5434, see compose.yml")
    memories.review.accept([proposal])
    assert memories.get(stale).content == "Postgres is on 5434, see compose.yml"


def test_each_copy_of_a_text_is_proposed_for_deletion(memories: Memories) -> None:
    first, *copies = (memories.create("Deploys run on Fridays", force=True).id for _ in range(4))
    assert [repeat.memory.id for repeat in memories.duplicates()] == copies[::-1]
    assert {repeat.of[0].id for repeat in memories.duplicates()} == {first}
    memories.truth.tidy()
    proposals = [record.id for record in memories.list(pending=True).memories]
    memories.review.accept(proposals)
    assert [record.id for record in memories.list().memories] == [first]


@pytest.mark.parametrize("change", ["delete", "update"])
def test_the_last_copy_of_a_text_is_not_deleted(
    memories: Memories, now: list[datetime], change: str
) -> None:
    older = create(memories, "Deploys happen on Tuesdays")
    now[0] += timedelta(days=3)
    newer = create(memories, "Deploys happen on Tuesdays")
    [(suggestion, proposal)] = memories.truth.tidy()
    assert suggestion.kind == "same"
    now[0] += timedelta(hours=1)
    if change == "delete":
        memories.delete(older)
    else:
        memories.update(older, "Deploys happen when the tests pass")
    [reviewed] = memories.review.accept([proposal])
    assert not memories.get(newer).deleted
    assert reviewed.is_outdated


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({}, {"tags": {"owner": "ann"}}),
        ({"tags": {"owner": "bob"}}, {"tags": {"owner": "ann"}}),
        ({}, {"tags": {"global": "true"}}),
        ({"decay": "contextual"}, {}),
        ({"decay": "contextual"}, {"decay": "contextual"}),
        ({"confidence": 0.4}, {}),
        ({}, {"anchors": ["compose.yml"]}),
        ({"valid_until": "2026-05-02"}, {}),
        ({"valid_until": "2026-06-02"}, {}),
        ({"source": "a"}, {"source": "b"}),
    ],
)
def test_a_copy_with_additional_data_is_not_proposed_for_deletion(
    memories: Memories,
    now: list[datetime],
    older: dict[str, object],
    newer: dict[str, object],
) -> None:
    create(memories, "Deploys happen on Tuesdays", **older)
    now[0] += timedelta(days=3)
    create(memories, "Deploys happen on Tuesdays", **newer)
    assert "same" not in kinds(memories)


@pytest.mark.parametrize(("data", "is_proposed"), [('{"a":2}', True), ('{"a":3}', False)])
def test_a_copy_with_other_data_is_not_proposed_for_deletion(
    memories: Memories, now: list[datetime], data: str, *, is_proposed: bool
) -> None:
    memories.create_many([Draft("Deploys happen on Tuesdays", data='{"a":2}')])
    now[0] += timedelta(days=3)
    memories.create_many([Draft("Deploys happen on Tuesdays", data=data)], force=True)
    assert ("same" in kinds(memories)) == is_proposed


@pytest.mark.parametrize("change", ["pin", "correct"])
def test_a_copy_of_a_corrected_or_less_lasting_memory_is_not_deleted(
    memories: Memories, now: list[datetime], change: str
) -> None:
    older = create(memories, "Deploys happen on Tuesdays")
    now[0] += timedelta(days=3)
    newer = create(memories, "Deploys happen on Tuesdays")
    [(_, proposal)] = memories.truth.tidy()
    now[0] += timedelta(hours=1)
    if change == "pin":
        memories.pin(newer)
    else:
        memories.create("Deploys happen on Thursdays")
        assert memories.get(older).corrected_by is not None
    assert "same" not in kinds(memories)
    [reviewed] = memories.review.accept([proposal])
    assert reviewed.is_outdated
    assert not memories.get(newer).deleted


def test_a_deletion_is_not_carried_out_if_its_reason_no_longer_holds(
    memories: Memories, project: Path, now: list[datetime]
) -> None:
    ficus = create(memories, "The office plant is a ficus", decay="reinforceable")
    now[0] += timedelta(days=366)
    port = create(memories, "Postgres is on 5433, see compose.yml")
    (project / "compose.yml").write_text("port: 5434\n")
    proposals = memories.truth.tidy()
    assert [suggestion.kind for suggestion, _ in proposals] == ["changed", "unread"]
    memories.reinforce(ficus)
    (project / "compose.yml").write_text("port: 5433\n")
    reviews = memories.review.accept([proposal for _, proposal in proposals])
    assert [reviewed.is_outdated for reviewed in reviews] == [True, True]
    assert not memories.get(ficus).deleted
    assert not memories.get(port).deleted


@pytest.mark.parametrize("kind", ["same", "contradiction", "repeated"])
def test_a_memory_forgotten_while_proposals_are_chosen_is_not_quoted(
    memories: Memories, now: list[datetime], kind: str
) -> None:
    older = create(memories, "Deploys happen on Tuesdays")
    now[0] += timedelta(days=3)
    texts = {"same": "Deploys happen on Tuesdays", "contradiction": "Deploys happen on Thursdays"}
    newer = create(memories, texts.get(kind, "The office plant is a ficus"))
    if kind == "repeated":
        for name in ("a", "b", "c"):
            memories.add_turns(name, [TurnDraft("Please always answer in short sentences.")])

    def choose(suggestions: Sequence[tidy.Suggestion]) -> Sequence[tidy.Suggestion]:
        assert [suggestion.kind for suggestion in suggestions] == [kind]
        if kind == "repeated":
            memories.forget_turns("c")
        else:
            memories.forget({"same": newer, "contradiction": older}[kind])
        return suggestions

    assert memories.truth.tidy(choose=choose) == []
    assert waiting(memories) == []


def test_a_proposal_that_is_made_while_its_memory_is_forgotten_is_erased(
    memories: Memories, now: list[datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(memories, "Deploys happen on Tuesdays")
    now[0] += timedelta(days=3)
    newer = create(memories, "Deploys happen on Thursdays")
    find = forget.find_repeating

    def find_and_tidy(*arguments: Any) -> list[Ref]:
        refs = find(*arguments)
        memories.truth.tidy()
        return refs

    monkeypatch.setattr(forget, "find_repeating", find_and_tidy)
    memories.forget(newer)
    assert waiting(memories) == []


def test_each_kind_of_proposal_is_made(
    memories: Memories, project: Path, now: list[datetime]
) -> None:
    create(memories, "TODO: move compose.yml port 5433 to the settings")
    create(memories, "The winter sale runs", valid_until="2026-05-02")
    create(memories, "Deploys happen on Tuesdays")
    now[0] += timedelta(days=3)
    create(memories, "Deploys happen on Tuesdays")
    newer = create(memories, "Deploys happen on Thursdays")
    (project / "compose.yml").write_text("empty")
    assert kinds(memories) == ["expired", "same", "todo", "contradiction"]
    proposals = memories.truth.tidy()
    [link] = [proposal for suggestion, proposal in proposals if suggestion.kind == "contradiction"]
    memories.review.accept([link])
    assert memories.get(newer).corrects is not None


def test_a_reworded_change_is_proposed_and_parallel_facts_are_not(
    memories: Memories,
) -> None:
    create(memories, "The panel of the management is in Looker")
    create(memories, "The panel of the workshop is in Grafana")
    assert kinds(memories) == []
    newer = create(memories, "The management no longer uses Looker: its panel is now in Metabase")
    [(suggestion, _)] = memories.truth.tidy(dry_run=True)
    assert (suggestion.kind, suggestion.action["id"]) == ("contradiction", newer)
    assert suggestion.text.startswith('Mark as corrected: "The panel of the management')


@pytest.fixture
def linked(memories: Memories) -> tuple[str, str]:
    """An older memory and a reworded newer one, whose link a person accepted."""
    older = create(memories, "The panel of the management is in Looker")
    newer = create(memories, "The management no longer uses Looker: its panel is now in Metabase")
    [(_, proposal)] = memories.truth.tidy()
    memories.review.accept([proposal])
    return older, newer


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("change", ["edit", "retag", "restore", "restore both", "rollback"])
def test_an_accepted_link_survives_other_changes(
    memories: Memories, linked: tuple[str, str], now: list[datetime], change: str, which: int
) -> None:
    older, newer = linked
    changed = linked[which]
    now[0] += timedelta(minutes=5)
    before = now[0]
    now[0] += timedelta(minutes=5)
    if change == "edit":
        memories.update(changed, memories.get(changed).content + " for good")
    elif change == "retag":
        memories.tag_where("content ~ panel", tags={"source": "wiki"})
    elif change == "rollback":
        memories.update(changed, memories.get(changed).content + " for good")
        memories.rollback(before)
    else:
        memories.delete(changed)
        if change == "restore both":
            memories.delete(linked[1 - which])
            memories.restore(linked[1 - which])
        memories.restore(changed)
    now[0] += timedelta(minutes=5)
    assert memories.get(newer).corrects == older
    assert memories.get(older).corrected_by == newer


def test_a_rollback_undoes_an_accepted_link_and_a_second_rollback_restores_it(
    memories: Memories, now: list[datetime]
) -> None:
    older = create(memories, "The panel of the management is in Looker")
    newer = create(memories, "The management no longer uses Looker: its panel is now in Metabase")
    now[0] += timedelta(minutes=5)
    [(_, proposal)] = memories.truth.tidy()
    now[0] += timedelta(minutes=5)
    unlinked = now[0]
    now[0] += timedelta(minutes=5)
    memories.review.accept([proposal])
    now[0] += timedelta(minutes=5)
    linked = now[0]
    now[0] += timedelta(minutes=5)
    assert memories.rollback(unlinked).counts == {"update": 1}
    assert memories.get(older).corrected_by is None
    assert memories.get(newer).corrects is None
    now[0] += timedelta(minutes=5)
    memories.rollback(linked)
    assert memories.get(older).corrected_by == newer
    assert memories.get(newer).corrects == older


@pytest.mark.parametrize("which", [0, 1])
def test_an_outdated_proposal_reports_that_it_does_nothing_and_can_be_made_again(
    memories: Memories, now: list[datetime], which: int
) -> None:
    texts = [f"Deploys happen on {day}" for day in ("Tuesdays", "Thursdays")]
    ids = [create(memories, text) for text in texts]
    [(first, proposal)] = memories.truth.tidy()
    now[0] += timedelta(minutes=5)
    memories.update(ids[which], "Deploys happen on Fridays")
    now[0] += timedelta(minutes=5)
    [reviewed] = memories.review.accept([proposal])
    assert (reviewed.done, reviewed.is_outdated) == (True, True)
    assert [memories.get(each).corrects for each in ids] == [None, None]
    memories.update(ids[which], texts[which])
    now[0] += timedelta(minutes=5)
    memories.truth.confirm(ids[1])
    now[0] += timedelta(minutes=5)
    [(second, proposal)] = memories.truth.tidy()
    assert second.text == first.text
    memories.update(ids[0], tags={"team": "blue"})
    [reviewed] = memories.review.accept([proposal])
    assert not reviewed.is_outdated
    assert memories.get(ids[1]).corrects == ids[0]


def test_a_memory_that_was_not_read_for_a_year_is_proposed(
    memories: Memories, now: list[datetime]
) -> None:
    create(memories, "The office plant is a ficus")
    create(memories, "Ann prefers tea", tags={"type": "preference"})
    create(memories, "The port is 1", key="port")
    now[0] += timedelta(days=364)
    assert kinds(memories) == []
    now[0] += timedelta(days=2)
    assert kinds(memories) == ["unread"]


def test_a_statement_from_three_conversations_becomes_a_memory(memories: Memories) -> None:
    for name in ("a", "b"):
        memories.add_turns(name, [TurnDraft("Please always answer in short sentences.")])
        memories.add_turns(name, [TurnDraft("When is the next release of it?")])
    assert kinds(memories) == []
    memories.add_turns("c", [TurnDraft("please always answer in short sentences")])
    [(suggestion, proposal)] = memories.truth.tidy()
    assert (suggestion.kind, suggestion.source) == ("repeated", "c#0")
    memories.review.accept([proposal])
    [memory] = memories.list().memories
    assert (memory.content, memory.tags) == ("Please always answer in short sentences.", {})
    assert kinds(memories) == []


def test_at_most_twenty_proposals_wait(memories: Memories, now: list[datetime]) -> None:
    for number in range(25):
        create(memories, f"Note {number} about nothing", valid_until="2026-05-02")
    now[0] += timedelta(days=3)
    assert len(memories.truth.tidy()) == 20
    assert memories.truth.tidy() == []
    memories.review.accept([memory.id for memory in waiting(memories)[:5]])
    assert len(memories.truth.tidy()) == 5


@pytest.mark.parametrize(
    ("text", "is_statement"),
    [
        ("the gate is", False),
        ("the gate is green", True),
        ("word " * 40, True),
        ("word " * 41, False),
        ("is the gate green ?", False),
        ("the gate\nis green today", False),
        ("\nthe gate is green\n", True),
    ],
)
def test_a_statement_has_4_to_40_words_on_one_line(text: str, is_statement: bool) -> None:
    assert _is_statement(text) is is_statement


def test_a_statement_is_one_line_within_the_word_limits_and_not_a_question() -> None:
    lowest, highest = tidy._STATEMENT_WORDS
    rows = [
        ("word " * (lowest - 1), False), ("word " * lowest, True), ("word " * highest, True),
        ("word " * (highest + 1), False), ("word " * lowest + "?", False), ("word\n" * lowest, False),
        (" word" * lowest + "\n", True),
    ]  # fmt: skip
    assert failures_of(rows, tidy._is_statement) == []


def test_a_long_text_is_quoted_by_its_beginning() -> None:
    most = tidy._MAX_EXCERPT
    rows = [
        ("a\n b", '"a b"'),
        ("x" * most, f'"{"x" * most}"'),
        ("x" * (most + 1), f'"{"x" * most}…"'),
    ]
    assert failures_of(rows, tidy._quote) == []


def test_a_table_of_changes_shows_the_first_changes_and_counts_all() -> None:
    tally, at = bulk.BulkTally(), datetime(2026, 5, 1, tzinfo=UTC)
    record = Record(Ref(Collection.MEMORY, "bob", "m", 1), "x" * (bulk.MAX_EXCERPT + 1), at)
    tally.add_all("delete", [record] * (bulk.MAX_STEPS + 1))
    done = tally.result(dry_run=False)
    assert (done.counts, len(done.steps)) == ({"delete": bulk.MAX_STEPS + 1}, bulk.MAX_STEPS)
    assert {step.content for step in done.steps} == {"x" * (bulk.MAX_EXCERPT - 1) + "…"}
