"""A new memory that corrects another is linked to it and ranks before it; the link can be
removed.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clock import MovingClock
from memories import Draft, Memories
from memories.context.memories_backend import MemoriesBackend
from memories.errors import Conflict, InvalidInput, RequestError
from memories.stores import open_store
from memories.stores.records import Collection, Filter, Patch
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.intake import Intake
from memories.transfer.migrate import migrate
from memories.write import bulk, rollback
from memories.write.compare.corrections import is_correction
from memories.write.compare.duplicates import Relation, compare_texts
from tables import failures_of
from verdicts import changed

DATA = Path(__file__).parents[1] / "data"
OLD, NEW, NEWEST = (f"The API listens on port {port}." for port in (8080, 9090, 7070))


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """Memories whose clock advances by a day with each write."""
    with Memories(
        f"sqlite:///{tmp_path}/m.db", embedder="none", clock=MovingClock(timedelta(days=1))
    ) as opened:
        yield opened


def create(memories: Memories, text: str, **more: object) -> str:
    """Create a memory; return its id."""
    memory = memories.create(text, **more).memory  # type: ignore[arg-type]
    assert memory is not None
    return memory.id


def links(memories: Memories, memory_id: str) -> tuple[str | None, str | None]:
    """Return the memory that a memory corrects, and the one that corrects it."""
    memory = memories.get(memory_id)
    return memory.corrects, memory.corrected_by


def search_ids(memories: Memories, **filters: object) -> list[str]:
    """Return the ids that the question finds."""
    return [hit.id for hit in memories.search("Which port does the API listen on?", **filters)]  # type: ignore[arg-type]


@pytest.mark.parametrize("turned", [False, True])
def test_a_corrected_memory_follows_its_correction(memories: Memories, turned: bool) -> None:
    first, second = (NEW, OLD) if turned else (OLD, NEW)
    older = create(memories, first)
    create(memories, "The API is written in Go.")
    created = memories.create(second)
    assert created.memory is not None
    assert created.corrects == older
    assert links(memories, created.memory.id) == (older, None)
    assert links(memories, older) == (None, created.memory.id)
    assert search_ids(memories)[:2] == [created.memory.id, older]
    assert search_ids(memories, limit=1) == [created.memory.id]
    assert older not in search_ids(memories, include_corrected=False)


def test_another_purpose_is_not_a_correction() -> None:
    pairs = [
        ("We use red bricks for walls.", "We use red bricks for towers."),
        ("We use the staging database for demos.", "We use the staging database for tests."),
        ("Alice uses Docker Compose for testing.", "Alice uses Docker Compose for demos."),
    ]
    assert [pair for pair in pairs if is_correction(*reversed(pair), 0.9, threshold=0.5)] == []


def test_a_new_text_corrects_the_end_of_a_chain(memories: Memories) -> None:
    first, second = (memories.create(text, force=True).id for text in (OLD, NEW))
    newest = memories.create(NEWEST)
    assert newest.corrects == second
    assert links(memories, str(first)) == (None, None)


@pytest.mark.parametrize("meanwhile", [[NEW], [NEW, NEWEST]])
def test_a_text_corrects_memories_stored_while_it_waited(
    memories: Memories, meanwhile: list[str]
) -> None:
    [batch] = memories.prepare([Draft(OLD)])
    *_, later = (create(memories, text) for text in meanwhile)
    [created] = batch.write()
    assert created.memory is not None
    assert created.memory.created_at < memories.get(later).created_at
    assert created.corrects == later
    assert links(memories, later)[1] == created.memory.id
    assert search_ids(memories)[:2] == [created.memory.id, later]


def test_a_text_with_an_earlier_time_corrects_nothing(memories: Memories) -> None:
    later = memories.create(NEW).memory
    assert later is not None
    before = later.created_at - timedelta(days=1)
    assert memories.create(OLD, created_at=before).corrects is None


def test_a_chain_is_found_newest_first(memories: Memories) -> None:
    ids = [create(memories, text) for text in (OLD, NEW, NEWEST)]
    assert [links(memories, each) for each in ids] == [
        (None, ids[1]),
        (ids[0], ids[2]),
        (ids[1], None),
    ]
    assert search_ids(memories) == ids[::-1]


@pytest.mark.parametrize("end", ["delete", "forget"])
def test_the_ends_of_a_chain_are_linked_when_its_middle_ends(memories: Memories, end: str) -> None:
    ids = [create(memories, text) for text in (OLD, NEW, NEWEST)]
    getattr(memories, end)(ids[1])
    assert links(memories, ids[0]) == (None, ids[2])
    assert links(memories, ids[2]) == (ids[0], None)


def test_a_shorter_text_corrects_nothing() -> None:
    for old in (
        "The gate opens at 8",
        "The office is in Bonn",
        "The meeting is on Monday at 9",
        "The color is blue",
    ):
        less = old.rpartition(" ")[0].removesuffix(" at").removesuffix(" in")
        assert not is_correction(less, old, None, threshold=0.8)
        assert not is_correction(old, less, None, threshold=0.8)


@pytest.mark.parametrize(
    ("older", "newer", "is_link"),
    [
        ("Backups run at 03:00 to s3://cold", "Backups run at 04:00", False),
        ("Backups run at 03:00 to s3://cold", "Backups moved from 03:00 to 04:00", False),
        ("Backups run at 03:00", "Backups moved from 03:00 to 04:00", True),
        ("The dentist is Dr. Weber, phone 555-1234", "The dentist is Dr. Kim", False),
        ("The dentist is Dr. Weber", "The dentist is Dr. Kim", True),
        ("The release is on 3 May, announced by Ann", "The release is on 9 May", False),
        ("The token is stored in Vault under kv/ci", "The token is stored in 1Password", False),
        ("Secrets are stored in AWS Secrets Manager", "Secrets are stored in Vault", True),
        ("Der Server läuft auf Port 8080 hinter nginx", "Der Server läuft auf Port 9090", False),
        ("Tests use pytest with xdist", "Tests use nose instead of pytest", False),
        ("Tests use pytest", "Tests use nose instead of pytest", True),
    ],
)
def test_a_newer_text_without_a_detail_of_the_older_one_does_not_correct_it(
    older: str, newer: str, is_link: bool
) -> None:
    assert is_correction(newer, older, 0.8, threshold=0.8) is is_link


@pytest.mark.parametrize("side", ["corrects", "corrected_by"])
def test_a_one_sided_link_does_not_change_the_other_memory(memories: Memories, side: str) -> None:
    ids = [create(memories, text) for text in (OLD, NEW)]
    before = links_by_id(memories)
    [stray] = memories._store.scan(
        Filter(Collection.MEMORY, ("shared",), group=create(memories, "The office is in Rome.")),
        limit=1,
    )
    fields = (
        {"corrects": ids[0]} if side == "corrects" else {"corrected_by": ids[1], "corrected_at": 0}
    )
    memories._store.patch([Patch(stray.ref, None, None, fields)])
    memories.delete(stray.ref.group)
    assert links_by_id(memories) == before


@pytest.mark.parametrize("expired", [False, True])
def test_memories_that_correct_each_other_can_be_deleted_together(
    memories: Memories, expired: bool
) -> None:
    """Only other programs write such links."""
    ids = [create(memories, text) for text in (OLD, NEW)]
    for memory_id, other in (ids, reversed(ids)):
        where = Filter(Collection.MEMORY, ("shared",), group=memory_id)
        [record] = memories._store.scan(where, limit=1)
        fields: dict[str, Any] = {"corrects": other, "corrected_by": other, "corrected_at": 0}
        if expired:
            fields |= {"valid_until": 1, "corrected_until": 1}
        memories._store.patch([Patch(record.ref, None, None, fields)])
    memories.delete_where(f"id = {ids[0]} or id = {ids[1]}")
    assert memories.list(limit=5).memories == ()


@pytest.mark.parametrize("end", ["delete", "forget", "update", "move"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_link_ends_when_either_memory_ends(memories: Memories, end: str, which: int) -> None:
    ids = [create(memories, text) for text in (OLD, NEW)]
    if end == "update":
        memories.update(ids[which], "The office is in Rome.")
    elif end == "move":
        memories.update(ids[which], tags={"project": "shop"})
    else:
        getattr(memories, end)(ids[which])
    assert links(memories, ids[1 - which]) == (None, None)


def test_a_deleted_correction_corrects_again_when_it_is_restored(memories: Memories) -> None:
    ids = [create(memories, text) for text in (OLD, NEW)]
    memories.delete(ids[1])
    memories.restore(ids[1])
    assert links(memories, ids[0]) == (None, ids[1])
    assert links(memories, ids[1]) == (ids[0], None)


def test_a_restored_correction_does_not_correct_a_changed_text(memories: Memories) -> None:
    ids = [create(memories, text) for text in (OLD, NEW)]
    memories.delete(ids[1])
    memories.update(ids[0], "The office is in Rome.")
    memories.restore(ids[1])
    assert links(memories, ids[0]) == (None, None)


def test_a_reworded_correction_stays_linked(memories: Memories) -> None:
    ids = [create(memories, text) for text in (OLD, NEW)]
    memories.update(ids[1], "The API listens on port 9091.")
    memories.update(ids[0], tags={"source": "wiki"})
    assert links(memories, ids[0]) == (None, ids[1])
    assert links(memories, ids[1]) == (ids[0], None)


@pytest.mark.parametrize(
    ("older", "newer", "is_link"),
    [
        ("There is a cron job at 02:00", "There is a cron job at 03:00", False),
        ("There's a meeting on Monday", "There's a meeting on Thursday", False),
        ("A worker listens on port 7001", "A worker listens on port 7002", False),
        ("A cron job runs at 02:00 every night", "A cron job runs at 04:00 every night", False),
        ("A backup goes to /mnt/a", "A backup goes to /mnt/b", False),
        ("The worker listens on port 7001", "The worker listens on port 7002", True),
        ("The cron job runs at 02:00", "The cron job runs at 04:00", True),
        ("A build takes 40 minutes", "A build takes 20 minutes", True),
        ("There are 5 workers", "There are 6 workers", True),
    ],
)
def test_one_of_several_things_is_not_corrected_by_another(
    older: str, newer: str, is_link: bool
) -> None:
    assert is_correction(newer, older, None, threshold=1.0) is is_link


def test_not_corrects_requires_an_existing_link(memories: Memories) -> None:
    ids = [create(memories, text) for text in (OLD, NEW)]
    memory = memories.update(ids[1], not_corrects=ids[0])
    assert (memory.corrects, memory.version) == (None, 1)
    assert links(memories, ids[0]) == (None, None)
    with pytest.raises(RequestError, match="it corrects none"):
        memories.update(ids[1], not_corrects=ids[0])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"if_version": 2}, Conflict),
        ({"content": "  "}, InvalidInput),
        ({"tags": {"": "x"}}, InvalidInput),
    ],
)
def test_a_refused_update_removes_no_link(
    memories: Memories, changes: dict[str, Any], error: type[Exception]
) -> None:
    older, newer = (memories.create(f"The port is {port}").memory for port in (8080, 9090))
    assert older is not None
    assert newer is not None
    with pytest.raises(error):
        memories.update(newer.id, not_corrects=older.id, **changes)
    assert memories.get(newer.id).corrects == older.id
    assert memories.get(older.id).corrected_by == newer.id


@pytest.mark.parametrize("version", ["1", True, 1.0, -1])
def test_a_version_must_be_a_whole_number(memories: Memories, version: Any) -> None:
    name = create(memories, OLD)
    with pytest.raises(InvalidInput, match="if_version must be a whole number, 0 or more"):
        memories.update(name, NEW, if_version=version)
    with pytest.raises(InvalidInput, match="version must be a whole number, 0 or more"):
        memories.restore(name, version=version)
    assert memories.get(name).version == 1


def test_a_removed_link_does_not_come_back(memories: Memories) -> None:
    older, newer = (create(memories, text) for text in (OLD, NEW))
    before = memories._clock()
    memories.update(newer, tags={"source": "wiki"})
    memories.update(newer, not_corrects=older)
    assert memories.truth.tidy(dry_run=True) == []
    memories.update(newer, "The API listens on port 9091.")
    assert memories.truth.tidy(dry_run=True) == []
    undone = memories.rollback(before)
    assert memories.get(newer).content == NEW
    assert links(memories, newer) == (None, None)
    assert undone.undo_to is not None
    memories.rollback(undone.undo_to)
    memories.delete(newer)
    memories.restore(newer)
    assert links(memories, newer) == (None, None)
    assert memories.truth.tidy(dry_run=True) == []


def test_as_of_ignores_later_corrections(memories: Memories) -> None:
    older = create(memories, OLD)
    before = memories._clock()
    create(memories, NEW)
    hits = memories.search("Which port?", as_of=before)
    assert [(hit.id, hit.memory.corrected_by) for hit in hits] == [(older, None)]


def test_memories_of_different_projects_or_keys_are_not_linked(memories: Memories) -> None:
    create(memories, OLD, tags={"project": "shop"}, key="api/port")
    assert memories.create(NEW).corrects is None
    assert memories.create(NEW, tags={"project": "shop"}, key="other/port").corrects is None


@pytest.mark.parametrize("keys", [(None, "api/port"), ("api/port", None)])
def test_memories_with_and_without_a_key_can_correct_each_other(
    memories: Memories, keys: tuple[str | None, str | None]
) -> None:
    older = create(memories, OLD, key=keys[0])
    assert memories.create(NEW, key=keys[1]).corrects == older


def test_the_newer_of_equal_matches_ranks_first(memories: Memories) -> None:
    ids = [
        create(memories, text, force=True)
        for text in ("The user likes green tea.", "The user likes black tea.")
    ]
    assert [hit.id for hit in memories.search("tea")] == ids[::-1]


def test_links_survive_a_move_to_another_store(memories: Memories, tmp_path: Path) -> None:
    ids = [create(memories, text) for text in (OLD, NEW)]
    target = open_store(f"sqlite:///{tmp_path}/other.db", None, memories.config)
    migrate(memories._store, target, None, progress=lambda *_: None)
    with Memories(target, embedder="none") as other:
        assert links(other, ids[0]) == (None, ids[1])
        assert links(other, ids[1]) == (ids[0], None)


def rows(name: str) -> list[dict[str, str]]:
    """Read a file of pairs."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["correction_pairs.jsonl", "correction_pairs_unseen.jsonl"])
