"""Bad inputs of the tools: each gets a result that says in one line what is wrong, and changes
nothing.

The numbers are those of the project's list of 84 bad inputs. Inputs that aren't valid requests are
tested with real streams, in `processes/test_mcp_stdio`.
"""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memories import Memories

MIB = 1_048_576
UNKNOWN = "01a1fdf1-92cd-72f2-8000-000000000000"
FUZZED = int(os.environ.get("FUZZ_EXAMPLES", "30"))
Calls = Iterator[tuple[str, Mapping[str, Any]]]

CALLS: list[tuple[str, str, Mapping[str, Any], str]] = [
    ("1", "create_memory", {"content": ""}, "content is empty"),
    ("2", "create_memory", {"content": "\u200b\u2060 "}, "content has no visible text"),
    (
        "3",
        "create_memory",
        {"content": "a" * (MIB + 1)},
        f"content is {MIB + 1} bytes; the limit is {MIB}",
    ),
    (
        "5",
        "create_memory",
        {"content": "abc\0def"},
        "content contains a NUL character at position 3",
    ),
    ("22", "get_history", {"id": UNKNOWN}, "Memory not found"),
    ("22", "delete_memory", {"id": UNKNOWN}, "Memory not found"),
    ("22", "get_history", {"id": "trip#0"}, "trip has no turn 0"),
    ("24", "get_history", {"id": "0" * 10_000}, "is not a memory id"),
    ("20", "update_memory", {"id": "' OR 1=1 --", "content": "x"}, "is not a memory id"),
    ("26", "search_memories", {"query": "q", "limit": -1}, "limit must be from 1 to 50, not -1"),
    ("26", "search_memories", {"query": "q", "limit": 0}, "limit must be from 1 to 50, not 0"),
    ("30", "search_memories", {"query": "q", "tags": ["a=b"]}, "tags: input should be an object"),
    ("26", "search_memories", {"query": "q", "limit": 10**9}, "limit must be at most"),
    ("26", "list_memories", {"limit": "abc"}, "limit: "),
    ("26", "list_memories", {"limit": 2**63}, "limit"),
    (
        "27",
        "list_memories",
        {"cursor": "9" * 5_000},
        "the cursor was not returned by an earlier list",
    ),
    (
        "28",
        "create_memory",
        {"content": "c", "confidence": 1.1},
        "confidence must be a number from 0 to 1",
    ),
    ("28", "create_memory", {"content": "c", "confidence": "high"}, "confidence: "),
    (
        "29",
        "create_memory",
        {"content": "c", "usr_id": "x"},
        'create_memory has no argument "usr_id"; it has content',
    ),
    ("29", "search_memories", {"query": "q", "k" * 5_000: 1}, "search_memories has no argument"),
    ("30", "create_memory", {"content": ["c"]}, "content: "),
    ("30", "create_memory", {"content": "c", "force": "perhaps"}, "force: "),
    ("30", "create_memory", {"content": "c", "tags": ["a"]}, "tags: "),
    ("30", "create_memory", {"content": "c", "tags": {"a": {"b": "c"}}}, "tags.a: "),
    (
        "31",
        "create_memory",
        {"content": "c", "tags": {f"k{n}": "v" for n in range(101)}},
        "tags were given; the limit",
    ),
    (
        "31",
        "create_memory",
        {"content": "c", "tags": {"k" * 65: "v"}},
        "tag key is 65 characters; the limit is 64",
    ),
    ("31", "create_memory", {"content": "c", "tags": {"a,b": "v"}}, "leave out spaces, commas"),
    ("52", "search_memories", {"query": ""}, "query is empty"),
    ("52", "search_memories", {"query": "   "}, "query has no visible text"),
    (
        "53",
        "search_memories",
        {"query": "q" * 100_000},
        "query is 100000 characters; the limit is 4096",
    ),
    ("55", "search_memories", {"query": "a\0b"}, "query contains a NUL character at position 1"),
    ("57", "search_memories", {"query": "q", "since": "2024-13-01"}, "not a date or time"),
    ("57", "search_memories", {"query": "q", "as_of": "x" * 5_000}, "not a date or time"),
    (
        "58",
        "search_memories",
        {"query": "q", "since": "2024-02-01", "until": "2024-01-01"},
        "since is later than until",
    ),
    ("24", "delete_memory", {"id": "2026-11-22/0000"}, "is not a memory id"),
    ("22", "delete_memory", {"id": "20261122-000000000000"}, "Memory not found"),
    ("30", "add_turns", {"conversation": "trip", "turns": "hello"}, "turns: "),
    ("30", "add_turns", {"conversation": "trip", "turns": []}, "send 1 to "),
    (
        "30",
        "add_turns",
        {"conversation": "trip", "turns": ["hello"]},
        "turns.0: input should be an object",
    ),
    (
        "30",
        "add_turns",
        {"conversation": "trip", "turns": [{"content": ["a"]}]},
        "turns.0.content: ",
    ),
    (
        "83",
        "add_turns",
        {"conversation": "trip", "turns": [{"content": "a"}, {}]},
        "add_turns needs turns.1.content",
    ),
    (
        "29",
        "add_turns",
        {"conversation": "trip", "turns": [{"content": "a", "k" * 5_000: 1}]},
        "has no argument",
    ),
    (
        "30",
        "add_turns",
        {"conversation": "trip", "turns": [{"content": "a", "role": "boss"}]},
        "turns.0.role: ",
    ),
    (
        "1",
        "add_turns",
        {"conversation": "trip", "turns": [{"content": "a"}, {"content": ""}]},
        "turn 2: content is",
    ),
    (
        "57",
        "add_turns",
        {"conversation": "trip", "turns": [{"content": "a", "at": "soon"}]},
        "not a date or time",
    ),
    ("1", "add_turns", {"conversation": " ", "turns": [{"content": "a"}]}, "conversation id"),
    (
        "31",
        "add_turns",
        {"conversation": "trip", "turns": [{"content": "a"}] * 1_001},
        "send 1 to 1000 at a time",
    ),
    (
        "27",
        "list_conversations",
        {"cursor": "9" * 5_000},
        "the cursor was not returned by an earlier list",
    ),
    ("26", "list_conversations", {"limit": 0}, "limit must be"),
    ("28", "update_memory", {"id": UNKNOWN, "confirm": "perhaps"}, "confirm: "),
    ("83", "create_memory", {}, "create_memory needs content"),
    ("83", "search_memories", {"query": "q", "scope": "everything"}, "scope: "),
    ("83", "get_context", {"query": "q", "max_tokens": "many"}, "max_tokens: "),
    ("52", "get_context", {"query": " "}, "query is empty"),
    ("84", "get_context", {"query": "q", "max_tokens": -5}, "tokens"),
]


