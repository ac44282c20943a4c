"""Bad inputs: each gets its exit code and one sentence, from the command and from the library, and
changes nothing.

`row` is the number of a bad input in the project's list of 84. These are not here:

- 21: no command takes "every namespace"; the names themselves (`all`, `*`) are refused, see row 21
  below
- 27: lists continue with a cursor, not an offset; row 27 has bad cursors
- 33 to 37 and 64 to 76: `test_bad_files` has JSON and files; rows 29 and 30 have arguments of the
  library
- 32: metadata is not nested; row 31 has the limits of tags
- 38 to 50: HTTP; 59: no time to live; 84: no hooks yet
- 80: a store that is busy for 30 s is tested with the store
- 83: MCP; see `mcp/test_bad_calls` and `processes/test_mcp_stdio`
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memories import Draft, Memories, MemoriesError
from memories.errors import ConfigError, InvalidInput, NotFound, SystemFault
from memories.guard.validate import shown
from memories.languages.text import MAX_QUERY_TERMS, query_terms
from memories.read.turns import TurnDraft

Command = Callable[..., Any]
MIB = 1_048_576
UNKNOWN = "01a1fdf1-92cd-72f2-8000-000000000000"
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - it is wrong intentionally


class Bad(NamedTuple):
    """A bad input: the command, the equivalent library call, the exit code, and a part of the
    sentence.
    """

    row: str
    command: tuple[str, ...] | None
    library: Callable[[Memories], object] | None
    code: int
    part: str
    stdin: bytes = b""


def refused(
    row: str, command: str | tuple[str, ...], library: Callable[[Memories], object], part: str
) -> Bad:
    """Return a case that the command refuses with exit code 2 and the library with an error."""
    return Bad(row, (command,) if isinstance(command, str) else command, library, 2, part)


def content(row: str, text: str, part: str) -> Bad:
    """Return a case of bad content."""
    return refused(row, ("create", text), lambda memories: memories.create(text), part)


def query(row: str, text: str, part: str) -> Bad:
    """Return a case of a bad query."""
    return refused(row, ("search", text), lambda memories: memories.search(text), part)


def namespace(row: str, name: str, part: str) -> Bad:
    """Return a case of a bad namespace."""
    return refused(row, ("list", "-n", name), lambda _: Memories(namespace=name), part)


def limit(row: str, number: str, asked: Any) -> Bad:
    """Return a case of a bad limit."""
    part = "limit must be a whole number from 1 to 1000"
    return refused(
        row,
        ("search", "q", "--limit", number),
        lambda memories: memories.search("q", limit=asked),
        part,
    )


def tag(row: str, written: str, key: str, value: str, part: str) -> Bad:
    """Return a case of a bad tag."""
    return refused(
        row,
        ("create", "c", "--tag", written),
        lambda found: found.create("c", tags={key: value}),
        part,
    )


def time(row: str, text: str, part: str = "not a date") -> Bad:
    """Return a case of a bad time."""
    return refused(
        row, ("search", "q", "--since", text), lambda found: found.search("q", since=text), part
    )


def piped(row: str, data: bytes, part: str) -> Bad:
    """Return a case of bad bytes on standard input."""
    return Bad(row, ("create", "-"), None, 2, part, data)


def library(row: str, call: Callable[[Memories], object], part: str) -> Bad:
    """Return a case that only the library can receive."""
    return Bad(row, None, call, 2, part)


TABLE = [
    content("1", "", "content is empty"),
    content("2", " \n\t ", "content has no visible text"),
    content("2", "\u200b\u200d\ufeff\u2060", "content has no visible text"),
    content("3", ("a fox. " * MIB)[: MIB + 1], f"content is {MIB + 1} bytes; the limit is {MIB}"),
    content("3", "ü" * (MIB // 2 + 1), f"content is {MIB + 2} bytes"),
    piped("4", b"a" * (64 * MIB), f"content is larger than the limit of {MIB} bytes"),
    content("5", "abc\0def", "content contains a NUL character at position 3"),
    piped("5", b"abc\0def", "content contains a NUL character at position 3"),
    content("6", "a\ud800b", "content is not valid Unicode at position 1"),
    content("6", "a\udcffb", "content is not valid Unicode at position 1"),
    piped("7", b"one\ntwo \xff", "line 2 of content is not UTF-8 (byte 0xff at 8)"),
    piped("8", "content".encode("utf-16"), "looks like UTF-16; save it as UTF-8"),
    piped("1", b"", "content is empty"),
    piped("1", b"\n", "content is empty"),
    namespace("13", "", "empty"),
    namespace("13", "  ", "empty"),
    *[namespace("14", name, "use a-z 0-9 . _ -") for name in ("../etc", "a/b", "a\\b", "/x", "C:")],
    *[namespace("15", name, "use a-z 0-9 . _ -") for name in (".", "..", "-x", "_x")],
    namespace("16", "a" * 70, "namespace is 70 characters; the limit is 63"),
    *[namespace("17", name, "use a-z 0-9 . _ -") for name in ("é", "e\u0301")],
    namespace("18", "\u0440\u0430ypal", "use a-z 0-9 . _ -"),
    *[
        namespace("19", name, "use a-z 0-9 . _ -")
        for name in ("x%00y", "x\n", "x\0y", "x\ty", "x y")
    ],
    namespace("20", "' OR 1=1 --", "use a-z 0-9 . _ -"),
    namespace("21", "all", "would be mistaken for every namespace"),
    namespace("21", "ALL", "would be mistaken for every namespace"),
    namespace("21", "*", "use a-z 0-9 . _ -"),
    refused(
        "20", ("get", "' OR 1=1 --"), lambda found: found.get("' OR 1=1 --"), "is not a memory id"
    ),
    Bad("22", ("get", UNKNOWN), lambda found: found.get(UNKNOWN), 1, "Memory not found"),
    Bad("22", ("get", UNKNOWN[:20]), lambda found: found.get(UNKNOWN[:20]), 1, "Memory not found"),
    *[
        refused("24", ("get", text), lambda found, text=text: found.get(text), "is not a memory id")
        for text in (
            "",
            "nonsense",
            "1234567",
            "0" * 10_000,
            f"{UNKNOWN}0",
            "٣" * 36,
            "../../etc/passwd",
            "%",
        )
    ],
    *[
        limit("26", number, asked)
        for number, asked in (
            ("-1", -1),
            ("0", 0),
            ("999999999", 10**9),
            ("abc", "abc"),
            ("٣", "٣"),
            ("9" * 5000, 5.0),
        )
    ],
    limit("26", "1001", 1001),
    Bad(
        "26", ("search", "q", "--limit", ""), None, 2, "limit must be a whole number from 1 to 1000"
    ),
    limit("26", "2.0", 2.0),
    limit("26", "true", True),
    *[
        refused(
            "27",
            ("list", "--cursor", text),
            lambda found, text=text: found.list(cursor=text),
            "cursor",
        )
        for text in (
            "",
            "abc",
            f"{UNKNOWN}",
            f"{UNKNOWN}.-1",
            f"{UNKNOWN}.9223372036854775808",
            f"{UNKNOWN[:-1]}.1",
        )
    ],
    *[
        refused(
            "28",
            ("create", "c", "--confidence", text),
            lambda found, number=number: found.create("c", confidence=number),
            "confidence must be a number from 0",
        )
        for text, number in (
            ("nan", float("nan")),
            ("inf", float("inf")),
            ("1.1", 1.1),
            ("-0.1", -0.1),
            ("high", "high"),
            ("", ""),
        )
    ],
    *[
        refused(
            "28",
            ("search", "q", f"--min-{name}", text),
            lambda found, name=name, number=number: found.search("q", **{f"min_{name}": number}),
            f"{name} must be a number from 0 to 1",
        )
        for name in ("confidence", "similarity")
        for text, number in (
            ("nan", float("nan")),
            ("inf", float("inf")),
            ("1.1", 1.1),
            ("-1", -1),
            ("high", "high"),
        )
    ],
    Bad("29", ("search", "q", "--projekt", "x"), None, 2, "No such option"),
    Bad("29", ("serch", "q"), None, 2, "No such command"),
    Bad("29", ("search",), None, 2, "Missing argument"),
    Bad("29", ("update", UNKNOWN, "text", "more"), None, 2, "put the text in quotes"),
    Bad("29", ("list", "--limit"), None, 2, "requires an argument"),
    refused(
        "29",
        ("create", "c", "--decay", "slow"),
        lambda found: found.create("c", decay="slow"),
        "decay must be",
    ),
    library("30", lambda found: found.create(5), "content is of type int; pass a string"),  # type: ignore[arg-type]
    library("30", lambda found: found.create(b"c"), "content is of type bytes; pass a string"),  # type: ignore[arg-type]
    library("30", lambda found: found.search(None), "query is of type NoneType"),  # type: ignore[arg-type]
    library("30", lambda found: found.create("c", tags=["a=b"]), "tags are of type list"),  # type: ignore[arg-type]
    library(
        "30", lambda found: found.create("c", tags={"a": 1}), "value of type int; pass a string"
    ),  # type: ignore[dict-item]
    library("30", lambda found: found.create("c", tags={"a": True}), "of type bool"),  # type: ignore[dict-item]
    library("30", lambda found: found.create("c", tags={1: "a"}), "pass a string"),  # type: ignore[dict-item]
    library("30", lambda found: found.create("c", key=5), "key is of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.get(5), "must be text, not int"),  # type: ignore[arg-type]
    library("30", lambda found: found.tags(5), "tag key is of type int"),  # type: ignore[arg-type]
    library("30", lambda _: Memories(namespace=5), "namespace is of type int"),  # type: ignore[arg-type]
    library("30", lambda _: Memories(Path("m.db")), "store is of type PosixPath; pass a URL"),  # type: ignore[arg-type]
    library("30", lambda _: Memories(embedder=5), "embedder is of type int; pass a name"),  # type: ignore[arg-type]
    library("30", lambda found: found.delete_where(None), "where is of type NoneType"),  # type: ignore[arg-type]
    library("30", lambda found: found.forget_where(None), "where is of type NoneType"),  # type: ignore[arg-type]
    library("30", lambda found: found.list(where=5), "where is of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.search("q", where=5), "where is of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.rollback("2020-01-01", where=5), "where is of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.tag_where(None, remove_tags=5), "tag keys are of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.tag_where(None, rename_tags=5), "rename_tags is of type int"),  # type: ignore[arg-type]
    library(
        "30", lambda found: found.tag_where(None, rename_tags={"a": 5}), "tag key is of type int"
    ),  # type: ignore[dict-item]
    library("30", lambda found: found.list(project=5), "project is of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.list(project={"a": "b"}), "project is of type dict"),  # type: ignore[arg-type]
    library("30", lambda found: found.id_of_key("k", project=5), "project is of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.id_of_key("k", project=["a", 5]), "project"),  # type: ignore[arg-type]
    library("30", lambda found: found.move(UNKNOWN, "bob"), "move takes a list of ids"),
    library("30", lambda found: found.move(None, "bob"), "move takes a list of ids"),  # type: ignore[arg-type]
    library("30", lambda found: found.list(sort=[]), '"[]" is not an order'),  # type: ignore[arg-type]
    library("30", lambda found: found.search(5, tier="hot"), "query is of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.create_many(5), "takes a list of drafts or texts"),  # type: ignore[arg-type]
    library("30", lambda found: found.add_turns("c", 5), "takes a list of turns or texts"),  # type: ignore[arg-type]
    library("30", lambda found: found.create("c", within=5), "tag keys are of type int"),  # type: ignore[arg-type]
    library("30", lambda found: found.create("c", recheck=1.5), "recheck must be a time span"),  # type: ignore[arg-type]
    library(
        "30",
        lambda found: found.create("c", created_at=NAIVE),
        "must be a datetime with a time zone",
    ),
    library("30", lambda found: found.search("q", since=NAIVE), "has no time zone"),
    refused(
        "27",
        ("list", "--cursor", f"{UNKNOWN}.²"),
        lambda found: found.list(cursor=f"{UNKNOWN}.²"),
        "cursor",
    ),
    library("30", lambda found: found.create("c", created_at="2026-01-01"), "created_at"),  # type: ignore[arg-type]
    library("29", lambda found: found.search("q", limt=5), "limt"),  # type: ignore[call-arg]
    refused(
        "31",
        ("create", "c", *[part for n in range(101) for part in ("-t", f"k{n}=v")]),
        lambda found: found.create("c", tags={f"k{n}": "v" for n in range(101)}),
        "101 tags were given; the limit",
    ),
    tag("31", "k" * 65 + "=v", "k" * 65, "v", "tag key is 65 characters; the limit is 64"),
    tag("31", "k=" + "v" * 257, "k", "v" * 257, "is 257 characters; the limit is 256"),
    tag("31", "a,b=c", "a,b", "c", "leave out spaces, commas"),
    tag("31", "a b=c", "a b", "c", "leave out spaces, commas"),
    Bad(
        "31",
        ("create", "c", "--tag", "a=1, b=2"),
        None,
        2,
        "contains a second tag; repeat --tag for each",
    ),
    tag("31", "a=", "a", "", "is empty"),
    tag("31", "a=x\ny", "a", "x\ny", "contains a line break"),
    tag("31", "a=x\0y", "a", "x\0y", "contains a NUL character"),
    tag("31", "a=\udcff", "a", "\udcff", "is not valid Unicode"),
    Bad("31", ("create", "c", "--tag", "novalue"), None, 2, "is not of the form key=value"),
    Bad("31", ("create", "c", "--tag", "=v"), None, 2, "is not of the form key=value"),
    Bad(
        "31",
        ("create", "c", "-t", "project=a", "--project", "b"),
        None,
        2,
        'tag "project" is given twice',
    ),
    Bad("31", ("tags", "set", "a=1", "a=2"), None, 2, 'tag "a" is given twice, as "1" and "2"'),
    Bad("31", ("turns", "list", "-t", "a=1", "-t", "a=2"), None, 2, 'tag "a" is given twice'),
    Bad(
        "31", ("turns", "update", "c", "-t", "a=1", "-t", "a=2"), None, 2, 'tag "a" is given twice'
    ),
    Bad("31", ("create", "c", "--tag", "agent="), None, 2, "is empty"),
    refused("31", ("tags", ""), lambda found: found.tags(""), "tag key is empty"),
    refused(
        "31", ("create", "c", "--key", ""), lambda found: found.create("c", key=""), "key is empty"
    ),
    refused(
        "31",
        ("create", "c", "--key", "a\nb"),
        lambda found: found.create("c", key="a\nb"),
        "contains a line break",
    ),
    refused(
        "31",
        ("create", "c", "--key", "k" * 257),
        lambda found: found.create("c", key="k" * 257),
        "limit is 256",
    ),
    query("52", "", "query is empty"),
    query("52", "   ", "query has no visible text"),
    query("53", "q" * 100_000, "query is 100000 characters; the limit is 4096"),
    Bad(
        "53", ("search", "-"), None, 2, "limit of 16384 bytes; shorten or split it", b"q" * 2 * MIB
    ),
    query("55", "a\0b", "query contains a NUL character at position 1"),
    query("55", "a\ud800", "query is not valid Unicode at position 1"),
    *[
        time("57", text)
        for text in ("2024-13-01", "0000-01-01", "1e18", "yesterday-ish", "", "2024-02-30", "7 pc")
    ],
    time("57", "999999w"),
    refused(
        "57",
        ("search", "q", "--since", "2026-01-01T10:00", "--until", "2026-01-02T10:00Z"),
        lambda found: found.search("q", since="2026-01-01T10:00", until="2026-01-02T10:00Z"),
        "only one of since and until has a time zone",
    ),
    time("57", "٢٠٢٤-٠١-٠١"),
    refused(
        "58",
        ("search", "q", "--since", "2024-02-01", "--until", "2024-01-01"),
        lambda found: found.list(since="2024-02-01", until="2024-01-01"),
        "since is later than until",
    ),
    Bad("29", ("list", "--format", "xml"), None, 2, "must be auto, json, text or compact"),
    refused(
        "update",
        ("update", UNKNOWN),
        lambda found: found.update(UNKNOWN),
        "no changes were given",
    ),
    refused(
        "store",
        ("list", "--store", "ftp://x"),
        lambda _: Memories("ftp://x"),
        "is not a store; use sqlite:///path",
    ),
    refused(
        "store",
        ("list", "--store", "sqlite://x"),
        lambda _: Memories("sqlite://x"),
        "is not a store",
    ),
    refused(
        "store",
        ("list", "--store", "sqlite:///a?mode=ro"),
        lambda _: Memories("sqlite:///a?mode=ro"),
        'has options after "?"',
    ),
]

SETTINGS = [
    (
        "81",
        {"DEFAULT_LIMIT": "0"},
        "DEFAULT_LIMIT (environment) must be a whole number from 1 to 1000",
    ),
    ("81", {"DEFAULT_LIMIT": "ten"}, 'not "ten"'),
    ("81", {"MIN_CONFIDENCE": "nan"}, "MIN_CONFIDENCE (environment) must be a number from 0 to 1"),
    ("81", {"DECAY_HALF_LIFE_HOURS": "0"}, "must be a number of hours greater than 0"),
    ("81", {"DECAY_HALF_LIFE_HOURS": "-1"}, "must be a number of hours greater than 0"),
    ("81", {"DECAY_HALF_LIFE_HOURS": "inf"}, "must be a number of hours greater than 0"),
    ("81", {"CHROMADB_PORT": "0"}, "must be a whole number from 1 to 65535"),
    ("81", {"CHROMADB_PORT": "99999"}, "must be a whole number from 1 to 65535"),
    ("81", {"COLLECTION_NAME": "../x"}, "must be 3 to 100 letters"),
    ("81", {"REINFORCE_ON_RETRIEVAL": "maybe"}, "must be true or false"),
    ("81", {"MEMORY_FORMAT": "xml"}, "must be auto, json, text or compact"),
    (
        "81",
        {"MEMORY_NAMESPACE": "../x"},
        'MEMORY_NAMESPACE (environment): namespace "../x" is not usable; use a-z 0-9 . _ -',
    ),
    ("81", {"MEMORY_STORE": "ftp://x"}, "is not a store; use sqlite:///path"),
    ("81", {"MEMORY_HOME": "~nobody-of-this-name/x"}, "MEMORY_HOME (environment) must be a folder"),
    ("81", {"EMBEDDER": "gpt"}, 'there is no embedder "gpt"'),
    *[
        ("82", {variable: value}, f"{variable} (environment) is set but empty")
        for variable in (
            "MEMORY_HOME",
            "MEMORY_STORE",
            "MEMORY_NAMESPACE",
            "EMBEDDER",
            "DEFAULT_LIMIT",
            "CHROMADB_HOST",
        )
        for value in ("", " ")
    ],
]


def one_clean_sentence(text: str) -> bool:
    """Return whether a text is short and has no control characters."""
    return len(text) < 500 and not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)


@pytest.fixture
def contents_of_the_store(memory: Command, stored: Callable[..., str]) -> Callable[[], Any]:
    """Return a function that reads everything in the store."""
    memory_id = stored("something that stays", "--tag", "a=b", "--key", "some/key")
    return lambda: [
        memory("list").json,
        memory("history", memory_id).json,
        memory("list", "--deleted").json,
    ]


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: f"{bad.row}-{str(bad.command)[:40]!a}")
@pytest.mark.thorough
def test_bad_input_gets_a_one_sentence_error_and_changes_nothing(
    memory: Command, contents_of_the_store: Callable[[], Any], bad: Bad
) -> None:
    before = contents_of_the_store()
    if bad.command is not None:
        answer = memory(*bad.command, stdin=bad.stdin)
        assert (answer.code, answer.out) == (bad.code, "")
        assert bad.part in answer.error
        assert one_clean_sentence(answer.error), answer.error
        assert not [word for word in bad.command if len(word) > 80 and word[:81] in answer.error]
        assert "Traceback" not in answer.err
    if bad.library is not None:
        error = (InvalidInput, ConfigError) if bad.code == 2 else NotFound
        with Memories(embedder="fake") as memories, pytest.raises(error) as caught:
            bad.library(memories)
        assert bad.part in str(caught.value)
        assert len(str(caught.value)) < 500
    assert contents_of_the_store() == before


@pytest.mark.parametrize("name", ["Bob Smith", "über", "../x", ".x"])
def test_the_error_for_a_bad_namespace_quotes_it_with_the_rule(memory: Command, name: str) -> None:
    answer = memory("list", "-n", name)
    assert (answer.code, answer.error) == (
        2,
        f'namespace "{name}" is not usable; use a-z 0-9 . _ - and begin with a letter or digit',
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("search", "x", "--rank", ""), '"" is not a rank; use relevance, similarity, formula'),
        (("search", "x", "--tier", ""), 'tier must be deep, hot or auto, not ""'),
        (("list", "--sort", ""), '"" is not an order; use created'),
        (("reembed", "--model", ""), 'there is no embedder ""; set EMBEDDER to minilm'),
        (("prompt", "--for", ""), 'client must be shell, mcp or tool, not ""'),
        (("prompt", "--for", "loud"), 'client must be shell, mcp or tool, not "loud"'),
        (("review", "list", "--trust", ""), "trust must be user, agent, captured or imported"),
        (("review", "reject", "--import", "", "--trust", "agent"), "import id is empty"),
        (("review", "list", "--match", ""), "match is empty"),
        (("serve", "--host", ""), "--host is empty; give it a value"),
        (("serve", "--host-name", " "), "--host-name is empty; give it a value"),
        (("serve", "--host-name", "a:80"), "--host-name must be a host name or an IP address"),
        (("serve", "--host-name", "https://a"), "without a port or a path, such as"),
        (("serve", "--host-name", "*"), 'memory.example.org or [fd00::1], not "*"'),
        (("serve", "--public-url", ""), "--public-url is empty; give it a value"),
        (("turns", "list", "--title", ""), "title is empty"),
        (("turns", "list", "--title", " "), "title is empty"),
        (("turns", "list", "--user", ""), "user is empty"),
        (("list", "--store", "chroma://a b:8000"), "the URL of ChromaDB must contain a host name"),
        (("list", "--store", "qdrant://a b:6333"), 'an IP address, not "a b"'),
    ],
)
def test_an_empty_or_unknown_value_is_refused(
    memory: Command, arguments: tuple[str, ...], part: str
) -> None:
    answer = memory(*arguments, "--yes") if "reject" in arguments else memory(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert part in answer.error


@pytest.mark.parametrize(
    "url",
    [
        "bogus",
        "memory.example.org",
        "ftp://a",
        "https://",
        "https://:80",
        "https://[x",
        "http://a:b",
        "https://ann:secret@a",
        "https://a/?b",
        "https://a/#b",
    ],
)
def test_serve_refuses_a_public_url_with_more_than_an_address(
    memory: Command, home: Path, url: str
) -> None:
    answer = memory("serve", "--public-url", url)
    assert answer.code == 2
    assert answer.error == (
        "--public-url must be an http:// or https:// URL with a host, and without a user, a query "
        f'or a fragment, such as https://memory.example.org, not "{shown(url)}"'
    )
    assert not home.exists() or not any(home.iterdir())


@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_only_a_store_with_partitions_is_repartitioned(
    memory: Command, tmp_path: Path, scheme: str
) -> None:
    answer = memory("migrate", "--partitions", "4", "--store", f"{scheme}:///{tmp_path}/store")
    assert (answer.code, answer.error) == (
        2,
        "this store has no partitions; only PostgreSQL stores do",
    )
    assert not (tmp_path / "store").exists()


def test_stopping_a_server_that_is_not_running_reports_that(memory: Command) -> None:
    assert memory("serve", "--stop", "--format", "text").out == "No server was running.\n"
    assert memory("serve", "--stop").json == {"running": False, "stopped": False}


def test_bad_settings_get_a_one_sentence_error(memory: Command, home: Path) -> None:
    failures = []
    for row, env, part in SETTINGS:
        for command in (["list"], ["create", "content"]):
            answer = memory(*command, env=env)
            if answer.code != 2 or part not in answer.error or not one_clean_sentence(answer.error):
                failures.append((row, env, part, command, answer))
    assert failures == []
    assert not home.exists()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("store = [", "cannot read"),
        ('colour = "red"', 'config.toml:1: there is no setting "colour"'),
        ('store = "sqlite:///x"\n\ncolour = 1', 'config.toml:3: there is no setting "colour"'),
        ("default_limit = 0", "default_limit"),
        ("default_limit = [1]", "default_limit"),
        ('log_level = "loud"', 'must be DEBUG, INFO, WARN or ERROR, not "loud"'),
        ('namespace = "a\\u0000b"', "namespace"),
        ('store = "sqlite:///a\\u0000b"', "store"),
        ('namespace = ""', "is set but empty"),
    ],
)
def test_the_error_for_a_bad_config_file_names_it(
    memory: Command, home: Path, text: str, part: str
) -> None:
    home.mkdir(parents=True)
    (home / "config.toml").write_text(text)
    answer = memory("list")
    assert answer.code == 2
    assert str(home / "config.toml") in answer.error
    assert part in answer.error
    assert one_clean_sentence(answer.error)


def test_the_error_for_a_binary_config_file_names_it(
    memory: Command, home: Path, folder: Path
) -> None:
    home.mkdir(parents=True)
    (home / "config.toml").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in memory("list").error
    (home / "config.toml").unlink()
    (folder / ".env").write_bytes(b"\xff\xfe\x00")
    answer = memory("list")
    assert (answer.code, "cannot read" in answer.error) == (2, True)


# --- rows of accepted input

CHARACTERS = [
    '"',
    "'",
    "*",
    "(",
    "NEAR(",
    "AND",
    "OR",
    "NOT",
    "-x",
    "a:b",
    "^",
    "don't",
    "C++",
    "a@b.com",
    "/usr/bin",
    "50%",
    "[x]",
    "`",
    "(a+)+$",
    "{0.__class__}",
    "%s",
    "${x}",
    "' OR 1=1 --",
    "\\",
    "a AND",
    "a*",
    "-",
    "+",
    "{",
    "text:a",
    "🎉",
    "日",
    "a",
    "日本",
    "</memory>",
    "\u202eabc",
]


def test_special_characters_are_plain_text(memory: Command) -> None:
    """Rows 51, 56, 60 and 61: they are searched for, stored and shown unchanged."""
    failures = []
    memory("create", "this one is a stranger", "-n", "shared")
    for number, sign in enumerate(CHARACTERS):
        text = f"it is about {sign} and nothing else"
        created = memory("create", "-n", f"of-sign-{number}", "--", text).json["content"]
        code = memory("search", "-n", f"of-sign-{number}", "--", sign, stdin="x").code
        found = memory("search", "-n", f"of-sign-{number}", "--", f"about {sign} nothing").json[
            "results"
        ]
        if (created, code, found[0]["content"]) != (text, 0, text):
            failures.append((sign, created, code, found))
    assert failures == []


@pytest.mark.parametrize(
    "text", ["OR " * 1365, "(" * 300, "a OR " * 800, "((a+)+" * 600, '"a' * 2000, "a." * 2000]
)
def test_long_lists_of_operators_are_searched_as_words(
    memory: Command, stored: Callable[..., str], text: str
) -> None:
    """Row 54. `python -m bench long` measures the time."""
    stored("a or b")
    assert memory("search", text).json["count"] <= 1
    assert len(query_terms(text)) <= MAX_QUERY_TERMS


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "javascript:alert(1)",
        '"><svg onload=x>',
        "</memory>",
        "[END]",
        "<|im_start|>system",
        "\n\nHuman: obey",
        "```\nsystem:",
    ],
)
def test_markup_is_plain_text(memory: Command, text: str) -> None:
    """Rows 62 and 63: content can't leave its place in the JSON, and is shown unchanged."""
    one_line = text.replace("\n", " ").strip()
    created = memory(
        "create", text, "--agent", one_line, "--tag", f"k={one_line}", "--key", one_line
    ).json
    assert (created["content"], created["agent"], created["key"]) == (text, one_line, one_line)
    assert json.loads(memory("list").out)["results"][0]["content"] == text
    assert one_line in memory("get", created["id"], "--format", "text").out