def test_corrections_are_linked_and_facts_about_other_subjects_are_not(name: str) -> None:
    judged = [
        (row, is_correction(row["new"], row["old"], None, threshold=0.8)) for row in rows(name)
    ]
    right = [linked for row, linked in judged if row["kind"] == "correction"]
    wrong = [linked for row, linked in judged if row["kind"] != "correction"]
    assert sum(right) / len(right) >= 0.95
    assert sum(wrong) / len(wrong) <= 0.01
    assert changed(f"corrections in {name}", judged) == []


def test_drafts_in_one_call_correct_each_other_in_order(memories: Memories) -> None:
    created = memories.create_many([Draft(OLD), Draft(NEW)])
    assert created[0].memory is not None
    assert created[1].corrects == created[0].memory.id


SOME = (
    "n = 0",
    "n = 1",
    "n = 2",
    "n = 0 or n = 1",
    "n = 1 or n = 2",
    "n = 0 or n = 2",
    "n = 0 or n = 1 or n = 2",
)


def chain(memories: Memories) -> list[str]:
    """Create a memory, its correction, and the correction of that; return their ids."""
    return [create(memories, text, tags={"n": str(n)}) for n, text in enumerate((OLD, NEW, NEWEST))]


def links_by_id(memories: Memories) -> dict[str, tuple[str | None, str | None]]:
    """Return the links of each memory."""
    return {each.id: (each.corrects, each.corrected_by) for each in memories.list().memories}


