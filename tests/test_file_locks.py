"""A file that several processes change is read and changed by one of them at a time."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.core import disk, trust
from memories.identity import registry
from memories.scratchpad import file as scratchpad_file
from memories.stores.records import Collection, Ref
from memories.transfer import export
from memories.write import turn_queue
from memories.write.accesses import Accesses
from memories.write.turn_queue import RetryQueue


class Counting:
    """A store that accepts read counts and drops them."""

    def touch(self, refs: object, batch: str) -> bool:
        """Report the reads as counted."""
        return True


def queued(folder: Path, name: str = "q") -> RetryQueue:
    """Return a queue with an entry."""
    made = RetryQueue(folder / f"{name}.jsonl")
    made.add({"conversation_id": "talk", "content": "hello"})
    return made


def flush_reads(folder: Path) -> None:
    """Flush a pending read count."""
    waiting = Accesses(folder, "store")
    waiting.add([Ref(Collection.MEMORY, "shared", "a", 1)])
    waiting.flush(Counting())  # type: ignore[arg-type]


def refresh_scratchpad(_folder: Path) -> None:
    """Refresh a scratchpad."""
    with Memories(embedder="none", namespace="bob") as memories:
        memories.create("The gate is green")
        memories.scratchpad(refresh=True)


def edit_scratchpad(folder: Path) -> None:
    """Replace a scratchpad with an empty one."""
    scratchpad_file.replace_by_person(folder / "scratchpad.yaml", "scratchpad: 1\nmemories: []\n")


def approve(folder: Path) -> None:
    """Approve a `.env` file."""
    folder.mkdir(parents=True)
    (folder / ".env").write_text("MEMORY_FORMAT=json\n")
    trust.approve(folder / ".env", folder)


@dataclasses.dataclass(frozen=True)
class Case:
    """A change, the lock that it needs, and the function that runs under that lock."""

    change: Callable[[Path], object]
    lock: str
    owner: Any
    name: str


CASES = {
    "queue: add": Case(queued, "q.jsonl.lock", turn_queue, "_append"),
    "queue: drain": Case(
        lambda folder: queued(folder).drain(lambda _: None),
        "q.jsonl.drain.lock",
        RetryQueue,
        "_drain",
    ),
    "queue: take out": Case(
        lambda folder: queued(folder).drain(lambda _: None), "q.jsonl.lock", turn_queue, "_rewrite"
    ),
    "queue: discard while others add": Case(
        lambda folder: queued(folder).discard("talk"), "q.jsonl.lock", turn_queue, "_rewrite"
    ),
    "queue: discard while others drain": Case(
        lambda folder: queued(folder).discard("talk"), "q.jsonl.drain.lock", turn_queue, "_rewrite"
    ),
    "queue: move while others add": Case(
        lambda folder: queued(folder).move_to(queued(folder, "r")),
        "q.jsonl.lock",
        turn_queue,
        "_append",
    ),
    "queue: move while others add to the other": Case(
        lambda folder: queued(folder).move_to(queued(folder, "r")),
        "r.jsonl.lock",
        turn_queue,
        "_append",
    ),
    "queue: move while others drain": Case(
        lambda folder: queued(folder).move_to(queued(folder, "r")),
        "q.jsonl.drain.lock",
        turn_queue,
        "_append",
    ),
    "reads: count": Case(flush_reads, "accesses.lock", Counting, "touch"),
    "scratchpad: edit": Case(edit_scratchpad, ".scratchpad.lock", scratchpad_file, "replacing"),
    "scratchpad: refresh": Case(
        refresh_scratchpad, "bob/.scratchpad.lock", scratchpad_file, "write"
    ),
    "key of exports": Case(
        lambda folder: export.own_key(folder, make=True), "export.key.lock", export, "replacing"
    ),
    "alias": Case(
        lambda folder: registry.set_alias(folder, "a", "b"),
        ".projects/.aliases.lock",
        registry,
        "aliases",
    ),
    "trust": Case(approve, "trusted.json.lock", trust, "_approvals"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_changed_under_its_lock(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    method = getattr(case.owner, case.name)
    free: list[bool] = []

    def observed(*given: Any, **named: Any) -> Any:
        with disk.try_lock(home / case.lock, 0) as held:
            free.append(held)
        return method(*given, **named)

    monkeypatch.setattr(case.owner, case.name, observed)
    case.change(home)
    assert free[-1:] == [False]