@pytest.fixture
def memories(memories: Memories) -> Memories:
    """A store with one memory."""
    memories.create("The ferry leaves at nine")
    return memories


def answers(
    memories: Memories, calls: list[tuple[str, Mapping[str, Any]]]
) -> list[tuple[bool, str]]:
    """Make the calls over one connection; return for each whether it failed, and its text."""
    from mcp import Client
    from mcp_answers import server

    async def call_all() -> list[tuple[bool, str]]:
        said = []
        async with Client(server(memories), mode="auto") as client:
            for tool, arguments in calls:
                result = await client.call_tool(tool, dict(arguments))
                said.append(
                    (
                        bool(result.is_error),
                        "".join(getattr(part, "text", "") for part in result.content),
                    )
                )
        return said

    return asyncio.run(call_all())


def is_short_and_clean(said: str) -> bool:
    """Return whether an error is short, without control characters and without a traceback."""
    return (
        0 < len(said) < 400
        and "Traceback" not in said
        and not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|k{81}|9{81}|x{81}|0{81}", said)
    )


@pytest.mark.thorough
def test_a_bad_call_is_refused_and_changes_nothing(memories: Memories) -> None:
    before = memories.list()
    said = answers(memories, [(tool, arguments) for _, tool, arguments, _ in CALLS])
    for (row, tool, _, part), (failed, text) in zip(CALLS, said, strict=True):
        assert failed, (row, tool, text)
        assert part in text, (row, tool, text)
        assert is_short_and_clean(text), (row, tool, text)
    assert memories.list() == before
    assert memories.conversations() == []


def names_of_tools() -> st.SearchStrategy[str]:
    """Draw the name of a tool; only this imports the MCP SDK, which takes a second."""
    from memories.mcp.server import TOOLS

    return st.sampled_from(sorted(TOOLS))


value = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50)
anything = st.recursive(
    value, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner)
)
argument = st.sampled_from(
    "query content id tags limit since until as_of cursor scope key confidence x turns conversation confirm".split()
)


@settings(
    max_examples=FUZZED, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    calls=st.lists(
        st.tuples(st.deferred(names_of_tools), st.dictionaries(argument, anything, max_size=4)),
        max_size=8,
    )
)
@pytest.mark.thorough
def test_a_call_with_any_arguments_gets_an_answer(
    memories: Memories, calls: list[tuple[str, Mapping[str, Any]]]
) -> None:
    for failed, text in answers(memories, calls):
        assert "Traceback" not in text
        assert not failed or "\n" not in text, text
