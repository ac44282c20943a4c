"""Group commit: many writes share a transaction, each judged as if it came alone, none acknowledged before it ends."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from memories import Created, Draft, InvalidInput, Memories, NotFound, StoreDamaged, StoreError
from memories.skins.server.writers import Full, Writers


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake", namespace="bob") as opened:
        yield opened


@pytest.fixture
def writers(memories: Memories, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writers]:
    monkeypatch.setattr("memories.skins.server.writers._SECONDS", 600.0)  # however busy this machine is
    made = Writers(memories._kept)
    yield made
    made.close(60)


class Held:
    """Keeps the thread of the writers busy, so that what comes meanwhile waits together."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._go, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: writers.do(self._wait))

    def _wait(self) -> None:
        self._begun.set()
        self._go.wait(60)

    def __enter__(self) -> "Held":
        self._thread.start()
        self._begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._thread.join()


def together(writers: Writers, runs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run them in one transaction, in this order; return what each returned or raised."""

    def outcome(run: Callable[[], Any]) -> Any:
        try:
            return run()
        except Exception as exc:  # noqa: BLE001 - it is what the test looks at
            return exc

    with ThreadPoolExecutor(len(runs)) as pool:
        with Held(writers):
            futures = []
            for number, run in enumerate(runs, 1):
                futures.append(pool.submit(outcome, run))
                while writers.waiting < number:
                    pass
        return [future.result() for future in futures]


def create(writers: Writers, memories: Memories, *drafts: Draft, force: bool = False) -> Callable[[], list[Created]]:
    return lambda: writers.create(memories, drafts, force, True)


def test_many_writes_share_a_transaction(memories: Memories, writers: Writers) -> None:
    made = together(
        writers, [create(writers, memories, Draft(f"fact number {n} of many"), force=True) for n in range(40)]
    )
    assert len({each[0].id for each in made}) == 40
    assert writers.commits == 2  # one of them was to keep them waiting
    assert writers.writes == 41
    assert memories.status().memory_count == 40
    assert {check.problem for check in memories.verify_log()} == {None}


def test_each_is_judged_by_what_stands_before_it(memories: Memories, writers: Writers) -> None:
    """Repetitions, corrections, keys and what is superseded, all in one transaction, as one after another."""
    drafts = [
        Draft("The deploy day is Tuesday"),
        Draft("The deploy day is Tuesday", {"team": "web"}),
        Draft("The deploy day is Thursday"),
        Draft("vim", key="user/editor"),
        Draft("emacs", key="user/editor"),
    ]
    with Memories(
        "sqlite:///" + str(Path(memories.config.home) / "alone.db"), embedder="fake", namespace="bob"
    ) as alone:
        expected = [alone.create_many([draft])[0] for draft in drafts]
    made = [each[0] for each in together(writers, [create(writers, memories, draft) for draft in drafts])]
    assert writers.commits == 2
    assert [each.stored for each in made] == [each.stored for each in expected] == [True, False, True, True, True]
    assert made[1].id == made[0].id
    assert made[1].merged == expected[1].merged == ("tags",)
    assert made[2].corrects == made[0].id
    assert made[4].id == made[3].id
    assert memories.get(str(made[3].id)).content == "emacs"


def test_one_that_is_refused_fails_alone(memories: Memories, writers: Writers) -> None:
    gone = "01a1fdf1-92cd-72f2-8000-000000000000"
    first, bad, half, last = together(
        writers,
        [
            create(writers, memories, Draft("one thing")),
            create(writers, memories, Draft("another thing", supersedes=gone)),
            create(writers, memories, Draft("kept by none of these"), Draft("since this fails", supersedes=gone)),
            create(writers, memories, Draft("quite a third matter")),
        ],
    )
    assert isinstance(bad, NotFound)
    assert isinstance(half, NotFound)
    assert (first[0].stored, last[0].stored) == (True, True)
    assert sorted(each.content for each in memories.list().memories) == ["one thing", "quite a third matter"]
    assert {check.problem for check in memories.verify_log()} == {None}


def test_an_unacceptable_one_never_waits(memories: Memories, writers: Writers) -> None:
    with pytest.raises(InvalidInput):
        writers.create(memories, [Draft(" ")], False, True)
    assert writers.writes == 0


def test_each_writes_as_itself(memories: Memories, writers: Writers) -> None:
    ann, ben = memories.of_client("ann's agent", "1"), memories.of_client("ben's agent", "2")
    made = together(
        writers, [create(writers, ann, Draft("the roof is red")), create(writers, ben, Draft("trains leave at nine"))]
    )
    told = [each[0].memory.origin.by for each in made]
    assert told == ["ann's agent", "ben's agent"]
    assert [entry.actor.channel for entry in memories.log()] == ["python", "python"]


def test_a_bug_in_one_reaches_only_who_asked(memories: Memories, writers: Writers) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    bad, good = together(writers, [lambda: writers.do(broken), create(writers, memories, Draft("fine"))])
    assert isinstance(bad, ZeroDivisionError)
    assert good[0].stored


def test_when_the_disk_fails_nothing_of_the_transaction_is_acknowledged(memories: Memories, writers: Writers) -> None:
    def full() -> None:
        raise StoreError("the disk of m.db is full") from OSError("full")

    made = together(writers, [create(writers, memories, Draft("before it")), lambda: writers.do(full)])
    assert [type(each) for each in made] == [StoreError, StoreError]
    assert memories.list().memories == ()
    assert writers.create(memories, [Draft("after it")], False, True)[0].stored


def test_after_damage_nothing_more_is_written(memories: Memories, writers: Writers) -> None:
    def damaged() -> None:
        raise StoreDamaged("m.db is damaged") from OSError("malformed")

    with pytest.raises(StoreDamaged):
        writers.do(damaged)
    with pytest.raises(StoreDamaged, match=r"m\.db is damaged"):
        writers.create(memories, [Draft("more")], False, True)
    assert writers.problem == "m.db is damaged"


def test_a_store_that_was_replaced_is_not_written(memories: Memories) -> None:
    fits = True
    writers = Writers(memories._kept, lambda: fits)
    writers.create(memories, [Draft("one")], False, True)
    fits = False
    with pytest.raises(StoreDamaged, match="removed or replaced"):
        writers.create(memories, [Draft("two other words")], False, True)
    writers.close()


def test_a_full_queue_says_so_at_once(memories: Memories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memories.skins.server.writers.MOST_WAITING", 3)
    writers = Writers(memories._kept)
    with Held(writers):
        waiting = [threading.Thread(target=writers.do, args=(list,)) for _ in range(3)]
        for number, thread in enumerate(waiting, 1):
            thread.start()
            while writers.waiting < number:
                pass
        with pytest.raises(Full, match="nothing was written"):
            writers.do(list)
    for thread in waiting:
        thread.join()
    assert writers.close(60)
    assert writers.writes == 4


def test_what_waits_is_written_before_the_end_and_nothing_after_it(memories: Memories, writers: Writers) -> None:
    with ThreadPoolExecutor(2) as pool:
        with Held(writers):
            waiting = pool.submit(create(writers, memories, Draft("just in time")))
            while not writers.waiting:
                pass
            ended = pool.submit(writers.close, 60)
            while not writers._closed:
                pass
        assert ended.result() is True
        assert waiting.result()[0].stored
    with pytest.raises(Full, match="ending"):
        writers.create(memories, [Draft("too late")], False, True)


def test_a_draft_with_an_id_is_stored_once(memories: Memories, writers: Writers) -> None:
    """So a client that does not know whether it was stored may ask again; also when others wrote meanwhile."""
    draft = Draft("sent twice", {"team": "web"}, id="01a1fdf1-92cd-72f2-8abc-0123456789ab")
    first, second = (each[0] for each in together(writers, [create(writers, memories, draft, force=True)] * 2))
    assert first.id == second.id == draft.id
    assert first.stored
    assert second.stored
    memories.delete(str(draft.id))
    assert memories.create_many([draft])[0].id == draft.id
    assert memories.status().memory_count == 0


@pytest.mark.parametrize(
    "bad", ["01a1fdf1", "x", "01a1fdf1-92cd-42f2-8abc-0123456789ab", "01a1fdf1-92cd-72f2-0abc-0123456789ab"]
)
def test_an_id_that_is_no_uuid7_is_refused(bad: str, memories: Memories) -> None:
    with pytest.raises(InvalidInput):
        memories.create_many([Draft("content", id=bad)])
    assert memories.status().memory_count == 0
