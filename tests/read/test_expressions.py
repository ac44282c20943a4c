"""The filter language: the meaning of expressions, and the position of errors."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.core.times import to_millis
from memories.errors import InvalidInput
from memories.guard.origin import Origin, stamp_labels
from memories.read.expressions import MAX_CHARACTERS, MAX_CONDITIONS, MAX_DEPTH
from memories.read.selector import Instant, Selector, parse
from memories.stores.records import Collection, Filter, Record, Ref
from tables import failures_of

NOW = datetime(2026, 2, 21, 10, tzinfo=UTC)
AT = Instant(NOW, 720)
ID = "01a1fdf1-92cd-72f2-8a3b-000000000001"
ORIGIN = Origin(
    "imported", "mcp", "claude-code", "claude-code 1.2", "ann", "laptop", "0.1.0", "bob"
)
MEMORY = Record(
    Ref(Collection.MEMORY, "bob", ID, 2),
    "Deploys happen on Tuesdays at the café",
    NOW - timedelta(days=3),
    key="shop\x1fdeploy/day",
    labels={
        **stamp_labels({"type": "fact", "project": "shop", "by": "me", "Role": "admin"}, ORIGIN),
        "=import": "a1b2",
    },
    fields={
        "first_at": to_millis(NOW - timedelta(days=30)),
        "decay": "contextual",
        "confidence": 0.4,
        "source": "standup#3",
        "suspicious": "orders",
    },
)
TURN = Record(
    Ref(Collection.HISTORY, "bob", "standup", 3),
    "We ship on Friday",
    NOW - timedelta(hours=2),
    key="standup\x1fm1",
    labels=stamp_labels({"role": "tool", "speaker": "Ann", "channel": "x"}, ORIGIN),
)


def selector(text: str, collection: Collection = Collection.MEMORY) -> Selector:
    """Parse an expression."""
    return parse(text, collection, AT)


def fits(text: str, record: Record = MEMORY) -> bool:
    """Return whether a record matches an expression."""
    return selector(text, record.ref.collection).fits(record)


def test_an_expression_matches_a_memory() -> None:
    texts = [
        "type = fact",
        "type=fact",
        "TYPE exists or type = 'fact'",
        'type = "fact"',
        "type = fa*",
        "project != web",
        "team != web",  # a memory without the tag isn't of that team
        "not team = web",
        "has(project)",
        "project exists",
        "not has(team)",
        "Role = admin",
        "not Role = user and not role = admin",  # tags are case-sensitive
        '"by" = me',
        'has("by")',
        "by = claude-code",
        "BY = claude-code",
        "by = claude*",
        'not by = "claude*"',
        "channel = mcp and trust = imported and user = ann and host = laptop and identity = bob",
        "client = 'claude-code 1.2'",
        "import = a1b2",
        "namespace = bob",
        f"id = {ID}",
        f"id = {ID.upper()}",
        "id = 01a1fdf1",
        "id = 01A1FDF192CD*",
        "key = deploy/day",
        "key = deploy/*",
        "key exists",
        "conversation = standup",
        "source = standup",
        "source = standup#3",
        "not source = standup#4",
        "not source = stand",
        "content ~ tuesdays",
        "content ~ 'TUESDAYS deploys'",
        "content ~ cafe",
        "content ~ tues*",
        "content !~ friday",
        "content ~ 'at the'",
        "not content ~ tues",
        "created < 2026-02-01",
        "created = 2026-01-22",
        "created = last month",
        "created <= 2026-01-22 and created >= 2026-01-22",
        "not created < 2026-01-22 and not created > 2026-01-22",
        "updated > 7d",
        "updated > '7d'",
        "updated < 2d",
        "since 7d",
        "since last week and until yesterday",
        "since = 2026-02-18",
        "until 2026-02-18",
        "not reinforced exists",
        "updated exists",
        "not reinforced < 2030-01-01",
        "confidence < 0.5",
        "base_confidence = 0.4",
        "version = 2 and version >= 2 and version > 1.5 and not version > 2",
        "access_count = 0",
        "decay = contextual",
        "suspicious",
        "not redacted",
        "not deleted and not pending and not superseded",
        "type = fact and project = web or type = fact",
        "type = web or type = fact and project = shop",
        "not (type = web or project = web)",
        "NOT NOT type = fact AND (project = shop OR project = web)",
        "((type = fact))",
    ]
    assert [text for text in texts if not fits(text)] == []
    assert [text for text in texts if fits(f"not ({text})")] == []


def test_an_expression_matches_a_turn() -> None:
    texts = [
        "role = tool",
        "speaker = Ann",
        "speaker = An*",
        "conversation = standup",
        "id = standup#3",
        "key = m1",
        "index = 3",
        "index < 4",
        "content ~ ship",
        "by = claude-code",
        "since 3h and not since 1h",
        "created > today or created = today",
        '"channel" = x',
    ]
    assert [text for text in texts if not fits(text, TURN)] == []
    assert [text for text in texts if fits(f"not ({text})", TURN)] == []


def refusal(text: object, collection: Collection = Collection.MEMORY) -> str:
    """Return the error of a refused expression; "" if it is accepted."""
    try:
        parse(text, collection, AT)  # type: ignore[arg-type]
    except InvalidInput as exc:
        return str(exc)
    return ""


def test_errors_in_expressions_name_the_position() -> None:
    rows = [
        ("type", 1, '"type" is not a condition; write type = VALUE, or type exists'),
        ("type = ", 8, "a value is missing at the end"),
        ("type = and project = x", 8, 'a value is missing before "and"'),
        ("type = fact project = x", 13, '"project" follows a condition'),
        ("(type = fact project = x)", 14, '"project" follows a condition'),
        ("type = fact and", 16, "a condition is missing before the end"),
        ("and type = fact", 1, 'a condition is missing before "and"'),
        ("= fact", 1, 'a condition is missing before "="'),
        ("(type = fact", 1, 'this "(" is not closed'),
        ("type = fact)", 12, 'there is no "(" for this ")"'),
        ("type = 'fact", 8, "this ' is not closed"),
        ("type = “fact”", 8, "“ is not a quote here"),
        ("type = a, b", 9, "a comma means nothing here"),
        ("type ! a", 6, '"!" is not an operator'),
        ("type < fact", 1, "type is text"),
        ("updated ~ 7d", 1, "updated is a time"),
        ("version !~ 2", 1, "version is a number"),
        ("key > x", 1, "key is text"),
        ("has(type", 5, 'put ")" after the name'),
        ("has()", 5, "has() takes the name of a tag"),
        ("updated > soon", 1, "not a date or time"),
        ("since", 6, "a value is missing"),
        ("project == shop", 10, "write a single =, as in type = fact"),
        ("since < 7d", 1, "since takes a time"),
        ("confidence < 2", 1, "confidence must be a number from 0 to 1"),
        ("version = many", 1, '"many" is not a number'),
        ("version = nan", 1, '"nan" is not a number'),
        ("trust = low", 1, 'trust is one of user, agent, captured, imported, not "low"'),
        ("decay = fast", 1, "decay is one of"),
        ("deleted = true", 1, "deleted takes no operator"),
        ("has(pending)", 5, "pending takes no operator"),
        ("created_at > 7d", 1, "created_at is called created in an expression"),
        ("decay_policy = stable", 1, "decay_policy is called decay"),
        ("suspicious = yes", 1, "suspicious takes no operator"),
        ("content ~ '!!!'", 1, "contains no words"),
        ('"=by" = x', 1, "tag key"),
        ("'a b' = x and 'a\tb' = x", 1, "tag key"),
        ("type = fact \x1b[31m", 13, "[31m"),
    ]
    failures = []
    for text, place, what in rows:
        said = refusal(text)
        if (
            not said.startswith(f"the expression in where is invalid at character {place}: ")
            or what not in said
            or not said.isprintable()
        ):
            failures.append(f"{text!r} is refused with {said!r}, not at {place} with {what!r}")
    assert failures == []


def test_turns_refuse_names_that_only_memories_have() -> None:
    texts = ["decay = stable", "confidence < 1", "pending", "not deleted", "source = x"]
    assert [text for text in texts if "turns" not in refusal(text, Collection.HISTORY)] == []


def test_anything_except_text_is_refused() -> None:
    texts = ["", "  ", None, 3, "x" * (MAX_CHARACTERS + 1)]
    assert [
        text for text in texts if not refusal(text).startswith("the expression in where is ")
    ] == []


def test_expressions_accept_unknown_channels() -> None:
    own = MEMORY._replace(labels=stamp_labels({}, ORIGIN._replace(channel="hermes")))
    assert fits("channel = hermes", own)
    assert not fits("channel = hermes")


def test_only_whole_words_are_found_in_any_script() -> None:
    rows = [
        ("We write C++ and C#", "c++", True),
        ("We write C++ and C#", "C#", True),
        ("We write C", "c++", False),
        ("user_id is an int", "user id", True),
        ("会议在东京都举行", "东京", True),
        ("会议在东京都举行", "京东", False),
        ("Straße", "STRASSE", True),
        ("\u212bngstr\xf6m", "angstrom", True),
        ("tuesday", "tue", False),
        ("Deploy 🚀 today", "🚀", True),
    ]
    assert (
        failures_of(
            rows, lambda text, words: fits(f"content ~ '{words}'", MEMORY._replace(text=text))
        )
        == []
    )


def test_depth_and_length_are_bounded() -> None:
    assert fits("(" * MAX_DEPTH + "type = fact" + ")" * MAX_DEPTH)
    assert fits(" and ".join(["type=fact"] * MAX_CONDITIONS))
    for text in (
        "(" * 2_000,
        "not " * 1_000 + "deleted",
        "(" * (MAX_DEPTH + 1) + "a = b" + ")" * (MAX_DEPTH + 1),
    ):
        with pytest.raises(InvalidInput, match="nested more than"):
            selector(text)
    with pytest.raises(InvalidInput, match="more than 200 conditions"):
        selector(" or ".join(["a=b"] * (MAX_CONDITIONS + 1)))


@given(st.text(alphabet="abn dort=!<>~()\"'\\.,*;#7", max_size=60) | st.text(max_size=60))
def test_arbitrary_text_is_parsed_or_refused(text: str) -> None:
    for record in (MEMORY, TURN):
        try:
            found = fits(text, record)
        except InvalidInput as exc:
            assert str(exc).startswith("the expression in where is ")
        else:
            assert found in (True, False)


@given(st.text(min_size=1, max_size=40))
def test_any_value_can_be_written_in_quotes(value: str) -> None:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    record = MEMORY._replace(labels={"note": value})
    assert fits(f'note = "{escaped}"', record)
    assert not fits(f'note = "{escaped}"', record._replace(labels={"note": f"{value}x"}))


def test_only_required_conditions_become_part_of_the_filter() -> None:
    base = Filter(Collection.MEMORY, ("bob",))
    found = selector(
        f"type = fact and by = claude-code and since 7d and until 1d and id = {ID}"
    ).narrow(base)
    assert found.labels == {"type": "fact", "=by": "claude-code"}
    assert (found.since, found.until, found.group) == (
        NOW - timedelta(days=7),
        NOW - timedelta(days=1),
        ID,
    )
    for open_ended in (
        "type = fact or a = b",
        "not type = fact",
        "type != fact",
        "type = fa*",
        "created > 7d",
        "updated exists",
    ):
        assert selector(open_ended).narrow(base) == base
    turns = selector("conversation = standup and speaker = Ann", Collection.HISTORY)
    assert turns.narrow(Filter(Collection.HISTORY, ("bob",))).group == "standup"


def test_an_expression_keeps_the_other_conditions_of_a_filter() -> None:
    base = Filter(Collection.MEMORY, ("bob",), labels={"type": "other"}, since=NOW)
    found = selector("type = fact and since 7d").narrow(base)
    assert (found.labels, found.since) == ({"type": "other"}, NOW)


def test_only_named_states_are_read() -> None:
    live = Filter(Collection.MEMORY, ("bob",))
    ended = {
        by: MEMORY._replace(ended_at=NOW, ended_by=by)
        for by in ("delete", "pending", "supersede", "update")
    }
    assert selector("type = fact").include_states(live) == live
    assert selector("deleted and type = fact").include_states(live) == live._replace(
        state="ended", ended_by="delete"
    )
    assert selector("deleted or type = fact").include_states(live).state == "any"
    for text, expected in {
        "type = fact": [],
        "deleted or type = fact": ["delete"],
        "(deleted or pending) and type = fact": ["delete", "pending"],
        "superseded": ["supersede"],
        "not pending": [],
    }.items():
        assert [by for by, record in ended.items() if selector(text).selects(record)] == expected
    assert selector("not deleted").selects(MEMORY)
    assert not selector("pending").selects(MEMORY)
