"""A search for the exact words of a memory finds it first, among long and similar memories."""

from pathlib import Path

from memories import Memories


def test_a_memory_with_exactly_the_query_words_comes_first(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake") as memories:
        texts = [
            f"{number:04x} of the ledger " + "with more words " * (number % 40)
            for number in range(600)
        ]
        memories.create_many(texts, force=True)
        for text in texts[39::40]:
            hits = memories.search(text, limit=5)
            assert hits[0].memory.content == text
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert memories.search(texts[79].upper() + " ", limit=1)[0].memory.content == texts[79]
