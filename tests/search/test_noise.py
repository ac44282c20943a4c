"""A text with half of a question's words in one place is not noise, even if they are deep in a long
text.
"""

from collections.abc import Iterator

import pytest

from memories import Memories, TurnDraft
from memories.search import noise

FILLED = (
    "The queue holds a token for each page of the list, and the cache keeps the log of a run. " * 60
)
CODE = "```python\ndef frobnicate_widget(x):\n    return x * 42\n```"
# after all windows of the model
LONG = f"{FILLED * 7}\n{CODE}\nDr. Quimby approved the zebra migration.\n{FILLED}"


@pytest.fixture(scope="module", params=["fake", pytest.param("minilm", marks=pytest.mark.thorough)])
def memories(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Memories]:
    """A store with one long memory and one long turn; no test changes it."""
    url = f"sqlite:///{tmp_path_factory.mktemp('noise')}/m.db"
    with Memories(url, embedder=request.param, namespace="shared") as opened:
        opened.create(LONG)
        opened.add_turns("c", [TurnDraft(LONG, role="assistant")])
        yield opened


@pytest.mark.parametrize("query", ["frobnicate_widget", "who approved the zebra migration?"])
@pytest.mark.parametrize("scope", ["memories", "history"])
def test_words_deep_in_a_long_text_are_found(query: str, scope: str, memories: Memories) -> None:
    assert len(memories.search(query, scope=scope)) == 1  # one part of a long message is shown


@pytest.mark.parametrize("scope", ["memories", "history"])
def test_nonsense_finds_nothing_in_a_long_text(scope: str, memories: Memories) -> None:
    assert not memories.search("xqzv wrtplk bvnmq", scope=scope)


def test_a_long_text_is_read_at_its_beginning_and_around_the_words() -> None:
    start = noise._HEAD_LENGTH
    plain = "x" * start
    assert noise._excerpt(plain, ["x"]) is plain
    near = noise._excerpt(f"{plain}y", ["y", "z"])
    assert near == f"{plain} {'x' * noise._AROUND}y"
    long = f"{'x' * (start - noise._AROUND)}zebra{'x' * 2 * start}"
    assert noise._excerpt(long, ["zebra"]).split(" ")[1:] == [
        f"zebra{'x' * noise._AROUND}"[: noise._AROUND]
    ]