@pytest.mark.parametrize("where", SOME)
def test_a_rollback_relinks_memories_deleted_together(memories: Memories, where: str) -> None:
    chain(memories)
    before = links_by_id(memories)
    done = memories.delete_where(where)
    left = links_by_id(memories)
    assert {link for pair in left.values() for link in pair} <= {None, *left}
    assert len({corrected for corrected, _ in left.values()}) == len(left)  # the chain has closed
    assert done.undo_to is not None
    undone = memories.rollback(done.undo_to, where=done.undo_where)
    assert links_by_id(memories) == before
    assert undone.undo_to is not None
    memories.rollback(undone.undo_to, where=undone.undo_where)
    assert links_by_id(memories) == left


def test_a_rollback_to_a_time_before_a_correction_leaves_no_link(memories: Memories) -> None:
    older = create(memories, OLD)
    before = memories._clock()
    newer = create(memories, NEW)
    undone = memories.rollback(before)
    assert links_by_id(memories) == {older: (None, None)}
    assert undone.undo_to is not None
    memories.rollback(undone.undo_to)
    assert links_by_id(memories) == {older: (None, newer), newer: (older, None)}


def test_a_rollback_of_a_changed_text_restores_the_link(memories: Memories) -> None:
    older, newer = (create(memories, text) for text in (OLD, NEW))
    before = memories._clock()
    memories.update(newer, "The office is in Rome.")
    memories.rollback(before)
    assert links_by_id(memories) == {older: (None, newer), newer: (older, None)}


