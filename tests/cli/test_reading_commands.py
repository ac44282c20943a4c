"""search, get, history, list and tags, as the specifications of the command require."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memories import Draft, Memories

Command = Callable[..., Any]
DAY = timedelta(days=1)


@pytest.fixture
def aged() -> Callable[..., str]:
    """Return a function that stores a memory written some days ago and returns its id."""

    def store(content: str, days: float, decay: str = "stable", **tags: str) -> str:
        written = datetime.now(UTC) - days * DAY
        with Memories(embedder="fake") as memories:
            [made] = memories.create_many(
                [Draft(content, tags=tags, decay=decay, created_at=written)], force=True
            )
        assert made.memory is not None
        return made.memory.id

    return store


def contents(answer: Any) -> list[str]:
    """Return the contents in an answer."""
    return [shape["content"] for shape in answer.json["results"]]


# --- search


def test_a_result_is_a_memory_with_its_similarity_and_score(
    memory: Command, stored: Callable[..., str]
) -> None:
    memory_id = stored(
        "User prefers Python for CLI tools", "--agent", "claude", "--type", "preference"
    )
    answer = memory("search", "python tools")
    assert list(answer.json) == ["results", "count"]
    assert answer.json["count"] == 1
    [result] = answer.json["results"]
    shape = memory("get", memory_id).json
    for counted in (result, shape):
        counted.pop("access_count", None)
    added = {"kind", "speaker", "date", "similarity", "calibrated", "score"}
    assert result.keys() - shape.keys() == added
    assert {name: result[name] for name in shape} == shape
    assert (result["kind"], result["speaker"]) == ("memory", "claude")
    assert result["date"] == shape["updated_at"]
    for name in ("similarity", "calibrated", "score"):
        assert 0 < result[name] <= 1


def test_search_by_words_alone_has_no_similarity(memory: Command) -> None:
    env = {"EMBEDDER": "none"}
    memory("create", "Deploys happen on Tuesdays", env=env)
    [result] = memory("search", "deploys", env=env).json["results"]
    assert result["similarity"] is None
    assert "calibrated" not in result


def test_a_result_has_the_conversation_in_its_tag(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("deploys happen", "--tag", "conversation_id=standup")
    [result] = memory("search", "deploys").json["results"]
    assert result["conversation_id"] == "standup"
    assert "speaker" not in result


NARROWING: list[tuple[list[str], set[str]]] = [
    (["--agent", "claude"], {"deploys one"}),
    (["--personality", "rex"], {"deploys two"}),
    (["--project", "shop"], {"deploys one", "deploys two", "deploys three"}),
    (["--tag", "project=shop"], {"deploys one", "deploys two"}),
    (["--project", "web"], {"deploys three"}),
    (["--type", "fact"], {"deploys two"}),
    (["--global"], {"deploys three"}),
    (["--tag", "team=blue"], {"deploys three"}),
    (["--project", "shop", "--type", "fact"], {"deploys two"}),
    (["--project", "shop", "--global"], {"deploys three"}),
    (["--tag", "project=shop", "--global"], set()),
    (["--tag", "project=shop", "--project", "shop"], {"deploys one", "deploys two"}),
    ([], {"deploys one", "deploys two", "deploys three"}),
]


def test_every_tag_option_narrows_the_results(memory: Command, stored: Callable[..., str]) -> None:
    stored("deploys one", "--agent", "claude", "--project", "shop")
    stored("deploys two", "--personality", "rex", "--project", "shop", "--type", "fact")
    stored("deploys three", "--global", "--tag", "team=blue")
    failures = []
    for command in (["search", "deploys"], ["list"]):
        for option, expected in NARROWING:
            found = set(contents(memory(*command, *option)))
            if found != expected:
                failures.append((command, option, expected, found))
    assert failures == []


def test_the_limit_has_a_default_and_a_setting(memory: Command, stored: Callable[..., str]) -> None:
    for number in range(12):
        stored(f"deploys number {number}")
    assert memory("search", "deploys").json["count"] == 10
    assert memory("search", "deploys", "--limit", "3").json["count"] == 3
    assert memory("search", "deploys", env={"DEFAULT_LIMIT": "5"}).json["count"] == 5


def test_min_confidence_excludes_faded_memories(memory: Command, aged: Callable[..., str]) -> None:
    faded = aged("deploys long ago", 24, "contextual")
    aged("deploys lately", 3, "contextual")
    aged("deploys always", 300, "stable")
    assert set(contents(memory("search", "deploys"))) == {"deploys lately", "deploys always"}
    assert len(contents(memory("search", "deploys", "--min-confidence", "0.1"))) == 3
    assert contents(memory("search", "deploys", "--min-confidence", "0.95")) == ["deploys always"]
    assert len(contents(memory("search", "deploys", env={"MIN_CONFIDENCE": "0.15"}))) == 3
    assert memory("get", faded).json["confidence"] == pytest.approx(0.2, abs=0.001)
    assert set(contents(memory("search", "deploys", env={"DECAY_HALF_LIFE_HOURS": "48"}))) == {
        "deploys always"
    }


def test_min_similarity_excludes_less_similar_memories(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("red apples")
    stored("red apples grow beside very many other trees in gardens everywhere")
    assert contents(memory("search", "red apples", "--min-similarity", "0.9")) == ["red apples"]
    least = min(shape["calibrated"] for shape in memory("search", "red apples").json["results"])
    assert (
        len(contents(memory("search", "red apples", "--min-similarity", str(least - 0.001)))) == 2
    )
    assert (
        len(contents(memory("search", "red apples", "--min-similarity", str(least + 0.001)))) == 1
    )


def test_since_and_until_compare_times_of_writing(
    memory: Command, aged: Callable[..., str]
) -> None:
    aged("deploys long ago", 30)
    aged("deploys last week", 6)
    aged("deploys today", 0)
    for command in (["search", "deploys"], ["list"]):
        assert set(contents(memory(*command, "--since", "7d"))) == {
            "deploys last week",
            "deploys today",
        }
        assert set(contents(memory(*command, "--until", "1w"))) == {"deploys long ago"}
        assert contents(memory(*command, "--since", "2w", "--until", "2d")) == ["deploys last week"]


def test_until_a_day_includes_the_entire_day(memory: Command, stored: Callable[..., str]) -> None:
    def today() -> str:
        return datetime.now().astimezone().date().isoformat()

    days = [today(), stored("deploys today") and today()]  # two days if midnight passed in between
    assert memory("search", "deploys", "--since", days[0], "--until", days[1]).json["count"] == 1


def test_as_of_shows_a_past_state(memory: Command) -> None:
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    with Memories(embedder="fake", clock=lambda: clock[0]) as memories:
        first = memories.create("The port is 8080").memory
        assert first is not None
        clock[0] = datetime(2026, 2, 1, tzinfo=UTC)
        memories.update(first.id, "The port is 9090")
        clock[0] = datetime(2026, 3, 1, tzinfo=UTC)
        memories.delete(first.id)
    for command in (["search", "port"], ["list"]):
        assert contents(memory(*command, "--as-of", "2025-12-31")) == []
        assert contents(memory(*command, "--as-of", "2026-01-15")) == ["The port is 8080"]
        assert contents(memory(*command, "--as-of", "2026-02-15T12:00:00Z")) == ["The port is 9090"]
        assert contents(memory(*command)) == []


def test_search_finds_the_exact_words_first(memory: Command, stored: Callable[..., str]) -> None:
    stored("The deploy of the shop is frozen")
    stored("A freeze is something else")
    assert (
        contents(memory("search", "The deploy of the shop is frozen"))[0]
        == "The deploy of the shop is frozen"
    )


def test_search_reads_the_query_from_standard_input(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("deploys happen")
    assert memory("search", "-", stdin="deploys\n").json["count"] == 1


def test_a_query_that_begins_with_a_dash_needs_two_dashes_before_it(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("the flag -x is needed")
    assert "--" in memory("search", "-x").error
    assert memory("search", "--", "-x").json["count"] == 1


def test_explain_shows_every_candidate_and_why_it_was_dropped(
    memory: Command, aged: Callable[..., str]
) -> None:
    aged("deploys long ago", 29, "contextual")
    kept = aged("deploys today", 0)
    shape = memory("search", "deploys", "--explain").json
    assert shape["count"] == 1
    assert shape["explain"]["terms"] == ["deploys"]
    considered = {item["content"]: item for item in shape["explain"]["considered"]}
    assert considered["deploys today"]["dropped"] == ""
    assert considered["deploys today"]["id"] == kept
    assert "confidence" in considered["deploys long ago"]["dropped"]
    for item in considered.values():
        assert {
            "id",
            "content",
            "score",
            "similarity",
            "words",
            "confidence",
            "freshness",
            "boost",
        } <= item.keys()
    shown = memory("search", "deploys", "--explain", "--format", "text").out
    assert "words searched for: deploys" in shown
    assert "dropped: confidence" in shown


def test_a_setting_reinforces_memories_on_retrieval(
    memory: Command, aged: Callable[..., str]
) -> None:
    memory_id = aged("commits are conventional", 15, "reinforceable")
    memory("search", "commits")
    assert memory("get", memory_id).json["confidence"] == pytest.approx(0.5, abs=0.01)
    memory("search", "commits", env={"REINFORCE_ON_RETRIEVAL": "true"})
    assert memory("get", memory_id).json["confidence"] == pytest.approx(1.0, abs=0.01)


def test_reads_are_counted_unless_a_setting_forbids_it(
    memory: Command, stored: Callable[..., str]
) -> None:
    memory_id = stored("deploys happen")
    memory("search", "deploys")
    memory("get", memory_id)
    memory("status")  # counts the reads that wait
    assert memory("get", memory_id, env={"COUNT_ACCESSES": "false"}).json["access_count"] == 2
    memory("status")
    assert memory("get", memory_id).json["access_count"] == 2


# --- get and id prefixes


@pytest.mark.parametrize(
    "shorten",
    [lambda text: text[:18], lambda text: text.upper(), lambda text: text.replace("-", "")],
)
def test_an_id_may_be_shortened_and_have_other_forms(
    memory: Command, stored: Callable[..., str], shorten: Callable[[str], str]
) -> None:
    memory_id = stored("content")
    assert memory("get", shorten(memory_id)).json["id"] == memory_id


def test_an_ambiguous_prefix_lists_its_matches(memory: Command, aged: Callable[..., str]) -> None:
    with Memories(embedder="fake", clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)) as memories:
        ids = [
            made.memory.id for made in memories.create_many(["one", "two", "three"]) if made.memory
        ]
    for command in (
        ["get"],
        ["update"],
        ["delete"],
        ["forget", "--yes"],
        ["history"],
        ["restore"],
        ["reinforce"],
    ):
        answer = memory(
            command[0], ids[0][:13], *command[1:], *(["new"] if command == ["update"] else [])
        )
        assert answer.code == 2
        assert "matches 3 memories" in answer.error
        assert json.loads(answer.err)["matches"] == sorted(ids)
    shown = memory("get", ids[0][:13], "--format", "text")
    assert shown.err.splitlines()[1:] == [f"  {memory_id}" for memory_id in sorted(ids)]
    assert memory("list").json["count"] == 3


def test_get_also_shows_a_faded_memory(memory: Command, aged: Callable[..., str]) -> None:
    assert memory("get", aged("content", 90, "contextual")).json["confidence"] == 0.0


# --- history


def test_history_shows_every_version_oldest_first(
    memory: Command, stored: Callable[..., str]
) -> None:
    memory_id = stored("The port is 8080", "--project", "shop")
    memory("update", memory_id, "The port is 9090", "--tag", "sure=no")
    memory("delete", memory_id)
    memory("restore", memory_id)
    shape = memory("history", memory_id).json
    assert list(shape) == ["id", "versions", "count"]
    assert (shape["id"], shape["count"]) == (memory_id, 3)
    keys = [
        "version",
        "content",
        "tags",
        "operation",
        "created_at",
        "ended_at",
        "ended_by",
        "origin",
    ]
    current = [key for key in keys if not key.startswith("ended")]
    assert [list(version) for version in shape["versions"]] == [keys, keys, current]
    shown = [
        [version[key] for key in ("version", "content", "operation")]
        for version in shape["versions"]
    ]
    assert shown == [
        [1, "The port is 8080", "create"],
        [2, "The port is 9090", "update"],
        [3, "The port is 9090", "restore"],
    ]
    first, second, _ = shape["versions"]
    assert (first["tags"], first["ended_by"]) == ({"project": "shop"}, "update")
    assert first["ended_at"] == second["created_at"]
    assert second["tags"] == {"project": "shop", "sure": "no"}
    assert second["ended_by"].startswith("delete")


def test_history_shows_deleted_memories(memory: Command, stored: Callable[..., str]) -> None:
    memory_id = stored("content")
    memory("delete", memory_id)
    [version] = memory("history", memory_id).json["versions"]
    assert version["ended_by"] == "delete"
    assert version["ended_at"] >= version["created_at"]


# --- list


def test_list_is_newest_first(memory: Command, stored: Callable[..., str]) -> None:
    ids = [stored(f"number {number}") for number in range(5)]
    answer = memory("list")
    assert list(answer.json) == ["results", "count", "next_cursor"]
    assert [shape["id"] for shape in answer.json["results"]] == ids[::-1]
    assert (answer.json["count"], answer.json["next_cursor"]) == (5, None)


@pytest.mark.parametrize(
    "options", [[], ["--namespace", "bob"], ["--project", "shop"], ["--as-of", "2030-01-01"]]
)
def test_pages_reach_the_end_without_loss_or_repeat(
    memory: Command, stored: Callable[..., str], options: list[str]
) -> None:
    pool = options if options[:1] == ["--namespace"] else []
    ids = {
        stored(f"number {number}", "--project", "shop", *(pool if number % 2 else []))
        for number in range(11)
    }
    memory("update", sorted(ids)[4], "changed", *pool)
    seen: list[str] = []
    cursor: list[str] = []
    for _ in range(6):
        page = memory("list", "--limit", "2", *options, *cursor).json
        seen += [shape["id"] for shape in page["results"]]
        if page["next_cursor"] is None:
            break
        cursor = ["--cursor", page["next_cursor"]]
    assert seen == sorted(ids, reverse=True)


def test_list_shows_deleted_memories(memory: Command, stored: Callable[..., str]) -> None:
    ids = [stored(f"number {number}") for number in range(4)]
    for memory_id in ids[:3]:
        memory("delete", memory_id)
    page = memory("list", "--deleted", "--limit", "2").json
    rest = memory("list", "--deleted", "--limit", "2", "--cursor", page["next_cursor"]).json
    assert [shape["id"] for shape in page["results"] + rest["results"]] == ids[2::-1]


# --- tags


def test_tags_counts_keys_and_values(memory: Command, stored: Callable[..., str]) -> None:
    stored("one", "--project", "shop", "--tag", "team=blue")
    stored("two", "--project", "shop")
    changed = stored("three", "--project", "blog")
    gone = stored("four", "--project", "gone")
    memory("delete", gone)
    memory("update", changed, "--project", "shop")
    assert memory("tags").json == {
        "keys": [{"key": "project", "count": 3}, {"key": "team", "count": 1}]
    }
    assert memory("tags", "project").json == {
        "key": "project",
        "values": [{"value": "shop", "count": 3}],
    }
    assert memory("tags", "nothing").json == {"key": "nothing", "values": []}


# --- the past


def test_as_of_shows_an_earlier_state_of_a_memory_its_history_and_its_tags(
    memory: Command, aged: Callable[..., str]
) -> None:
    one = aged("Deploys happen on Tuesdays", 9, type="fact")
    memory("update", one, "Deploys happen on Fridays", "--tag", "type=decision")
    then = memory("get", one, "--as-of", "3d").json
    assert (then["content"], then["tags"], then["version"]) == (
        "Deploys happen on Tuesdays",
        {"type": "fact"},
        1,
    )
    assert memory("get", one, one, "--as-of", "3d").json["results"] == [then]
    assert memory("history", one, "--as-of", "3d", "--diff").json["count"] == 1
    assert memory("tags", "type", "--as-of", "3d").json["values"] == [{"value": "fact", "count": 1}]
    assert memory("namespaces", "--as-of", "3d").json["namespaces"] == [
        {"name": "shared", "memory_count": 1, "turn_count": 0, "read": True}
    ]
    assert "1 memory" in memory("namespaces", "--as-of", "3d", "--format", "text").out
    for verb in ("get", "history"):
        refused = memory(verb, one, "--as-of", "20d")
        assert (refused.code, "it did not exist until" in refused.err) == (1, True)


def test_as_of_shows_an_earlier_state_of_a_conversation(memory: Command) -> None:
    memory("turns", "add", "talk", "hello", "--at", "9d")
    memory("turns", "add", "talk", "again")
    (then,) = memory("turns", "list", "--as-of", "3d").json["results"]
    assert then["turn_count"] == 1
    for verb in ("show", "tail"):
        assert [
            turn["content"]
            for turn in memory("turns", verb, "talk", "--as-of", "3d").json["results"]
        ] == ["hello"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tags", "set", "a=b", "--as-of", "3d"), "the past can't be changed"),
        (("namespaces", "show", "shared", "--as-of", "3d"), "omit --as-of"),
        (("get", "01a1fdf1-92cd-72f2", "--as-of", "someday"), "not a date or time"),
    ],
)
def test_commands_that_cannot_show_the_past_refuse_as_of(
    memory: Command, arguments: tuple[str, ...], said: str
) -> None:
    answer = memory(*arguments)
    assert (answer.code, said in answer.err) == (2, True)


def test_the_rank_formula_lowers_old_memories(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        {"content": f"the ferry to Skye leaves at {hour}", "created_at": f"{year}-05-01T00:00:00Z"}
        for hour, year in (("noon", 2020), ("nine", 2026))
    ]
    memory("create", "--jsonl", "-", "--force", stdin="\n".join(map(json.dumps, lines)))
    asked = ["search", "the ferry to Skye leaves at noon"]
    assert "noon" in memory(*asked).json["results"][0]["content"]
    by_option = memory(*asked, "--rank", "formula").json["results"]
    monkeypatch.setenv("MEMORY_RANK", "formula")
    assert memory(*asked).json["results"] == by_option
    assert "nine" in by_option[0]["content"]


def test_reinforceable_memories_have_their_own_half_life(memory: Command) -> None:
    ids = {}
    with Memories(embedder="fake") as memories:
        for decay in ("contextual", "reinforceable"):
            at = datetime.now(UTC) - timedelta(hours=360)
            ids[memories.create(f"a {decay} fact", decay=decay, created_at=at).id] = decay
    own = {"DECAY_REINFORCEABLE_HOURS": "1440"}

    def shown(*command: str) -> dict[str, float]:
        return {
            ids[hit["id"]]: round(hit["confidence"], 2)
            for hit in memory(*command, env=own).json["results"]
        }

    expected = {"contextual": 0.5, "reinforceable": 0.75}
    assert shown("list") == shown("search", "fact") == expected
    assert shown("search", "fact", "--min-confidence", "0.6") == {"reinforceable": 0.75}
    assert shown("list", "--where", "confidence > 0.6") == {"reinforceable": 0.75}
    plain = memory("list").json["results"]
    assert {round(each["confidence"], 2) for each in plain} == {0.5}


def test_a_memory_shows_when_to_confirm_it_again(
    memory: Command, stored: Callable[..., str]
) -> None:
    tea = stored("Tea is at four", "--recheck", "90d")
    assert "recheck days  90\n" in memory("get", tea, "--format", "text").out
