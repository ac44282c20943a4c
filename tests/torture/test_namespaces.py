"""Fifty namespaces in one store: no read, write or deletion reaches another namespace."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories import Memories, MemoriesError, RequestError

Size = Callable[[int, int], int]
UNKNOWN = ("usr_id", "user_id", "namespace", "namespaces", "all", "owner", "filter")


def secret(name: str) -> str:
    """Return the secret of a namespace."""
    return f"secret-of-{name}-end"


@pytest.fixture
def users(tmp_path: Path, size: Size) -> list[Memories]:
    """Namespaces with a memory of two versions and a key, a deleted memory, and two conversations
    each.
    """
    store = f"sqlite:///{tmp_path}/m/memories.db"
    found = [
        Memories(store, namespace=f"n{number}", embedder="fake") for number in range(size(5, 50))
    ]
    for user in found:
        mine = secret(user.namespace)
        made = user.create(
            f"deploys happen on Tuesdays says {mine}", tags={mine: mine}, key="deploy/day"
        ).memory
        assert made is not None
        user.update(made.id, f"deploys happen on Fridays says {mine}")
        gone = user.create(f"lunch is at noon says {mine}", force=True).memory
        assert gone is not None
        user.delete(gone.id)
        user.add_turns("standup", [f"we ship on Friday said {mine}"])
        user.add_turns(mine, [f"only here said {mine}"])
    return found


@pytest.mark.torture
def test_no_call_reaches_another_namespace(users: list[Memories], figures: dict[str, Any]) -> None:
    figures |= {"namespaces": len(users), "calls": 0, "refused": 0, "foreign": 0}
    ids = {user.namespace: [memory.id for memory in _all(user)] for user in users}
    before = {user.namespace: _readable(user) for user in users}
    for number, user in enumerate(users):
        for other in (users[number - 1], users[number // 2 - 1]):
            mine, theirs = secret(user.namespace), secret(other.namespace)
            for name, call in _reads(user, other).items():
                shown = repr(call())
                figures["calls"] += 1
                assert theirs not in shown, name
                assert mine in shown or "tag" in name or "conversation" in name, name
            for memory_id in ids[other.namespace]:
                for name, call in _by_id(user, memory_id).items():
                    with pytest.raises(RequestError) as caught:
                        call()
                    figures["calls"] += 1
                    figures["refused"] += 1
                    assert theirs not in str(caught.value), name
    assert {user.namespace: _readable(user) for user in users} == before


def test_an_unknown_filter_is_refused_and_not_ignored(tmp_path: Path) -> None:
    answered = []
    with Memories(f"sqlite:///{tmp_path}/m.db", namespace="n0", embedder="fake") as user:
        for name in UNKNOWN:
            for call in (
                user.search,
                user.explain,
                lambda _, user=user, **given: user.list(**given),
            ):
                with contextlib.suppress(TypeError, MemoriesError):
                    call("deploys", **{name: "n1"})  # type: ignore[arg-type]
                    answered.append((name, call))
    assert answered == []


def _all(user: Memories) -> list[Any]:
    """Return all memories, including deleted ones."""
    return [*user.list(limit=1000).memories, *user.list(deleted=True, limit=1000).memories]


def _readable(user: Memories) -> Any:
    """Return everything that a user can read."""
    kept = [
        (memory.id, memory.content, memory.version, memory.deleted, dict(memory.tags))
        for memory in _all(user)
    ]
    said = [
        (turn.id, turn.content)
        for name in ("standup", secret(user.namespace))
        for turn in user.turns(name)
    ]
    return sorted(kept), said, user.tags(), [user.history(memory.id) for memory in _all(user)]


def _reads(user: Memories, other: Memories) -> dict[str, Callable[[], Any]]:
    """Return every read that might show another namespace's secret."""
    theirs = secret(other.namespace)
    query = f"deploys happen on Fridays says {secret(user.namespace)} {theirs}"
    return {
        "list": lambda: user.list(limit=1000),
        "list deleted": lambda: user.list(deleted=True, limit=1000),
        "list the past": lambda: user.list(as_of="2030-01-01", limit=1000),
        "list by another's tag": lambda: user.list(tags={theirs: theirs}).memories,
        "search": lambda: [hit.found for hit in user.search(query, limit=1000, min_confidence=0.0)],
        "search turns": lambda: [
            hit.found for hit in user.search(query, scope="history", limit=1000)
        ],
        "search all": lambda: [hit.found for hit in user.search(query, scope="all", limit=1000)],
        "search by another's tag": lambda: user.search("deploys", tags={theirs: theirs}),
        "search another's conversation": lambda: user.search(
            "only here", scope="history", conversation=theirs
        ),
        "tags": user.tags,
        "values of another's tag": lambda: user.tags(theirs),
        "conversations": lambda: [each.id for each in user.conversations()],
        "another's conversation": lambda: user.turns(theirs),
        "the end of another's conversation": lambda: user.tail_turns(theirs),
        "one that both have": lambda: user.turns("standup"),
    }


def _by_id(user: Memories, memory_id: str) -> dict[str, Callable[[], Any]]:
    """Return a call of every method that takes an id."""
    return {
        "get": lambda: user.get(memory_id),
        "get by most of its id": lambda: user.get(memory_id[:34]),
        "history": lambda: user.history(memory_id),
        "update": lambda: user.update(memory_id, "taken over"),
        "tag": lambda: user.update(memory_id, tags={"mine": "now"}),
        "reinforce": lambda: user.reinforce(memory_id),
        "delete": lambda: user.delete(memory_id),
        "restore": lambda: user.restore(memory_id),
        "forget": lambda: user.forget(memory_id),
        "supersede": lambda: user.create("instead of it", supersedes=memory_id, force=True),
    }