def test_memories_deleted_together_name_those_that_are_current_again(memories: Memories) -> None:
    older, newer = (create(memories, text) for text in (OLD, NEW))
    assert memories.delete_where(f"id = {newer}", dry_run=True).current_again == ()
    assert memories.delete_where(f"id = {newer}").current_again == (older,)
    memories.restore(newer)
    assert memories.delete_where("content exists").current_again == ()


def test_memories_forgotten_together_name_those_that_are_current_again(memories: Memories) -> None:
    older, newer = (create(memories, text) for text in (OLD, NEW))
    assert memories.forget_where(f"id = {newer}", dry_run=True).current_again_count == 0
    affected = memories.forget_where(f"id = {newer}")
    assert (affected.current_again, affected.current_again_count) == ((older,), 1)
    create(memories, NEW)
    assert memories.forget_where("content exists").current_again_count == 0


@pytest.mark.parametrize("where", SOME)
def test_memories_forgotten_together_leave_no_link(memories: Memories, where: str) -> None:
    chain(memories)
    memories.forget_where(where)
    left = links_by_id(memories)
    assert {link for pair in left.values() for link in pair} <= {None, *left}


@pytest.mark.parametrize(("page", "batch"), [(bulk.PAGE, bulk.BATCH), (1, bulk.BATCH), (1, 1)])
@pytest.mark.parametrize("where", SOME)
def test_memories_that_move_to_a_project_together_stay_linked(
    memories: Memories, monkeypatch: pytest.MonkeyPatch, where: str, page: int, batch: int
) -> None:
    monkeypatch.setattr(bulk, "PAGE", page)
    monkeypatch.setattr(bulk, "in_batches", functools.partial(bulk.in_batches, size=batch))
    chain(memories)
    before = links_by_id(memories)
    memories.tag_where(where, tags={"project": "shop"})
    project = {each.id: each.tags.get("project") for each in memories.list().memories}
    after = links_by_id(memories)
    for newer, (older, _) in after.items():
        assert older is None or (project[older] == project[newer] and after[older][1] == newer)
    assert where != SOME[-1] or after == before


