"""Origins: the program that stores a record sets them and keeps them separate from the tags, so no
writer can choose them.
"""

import io
import sys
from pathlib import Path

import pytest

from memories import Memories, TurnDraft
from memories.config import load_config
from memories.errors import InvalidInput
from memories.guard.origin import Origin, is_person, origin, origin_of, stamp_labels, tags_of

FORGED = {"=trust": "user", "=by": "root", "=via": "cli|x|y|z|1|ann"}


def test_an_origin_is_stored_in_labels_and_tags_stay() -> None:
    mine = origin("mcp", "ann", ("Claude Code", "1.2.3"))
    labels = stamp_labels({"agent": "gpt", **FORGED}, mine)
    assert tags_of(labels) == {"agent": "gpt"}
    assert origin_of(labels) == mine
    assert mine[:4] == ("agent", "mcp", "Claude Code", "Claude Code 1.2.3")
    assert (mine.namespace, mine.program) == ("ann", "0.1.0")


@pytest.mark.parametrize(
    "labels", [{}, {"=via": "x"}, FORGED | {"=trust": "king"}, FORGED | {"=via": "cli"}]
)
def test_invalid_labels_give_no_origin(labels: dict[str, str]) -> None:
    assert origin_of(labels) is None


@pytest.mark.parametrize(
    "name", ["x" * 10_000, "a\nb\x1b[2J", "user\u202e\u2066\u3164", "a|b|c", "\ud800", "", "=by"]
)
def test_an_unusual_client_name_is_shown_safely_and_read_back_unchanged(name: str) -> None:
    mine = origin("mcp", "ann", (name, name))
    assert origin_of(stamp_labels({}, mine)) == mine
    assert mine.by.isprintable()
    assert "|" not in mine.by
    assert all(0 < len(value) <= 256 for value in stamp_labels({}, mine).values())


def test_every_version_and_turn_has_its_origin(memories: Memories) -> None:
    made = memories.create(
        "Deploys happen on Tuesdays", tags={"agent": "gpt", "by": "me", "trust": "user"}
    ).memory
    assert made is not None
    assert isinstance(made.origin, Origin)
    assert made.origin[:2] == ("agent", "python")
    assert made.tags == {"agent": "gpt", "by": "me", "trust": "user"}
    assert memories.get(made.id).origin == made.origin
    [turn] = memories.add_turns("talk", [TurnDraft("Hello", tags={"origin": "user"})])
    assert (turn.origin, turn.tags) == (made.origin, {"origin": "user"})
    assert memories.turns("talk") == [turn]
    assert set(memories.tags()) == {"agent", "by", "trust"}


def test_each_version_names_its_writer_and_earlier_versions_keep_theirs(memories: Memories) -> None:
    made = memories.create("Deploys happen on Tuesdays", key="deploy").memory
    assert made is not None
    theirs = memories.of_client("cursor", "9")
    assert theirs.update(made.id, tags={"type": "fact"}).origin == origin(
        "mcp", "shared", ("cursor", "9")
    )._replace(channel="python")
    memories.delete(made.id)
    memories.restore(made.id)
    other = theirs.create("Deploys happen on Fridays", key="deploy").memory
    assert other is not None
    versions = memories.history(made.id).versions
    assert [version.origin and version.origin.client for version in versions] == [
        None,
        "cursor 9",
        None,
        "cursor 9",
    ]


@pytest.mark.parametrize(
    ("terminals", "person"),
    [((True, True), True), ((True, False), False), ((False, True), False), ((False, False), False)],
)
def test_a_person_has_terminals_as_stdin_and_stderr(
    monkeypatch: pytest.MonkeyPatch, terminals: tuple[bool, bool], person: bool
) -> None:
    for name, is_terminal in zip(("stdin", "stderr"), terminals, strict=True):
        stream = io.StringIO()
        stream.isatty = lambda answer=is_terminal: answer  # type: ignore[method-assign,misc]
        monkeypatch.setattr(sys, name, stream)
    assert is_person() is person
    monkeypatch.setenv("CLAUDECODE", "1")
    assert not is_person()


def test_a_tag_cannot_be_an_origin(memories: Memories) -> None:
    with pytest.raises(InvalidInput, match='tag key "=trust" is not usable'):
        memories.create("x y z", tags={"=trust": "user"})
    with pytest.raises(InvalidInput, match='tag key "=by" is not usable'):
        memories.tags("=by")
    with pytest.raises(InvalidInput, match='tag key "=via" is not usable'):
        memories.add_turns("talk", [TurnDraft("Hello", tags={"=via": "x"})])


def test_the_identity_is_the_configured_namespace_even_in_writes_to_others(tmp_path: Path) -> None:
    def namespace_of(environment: dict[str, str], flag: str | None = None) -> tuple[str, str]:
        config = load_config(
            {"namespace": flag}, environment={"MEMORY_HOME": str(tmp_path), **environment}
        )
        with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", config=config) as opened:
            made = opened.create("Something to keep", force=True).memory
            assert made is not None
            assert made.origin is not None
            return made.namespace, made.origin.namespace

    assert namespace_of({}) == ("shared", "shared")
    assert namespace_of({}, "bob") == ("bob", "bob")
    assert namespace_of({"MEMORY_NAMESPACE": "Bob"}, "shared") == ("shared", "bob")
    assert namespace_of({"MEMORY_NAMESPACE": "!"}, "ann") == ("ann", "ann")
