"""`list --sort`, `--project` with global memories, `search --where`, `namespaces` and `history
--diff`.
"""

from collections.abc import Callable

import pytest

from cli.conftest import Command, Once
from memories import Memories
from memories.answers import compare


def contents(memory: Command, *arguments: str) -> list[str]:
    """Return the contents in a command's answer."""
    return [found["content"] for found in memory(*arguments).json["results"]]


@pytest.fixture
def three(memory: Command, stored: Callable[..., str], once: Once) -> list[str]:
    """Memories a, b, c: b was read most often, a was updated last, c has the lowest confidence."""

    def fill() -> list[str]:
        ids = [
            stored("a", "--key", "z"),
            stored("b", "--key", "y"),
            stored("c", "--confidence", "0.4", "--key", "x"),
        ]
        for _ in range(3):
            memory("get", ids[1])
        memory("update", ids[0], "--type", "fact")
        return ids

    kept: list[str] = once(fill)
    return kept


@pytest.mark.first(4)
@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("order", "found"),
    [
        ("created", "cba"),
        ("updated", "acb"),
        ("confidence", "bac"),
        ("accesses", "bca"),
        ("version", "acb"),
        ("key", "cba"),
        ("reinforced", "cba"),
    ],
)
def test_a_list_has_the_requested_order(memory: Command, order: str, found: str) -> None:
    assert contents(memory, "list", "--sort", order) == list(found)
    assert contents(memory, "list", "--sort", order, "--reverse") == list(found[::-1])
    cursor, paged = None, []
    while True:
        page = memory(
            "list", "--sort", order, "--limit", "1", *(["--cursor", cursor] if cursor else [])
        ).json
        paged += [each["content"] for each in page["results"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert paged == list(found)


def test_pages_list_each_memory_once_even_with_equal_sort_keys(memory: Command) -> None:
    with Memories() as memories:
        memories.create_many([f"fact {number}" for number in range(120)], force=True)
        cursor, seen = None, []
        while True:
            page = memories.list(sort="accesses", limit=50, cursor=cursor)
            seen += [found.content for found in page.memories]
            if (cursor := page.next_cursor) is None:
                break
    assert seen == [f"fact {number}" for number in reversed(range(120))]
    gone = memory(
        "list", "--sort", "accesses", "--cursor", f"{'f' * 8}-ffff-7fff-8fff-{'f' * 12}.1"
    )
    assert (
        gone.error
        == "the last item of the previous page no longer exists; begin again without the cursor"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ("list", "--sort", "size"),
            '"size" is not an order; use created, updated, reinforced, confidence, accesses',
        ),
        (("list", "--sort", "accesses", "--as-of", "1d"), "past values of accesses are not kept"),
        (
            ("search", "x", "--where", "deleted"),
            "a search finds only current memories; remove deleted from the expression",
        ),
        (("search", "x", "--where", "type ="), "where is invalid at character 7"),
        (("search", "x", "--where", "decay = stable", "--in", "all"), "turns have no decay"),
        (
            ("list", "--tag", "project=a", "--project", "b"),
            'the project is given twice, as "a" and "b"',
        ),
        (
            ("search", "x", "--tag", "project=a", "--project", "b"),
            'the project is given twice, as "a" and "b"',
        ),
    ],
)
def test_invalid_filters_are_refused(
    memory: Command, arguments: tuple[str, ...], error: str
) -> None:
    answer = memory(*arguments)
    assert answer.code == 2
    assert error in answer.error


# --- a project, and global memories