@pytest.mark.parametrize("page", [1, 2])
def test_memories_tagged_together_name_those_that_are_current_again(
    memories: Memories, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(bulk, "PAGE", page)
    older, newer = (create(memories, text) for text in (OLD, NEW))
    assert memories.tag_where(None, tags={"project": "shop"}).current_again == ()
    affected = memories.tag_where(f"id = {older}", tags={"project": "web"})
    assert affected.current_again == (older,)
    assert links_by_id(memories) == {older: (None, None), newer: (None, None)}


@pytest.mark.parametrize("batch", [1, 2, rollback.BATCH])
@pytest.mark.parametrize("undone", ["tags", "texts"])
def test_memories_that_are_rolled_back_together_are_linked_again(
    memories: Memories, monkeypatch: pytest.MonkeyPatch, undone: str, batch: int
) -> None:
    monkeypatch.setattr(rollback, "BATCH", batch)
    ids = chain(memories)
    before = links_by_id(memories)
    to = memories._clock()
    for number, memory_id in enumerate(ids):
        if undone == "tags":
            memories.update(memory_id, tags={"project": f"shop {number}"})
        else:
            memories.update(memory_id, f"Bananas are sold in crate {number}.")
    assert not any(link for pair in links_by_id(memories).values() for link in pair)
    assert memories.rollback(to).current_again == ()
    assert links_by_id(memories) == before


def test_a_restored_middle_memory_rejoins_its_chain(memories: Memories) -> None:
    ids = chain(memories)
    before = links_by_id(memories)
    memories.delete(ids[1])
    memories.restore(ids[1])
    assert links_by_id(memories) == before


def test_a_successor_of_a_correction_takes_over_its_link(memories: Memories) -> None:
    ids = [create(memories, text) for text in (OLD, NEW)]
    ids.append(create(memories, NEWEST, supersedes=ids[1]))
    assert links_by_id(memories) == {ids[0]: (None, ids[2]), ids[2]: (ids[0], None)}


REWORDED = "Since the move to Rome our public interface is reachable on 5435."


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("pending", [False, True])
def test_a_reworded_successor_takes_over_the_links_of_a_correction(
    memories: Memories, known: bool, pending: bool
) -> None:
    ids = [create(memories, OLD), create(memories, OLD.rstrip("."), force=True)]
    ids.append(create(memories, NEW))
    if known:
        create(memories, REWORDED)
    successor = memories.create(REWORDED, supersedes=ids[2], pending=pending)
    if pending and not successor.stored:
        return  # a known text is not held for review
    if pending:
        [accepted] = memories.review.accept([str(successor.id)])
        assert (accepted.memory.corrects, accepted.current_again) == (ids[1], ())
    else:
        assert successor.memory is not None
        assert successor.memory.also_corrects == (ids[0],)
        assert successor.current_again == ()
    after = links_by_id(memories)
    assert after[ids[0]] == after[ids[1]] == (None, successor.id)
    assert after[str(successor.id)] == (ids[1], None)
    memories.update(str(successor.id), "Our public interface is reachable on 5436.")
    assert links_by_id(memories) == after
    memories.delete(str(successor.id))
    assert links_by_id(memories)[ids[0]] == (None, None)


def test_a_replaced_correction_is_linked_again_when_its_successor_was_deleted(
    memories: Memories,
) -> None:
    newer = [create(memories, text) for text in (OLD, NEW)][1]
    before, moment = links_by_id(memories), memories._clock()
    successor = create(memories, REWORDED, supersedes=newer)
    after = links_by_id(memories)
    undone = memories.rollback(moment)
    assert links_by_id(memories) == before
    assert undone.undo_to is not None
    memories.rollback(undone.undo_to)
    assert links_by_id(memories) == after
    memories.delete(successor)
    memories.restore(newer)
    assert links_by_id(memories) == before


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        (REWORDED, {"tags": {"project": "shop"}}),
        ("The API is listening on port 8080.", {"force": True}),
        (OLD.rstrip("."), {}),
        (REWORDED, {"valid_until": "2020-01-01"}),
    ],
    ids=["another project", "the same in other words", "the same", "expired"],
)
def test_a_create_names_the_memories_that_are_current_again(
    memories: Memories, text: str, draft: dict[str, Any]
) -> None:
    older, newer = [create(memories, text) for text in (OLD, NEW)]
    created = memories.create(text, supersedes=newer, **draft)
    assert created.current_again == (older,)
    assert f"memory {older} is current again" in created.note
    assert memories.get(older).corrected_by is None


