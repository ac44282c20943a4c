"""The commands of `memory turns`, and searches in the history."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Once
from memories import Memories, MemoryGateway
from memories.cli import turns
from memories.context.memories_backend import MemoriesBackend
from memories.guard.origin import host, user

Command = Callable[..., Any]

TURN_KEYS = (
    "id content kind speaker date conversation_id turn_index role tags namespace agent personality "
    "project type global confidence similarity calibrated score"
).split()


def contents(answer: Any) -> list[str]:
    """Return the contents in an answer."""
    return [shape["content"] for shape in answer.json["results"]]


def lines(*objects: Any) -> str:
    """Return objects as lines of JSON."""
    return "\n".join(json.dumps(each, ensure_ascii=False) for each in objects)


@pytest.fixture
def filled(memory: Command, once: Once) -> None:
    """A conversation of three turns and a memory, all about a ferry."""

    def fill() -> None:
        written = lines(
            {
                "content": "when does the ferry leave?",
                "speaker": "Bob",
                "created_at": "2026-05-01T09:00:00Z",
            },
            {
                "content": "the ferry leaves at nine",
                "speaker": "Ann",
                "created_at": "2026-05-01T09:01:00Z",
            },
            {
                "content": "a ferry is a boat",
                "role": "assistant",
                "created_at": "2026-05-02T09:00:00Z",
            },
        )
        assert memory("turns", "add", "trip", "-", stdin=written).json["count"] == 3
        memory("create", "The ferry is red")

    once(fill)


# --- turns add


def test_add_prints_the_stored_turn(memory: Command) -> None:
    options = [
        "--role",
        "tool",
        "--speaker",
        "Ann",
        "--at",
        "2026-05-01T09:00:00Z",
        "--message-id",
        "a",
    ]
    assert memory("turns", "add", "trip", "we ship on friday", *options).json == {
        "id": "trip#0",
        "content": "we ship on friday",
        "conversation_id": "trip",
        "turn_index": 0,
        "role": "tool",
        "speaker": "Ann",
        "tags": {},
        "namespace": "shared",
        "created_at": "2026-05-01T09:00:00.000Z",
        "message_id": "a",
        "status": "stored",
        "origin": {
            "trust": "agent",
            "channel": "cli",
            "by": user(),
            "host": host(),
            "program": "0.1.0",
        },
    }
    plain = memory("turns", "add", "trip", "hello").json
    assert (plain["turn_index"], plain["role"], "speaker" in plain) == (1, "user", False)
    assert "message_id" not in plain


def test_a_message_id_is_stored_once_and_reported_as_known(memory: Command) -> None:
    add = ("turns", "add", "trip")
    answers = [
        memory(*add, content, "--message-id", "a") for content in ("first", "first", "second")
    ]
    shapes = [json.loads(answer.out) for answer in answers]
    assert [answer.code for answer in answers] == [0, 0, 1]
    assert [shape["status"] for shape in shapes] == ["stored", "known", "refused"]
    assert [shape["content"] for shape in shapes] == ["first"] * 3
    assert shapes[2]["reason"].startswith(
        'message id "a" belongs to trip#0, which has different content'
    )
    assert (
        json.loads(answers[2].err)["error"] == f"1 of 1 turn was not stored: {shapes[2]['reason']}"
    )
    assert contents(memory("turns", "tail", "trip")) == ["first"]
    known = memory(*add, "first", "--message-id", "a", "--format", "text")
    assert (known.code, known.out.splitlines()[-1]) == (0, "Already known: not stored again.")
    refused = memory(*add, "second", "--message-id", "a", "--format", "text")
    assert refused.code == 1
    assert (
        refused.out.splitlines()[-1] == "Nothing was stored: the message id belongs to this turn."
    )


def test_each_message_is_reported_and_a_refused_one_does_not_stop_the_others(
    memory: Command,
) -> None:
    written = lines(
        {"content": "one", "message_id": "a"},
        {"content": "two", "message_id": "b"},
        {"content": "three"},
    )
    assert memory("turns", "add", "trip", "-", stdin=written).code == 0
    again = memory("turns", "add", "trip", "-", stdin=written.rpartition("\n")[0])
    assert (again.code, [again.json[name] for name in ("stored", "known", "refused")]) == (
        0,
        [0, 2, 0],
    )
    mixed = lines(
        {"content": "ONE", "message_id": "a"},
        {"content": "two", "message_id": "b"},
        {"content": "four"},
    )
    answer = memory("turns", "add", "trip", "-", stdin=mixed)
    shape = json.loads(answer.out)
    assert (answer.code, [shape[name] for name in ("stored", "known", "refused")]) == (1, [1, 1, 1])
    assert [each["status"] for each in shape["results"]] == ["refused", "known", "stored"]
    assert "has different content" in shape["results"][0]["reason"]
    assert contents(memory("turns", "tail", "trip")) == ["one", "two", "three", "four"]
    text = memory("turns", "add", "trip", "-", "--format", "text", stdin=mixed)
    assert (text.code, text.out.splitlines()[0]) == (1, "Added 1 turn; the last one has index 4.")
    assert text.out.splitlines()[1] == "Already known: 1."
    assert text.out.splitlines()[2].startswith("Refused: message id")


def test_a_time_is_shown_in_the_zone_in_which_it_was_given(memory: Command) -> None:
    added = memory("turns", "add", "trip", "ferry", "--at", "2025-12-25T23:30:00+09:00").json
    assert added["created_at"] == "2025-12-25T23:30:00.000+09:00"
    assert "2025-12-25 23:30 +09:00" in memory("turns", "tail", "trip", "--format", "text").out
    [hit] = memory("search", "ferry", "--in", "history").json["results"]
    assert (hit["date"], hit["created_at"]) == (added["created_at"],) * 2
    for until, count in (("2025-12-25T14:29:59Z", 0), ("2025-12-25T15:30+01:00", 1)):
        assert memory("turns", "tail", "trip", "--until", until).json["count"] == count


def test_a_turn_may_be_dated_in_words(memory: Command) -> None:
    day_ago = datetime.now(UTC) - timedelta(days=1)
    added = memory("turns", "add", "trip", "ferry", "--at", "yesterday").json
    line = json.dumps({"content": "train", "created_at": "yesterday"})
    memory("turns", "add", "trip", "-", stdin=line)
    dates = {turn["created_at"] for turn in memory("turns", "tail", "trip").json["results"]}
    assert dates == {added["created_at"]}
    assert day_ago - timedelta(days=1) <= datetime.fromisoformat(added["created_at"]) <= day_ago


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--speaker", "Ann"], ["trip#1"]),
        (["--role", "assistant"], ["trip#2"]),
        (["--role", "user", "--since", "2026-05-01T09:01Z"], ["trip#1"]),
        (["--until", "2026-05-01T09:00Z"], ["trip#0"]),
    ],
    ids=" ".join,
)
def test_turns_are_filtered_by_speaker_and_time(
    memory: Command, options: list[str], expected: list[str]
) -> None:
    for command in (
        ["turns", "tail", "trip"],
        ["turns", "show", "trip"],
        ["search", "ferry", "--in", "history"],
    ):
        found = memory(*command, *options).json["results"]
        assert [each["id"] for each in found] == expected, command
    assert memory("search", "ferry", *options[:2]).code == (2 if options[0] != "--until" else 0)


def test_a_long_message_is_one_turn_and_can_be_found_by_any_part(
    memory: Command, home: Path
) -> None:
    text = "The ferry leaves at nine. " * 7_000 + "A quokka is on board. " + "It is cold. " * 2_000
    added = memory(
        "turns",
        "add",
        "trip",
        "-",
        stdin=lines({"content": text, "message_id": "a"}, {"content": "ok"}),
    )
    assert (added.code, added.json["stored"]) == (0, 2)
    message, after = memory("turns", "show", "trip").json["results"]
    assert (message["content"], message["id"], after["content"]) == (text, "trip#0", "ok")
    [hit, *_] = memory("search", "quokka on board", "--in", "history").json["results"]
    assert (hit["id"], "quokka" in hit["content"], len(hit["content"]) < 5_000) == (
        "trip#0",
        True,
        True,
    )
    assert 1 < hit["part"] < hit["parts"]
    shown = memory("search", "quokka on board", "--in", "history", "--format", "text").out
    assert f"part {hit['part']} of {hit['parts']}" in shown
    assert memory("status").json["turn_count"] == 2
    assert memory("turns", "forget", "trip", "--index", "0", "--yes").json["turns"] == 1
    assert contents(memory("turns", "show", "trip")) == ["ok"]
    assert all(b"quokka" not in file.read_bytes() for file in home.rglob("*") if file.is_file())


def test_add_reads_json_lines_from_standard_input(memory: Command) -> None:
    written = lines(
        {
            "content": "one",
            "role": "assistant",
            "speaker": "Zoë",
            "message_id": "a",
            "tags": {"k": "v"},
        },
        {"text": "two\nof two lines", "ts": "2026-05-01T09:00:00Z"},
        {"content": "one again", "message_id": "a"},
    )
    answer = memory("turns", "add", "trip", "-", stdin=f"\ufeff{written}\r\n\n")
    shape = json.loads(answer.out)
    assert [shape[name] for name in ("conversation_id", "count", "last_index")] == ["trip", 3, 0]
    assert (answer.code, [shape[name] for name in ("stored", "known", "refused")]) == (1, [2, 0, 1])
    first, second = memory("turns", "tail", "trip").json["results"]
    assert (first["content"], first["role"], first["speaker"], first["tags"]) == (
        "one",
        "assistant",
        "Zoë",
        {"k": "v"},
    )
    assert (second["content"], second["created_at"]) == (
        "two\nof two lines",
        "2026-05-01T09:00:00.000Z",
    )


@pytest.mark.parametrize("given", [b"", b"\n", b" \r\n\n", b"\xef\xbb\xbf"])
def test_input_without_turns_is_refused(memory: Command, given: bytes) -> None:
    answer = memory("turns", "add", "trip", "-", stdin=given)
    assert (answer.code, answer.error) == (
        2,
        "the input contains no turns; write one JSON object per line",
    )
    assert memory("turns", "tail", "trip").json == {"results": [], "count": 0}


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85"])
def test_other_line_separators_do_not_end_a_line_of_json(memory: Command, sign: str) -> None:
    assert memory("turns", "add", "trip", "-", stdin=lines({"content": f"a{sign}b"})).code == 0


def test_options_for_a_single_turn_are_refused_with_standard_input(memory: Command) -> None:
    answer = memory(
        "turns", "add", "trip", "-", "--speaker", "Ann", stdin=lines({"content": "hello"})
    )
    assert (answer.code, "omit these options" in answer.error) == (2, True)
    assert memory("turns", "tail", "trip").json["count"] == 0


# --- turns tail


@pytest.mark.usefixtures("filled")
def test_tail_shows_the_end_oldest_first(memory: Command) -> None:
    answer = memory("turns", "tail", "trip", "--limit", "2")
    assert list(answer.json) == ["results", "count"]
    assert contents(answer) == ["the ferry leaves at nine", "a ferry is a boat"]
    assert [shape["id"] for shape in answer.json["results"]] == ["trip#1", "trip#2"]
    assert memory("turns", "tail", "missing").json == {"results": [], "count": 0}
    assert len(contents(memory("turns", "tail", "trip", env={"DEFAULT_LIMIT": "1"}))) == 1


@pytest.mark.usefixtures("filled")
def test_text_shows_speaker_conversation_and_time(memory: Command) -> None:
    shown = memory("turns", "tail", "trip", "--format", "text").out
    assert "the ferry leaves at nine\nAnn in trip · 2026-05-01 09:01 UTC" in shown
    assert "assistant in trip" in shown
    assert shown.endswith("trip#2\n")
    missing = memory("turns", "tail", "missing", "--format", "text")
    assert missing.out == "Nothing here.\n"
    assert missing.err.startswith("Note: Conversation not found (missing)")
    added = memory(
        "turns", "add", "trip", "-", "--format", "text", stdin=lines({"content": "hello"})
    )
    assert added.out == "Added 1 turn; the last one has index 3.\n"
    found = memory("search", "ferry", "--in", "history", "--format", "text", "--explain").out
    assert " 1  " in found
    assert "in trip" in found
    assert "score" in found


def test_unprintable_characters_are_shown_escaped(memory: Command) -> None:
    active = "a\x1b[31mb\u202ec"
    memory("turns", "add", "talk \u202e", active, "--speaker", "x\u202e")
    for command in (
        ["turns", "tail", "talk \u202e"],
        ["search", "a", "--in", "history", "--explain"],
    ):
        for output in ("text", "json"):
            shown = memory(*command, "--format", output).out
            assert shown.strip()
            assert not {"\x1b", "\u202e"} & set(shown), (command, output)


def test_tail_imports_no_vector_libraries(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/m.db"
    with Memories(store, embedder="none") as found:
        found.add_turns("trip", ["hello"])
    script = (
        "import sys\nfrom memories.__main__ import run\ncode = run(sys.argv[1:])\n"
        "heavy = sys.modules.keys() & {'numpy', 'onnxruntime', 'typer', 'pydantic'}\n"
        "sys.stderr.write(repr(heavy)) if heavy else None\nsys.exit(code or len(heavy))"
    )
    done = subprocess.run(
        [
            sys.executable, "-B", "-W", "error", "-c", script,
            "turns", "tail", "trip", "--store", store,
        ],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "EMBEDDER": "minilm"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["count"] == 1


# --- search


@pytest.mark.usefixtures("filled")
def test_a_turn_in_the_results_has_all_keys(memory: Command) -> None:
    [result] = memory(
        "search", "when does it leave? at nine", "--in", "history", "--limit", "1"
    ).json["results"]
    assert set(TURN_KEYS) <= result.keys()
    assert (result["kind"], result["conversation_id"], result["confidence"]) == (
        "turn",
        "trip",
        1.0,
    )
    assert result["id"] == f"trip#{result['turn_index']}"
    assert 0 <= result["calibrated"] <= 1
    assert 0 < result["score"] <= 1
    assert result["date"] == result["created_at"]
    assert [result[name] for name in ("agent", "personality", "project", "type")] == [""] * 4
    assert result["global"] is False


def test_known_tags_of_a_turn_are_separate_fields(memory: Command) -> None:
    tags = {"project": "shop", "agent": "claude", "global": "true", "team": "blue"}
    memory("turns", "add", "trip", "-", stdin=lines({"content": "the ferry leaves", "tags": tags}))
    [result] = memory("search", "ferry", "--in", "history", "--project", "shop").json["results"]
    assert (result["project"], result["agent"], result["global"]) == ("shop", "claude", True)
    assert result["tags"] == tags
    assert (result["role"], result["speaker"]) == ("user", "user")
    assert memory("search", "ferry", "--in", "history", "--project", "blog").json["count"] == 0


@pytest.mark.first(5)
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["The ferry is red"]),
        (["--in", "memories"], ["The ferry is red"]),
        (["--in", "history"], ["trip#0", "trip#1", "trip#2"]),
        (["--in", "all"], ["trip#0", "trip#1", "trip#2", "The ferry is red"]),
        (["--in", "history", "--conversation", "trip"], ["trip#0", "trip#1", "trip#2"]),
        (["--in", "history", "--conversation", "trips"], []),
        (["--in", "history", "--tag", "speaker=Ann"], ["trip#1"]),
        (["--in", "history", "--tag", "role=assistant"], ["trip#2"]),
        (["--in", "history", "--since", "2026-05-02T00:00Z"], ["trip#2"]),
        (["--in", "history", "--until", "2026-05-01T09:00Z"], ["trip#0"]),
        (["--in", "history", "--as-of", "2026-05-01T12:00Z"], ["trip#0", "trip#1"]),
        (["--in", "history", "-n", "bob"], ["trip#0", "trip#1", "trip#2"]),
        (["--in", "history", "-n", "bob", "--no-shared"], []),
    ],
    ids=" ".join,
)
def test_options_select_what_is_searched(
    memory: Command, options: list[str], expected: list[str]
) -> None:
    results = memory("search", "ferry", *options).json["results"]
    assert {hit["id"] if hit["kind"] == "turn" else hit["content"] for hit in results} == set(
        expected
    )


@pytest.mark.usefixtures("filled")
def test_now_determines_what_yesterday_means(memory: Command) -> None:
    for now, expected in (("2026-05-02", "2026-05-01"), ("2026-05-03", "2026-05-02")):
        answer = memory(
            "search",
            "what was said of the ferry yesterday?",
            "--in",
            "history",
            "--now",
            now,
            "--explain",
        )
        dates = {item["id"]: item["date"] for item in answer.json["explain"]["considered"]}
        best = max(dates, key=dates.__getitem__)
        [hit] = [hit for hit in answer.json["results"] if hit["id"] == best]
        assert hit["date"].startswith(expected)
        assert answer.json["count"] == 3


@pytest.mark.usefixtures("filled")
def test_explain_shows_turns_and_memories_in_one_table(memory: Command) -> None:
    shape = memory("search", "what did Ann say of the ferry?", "--in", "all", "--explain").json[
        "explain"
    ]
    assert shape["terms"] == ["ann", "say", "ferry"]
    items = {item["id"]: item for item in shape["considered"]}
    assert items["trip#1"]["named"] == 1.0
    assert items["trip#2"]["aside"] == 1.0
    [written] = [item for item in shape["considered"] if "#" not in item["id"]]
    assert written["named"] is None
    shown = memory(
        "search", "what did Ann say of the ferry?", "--in", "all", "--explain", "--format", "text"
    ).out
    assert "named" in shown
    assert "session sim." in shown


def test_search_by_words_alone_finds_turns(memory: Command) -> None:
    env = {"EMBEDDER": "none"}
    memory("turns", "add", "trip", "the ferry leaves at nine", env=env)
    [result] = memory("search", "ferry", "--in", "history", env=env).json["results"]
    assert result["similarity"] is None
    assert "calibrated" not in result


# --- refused input

LINE = {"content": "good"}
ADD = ("turns", "add", "trip")

BAD: list[tuple[tuple[str, ...], str | bytes, str]] = [
    ((*ADD, ""), "", "content is empty"),
    ((*ADD, " \n"), "", "content has no visible text"),
    ((*ADD, "a\0b"), "", "content contains a NUL character at position 1"),
    (
        (*ADD, "hello", "--role", "robot"),
        "",
        'role "robot" is not one of user, assistant, system, tool',
    ),
    ((*ADD, "hello", "--role", ""), "", 'role "" is not one of'),
    ((*ADD, "hello", "--speaker", ""), "", "speaker"),
    ((*ADD, "hello", "--speaker", "a\nb"), "", "speaker"),
    ((*ADD, "hello", "--message-id", ""), "", "message id is empty"),
    ((*ADD, "hello", "--at", "some day"), "", "not a date"),
    ((*ADD, "hello", "--at", ""), "", "not a date"),
    ((*ADD, "hello", "more"), "", "put the text in quotes"),
    ((*ADD, "hello", "--no-shared"), "", "No such option"),
    ((*ADD, "hello", "-n", "all"), "", "would be mistaken for every namespace"),
    (ADD, "", "Missing argument"),
    (("turns", "add", "", "hello"), "", "conversation id is empty"),
    (("turns", "add", "a\nb", "hello"), "", "conversation id contains a line break"),
    (
        ("turns", "add", "x" * 257, "hello"),
        "",
        "conversation id is 257 characters; the limit is 256",
    ),
    (("turns", "tail", ""), "", "conversation id is empty"),
    (("turns", "tail", "trip", "--limit", "0"), "", "limit must be a whole number from 1 to 1000"),
    (
        ("turns", "tail", "trip", "--limit", "many"),
        "",
        "limit must be a whole number from 1 to 1000",
    ),
    (("turns", "say", "trip"), "", "No such command"),
    ((*ADD, "-"), lines(LINE, {"content": ""}), "turn 2: content is empty; nothing was stored"),
    ((*ADD, "-"), lines(LINE, {"content": 5}), "turn 2: content is of type int"),
    ((*ADD, "-"), lines(LINE, {"content": None}), "turn 2: content is of type NoneType"),
    (
        (*ADD, "-"),
        lines(LINE, {"content": "x" * 4_000_001}),
        "turn 2: content is 4000001 characters",
    ),
    (
        (*ADD, "-"),
        lines(LINE, {"content": "a", "role": "robot"}),
        'turn 2: role "robot" is not one of',
    ),
    ((*ADD, "-"), lines(LINE, {"content": "a", "speaker": 5}), "turn 2: "),
    ((*ADD, "-"), lines(LINE, {"content": "a", "tags": ["k=v"]}), "turn 2: tags are of type list"),
    ((*ADD, "-"), lines(LINE, {"content": "a", "tags": {"k": 1}}), "turn 2: "),
    (
        (*ADD, "-"),
        lines(LINE, {"content": "a", "tags": {"speaker": "Ann"}}),
        "a turn can't have the tag",
    ),
    ((*ADD, "-"), lines(LINE, {"content": "a", "created_at": 5}), "not a date"),
    ((*ADD, "-"), lines(LINE, {"content": "a", "ts": "some day"}), "not a date"),
    ((*ADD, "-"), lines(LINE, {"content": "a", "colour": "red"}), "line 2 is not a turn"),
    ((*ADD, "-"), lines(LINE, {"role": "user"}), "line 2 is not a turn"),
    ((*ADD, "-"), lines(LINE, ["a"]), "line 2 is not a turn"),
    ((*ADD, "-"), lines(LINE, "a"), "line 2 is not a turn"),
    ((*ADD, "-"), lines(LINE, None), "line 2 is not a turn"),
    ((*ADD, "-"), lines(LINE) + "\nhello", "line 2 is not JSON"),
    ((*ADD, "-"), lines(LINE) + '\n\n{"content": "a"', "line 3 is not JSON"),
    ((*ADD, "-"), b'{"content": "\xff"}', "line 1 of input is not UTF-8"),
    ((*ADD, "-"), lines(LINE).encode("utf-16"), "looks like UTF-16; save it as UTF-8"),
    ((*ADD, "-"), '{"content": "\\ud800"}', "content is not valid Unicode at position 0"),
    (
        ("search", "q", "--in", "everything"),
        "",
        'scope (--in) must be memories, history or all, not "everything"',
    ),
    (("search", "q", "--in", "History"), "", "must be memories, history or all"),
    (("search", "q", "--conversation", "trip"), "", "set scope (--in) to history"),
    (("search", "q", "--in", "all", "--conversation", "trip"), "", "set scope (--in) to history"),
    (("search", "q", "--in", "history", "--conversation", ""), "", "conversation id is empty"),
    (
        ("search", "q", "--in", "history", "--conversation", "a\nb"),
        "",
        "conversation id contains a line break",
    ),
    (("search", "q", "--now", "some day"), "", "not a date"),
    (("search", "q", "--in", "history", "--now", ""), "", "not a date"),
]


@pytest.mark.usefixtures("filled")
def test_bad_input_gets_a_one_sentence_error_and_stores_nothing(memory: Command) -> None:
    def stored_records() -> list[Any]:
        return [memory("turns", "tail", "trip").json, memory("list").json]

    before = stored_records()
    failures = []
    for command, stdin, part in BAD:
        answer = memory(*command, stdin=stdin)
        says = part in answer.error and len(answer.error) < 300 and answer.error.isprintable()
        if (answer.code, answer.out, says, stored_records() == before) != (2, "", True, True):
            failures.append((command, part, answer))
    assert failures == []


@pytest.mark.parametrize("text", ["[" * 100_000, '{"content":' * 50_000])
def test_json_of_any_depth_gets_a_one_sentence_error(memory: Command, text: str) -> None:
    answer = memory("turns", "add", "trip", "-", stdin=text)
    assert answer.code == 2
    assert "line 1" in answer.error


def test_turns_without_a_command_shows_its_help(memory: Command) -> None:
    answer = memory("turns")
    assert (answer.code, answer.out) == (0, memory("turns", "--help").out)


@pytest.mark.cold
def test_an_invalid_first_turn_creates_no_store(memory: Command, home: Path) -> None:
    for command in (
        ["turns", "add", "trip", ""],
        ["turns", "tail", "trip"],
        ["search", "q", "--in", "history"],
    ):
        memory(*command)
    assert not home.exists()


# --- turns show, turns list


def test_show_returns_a_conversation_in_pages(memory: Command, filled: None) -> None:
    assert contents(memory("turns", "show", "trip", "--limit", "2")) == [
        "when does the ferry leave?", "the ferry leaves at nine",
    ]  # fmt: skip
    assert contents(memory("turns", "show", "trip", "--from", "2")) == ["a ferry is a boat"]
    nowhere = memory("turns", "show", "nowhere")
    assert (nowhere.code, nowhere.json) == (0, {"results": [], "count": 0})
    assert nowhere.err == (
        "Note: Conversation not found (nowhere); run memory turns list to see the conversations\n"
    )
    assert memory("turns", "show", "trip", "--from", "99").err == ""
    assert "Ann in trip" in memory("turns", "show", "trip", "--format", "text").out


@pytest.mark.parametrize("start", ["-1", "x", "1.5"])
def test_show_refuses_an_invalid_index(memory: Command, start: str) -> None:
    answer = memory("turns", "show", "trip", "--from", start)
    assert (answer.code, answer.error) == (
        2,
        f'from must be a whole number, 0 or more, not "{start}"',
    )


def test_list_shows_counts_and_dates(memory: Command, filled: None) -> None:
    memory("turns", "add", "other", "hello", "--at", "2026-05-03T09:00:00Z")
    listed = memory("turns", "list").json["results"]
    assert [(each["conversation_id"], each["turn_count"]) for each in listed] == [
        ("other", 1),
        ("trip", 3),
    ]
    assert listed[1] == {
        "conversation_id": "trip",
        "namespace": "shared",
        "turn_count": 3,
        "first_at": "2026-05-01T09:00:00.000Z",
        "last_at": "2026-05-02T09:00:00.000Z",
    }
    text = memory("turns", "list", "--limit", "1", "--format", "text").out
    assert "other" in text
    assert "1 turn, 2026-05-03 to 2026-05-03 09:00 UTC" in text
    assert "trip" not in text


def test_oversized_input_is_refused(memory: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_INPUT_BYTES", 100)
    answer = memory("turns", "add", "trip", "-", stdin=lines({"content": "a" * 200}))
    assert answer.code == 2
    assert "input is larger than the limit of 100 bytes" in answer.error


def test_a_key_that_occurs_twice_in_a_line_is_refused(memory: Command) -> None:
    answer = memory("turns", "add", "trip", "-", stdin=lines({"content": "one", "text": "two"}))
    assert answer.code == 2
    assert "line 1 contains a key twice" in answer.error


# --- turns forget


def test_forget_removes_a_turn_or_all_of_them(memory: Command, filled: None, home: Path) -> None:
    assert memory("turns", "forget", "trip", "--index", "1", "--yes").json["turns"] == 1
    assert contents(memory("turns", "show", "trip")) == [
        "when does the ferry leave?",
        "a ferry is a boat",
    ]
    assert memory("turns", "add", "trip", "a new one").json["turn_index"] == 3
    assert memory("turns", "forget", "trip", "--yes").json == {
        "conversation_id": "trip", "forgotten": True, "turns": 3, "also_in": [],
    }  # fmt: skip
    assert memory("turns", "list").json["results"] == []
    assert memory("search", "ferry", "--in", "history").json["results"] == []
    assert contents(memory("search", "ferry")) == ["The ferry is red"]
    assert all(b"boat" not in file.read_bytes() for file in home.rglob("*") if file.is_file())


@pytest.mark.parametrize("options", [["nowhere"], ["trip", "--index", "9"]])
def test_missing_turns_are_not_forgotten(memory: Command, filled: None, options: list[str]) -> None:
    answer = memory("turns", "forget", *options, "--yes")
    assert (answer.code, "not found" in answer.error) == (1, True)
    assert memory("status").json["turn_count"] == 3


def test_turns_forget_is_refused_without_a_terminal(memory: Command, filled: None) -> None:
    assert memory("turns", "forget", "trip").code == 2
    assert len(contents(memory("turns", "show", "trip"))) == 3


@pytest.mark.parametrize(("typed", "gone"), [("y\n", True), ("n\n", False)])
def test_forget_asks_for_confirmation_on_a_terminal(
    memory: Command, terminal: Command, filled: None, typed: str, gone: bool
) -> None:
    shown = terminal("turns", "forget", "trip", typed=typed)
    assert shown.code == (0 if gone else 1)
    assert "Permanently forget the conversation trip? [y/N]" in shown.out
    assert ("Permanently forgotten: 3 turns of trip" in shown.out) is gone
    assert ("Nothing was forgotten." in shown.out) is not gone
    assert memory("status").json["turn_count"] == (0 if gone else 3)


# --- titles, users and tags of conversations


@pytest.mark.usefixtures("filled")
def test_a_conversation_gets_a_title_a_user_and_tags(memory: Command) -> None:
    options = ["--title", "Ferries", "--user", "ann", "--tag", "project=sea", "-t", "team=blue"]
    changed = memory("turns", "update", "trip", *options).json
    assert (changed["title"], changed["user"], changed["tags"]) == (
        "Ferries",
        "ann",
        {"project": "sea", "team": "blue"},
    )
    assert memory("turns", "list").json["results"] == [changed]
    changed = memory("turns", "update", "trip", "--user", "", "--remove-tag", "team").json
    assert ("user" in changed, changed["tags"]) == (False, {"project": "sea"})
    shown = memory("turns", "list", "--format", "text").out
    assert "title=Ferries · project=sea" in shown
    for wrong in ([], ["--title", "a\nb"], ["--tag", "project"]):
        assert memory("turns", "update", "trip", *wrong).code == 2
    assert memory("turns", "update", "nowhere", "--title", "x").error == "Conversation not found"
    assert memory("turns", "update", "trip", "--title", "x", "-n", "bob").code == 1


@pytest.mark.usefixtures("filled")
def test_conversations_are_listed_in_pages_and_filtered_by_their_turns(memory: Command) -> None:
    for number in range(3):
        memory(
            "turns",
            "add",
            f"talk {number}",
            "hello",
            "--at",
            f"2026-06-0{number + 1}",
            "--speaker",
            f"S{number}",
        )
    first = memory("turns", "list", "--limit", "3").json
    assert [each["conversation_id"] for each in first["results"]] == ["talk 2", "talk 1", "talk 0"]
    rest = memory("turns", "list", "--limit", "3", "--cursor", first["next_cursor"]).json
    assert ([each["conversation_id"] for each in rest["results"]], rest["next_cursor"]) == (
        ["trip"],
        None,
    )
    assert "Next page: --cursor" in memory("turns", "list", "--limit", "1", "--format", "text").out
    memory("turns", "update", "talk 1", "--title", "Über uns", "--tag", "k=v")
    for options, expected in (
        (["--speaker", "S1"], ["talk 1"]),
        (["--role", "assistant"], ["trip"]),
        (["--since", "2026-06-02"], ["talk 2", "talk 1"]),
        (["--title", "über"], ["talk 1"]),
        (["--tag", "k=v"], ["talk 1"]),
        (["--user", "ann"], []),
    ):
        found = memory("turns", "list", *options).json["results"]
        assert [each["conversation_id"] for each in found] == expected, options


# --- while the store is down


def test_waiting_turns_are_shown_while_the_store_is_down(memory: Command, tmp_path: Path) -> None:
    down = "postgresql://nobody@127.0.0.1:1/memories"
    with MemoryGateway(down) as gateway:
        for number in range(2):
            with pytest.raises(ConnectionError):
                gateway.append_history(
                    "trip", "user", f"ferry {number}", 0, "2026-05-01T09:00:00+02:00", f"m{number}"
                )
    for command in ("tail", "show"):
        answer = memory("turns", command, "trip", "--store", down)
        shown = json.loads(answer.out)["results"]
        assert [(turn["content"], turn["waiting"], turn["turn_index"]) for turn in shown] == [
            ("ferry 0", True, 0), ("ferry 1", True, 1),
        ]  # fmt: skip
        assert (answer.code, "only turns waiting to be stored are shown" in answer.err) == (
            1,
            True,
        )
    listed = memory("turns", "list", "--store", down)
    [found] = json.loads(listed.out)["results"]
    assert (listed.code, found["conversation_id"], found["turn_count"], found["waiting_count"]) == (
        1,
        "trip",
        0,
        2,
    )
    assert (
        "waiting to be stored"
        in memory("turns", "tail", "trip", "--store", down, "--format", "text").out
    )
    assert memory("turns", "tail", "other", "--store", down).code == 1


def test_waiting_turns_come_last_and_are_never_shown_twice(memory: Command, home: Path) -> None:
    memory("turns", "add", "trip", "stored", "--message-id", "m0")
    with Memories() as found, MemoryGateway("memories", backend=MemoriesBackend(found)) as gateway:
        for entry in (("m0", "stored"), ("m1", "waits")):
            waiting = {
                "conversation_id": "trip",
                "role": "user",
                "turn_index": 0,
                "ts": "2026-05-01T09:00:00+00:00",
            }
            gateway.queue.add(
                waiting
                | {"message_id": entry[0], "text": entry[1], "channel": None, "speaker": "Ann"}
            )
        shown = memory("turns", "tail", "trip").json["results"]
        assert [(turn["id"], turn["content"], turn.get("waiting")) for turn in shown] == [
            ("trip#0", "stored", None), ("trip#1", "waits", True),
        ]  # fmt: skip
        assert contents(memory("turns", "tail", "trip", "--speaker", "Ann")) == ["waits"]
        assert contents(memory("turns", "tail", "trip", "--limit", "1")) == ["waits"]
        assert contents(memory("turns", "show", "trip", "--from", "1")) == ["waits"]
        [listed] = memory("turns", "list").json["results"]
        assert (listed["turn_count"], listed["waiting_count"]) == (1, 1)
        gateway.drain()
    assert contents(memory("turns", "tail", "trip")) == ["stored", "waits"]
    assert "waiting_count" not in memory("turns", "list").json["results"][0]


@pytest.mark.usefixtures("home")
def test_a_waiting_conversation_is_first_on_the_first_page_and_on_no_other() -> None:
    """A conversation that isn't stored yet has neither title nor user, so it matches no filter."""
    with Memories() as found, MemoryGateway("memories", backend=MemoriesBackend(found)) as gateway:
        for name in ("one", "two"):
            found.add_turns(name, ["stored"])
        waiting = {
            "conversation_id": "new",
            "role": "user",
            "turn_index": 0,
            "ts": "2026-05-01T09:00:00+00:00",
        }
        gateway.queue.add(
            waiting | {"message_id": "m", "text": "waits", "channel": None, "speaker": "Ann"}
        )
        assert {each.id for each in found.conversations()} == {"new", "one", "two"}
        first = found.list_conversations(limit=1)
        second = found.list_conversations(limit=1, cursor=first.next_cursor)
        assert first.conversations[0].id == "new"
        assert "new" not in {each.id for each in second.conversations}
        assert found.conversations(title="new") == found.conversations(user="ann") == []
