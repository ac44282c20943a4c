"""What has half of a question's words in one place is no noise, wherever in a long text they stand."""

from pathlib import Path

import pytest

from memories import Memories, TurnDraft

FILLED = "The queue holds a token for each page of the list, and the cache keeps the log of a run. " * 60
CODE = "```python\ndef frobnicate_widget(x):\n    return x * 42\n```"
LONG = f"{FILLED * 8}\n{CODE}\nDr. Quimby approved the zebra migration.\n{FILLED * 8}"


@pytest.mark.parametrize("query", ["frobnicate_widget", "who approved the zebra migration?"])
@pytest.mark.parametrize("scope", ["memories", "history"])
def test_what_stands_deep_in_a_long_text_is_found(query: str, scope: str, tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="minilm") as memories:
        memories.create(LONG)
        memories.add_turns("c", [TurnDraft(LONG, role="assistant")])
        assert len(memories.search(query, scope=scope)) == 1  # one part of a long message is shown
        assert not memories.search("xqzv wrtplk bvnmq", scope=scope)