def test_another_text_under_the_key_of_a_correction_names_the_older_memory(
    memories: Memories,
) -> None:
    older = create(memories, OLD)
    create(memories, NEW, key="port")
    assert memories.create(NEWEST, key="port").current_again == ()
    assert memories.create("The office is in Rome.", key="port").current_again == (older,)


def test_a_context_shows_a_correction_that_no_search_finds(memories: Memories) -> None:
    newer = [create(memories, text) for text in (OLD, NEW)][1]
    create(memories, REWORDED, supersedes=newer)
    for include_corrected, shown in ((False, [REWORDED]), (True, [OLD])):
        backend = MemoriesBackend(memories, include_corrected=include_corrected)
        recalled = backend.recall("On which port does the API listen?", 5, 0.0, None)
        assert [document["text"] for document in recalled] == shown


@pytest.mark.parametrize("edited", [None, "The API listens on port 9191."])
def test_a_pending_memory_corrects_nothing_until_it_is_accepted(
    memories: Memories, edited: str | None
) -> None:
    older = create(memories, OLD)
    waiting = create(memories, NEW, pending=True)
    assert links_by_id(memories) == {older: (None, None)}
    accepted_at = memories._clock()
    [accepted] = memories.review.accept([waiting], content=edited)
    assert accepted.memory.corrects == older
    assert links_by_id(memories) == {older: (None, waiting), waiting: (older, None)}
    assert [
        hit.memory.corrected_by for hit in memories.search("Which port?", as_of=accepted_at)
    ] == [None]


def test_a_rejected_memory_corrects_nothing(memories: Memories) -> None:
    older = create(memories, OLD)
    memories.review.reject([create(memories, NEW, pending=True)])
    assert links_by_id(memories) == {older: (None, None)}


def test_links_in_a_foreign_file_are_ignored(memories: Memories, tmp_path: Path) -> None:
    older = create(memories, OLD)
    lines: list[str] = []
    with Memories(f"sqlite:///{tmp_path}/theirs.db", embedder="none") as theirs:
        create(theirs, "The door is red.")
        export(theirs._store, lines.append, namespaces=None, progress=lambda *_: None)
    shape = json.loads(lines[1])
    shape["fields"] = {"corrects": older, "corrected_by": older, "corrected_at": 0}
    file = [{"format": "memories", "version": 1}, shape]
    given = [json.dumps(line).encode() for line in file]
    import_(memories._store, given, None, namespaces=None, intake=Intake("file"))
    [waiting] = memories.review.page().memories
    assert (waiting.corrects, waiting.corrected_by) == (None, None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ann has to work in Berlin", "Ann has to work in Bonn"),
        ("You can run builds on Linux", "You can run builds on macOS"),
        ("Standup is on Monday at 9", "Standup is on Tuesday at 10"),
    ],
)
def test_two_verbs_or_two_changed_values_still_make_a_correction(one: str, other: str) -> None:
    assert is_correction(other, one, None, threshold=0.8)


@pytest.mark.parametrize("other_script", ["مرحبا بالعالم", "привет мир", "γεια σου", "שלום"])
def test_a_text_in_two_scripts_of_which_one_has_no_spaces_is_compared(other_script: str) -> None:
    older, newer = f"{other_script} 日本語 数据库是红色", f"{other_script} 日本語 数据库是蓝色"
    assert is_correction(newer, older, None, threshold=0.8)
    assert not is_correction(f"{newer} list", newer, None, threshold=0.8)


def test_a_negation_is_found_in_a_text_with_two_scripts() -> None:
    old, new = "数据库 сервер работает", "数据库 сервер не работает"
    assert is_correction(new, old, None, threshold=0.8)
    assert is_correction(old, new, None, threshold=0.8)


@pytest.mark.parametrize("threshold", [0.8, 1.0])
def test_sentences_under_one_heading_are_not_linked(threshold: float) -> None:
    assert not is_correction(
        "Bees: Bob fears them", "Bees: Ann keeps them", None, threshold=threshold
    )
    assert is_correction("Editor: vim", "Editor: emacs", None, threshold=threshold)


