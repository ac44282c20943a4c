"""Links stay whole through any history of changes: no circle, no one-sided link, and a memory is
hidden if and only if a valid, current memory corrects it.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import permutations, product
from pathlib import Path

import pytest

from clock import Clock
from memories import Memories
from memories.errors import RequestError
from memories.stores.records import Collection, Filter, Record
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.intake import Intake

PORTS = [f"The API listens on port {port}." for port in (8080, 9090, 7070, 6060)]
# The same facts in words that aren't recognized as repetitions of each other.
REWORDED = [text.replace("The API", "The API of ours") for text in PORTS]
QUESTION = "Which port does the API listen on?"
STEPS = 30
HISTORIES = 12


@pytest.fixture
def clock() -> Clock:
    """A clock that the test moves."""
    return Clock()


@pytest.fixture
def memories(tmp_path: Path, clock: Clock) -> Iterator[Memories]:
    """Memories that use the clock."""
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=clock) as opened:
        yield opened


def current(memories: Memories) -> dict[str, Record]:
    """Return the records of the current memories by id."""
    records = memories._store.scan(Filter(Collection.MEMORY, ("shared",)), limit=1_000)
    return {record.ref.group: record for record in records}


def links(memories: Memories) -> dict[str, tuple[set[str], str | None]]:
    """Return the stored links of the current memories: what each corrects, and its correction."""
    return {
        name: (set(record.read_list("corrects")), record.fields.get("corrected_by"))
        for name, record in current(memories).items()
    }


def check(memories: Memories, clock: Clock) -> None:
    """Check the links of all current memories, and that all readers agree on them."""
    records, linked = current(memories), links(memories)
    for name, (older, newer) in linked.items():
        assert all(linked[each][1] == name for each in older), "one-sided"
        assert newer is None or name in linked[newer][0], "one-sided"
        following = [name]
        while (newer := linked[following[-1]][1]) is not None:
            assert newer not in following, "a circle"
            following.append(newer)
        ends = [records[each].fields.get("valid_until") for each in following[1:]]
        now = clock.now.timestamp() * 1000
        is_hidden = any(end is None or now <= end for end in ends)
        assert (memories.get(name).corrected_by is not None) is is_hidden
    listed = memories.list(limit=100).memories
    hidden = {name for name in linked if memories.get(name).corrected_by}
    assert hidden == {each.id for each in listed if each.corrected_by}
    found = {hit.id for hit in memories.search(QUESTION, include_corrected=False, limit=100)}
    assert found == set(linked) - hidden


def chain(memories: Memories, clock: Clock, count: int) -> list[str]:
    """Create a memory and its corrections; return their ids, oldest first."""
    ids: list[str] = []
    for text in PORTS[:count]:
        clock.move()
        ids.append(str(memories.create(text).id))
    return ids


def check_restored_in_any_order(memories: Memories, clock: Clock, ids: Sequence[str]) -> None:
    """Delete and restore all of these memories in every order; check that their links return."""
    before = links(memories)
    for deleted, restored in product(permutations(ids), repeat=2):
        for action, order in ((memories.delete, deleted), (memories.restore, restored)):
            for name in order:
                clock.move()
                action(name)
                check(memories, clock)
        assert links(memories) == before, (deleted, restored)


@pytest.mark.parametrize("count", [2, 3])
def test_a_chain_is_whole_again_when_all_its_memories_are_restored(
    memories: Memories, clock: Clock, count: int
) -> None:
    ids = chain(memories, clock, count)
    check_restored_in_any_order(memories, clock, ids)


def test_a_rollback_restores_the_links_of_memories_that_were_deleted_one_by_one(
    memories: Memories, clock: Clock
) -> None:
    ids = chain(memories, clock, 3)
    clock.move()
    before, moment = links(memories), clock.now
    for order in permutations(ids):
        for name in order:
            clock.move()
            memories.delete(name)
        clock.move()
        memories.restore(order[0])
        clock.move()
        memories.rollback(moment)
        check(memories, clock)
        assert links(memories) == before, order


def test_links_of_restored_memories_survive_an_export(
    memories: Memories, clock: Clock, tmp_path: Path
) -> None:
    ids = chain(memories, clock, 2)
    before = links(memories)
    for name in ids:
        memories.delete(name)
    memories.restore(ids[0])

    lines: list[str] = []
    export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    with Memories(f"sqlite:///{tmp_path}/copy.db", embedder="none", clock=clock) as copy:
        given = [line.encode() for line in lines]
        import_(copy._store, given, None, namespaces=None, intake=Intake())
        copy.restore(ids[1])
        assert links(copy) == before
        check(copy, clock)


def test_a_correction_corrects_all_memories_with_the_same_fact(
    memories: Memories, clock: Clock
) -> None:
    first = str(memories.create(PORTS[0]).id)
    clock.move()
    second = str(memories.create(PORTS[0].rstrip("."), force=True).id)
    clock.move()
    created = memories.create(PORTS[1])
    assert created.id is not None
    assert (created.corrects, memories.get(created.id).also_corrects) == (second, (first,))
    before = {first: (set(), created.id), second: (set(), created.id)}
    before[created.id] = {first, second}, None
    assert links(memories) == before
    check(memories, clock)
    check_restored_in_any_order(memories, clock, list(before))
    memories.update(created.id, not_corrects=first)
    assert links(memories)[created.id] == ({second}, None)
    assert links(memories)[first] == (set(), None)


Act = Callable[[Memories, Clock, random.Random, str], object]


def _until(clock: Clock, dice: random.Random) -> str:
    """Return a time one to six days after now, as text."""
    return (clock.now + timedelta(days=dice.randint(1, 6))).isoformat()


ACTS: dict[str, Act] = {
    "create": lambda m, _, d, __: m.create(d.choice(PORTS)),
    "create for a time": lambda m, c, d, _: m.create(d.choice(PORTS), valid_until=_until(c, d)),
    "create another": lambda m, _, d, __: m.create(d.choice(PORTS + REWORDED), force=True),
    "update": lambda m, _, d, each: m.update(each, d.choice(PORTS)),
    "update for a time": lambda m, c, d, each: m.update(each, valid_until=_until(c, d)),
    "update for good": lambda m, _, __, each: m.update(each, valid_until=""),
    "supersede": lambda m, _, d, each: m.create(d.choice(PORTS), supersedes=each),
    "confirm": lambda m, _, __, each: m.truth.confirm(each),
    "tag": lambda m, _, d, each: m.update(each, tags={"team": d.choice("ab")}),
    "tag all": lambda m, _, d, __: m.tag_where("namespace = shared", tags={"n": d.choice("ab")}),
    "delete": lambda m, _, __, each: m.delete(each),
    "restore": lambda m, _, __, each: m.restore(each),
    "earlier version": lambda m, _, __, each: m.restore(each, version=1),
    "unlink": lambda m, _, __, each: m.update(each, not_corrects=m.get(each).corrects),
    "roll back": lambda m, c, d, _: m.rollback(c.now - timedelta(days=d.randint(1, 5))),
    "forget": lambda m, _, __, each: m.forget(each),
    "wait": lambda _, c, d, __: c.move(timedelta(days=d.randint(1, 3))),
}


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_links_stay_whole_through_any_history(memories: Memories, clock: Clock, seed: int) -> None:
    dice, ids, done = random.Random(seed), chain(memories, clock, 2), []
    for _ in range(STEPS):
        clock.move(timedelta(hours=1))
        name, each = dice.choice(list(ACTS)), dice.choice(ids)
        try:
            result = ACTS[name](memories, clock, dice, each)
        except RequestError:  # such as a memory that is not deleted
            continue
        done.append((name, each))
        created = getattr(result, "id", None)
        if created is not None and created not in ids:
            ids.append(created)
        check(memories, clock)
    assert len(done) > STEPS // 4