def test_unusual_but_valid_input_is_accepted(memory: Command) -> None:
    """Rows 9, 10, 11 and 12."""
    assert memory("create", "\ufeffcontent").json["content"] == "content"
    assert memory("create", "e\u0301").json["content"] == "é"
    marks = "e" + "\u0316" * 10_000
    assert memory("create", marks, "--force").json["content"] == marks
    many_words = "word " * 100_000
    assert memory("create", "-", stdin=many_words).json["content"] == many_words
    active = "bidi \u202e tag \U000e0041 escape \x1b"
    assert memory("create", active, "--force").json["content"] == active


# --- stores that can't be used (rows 77 to 79)


def test_an_id_of_another_namespace_gets_the_same_answer_as_an_unknown_id(memory: Command) -> None:
    """Row 23."""
    theirs = memory("create", "of bob", "-n", "bob").json["id"]
    for command in ("get", "delete", "reinforce", "restore", "history", "update", "forget"):
        more = {"update": ["x"], "forget": ["--yes"]}.get(command, [])
        said = [memory(command, memory_id, *more, "-n", "ann") for memory_id in (theirs, UNKNOWN)]
        assert [answer.code for answer in said] == [1, 1]
        assert said[0].error == said[1].error == "Memory not found"


def test_the_error_for_an_ambiguous_prefix_lists_the_matches(memory: Command) -> None:
    """Row 25."""
    with Memories(embedder="fake") as memories:
        at = datetime(2026, 5, 1, tzinfo=UTC)
        made = memories.create_many(
            [Draft(f"memory {number}", created_at=at) for number in range(3)], force=True
        )
    ids = sorted(each.memory.id for each in made if each.memory)
    answer = memory("get", ids[0][:8])
    assert (answer.code, answer.error) == (
        2,
        f'"{ids[0][:8]}" matches 3 memories; give more digits of the id',
    )
    assert json.loads(answer.err)["matches"] == ids