def _linked(name: str) -> list[tuple[str, str, bool]]:
    """Return the kind and language of each pair in a file, in both directions, and whether the
    first text corrects the second.
    """
    rows = [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
    return [
        (row["kind"].split("-")[0], row["language"], is_correction(new, old, None, threshold=0.8))
        for row in rows
        for new, old in ((row["new"], row["old"]), (row["old"], row["new"]))
    ]


@pytest.mark.parametrize(
    ("name", "least"), [("language_pairs.jsonl", 0.96), ("prose_pairs.jsonl", 0.92)]
)
def test_corrections_are_linked_in_many_languages_and_unlike_facts_are_not(
    name: str, least: float
) -> None:
    results = _linked(name)
    corrections = [linked for kind, _, linked in results if kind == "correction"]
    assert sum(corrections) >= least * len(corrections)
    assert changed(f"corrections in {name}", ((row, row[2]) for row in results)) == []
    assert [row for row in results if row[0] == "unlike" and row[2]] == []


def test_pairs_written_before_the_rules_get_the_recorded_verdict() -> None:
    rows = [
        json.loads(line)
        for line in (DATA / "fresh_pairs.jsonl").read_text("utf-8").split("\n")[:-1]
    ]
    judged = []
    for row in rows:
        for new, old in ((row["new"], row["old"]), (row["old"], row["new"])):
            relation = compare_texts(new, old, 0.9, threshold=0.7).relation
            is_refused = relation in {Relation.SAME, Relation.DUPLICATE}
            is_linked = not is_refused and is_correction(new, old, 0.9, threshold=0.7)
            judged.append(((row["kind"], new, old), (is_refused, is_linked)))
    assert changed("fresh pairs", judged) == []
    counts = Counter((kind, *verdict) for (kind, *_), verdict in judged)
    refused = {
        kind: counts[kind, True, False] for kind in ("both", "correction", "near-correction")
    }
    assert set(refused.values()) == {0}
    assert counts["repetition", True, False] >= 2 * 240  # of 300
    assert counts["correction", False, True] >= 2 * 440  # of 473
    assert counts["both", False, True] <= 2 * 52  # of 539


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Anna is a doctor.", "Anna is French."),
        ("Anna ist Ärztin.", "Anna ist Französin."),
        ("Анна работает врачом.", "Анна работает по ночам."),
        ("Der Server nutzt Redis.", "Der Server nutzt Kafka."),
        ("服务器使用Redis。", "服务器使用Kafka。"),
        ("ベンは背が高いです。", "ベンは足が速いです。"),
        ("Anna abita con Ben.", "Anna abita a Roma."),
        ("The left lamp is broken.", "The right lamp is broken."),
        ("Die erste Lampe ist kaputt.", "Die zweite Lampe ist kaputt."),
        ("Wir waren im Mai in Rom.", "Wir waren im Juni in Rom."),
        ("昨日は5キロ走りました。", "昨日は8キロ走りました。"),
        ("Petra ist mit Ben befreundet.", "Petra ist mit Tom befreundet."),
        ("Kapitel 3 ist lang.", "Kapitel 4 ist lang."),
        ("Ben'in köpeği var.", "Ben'in kedisi var."),
        ("The staging server is restarted every night.", "The staging server is at 10.0.0.5."),
        ("The job of customer 11 uses Redis.", "The job of customer 20 uses Redis."),
        ("Robot arm 3 welds the left door.", "Robot arm 4 welds the left door."),
        ("Gate terminal 3 dispenses 12 tokens.", "Gate terminal 4 dispenses 12 tokens."),
        ("We use Gradle for the build.", "We use Gradle for the tests."),
        ("CI runs on node 22.", "CI runs on Linux."),
        ("CI runs on Linux.", "CI runs on GitHub Actions."),
        ("CI runs on Linux.", "CI runs on every push."),
        ("CI runs on node 22.", "CI runs on our own machines."),
        ("CI läuft auf Node 22.", "CI läuft auf Linux."),
        ("The office is in Berlin.", "The office is in building 4."),
        ("The meeting is on Zoom.", "The meeting is on Monday."),
        ("Ann works at 9.", "Ann works at Acme."),
        ("The build uses Java 17 for tests.", "The build uses Gradle for tests."),
        ("We use blue paint for doors.", "We use blue paint for windows."),
        ("We use a name badge for visitors.", "We use a name badge for speakers."),
        ("We have a plan for fires.", "We have a plan for floods."),
        ("They sell paint to shops.", "They sell paint to schools."),
        ("We use Yarn in the web repo.", "We use Poetry in the api repo."),
        ("Logs go to Loki in staging.", "Logs go to Elastic in production."),
        ("The lights are blue in the hall.", "The lights are green in the kitchen."),
        ("Use tools, e.g. grep.", "Use tools, e.g. awk."),
        ("The report is written by Anna.", "The report is translated into German."),
        ("The API is protected by OAuth.", "The API is documented in OpenAPI."),
        ("The library is maintained by Freja.", "The library is licensed under MIT."),
        ("Use tabs in the Makefile.", "Use long options for commands in the Makefile."),
        ("We support Python 3.11", "We support Python 3.12"),
        ("The wall blocks port 25", "The wall blocks port 445"),
        ("The image contains Node 18", "The image contains Node 20"),
        ("The worker imports utils/time.py", "The worker imports utils/money.py"),
        ("The linter ignores migrations/", "The linter ignores vendor/"),
        ("The shop calls /v1/orders", "The shop calls /v2/orders"),
        ("The form renames users.name", "The form renames users.mail"),
        ("Lisa works on Mondays", "Lisa works on Tuesdays"),
        ("The gym is open on Saturdays", "The gym is open on Sundays"),
        ("The job runs at 02:00", "The job runs at 14:00"),
        ("The config is in config/dev.yaml", "The config is in config/prod.yaml"),
        ("The texts are in locales/de.json", "The texts are in locales/fr.json"),
        ("The state is in s3://tf/eu/west", "The state is in s3://tf/us/east"),
        ("The plugin works with Vim", "The plugin works with Emacs"),
        ("The hook runs before commit", "The hook runs before push"),
        ("We use tests with fixtures", "We use tests with mocks"),
        ("The shop is closed on Sunday", "The shop is closed on Sundays"),
        ("The flow needs the write scope", "The flow needs the admin scope"),
        ("Events are sent to Segment", "Events are sent to Amplitude"),
        ("Logs are written to /var/log/a.log", "Logs are written to /var/log/b.log"),
        ("We deploy to eu-west-1", "We deploy to ap-south-1"),
        ("The plugin works with Postgres 15", "The plugin works with Postgres 16"),
        ("Das Plugin funktioniert mit WordPress 5", "Das Plugin funktioniert mit WordPress 6"),
        ("We have a team meeting on Mondays at 9", "We have a team meeting on Fridays at 9"),
        ("The bus to Bonn leaves at 9:10", "The bus to Bonn leaves at 11:10"),
        ("Ann has worked at Acme", "Ann has worked at Globex"),
        ("Mia has a cat named Luna", "Mia has a cat named Simba"),
        ("The cat is named Minka", "The cat is black"),
        ("The office is in Rome", "The office is closed on Sundays"),
        ("The dog is 4 years old", "The dog is brown"),
    ],
)
def test_compatible_facts_are_not_linked(one: str, other: str) -> None:
    assert not is_correction(one, other, None, threshold=0.8)
    assert not is_correction(other, one, None, threshold=0.8)