def test_a_project_filter_includes_global_memories(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("deploys of the shop", "--project", "shop")
    stored("deploys of the web site", "--project", "web")
    stored("deploys are announced", "--global")
    stored("deploys of the bank, an example for all", "--project", "bank", "--global")
    for command in (["list"], ["search", "deploys"]):
        answer = memory(*command, "--project", "shop").json["results"]
        assert {found["content"]: found["global"] for found in answer} == {
            "deploys of the shop": False,
            "deploys are announced": True,
            "deploys of the bank, an example for all": True,
        }
        assert set(contents(memory, *command, "--tag", "project=shop")) == {"deploys of the shop"}
        assert len(contents(memory, *command, "--project", "shop", "--where", "global = true")) == 2
    assert len(contents(memory, "search", "deploys", "--project", "bank")) == 2  # each once


def test_a_note_names_a_project_that_no_memory_has(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("deploys of the shop", "--project", "github.com/acme/shop")
    stored("deploys are announced", "--global")
    note = 'Note: no current memory has the project "shpo"; memory projects lists projects'
    for command in (["list"], ["search", "deploys"]):
        assert memory(*command, "--project", "shpo").err.strip() == note
        assert memory(*command, "--project", "shop").err == ""
        assert memory(*command, "--project", "shop", "--as-of", "2020-01-01").err == ""
        assert memory(*command, "--project", "bank", "--pending").err == ""


def test_pages_of_a_project_mix_its_own_and_global_memories_in_order(
    stored: Callable[..., str],
) -> None:
    for number in range(7):
        stored(f"fact {number}", *(["--global"] if number % 2 else ["--project", "shop"]))
    stored("another", "--project", "web")
    with Memories() as memories:
        cursor, seen = None, []
        while True:
            page = memories.list(project="shop", limit=2, cursor=cursor)
            seen += [found.content for found in page.memories]
            if (cursor := page.next_cursor) is None:
                break
        assert seen == [f"fact {number}" for number in reversed(range(7))]
        assert [hit.content for hit in memories.search("another", project="shop")] == []


# --- search by an expression


def test_a_search_finds_memories_that_match_an_expression(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("deploys happen on Tuesdays", "--type", "fact")
    stored("deploys are boring", "--type", "opinion")
    stored("deploys need two people", "--type", "rule")
    assert set(contents(memory, "search", "deploys", "--where", "type = fact or type = rule")) == {
        "deploys happen on Tuesdays",
        "deploys need two people",
    }
    assert contents(memory, "search", "deploys", "--where", "not (type = fact or type = rule)") == [
        "deploys are boring"
    ]
    assert contents(memory, "search", "deploys", "--where", "type = none") == []
    for text in ("we deploy", "they deploy"):
        memory("turns", "add", "standup", text, "--speaker", text.split()[0])
    assert contents(memory, "search", "deploy", "--in", "history", "--where", "speaker = they") == [
        "they deploy"
    ]


def test_matches_are_found_among_many_memories(memory: Command) -> None:
    with Memories(embedder="none") as memories:
        memories.create_many(
            [f"deploys deploys deploys {number}" for number in range(400)], force=True
        )
        memories.create(
            "a rare remark on deploys, with many other words in it",
            tags={"kind": "rare"},
            force=True,
        )
        memories.add_turns(
            "talk",
            [f"deploys deploys {number}" for number in range(400)] + ["on deploys, by the way"],
        )
        for scope, expression in (
            ("memories", "not kind != rare"),
            ("history", "content ~ way"),
            ("all", "content ~ way"),
        ):
            [hit] = memories.search("deploys", scope=scope, where=expression, limit=5)  # type: ignore[arg-type]
            assert "deploys," in hit.content
        assert len(memories.search("deploys", where="not kind exists", limit=7)) == 7


# --- namespaces


def test_namespaces_are_listed_with_counts_but_no_content(
    memory: Command, stored: Callable[..., str]
) -> None:
    assert memory("namespaces").json == {"namespaces": [], "count": 0}
    assert memory("namespaces", "--format", "text").out == "Nothing here.\n"
    stored("a secret of Ann", "-n", "ann")
    memory("delete", stored("another", "-n", "ann"), "-n", "ann")
    stored("for all")
    memory("turns", "add", "standup", "hello", "-n", "bob")
    answer = memory("namespaces", "-n", "bob")
    assert "secret" not in answer.out
    names = ("memory_count", "deleted_count", "turn_count", "pending_count", "read")
    rows = {row["name"]: tuple(row[name] for name in names) for row in answer.json["namespaces"]}
    assert rows == {
        "ann": (1, 1, 0, 0, False),
        "bob": (0, 0, 1, 0, True),
        "shared": (1, 0, 0, 0, True),
    }
    text = memory("namespaces", "--format", "text").out.splitlines()
    assert [line.split()[:2] for line in text] == [["ann", "1"], ["bob", "0"], ["shared", "1"]]


# --- the changes of a version


def test_history_shows_what_each_version_changed(
    memory: Command, stored: Callable[..., str]
) -> None:
    name = stored("Deploys happen on Tuesdays at 9:30")
    memory("update", name, "Deploys happen on Thursdays at 9:30, after the standup")
    first, second = memory("history", name, "--diff").json["versions"]
    assert first["diff"] == [{"change": "kept", "text": "Deploys happen on Tuesdays at 9:30"}]
    assert second["diff"] == [
        {"change": "kept", "text": "Deploys happen on "},
        {"change": "removed", "text": "Tuesdays"},
        {"change": "added", "text": "Thursdays"},
        {"change": "kept", "text": " at 9:30"},
        {"change": "added", "text": ", after the standup"},
    ]
    assert second["content"] == "Deploys happen on Thursdays at 9:30, after the standup"
    text = memory("history", name, "--diff", "--format", "text").out
    assert "│ Deploys happen on [-Tuesdays-]{+Thursdays+} at 9:30{+, after the standup+}\n" in text
    assert "[-Tuesdays-]" in memory("history", name, "--diff", "--format", "compact").out
    assert memory("history", name, "--diff", "--fields", "version").code == 2


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("", "a", "{+a+}"),
        ("a b", "a b", "a b"),
        ("東京に行く", "東京へ行く", "東京[-に-]{+へ+}行く"),
        ("x = foo(a, b)\n", "x = foo(b, a)\n", None),
        ("a " * 5000, "b a a " * 3000, None),
        (
            "\n".join(f"line {n}" for n in range(9000)),
            "\n".join(f"line {n}" for n in range(9000) if n % 7),
            None,
        ),
    ],
)
def test_the_parts_of_a_diff_make_up_both_texts(old: str, new: str, shown: str | None) -> None:
    parts = compare.compare(old, new)
    assert "".join(part.text for part in parts if part.change != "added") == old
    assert "".join(part.text for part in parts if part.change != "removed") == new
    assert shown in (None, compare.mark_changes(parts))