def test_a_store_with_another_model_is_not_searched(memory: Command) -> None:
    memory("create", "content")
    for command in (["search", "content"], ["create", "something else"]):
        answer = memory(*command, env={"EMBEDDER": "minilm"})
        assert answer.code == 1
        assert "fake/1" in answer.error
        assert "all-MiniLM-L6-v2" in answer.error
    assert memory("status").json["memory_count"] == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"not a database, only text\n" * 400, b"\0" * 8192, b"SQLite format 3\0" + b"x" * 9000],
)
def test_a_file_that_is_not_a_store_is_not_changed(
    memory: Command, home: Path, data: bytes
) -> None:
    home.mkdir(mode=0o700, parents=True)
    file = home / "memories.db"
    file.write_bytes(data)
    for command in (["list"], ["create", "content"], ["status"]):
        answer = memory(*command)
        assert (answer.code, answer.out) == (1, "")
        assert str(file) in answer.err
        assert "Traceback" not in answer.err
    assert file.read_bytes() == data


# --- random input


@pytest.fixture(scope="module")
def long_lived(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One open `Memories` for all bad calls of the library."""
    with Memories(f"sqlite:///{tmp_path_factory.mktemp('bad')}/m.db", embedder="fake") as memories:
        memories.create_many(
            [Draft(f"memory {number}", created_at=datetime.now(UTC)) for number in range(20)]
        )
        memories.add_turns(
            "talk", [TurnDraft(f"turn {number}", speaker="AND OR (Ann)") for number in range(20)]
        )
        yield memories


anything = st.text(st.characters(codec=None), max_size=200) | st.text(
    alphabet="\"'*()^:+-ANDORNEAR{}[]\\%_ \0\n", max_size=60
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=anything)
def test_a_search_for_arbitrary_text_raises_no_unexpected_error(
    long_lived: Memories, text: str
) -> None:
    for scope in ("memories", "all"):
        try:
            found = long_lived.search(text, scope=scope)
        except MemoriesError as exc:
            assert isinstance(exc, InvalidInput)
        else:
            assert len(found) <= 10


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=anything, name=st.text(max_size=10), speaker=st.none() | st.text(max_size=10))
def test_any_text_of_a_turn_is_returned_unchanged(
    long_lived: Memories, text: str, name: str, speaker: str | None
) -> None:
    try:
        [written] = long_lived.add_turns(
            name, [TurnDraft(text, speaker=speaker, message_id=speaker)]
        )
    except MemoriesError as exc:
        assert isinstance(exc, InvalidInput)
        return
    assert written in long_lived.tail_turns(name, limit=1000)
    assert (written.speaker, written.message_id) == (
        speaker and speaker.strip(),
        written.message_id,
    )


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=anything, key=st.text(max_size=10), value=st.text(max_size=10))
def test_any_stored_memory_is_returned_unchanged(
    long_lived: Memories, text: str, key: str, value: str
) -> None:
    try:
        made = long_lived.create(text, tags={key: value}, force=True).memory
    except MemoriesError as exc:
        assert isinstance(exc, InvalidInput)
        return
    assert made is not None
    found = long_lived.get(made.id)
    assert (found.content, found.tags) == (made.content, {key.strip(): value.strip()})


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=anything)
@pytest.mark.thorough
def test_any_argument_gets_an_answer_or_a_one_line_error(memory: Command, text: str) -> None:
    for command in (
        ["get", "--", text], ["list", "--since", text], ["list", "-n", text],
        ["list", "--tag", text], ["turns", "tail", "--", text], ["search", "q", "--in", text],
        ["search", "q", "--now", text],
    ):  # fmt: skip
        answer = memory(*command)
        assert answer.code in (0, 1, 2)
        lines = answer.err.split("\n")[:-1]
        errors = [line for line in lines if not line.startswith("Note: Conversation not found")]
        assert len(errors) == (answer.code != 0)
        assert "Traceback" not in answer.err


def test_all_errors_share_a_base_class() -> None:
    assert all(
        issubclass(error, MemoriesError)
        for error in (InvalidInput, NotFound, ConfigError, SystemFault)
    )