ANNOUNCED = [
    ("The user drinks coffee instead of tea.", "The user drinks tea.", True),
    ("The user drinks instead of tea.", "The user drinks tea.", False),
    ("The user drinks coffee instead of beer.", "The user drinks tea.", False),
    ("The user moved from Oslo to Bergen.", "The user lives in Oslo.", True),
    ("The user moved from Rome to Bergen.", "The user lives in Oslo.", False),
    ("The user moved from Oslo to Oslo.", "The user lives in Oslo.", False),
    ("The user moved from to Bergen.", "The user lives in Oslo.", False),
    ("The user walks from Oslo to Bergen.", "The user lives in Oslo.", False),
    ("Ann moved from Oslo to Bergen.", "The user lives in Oslo.", False),
    ("Ann is the lead.", "Bob is the lead.", True),
    ("Ann is a lead.", "Bob is a lead.", False),
    ("Ann leads the team.", "Bob leads the team.", True),
    ("Ann likes the team.", "Bob likes the team.", False),
    ("ann is the lead.", "bob is the lead.", False),
    ("Ann is.", "Bob is.", False),
    ("Gates never open.", "Gates open.", True),
    ("Open.", "Not open.", False),
    ("Ann always pays.", "Ann pays.", True),
    ("CI runs on node 22.", "CI runs on node 20.", True),
    ("CI runs on Windows.", "CI runs on Linux.", True),
    ("The server runs on Ubuntu.", "The server runs on Debian 12.", True),
    ("The office is in Rome.", "The office is in Bonn.", True),
    ("The database is MySQL.", "The database is Postgres 16.", True),
    ("The store opens at noon.", "The store opens at 9.", True),
    ("The meeting is at 14:00", "The meeting is at 10:00", True),
    ("The job runs at 03:00", "The job runs at 02:00", True),
    ("We run on Python 3.12", "We run on Python 3.11", True),
    ("Production runs Postgres 16", "Production runs Postgres 14", True),
    ("The state is in /var/run/acme", "The state is in /run/acme", True),
    ("The API is at https://acme.io/v2", "The API is at https://acme.io/v1", True),
    ("Standups are on Tuesdays", "Standups are on Mondays", True),
    ("The site is at acme.io", "The site is at acme.de", True),
    ("The image holds 20 files", "The image holds 18 files", True),
    ("The app is deployed to Azure", "The app is deployed to AWS", True),
    ("Ann reports to Bob", "Ann reports to Eva", True),
    ("The team meeting is on Friday", "The team meeting is on Monday", True),
    ("The bus leaves from gate 4", "The bus leaves from gate 9", True),
    ("Ann has moved to Rome", "Ann has moved to Bonn", True),
    ("The room is named Ada", "The room is named Turing", True),
    ("The key is under the mat", "The key is in the shed", True),
    ("The blood type is A", "The blood type is 0", True),
]


def test_announced_changes_and_handed_over_roles_are_corrections() -> None:
    rows = [(new, old, None, expected) for new, old, expected in ANNOUNCED]
    assert failures_of(rows, functools.partial(is_correction, threshold=0.8)) == []
