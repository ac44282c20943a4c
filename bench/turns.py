"""Conversations: the cost of appending a turn as they grow, and the time of a search in many turns."""

import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from bench import corpus as corpora
from bench import report
from bench.corpus import Corpus
from memories import Memories, TurnDraft, load_config

CONVERSATIONS = 50
SPEAKERS = ("Annelore", "Bartolome", "Crescentia")  # names that occur in no text
QUERIES = 1_500
_BATCH = 500
_APPENDED = 40  # number of single turns that are timed at each length
_LENGTHS = (100, 10_000, 100_000)  # lengths, as far as there are enough texts
_START = datetime(2024, 1, 1, tzinfo=UTC)


def run(file: Path, count: int, timed: int) -> None:
    """Measure both, and print the tables.

    Args:
        file: Texts, one per line.
        count: How many turns to search.
        timed: With how many queries.
    """
    corpus = corpora.load(file, count, QUERIES)
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder:
        config = load_config({"home": str(Path(folder).absolute())}, environment={})
        with Memories(config=config, embedder=corpus.embedder) as memories:
            _fill(memories, corpus)
            _print_searches(memories, corpus, timed)
            _print_appends(memories, corpus)


def _fill(memories: Memories, corpus: Corpus) -> None:
    for at in range(0, len(corpus.texts), _BATCH):
        name = f"conversation {at // _BATCH % CONVERSATIONS}"
        memories.add_turns(name, list(_drafts(corpus.texts[at : at + _BATCH], at)))


def _drafts(texts: Sequence[str], first: int) -> Iterator[TurnDraft]:
    """Yield turns half a minute apart, with a pause of two hours after every thirtieth."""
    for place, text in enumerate(texts, first):
        said_at = _START + timedelta(seconds=30 * place, hours=2 * (place // 30))
        yield TurnDraft(text, speaker=SPEAKERS[place % len(SPEAKERS)], created_at=said_at)


def _print_searches(memories: Memories, corpus: Corpus, timed: int) -> None:
    report.heading(
        f"Search of {len(corpus.texts):,} turns in {CONVERSATIONS} conversations, {timed} queries, limit 10"
    )
    rows = []
    for name, queries in (
        ("a short query (5 words)", corpus.shorts),
        ("a whole sentence", corpus.statements),
    ):
        for where, filters in (
            ("all", {}),
            ("one conversation", {"conversation": "conversation 7"}),
        ):
            search = partial(memories.search, scope="history", limit=10, **filters)
            for query in queries[-20:]:
                search(query)
            times = [report.milliseconds(partial(search, query)) for query in queries[:timed]]
            rows.append((f"{name}, {where}", *report.p50_p95(times)))
    report.table(["search", "p50 ms", "p95 ms"], rows)


def _print_appends(memories: Memories, corpus: Corpus) -> None:
    """Time single turns at the end of conversations of different lengths, alternately."""
    lengths = [length for length in _LENGTHS if length <= len(corpus.texts)]
    for length in lengths:
        memories.add_turns(f"of {length}", list(_drafts(corpus.texts[:length], 0)))
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for text in corpus.statements[:_APPENDED]:
        for length, taken in times.items():
            append = partial(
                memories.add_turns, f"of {length}", [TurnDraft(text, speaker=SPEAKERS[0])]
            )
            taken.append(report.milliseconds(append))
    report.heading("One more turn at the end of a conversation, in the same store, one flush each")
    first = report.percentile(times[lengths[0]], 0.5)
    report.table(
        ["turns before", "p50 ms", "p95 ms", "ratio"],
        [
            (f"{length:,}", *report.p50_p95(taken), f"{report.percentile(taken, 0.5) / first:.2f}")
            for length, taken in times.items()
        ],
    )
