"""Random input for the command: the result is an answer or one sentence, never a traceback.

FUZZ_EXAMPLES is the number of examples in each test; thousands take minutes.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from memories.cli import COMMANDS
from memories.connect.status import StartCheck

Command = Callable[..., Any]
some = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

HEADER = b'{"format":"memories","version":1}\n'
LINE = {
    "collection": "memory", "namespace": "shared", "group": "01a1fdf1-92cd-72f2-8000-0123456789ab", "position": 1,
    "text": "content", "created_at": "2026-05-01T09:00:00.000Z", "ended_at": "2026-05-02T09:00:00.000Z",
    "ended_by": "delete", "key": "a/b", "session": 0, "labels": {"k": "v"}, "fields": {"decay": "stable"},
    "accesses": 3, "vectors": ["AACAPwAAAAA="],
}  # fmt: skip
TURN = {
    "content": "hello",
    "role": "user",
    "speaker": "Ann",
    "created_at": "2026-05-01",
    "message_id": "a",
    "index": 3,
}
COLLECTIONS = ["memory", "history", "x"]
OPTIONS = [
    "--limit", "--since", "--until", "--as-of", "--cursor", "--tag", "--project", "--key", "--decay", "--confidence",
    "--supersedes", "--in", "--conversation", "--now", "--min-confidence", "--min-similarity", "--index", "--from",
    "--role", "--speaker", "--at", "--message-id", "--namespace", "--remove-tag", "--format", "--explain", "--deleted",
    "--force", "--yes", "--no-shared", "--all-namespaces", "--dry-run", "-n", "-t", "-", "--", "--help",
]  # fmt: skip
# These need a protocol or a long time, or write to a file named by an argument.
LEFT_OUT = {"migrate", "reembed", "export", "import", "hook"}
# These run until they are stopped, so they get arguments that they refuse before they start.
ENDLESS = {"serve", "mcp", "chat"}

text = st.text(st.characters(codec=None), max_size=40)
scalar = st.none() | st.booleans() | st.integers() | st.floats() | text
anything = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't start a server or a hook to check a connection, since that takes too long on a busy
    machine.
    """
    works = StartCheck(("search_memories",), 0.5, "sqlite:////x/memories.db", 1)
    monkeypatch.setattr("memories.cli.connect.check_connection", lambda _: works)
    monkeypatch.setattr("memories.cli.connect.check_connections", list)


def check_ending(answer: Any) -> None:
    """Check that a run ended with an answer, or with one sentence."""
    assert answer.code in (0, 1, 2, 3)
    assert "Traceback" not in answer.err
    if answer.code in (1, 2):
        wrong = (
            json.loads(answer.out).get("errors", ()) if answer.out.startswith("{") else ()
        )  # an answer for several memories may be partial
        assert answer.err.count("\n") == max(1, len(wrong)), answer.err
        assert len(answer.err) < 1_000


def changed(shape: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Return lines of JSON that resemble a valid one, with changed values, missing keys or missing
    bytes.
    """
    values = st.dictionaries(st.sampled_from(list(shape)) | text, anything, max_size=3)
    kept = st.lists(st.sampled_from(list(shape)), min_size=len(shape) - 2, unique=True)
    lines = st.builds(
        lambda names, other: json.dumps({name: shape[name] for name in names} | other), kept, values
    )
    return st.builds(
        lambda line, cut: line.encode()[: len(line) - cut], lines, st.just(0) | st.integers(0, 20)
    )


@some
@given(
    lines=st.lists(changed(LINE) | st.binary(max_size=60), max_size=4),
    collection=st.sampled_from(COLLECTIONS),
)
def test_arbitrary_lines_are_imported_or_refused(
    memory: Command, lines: list[bytes], collection: str
) -> None:
    data = HEADER + b"\n".join(lines).replace(
        b'"collection": "memory"', f'"collection": "{collection}"'.encode()
    )
    check_ending(memory("import", "-", "--all-namespaces", stdin=data))
    check_ending(memory("list", "--limit", "1000"))
    check_ending(memory("export", "--all-namespaces"))


@some
@given(start=st.binary(max_size=300))
def test_arbitrary_files_are_refused(memory: Command, start: bytes) -> None:
    answer = memory("import", "-", stdin=start)
    check_ending(answer)
    assert answer.code == 2 or not start.strip()


@pytest.mark.thorough
@some
@given(lines=st.lists(changed(TURN) | st.binary(max_size=60), max_size=4))
def test_arbitrary_turns_are_stored_or_refused(memory: Command, lines: list[bytes]) -> None:
    check_ending(memory("turns", "add", "trip", "-", stdin=b"\n".join(lines)))
    check_ending(memory("turns", "tail", "trip"))


word = st.sampled_from(OPTIONS) | st.text(
    st.characters(codec=None, exclude_characters="\0"), max_size=20
)


def finite_command(command: str, words: list[str]) -> list[str]:
    """Return the words of a command that exits by itself."""
    return [command, *words, *(["--", "too", "many"] if command in ENDLESS else [])]


@some
@given(
    command=st.sampled_from([name for name in COMMANDS if name not in LEFT_OUT]),
    words=st.lists(word, max_size=6),
    data=st.binary(max_size=20),
)
@example(command="serve", words=["--no-http"], data=b"")
@example(command="chat", words=["--demo"], data=b"")
@example(command="mcp", words=[], data=b"")
@example(command="edit", words=["-"], data=b"")
@example(command="connect", words=["claude-code"], data=b"")
def test_arbitrary_words_after_a_command_get_an_answer_or_a_one_sentence_error(
    memory: Command, command: str, words: list[str], data: bytes
) -> None:
    check_ending(memory(*finite_command(command, words), stdin=data))


@some
@given(words=st.lists(st.text(max_size=10), max_size=3))
@example(words=["serve", "--no-http"])
def test_arbitrary_words_get_an_answer_or_a_one_sentence_error(
    memory: Command, words: list[str]
) -> None:
    if not words or words[0] not in LEFT_OUT:
        check_ending(memory(*finite_command(words[0], words[1:]) if words else ()))
