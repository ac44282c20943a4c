"""Long texts: how the time to read a text grows with its length, and the cost of a question full of
operators.
"""

import tempfile
import time
from functools import partial

from bench import report
from memories import Memories
from memories.languages.text import index_text, query_terms

PARTS = ("a", "don't ", "a.", ".", "a-", '"a ', "字", "🎉", "a#", "+", "x_1/")
LENGTH, TIMES, ROUNDS = 50_000, 8, 3
TARGET = 2 * TIMES  # between linear growth, TIMES, and quadratic growth, TIMES * TIMES
QUESTIONS = ("OR " * 1365, "(" * 300, "a OR " * 800, "((a+)+" * 600, '"a' * 2000, "a." * 2000)


def run(rounds: int) -> None:
    """Print a table of texts and one of questions.

    Args:
        rounds: How often each is read; the shortest time counts.
    """
    report.heading(f"Texts of one part repeated, {LENGTH:,} characters and {TIMES} times as many")
    rows = []
    for part in PARTS:
        short, long = (
            _least(rounds, partial(_read, part * (size // len(part))))
            for size in (LENGTH, LENGTH * TIMES)
        )
        rows.append(
            (
                f"`{part}`",
                f"{short:.1f}",
                f"{long:.1f}",
                f"{long / short:.1f}",
                _verdict(long / short),
            )
        )
    report.table(["part", "ms", f"ms, {TIMES} × longer", "ratio", f"target: ≤ {TARGET}"], rows)
    report.heading("Questions full of operators, beside a question of one word")
    with (
        tempfile.TemporaryDirectory() as folder,
        Memories(f"sqlite:///{folder}/m.db", embedder="fake") as memories,
    ):
        memories.create("a or b")
        plain = _least(rounds, partial(memories.search, "b"))
        rows = []
        for question in QUESTIONS:
            taken = _least(rounds, partial(memories.search, question))
            rows.append(
                (f"`{question[:8]}…`", f"{len(question):,}", f"{taken:.2f}", f"{taken / plain:.1f}")
            )
        report.table(["question", "characters", "ms", "ratio"], rows)


def _read(text: str) -> None:
    query_terms(text)
    index_text(text)


def _least(rounds: int, call: partial[object]) -> float:
    """Return the minimum CPU time in milliseconds, which other processes change less than wall
    time.
    """
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        call()
        taken.append((time.process_time() - begun) * 1000)
    return min(taken)


def _verdict(ratio: float) -> str:
    return "met" if ratio <= TARGET else "missed"
