"""Changes of each kind, each with its preparation, for tests that apply to all of them."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from memories import Draft, Memories, TurnDraft
from memories.identity import namespaces
from memories.transfer.export import export
from memories.transfer.importing import import_

DAYS = ["The deadline is on Monday", "The deadline is on Tuesday", "The deadline is on Friday"]


def create_all(memories: Memories, *texts: str, **given: Any) -> list[str]:
    """Create memories; return their ids."""
    ids = [memories.create(text, **given).id for text in texts]
    return [each for each in ids if each is not None]


def chain(memories: Memories) -> list[str]:
    """Create three memories, each of which corrects the previous one."""
    ids = create_all(memories, *DAYS, tags={"kind": "plan"})
    assert memories.get(ids[1]).corrects == ids[0]
    assert memories.get(ids[2]).corrects == ids[1]
    return ids


def waiting(memories: Memories) -> list[str]:
    """Create two memories that await review."""
    memories.create_many(
        [Draft("The gate is green", pending=True), Draft("Rain is expected", pending=True)]
    )
    return memories.review.select()


def talk(memories: Memories) -> str:
    """Store a conversation with two turns and a title."""
    memories.add_turns("talk", [TurnDraft("hello"), TurnDraft("good morning", role="assistant")])
    memories.update_conversation("talk", title="Greetings")
    return "talk"


def moment(memories: Memories) -> datetime:
    """Create a memory, then change it and add two more; return the time before the change."""
    [one] = create_all(memories, "The gate is green")
    before = memories.get(one).created_at
    memories.update(one, "The gate is blue and new")
    create_all(memories, "Rain is expected", "Ann plays chess")
    return before


def exported(memories: Memories) -> list[bytes]:
    """Create, export and forget two memories; return the export's lines."""
    ids = create_all(memories, "The gate is green", "Rain is expected")
    lines: list[str] = []
    export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    for each in ids:
        memories.forget(each)
    return [line.encode() for line in lines]


CHANGES: dict[str, tuple[Callable[[Memories], Any], Callable[[Memories, Any], object]]] = {
    "create": (lambda m: None, lambda m, _: m.create("The gate is green")),
    "create many": (
        lambda m: None,
        lambda m, _: m.create_many(["The gate is green", "Rain is expected"]),
    ),
    "correct": (lambda m: create_all(m, *DAYS[:2]), lambda m, _: m.create(DAYS[2])),
    "repeat": (
        lambda m: create_all(m, DAYS[0]),
        lambda m, _: m.create(DAYS[0], tags={"kind": "plan"}),
    ),
    "key": (
        lambda m: create_all(m, DAYS[0], key="a/b"),
        lambda m, _: m.create("The gate is green", key="a/b"),
    ),
    "supersede": (chain, lambda m, ids: m.create("The gate is green", supersedes=ids[1])),
    "update": (chain, lambda m, ids: m.update(ids[1], "The gate is green")),
    "no correction": (chain, lambda m, ids: m.update(ids[1], not_corrects=ids[0])),
    "reinforce": (
        lambda m: create_all(m, DAYS[0], decay="reinforceable"),
        lambda m, ids: m.reinforce(ids[0]),
    ),
    "delete": (chain, lambda m, ids: m.delete(ids[1])),
    "pin": (lambda m: create_all(m, DAYS[0]), lambda m, ids: m.pin(ids[0])),
    "delete many": (chain, lambda m, ids: m.delete_where("kind = plan")),
    "tag many": (chain, lambda m, ids: m.tag_where("kind = plan", tags={"kind": "fact"})),
    "forget": (chain, lambda m, ids: m.forget(ids[1])),
    "forget many": (chain, lambda m, ids: m.forget_where(f"id = {ids[1]}")),
    "restore": (lambda m: [m.delete(chain(m)[1]).id], lambda m, ids: m.restore(ids[0])),
    "restore a version": (
        lambda m: [m.update(chain(m)[1], "The gate is green").id],
        lambda m, ids: m.restore(ids[0], version=1),
    ),
    "roll back": (moment, lambda m, at: m.rollback(at)),
    "accept": (waiting, lambda m, ids: m.review.accept(ids)),
    "reject": (waiting, lambda m, ids: m.review.reject(ids)),
    "add turns": (
        talk,
        lambda m, name: m.add_turns(name, [TurnDraft("bye"), TurnDraft("see you")]),
    ),
    "name a conversation": (talk, lambda m, name: m.update_conversation(name, title="Mornings")),
    "forget a turn": (talk, lambda m, name: m.forget_turns(name, index=0)),
    "import": (exported, lambda m, lines: import_(m._store, lines, None, namespaces=None)),
    "move a namespace": (
        lambda m: talk(m) and chain(m),
        lambda m, _: namespaces.move(m._store, m.config, m.namespace, "robert", merge=True),
    ),
}
